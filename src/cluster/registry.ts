import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { MillraceError } from '../errors.js';
import type { Native } from '../native/binding.js';
import { errnoName, measureLimits, nativeError, systemError } from '../native/faults.js';
import {
  decodeDomain,
  encodeDomain,
  isIncarnation,
  lockName,
  parseFileName,
  rootFolder,
  socketName,
  stagedName,
  userId,
} from './paths.js';

/**
 * The registry folder of a domain: who is a member, told by files and by locks that the kernel drops.
 *
 * Rules (R30; they make joins and leaves at the same time, and a kill between any two of their steps, harmless):
 * - A member is visible (`m-*.lock`) only once its lock is held and its socket listens: both are prepared under a staged
 *   name, and the rename publishes them. So a visible file whose lock is free belonged to a dead member, always.
 * - The files of the dead are removed by whoever comes across them; the presence file goes last, so that a remover that is
 *   killed half-way leaves what the next one needs. Incarnations are never used again, so removing twice finds nothing.
 * - Whoever leaves removes its own files, then the folder, which succeeds for the last one only.
 */

/** The longest path that a Unix socket's address can hold (`sun_path` has 108 bytes with the final zero). */
export const SUN_PATH = 107;
/** Attempts to create the folder while others keep removing it. */
const ATTEMPTS = 1000;

/** What a member wrote into its presence file. */
export interface PresenceNote {
  readonly pid: number;
  readonly name: string;
  /** When it joined, in ms since the epoch. */
  readonly started: number;
}

/** One incarnation as its files show it. */
export interface RegistryEntry {
  readonly incarnation: number;
  /** False: nobody holds its lock, what is there is left over. */
  readonly alive: boolean;
  /** It is still being made. */
  readonly staged: boolean;
  readonly files: readonly string[];
}

/** What a removal found. */
export interface Removed {
  members: number;
  files: number;
  bytes: number;
}

/** A member's own entry in the registry, from {@link Registration.stage} to {@link Registration.remove}. */
export class Registration {
  private removed = false;
  private published = false;

  private constructor(
    private readonly native: Native,
    private readonly base: string,
    /** The domain's folder. */
    readonly folder: string,
    readonly incarnation: number,
    /** The folder's inode: the domain's identity on this host. */
    readonly inode: number,
    private readonly token: number,
    private readonly descriptor: number,
  ) {}

  /**
   * Creates the folder if need be, and a staged presence file with its lock held. Synchronous.
   * @throws MillraceError with the cause; nothing is left behind then
   */
  static stage(native: Native, base: string, domain: string, note: PresenceNote): Registration {
    measureLimits();
    const name = encodeDomain(domain);
    const root = rootFolder(base);
    const folder = join(root, name);
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      makeFolder(root, base);
      // Another one may be removing the folder, or our staged file, at this moment: then we begin again.
      if (!makeFolder(folder, base)) continue;
      const incarnation = newIncarnation();
      const path = join(folder, stagedName(incarnation));
      let token: number;
      try {
        token = native.lockPresence(path);
      } catch (error) {
        const code = errnoName(error);
        if (code === 'ENOENT' || code === 'EAGAIN') continue;
        // What is said of the file system is how it was then.
        const failure =
          code === 'ENOSPC' || code === 'EMFILE' || code === 'EACCES'
            ? systemError('create the presence file', path, base, error)
            : nativeError(`lock the presence file ${path}`, native, error);
        removeFolders(folder);
        throw failure;
      }
      let descriptor: number | undefined;
      try {
        fs.writeFileSync(path, JSON.stringify(note), { flag: 'r+' });
        descriptor = fs.openSync(folder, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
        const inode = fs.fstatSync(descriptor).ino;
        // Our file is in it, so nobody can remove the folder any more; it is the one at the path unless somebody renamed it.
        if (fs.statSync(path).nlink > 0 && fs.statSync(folder).ino === inode) {
          return new Registration(native, base, folder, incarnation, inode, token, descriptor);
        }
      } catch (error) {
        if (errnoName(error) !== 'ENOENT') {
          const failure = systemError('write the presence file', path, base, error);
          unlink(path);
          abandon(native, token, descriptor);
          removeFolders(folder);
          throw failure;
        }
      }
      unlink(path);
      abandon(native, token, descriptor);
    }
    throw new MillraceError(
      'ERR_REGISTRY',
      `Could not register in ${folder}: it was removed ${ATTEMPTS} times while it was being used. ` +
        'Look for a program that deletes it.',
      { retryable: true },
    );
  }

  /**
   * Where to bind a socket of this folder: its path, or, where that is longer than an address can hold, the same place
   * seen from our descriptor of the folder.
   * @throws MillraceError `ERR_SOCKET_PATH`
   */
  socketAddress(incarnation: number): string {
    return socketAddress(this.folder, this.descriptor, incarnation);
  }

  /**
   * Makes the member visible. Call it when its socket listens.
   * @returns false when the staged file was taken away: a sweeper looked at it just before it was locked. Begin again.
   */
  publish(): boolean {
    const from = join(this.folder, stagedName(this.incarnation));
    const to = join(this.folder, lockName(this.incarnation));
    try {
      fs.renameSync(from, to);
    } catch (error) {
      if (errnoName(error) === 'ENOENT') return false;
      throw systemError('publish the presence file', from, this.base, error);
    }
    this.published = true;
    return true;
  }

  /** Whether the folder at our path still is the one that we are in, with our file in it. */
  isIntact(): boolean {
    try {
      const own = this.published ? lockName(this.incarnation) : stagedName(this.incarnation);
      return fs.statSync(this.folder).ino === this.inode && fs.statSync(join(this.folder, own)).isFile();
    } catch {
      return false;
    }
  }

  /** Removes our files and drops the lock, then the folder if we were the last. Idempotent; never throws. */
  remove(): void {
    if (this.removed) return;
    this.removed = true;
    removeMember(this.native, this.folder, this.incarnation);
    abandon(this.native, this.token, this.descriptor);
    // What others left staged, or left behind, would keep the folder for ever if we are the last one.
    sweep(this.native, this.folder);
    removeFolders(this.folder);
  }
}

/** See {@link Registration.socketAddress}; for those who are not members. */
export function socketAddress(folder: string, descriptor: number, incarnation: number): string {
  const path = join(folder, socketName(incarnation));
  const bytes = Buffer.byteLength(path, 'utf8');
  if (bytes <= SUN_PATH) return path;
  // Names relative to a descriptor need no chdir, which would be wrong with several threads.
  const seen = `/proc/self/fd/${descriptor}`;
  if (fs.existsSync(seen)) return join(seen, socketName(incarnation));
  throw new MillraceError(
    'ERR_SOCKET_PATH',
    `The control socket's path ${path} takes ${bytes} bytes, a Unix socket's address holds ${SUN_PATH}, and /proc, ` +
      'which would give it a shorter name, is not mounted. Set MILLRACE_SHM_DIR to a folder with a shorter path, or ' +
      'use a shorter domain name.',
    { details: { bytes, limit: SUN_PATH } },
  );
}

/** All that is in a domain's folder, by incarnation. Empty when there is no folder. */
export function scan(native: Native, folder: string): RegistryEntry[] {
  const files = new Map<number, string[]>();
  for (const name of list(folder)) {
    const file = parseFileName(name);
    if (file === undefined) continue;
    const known = files.get(file.incarnation);
    if (known === undefined) files.set(file.incarnation, [name]);
    else known.push(name);
  }
  const entries: RegistryEntry[] = [];
  for (const [incarnation, names] of files) {
    // The staged name first: it becomes the other one, never the other way round.
    const staged = isHeld(native, join(folder, stagedName(incarnation)));
    const alive = staged || isHeld(native, join(folder, lockName(incarnation)));
    entries.push({ incarnation, alive, staged, files: names });
  }
  return entries.sort((a, b) => a.incarnation - b.incarnation);
}

/** Whether an incarnation lives: its lock is held. A file that cannot be looked at counts as held (R5). */
export function isAlive(native: Native, folder: string, incarnation: number): boolean {
  return (
    isHeld(native, join(folder, lockName(incarnation))) ||
    isHeld(native, join(folder, stagedName(incarnation)))
  );
}

/** Whether somebody holds a lock on a file. What cannot be looked at counts as held (R5). */
export function isHeld(native: Native, path: string): boolean {
  try {
    return native.isPresent(path);
  } catch {
    return true;
  }
}

/** Removes what the dead left. @returns the living, and what was removed */
export function sweep(native: Native, folder: string): { living: RegistryEntry[]; removed: Removed } {
  const removed: Removed = { members: 0, files: 0, bytes: 0 };
  const living: RegistryEntry[] = [];
  for (const entry of scan(native, folder)) {
    if (entry.alive) living.push(entry);
    else if (removeMember(native, folder, entry.incarnation, entry.files, removed)) removed.members += 1;
  }
  return { living, removed };
}

/**
 * Removes files of an incarnation, its presence file last. Never throws. The files of its pool go only when nobody holds a
 * block of it any more: otherwise with the last who does (R17).
 * @param names those that were seen before the lock was found free, and no other: a file that was seen then belongs to
 *   the dead, while one that has appeared since may belong to a member that was only being made
 * @returns whether there was any
 */
export function removeMember(
  native: Native,
  folder: string,
  incarnation: number,
  names: readonly string[] = list(folder).filter((name) => parseFileName(name)?.incarnation === incarnation),
  sum: Removed = { members: 0, files: 0, bytes: 0 },
): boolean {
  const before = sum.files;
  const presence = [stagedName(incarnation), lockName(incarnation)];
  const found = [...names]
    .sort((a, b) => presence.indexOf(a) - presence.indexOf(b))
    .map((name) => ({ name, path: join(folder, name), pool: parseFileName(name)?.kind === 'pool' }))
    .map((file) => ({ ...file, bytes: fs.lstatSync(file.path, { throwIfNoEntry: false })?.size }));
  if (found.some(({ pool }) => pool)) native.sweepPool(folder, incarnation);
  for (const { path, pool, bytes } of found) {
    if (bytes === undefined || !(pool ? !fs.existsSync(path) : unlink(path))) continue;
    sum.files += 1;
    sum.bytes += bytes;
  }
  return sum.files > before;
}

/** Removes a domain's folder and the folder above, each if it is empty. */
export function removeFolders(folder: string): void {
  for (const path of [folder, dirname(folder)]) {
    try {
      fs.rmdirSync(path);
    } catch (error) {
      // Not empty: somebody is in there. Gone: another one was quicker, but may have been killed before the next step.
      if (errnoName(error) !== 'ENOENT') return;
    }
  }
}

/** Reads a presence file. Whatever a stranger wrote there, the result has the right types. */
export function readNote(folder: string, entry: RegistryEntry): PresenceNote {
  let value: Partial<Record<keyof PresenceNote, unknown>> = {};
  try {
    const name = entry.staged ? stagedName(entry.incarnation) : lockName(entry.incarnation);
    value = JSON.parse(readStart(join(folder, name))) ?? {};
  } catch {
    // Gone meanwhile, or not written yet.
  }
  return {
    pid: Number.isSafeInteger(value.pid) ? (value.pid as number) : 0,
    name: typeof value.name === 'string' ? value.name : '?',
    started: typeof value.started === 'number' && Number.isFinite(value.started) ? value.started : 0,
  };
}

/** The first 4 KiB of a file, whatever it is: a FIFO has nothing, and is not waited for. */
function readStart(path: string): string {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = fs.constants;
  const file = fs.openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  try {
    const bytes = Buffer.alloc(4096);
    return bytes.toString('utf8', 0, fs.readSync(file, bytes));
  } finally {
    fs.closeSync(file);
  }
}

/** The domains of a user that have a folder, members or not. */
export function listDomains(base: string, uid: number = userId()): string[] {
  return list(rootFolder(base, uid))
    .map(decodeDomain)
    .filter((domain) => domain !== undefined)
    .sort();
}

/** Names in a folder; none when it cannot be read. */
export function list(folder: string): string[] {
  try {
    return fs.readdirSync(folder);
  } catch {
    return [];
  }
}

/** Removes a file. @returns whether it was there and is not any more */
function unlink(path: string): boolean {
  try {
    fs.unlinkSync(path);
    return true;
  } catch {
    return false;
  }
}

function abandon(native: Native, token: number, descriptor: number | undefined): void {
  native.unlockPresence(token);
  if (descriptor !== undefined) fs.closeSync(descriptor);
}

/** A random number in 1..2^53-1: 53 bits, so that it is an exact number in JavaScript and never used again. */
function newIncarnation(): number {
  for (;;) {
    const bytes = randomBytes(8);
    const value = (bytes.readUInt32LE(0) & 0x1fffff) * 2 ** 32 + bytes.readUInt32LE(4);
    if (isIncarnation(value)) return value;
  }
}

/**
 * Makes sure that a folder of ours is there: mode 0700, owned by us, not a link.
 * @returns false when the folder above it vanished meanwhile
 */
function makeFolder(path: string, base: string): boolean {
  try {
    fs.mkdirSync(path, { mode: 0o700 });
    fs.chmodSync(path, 0o700); // whatever the umask took away
  } catch (error) {
    const code = errnoName(error);
    if (code === 'ENOENT' && dirname(path) !== base) return false;
    if (code !== 'EEXIST') throw systemError('create the registry folder', path, base, error);
  }
  const found = fs.lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return false;
  const uid = userId();
  const mode = (found.mode & 0o777).toString(8).padStart(4, '0');
  const wrong = found.isSymbolicLink()
    ? 'is a symbolic link'
    : !found.isDirectory()
      ? 'is not a folder'
      : found.uid !== uid
        ? `belongs to user ${found.uid}, and this process runs as user ${uid}`
        : mode !== '0700'
          ? `has mode ${mode}, so that others could change what is in it; it must be 0700`
          : undefined;
  if (wrong === undefined) return true;
  throw new MillraceError(
    'ERR_FOLDER_OWNER',
    `The registry folder ${path} ${wrong}. ` +
      (found.isDirectory() && found.uid === uid
        ? `Run chmod 700 ${path}, or set MILLRACE_SHM_DIR to another folder.`
        : 'Remove it as its owner, or set MILLRACE_SHM_DIR to a folder of your own.'),
    { details: { path, owner: found.uid, uid, mode } },
  );
}
