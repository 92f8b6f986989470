import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { otherFabrics, otherLayouts } from '../../src/cluster/layouts.js';
import { lockName, parseFileName, rootFolder, stagedName } from '../../src/cluster/paths.js';
import {
  isAlive,
  listDomains,
  Registration,
  readNote,
  removeFolders,
  SUN_PATH,
  scan,
  socketAddress,
  sweep,
} from '../../src/cluster/registry.js';
import { MillraceError } from '../../src/errors.js';
import { ClusterNative, dropLock } from '../support/cluster-native.js';

const note = { pid: 11, name: 'n', started: 5 };
let base: string;
let native: ClusterNative;

beforeEach(() => {
  base = fs.mkdtempSync(join(tmpdir(), 'millrace-registry-'));
  native = new ClusterNative();
});
afterEach(() => fs.rmSync(base, { recursive: true, force: true }));

const stage = (domain = 'd') => Registration.stage(native, base, domain, note);
const member = (domain = 'd') => {
  const registration = stage(domain);
  expect(registration.publish()).toBe(true);
  return registration;
};
const caught = (run: () => unknown): MillraceError => {
  try {
    run();
  } catch (error) {
    expect(error).toBeInstanceOf(MillraceError);
    return error as MillraceError;
  }
  throw new Error('nothing was thrown');
};

describe('a registration', () => {
  test('is staged, then visible, then gone with its folders', () => {
    const one = stage();
    expect(fs.statSync(one.folder).mode & 0o777).toBe(0o700);
    expect(fs.statSync(rootFolder(base)).mode & 0o777).toBe(0o700);
    expect(fs.readdirSync(one.folder)).toEqual([stagedName(one.incarnation)]);
    expect(scan(native, one.folder)).toMatchObject([
      { incarnation: one.incarnation, alive: true, staged: true },
    ]);
    expect(one.publish()).toBe(true);
    expect(fs.readdirSync(one.folder)).toEqual([lockName(one.incarnation)]);
    const [entry] = scan(native, one.folder);
    expect(entry).toMatchObject({ alive: true, staged: false });
    expect(readNote(one.folder, entry!)).toEqual(note);
    expect(one.isIntact()).toBe(true);
    one.remove();
    one.remove();
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('the last one to leave removes the folder, nobody before', () => {
    const [one, two] = [member(), member()];
    one.remove();
    expect(scan(native, two.folder).map((entry) => entry.incarnation)).toEqual([two.incarnation]);
    two.remove();
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('other domains keep the root', () => {
    const [one, two] = [member('a'), member('b/c')];
    expect(listDomains(base)).toEqual(['a', 'b/c']);
    one.remove();
    expect(listDomains(base)).toEqual(['b/c']);
    two.remove();
  });

  test('notices that somebody removed the folder', () => {
    const one = member();
    fs.rmSync(one.folder, { recursive: true });
    expect(one.isIntact()).toBe(false);
    fs.mkdirSync(one.folder);
    expect(one.isIntact()).toBe(false);
    one.remove();
  });

  test('a folder that vanishes at the worst moment is made again', () => {
    let times = 3;
    const lock = native.lockPresence.bind(native);
    native.lockPresence = (path) => {
      if (times > 0) {
        times -= 1;
        removeFolders(join(path, '..'));
      }
      return lock(path);
    };
    const one = member();
    expect(one.isIntact()).toBe(true);
    one.remove();
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('a folder that vanishes for ever is an error, not a loop', () => {
    native.lockPresence = (path) => {
      removeFolders(join(path, '..'));
      throw Object.assign(new Error('gone'), { code: 'ENOENT' });
    };
    expect(caught(() => stage())).toMatchObject({ code: 'ERR_REGISTRY', retryable: true });
  });

  test('a staged file that a sweeper takes before it is locked means: begin again', () => {
    const lock = native.lockPresence.bind(native);
    let first = true;
    native.lockPresence = (path) => {
      const token = lock(path);
      if (first) fs.unlinkSync(path);
      first = false;
      return token;
    };
    const one = member();
    expect(fs.readdirSync(one.folder)).toEqual([lockName(one.incarnation)]);
    one.remove();
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('and one that is taken later cannot be published', () => {
    const one = stage();
    fs.unlinkSync(join(one.folder, stagedName(one.incarnation)));
    expect(one.publish()).toBe(false);
    one.remove();
  });
});

describe('the dead', () => {
  const leftovers = (registration: Registration) => {
    for (const name of [
      `i-${registration.incarnation}.0`,
      `i-${registration.incarnation}.1`,
      `m-${registration.incarnation}.sock`,
    ]) {
      fs.writeFileSync(join(registration.folder, name), 'x'.repeat(100));
    }
    dropLock(join(registration.folder, lockName(registration.incarnation)));
  };

  test('are removed by whoever sweeps, the living stay', () => {
    const [dead, living] = [member(), member()];
    leftovers(dead);
    expect(isAlive(native, living.folder, dead.incarnation)).toBe(false);
    expect(isAlive(native, living.folder, living.incarnation)).toBe(true);
    const { removed, living: rest } = sweep(native, living.folder);
    expect(removed).toMatchObject({ members: 1, files: 4 });
    expect(removed.bytes).toBeGreaterThanOrEqual(300);
    expect(rest.map((entry) => entry.incarnation)).toEqual([living.incarnation]);
    expect(fs.readdirSync(living.folder)).toEqual([lockName(living.incarnation)]);
    expect(sweep(native, living.folder).removed).toEqual({ members: 0, files: 0, bytes: 0 });
    living.remove();
  });

  test('are removed by the last one that leaves', () => {
    const [dead, living] = [member(), member()];
    leftovers(dead);
    living.remove();
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('the presence file goes last, so a sweep that is killed half-way can be finished', () => {
    const dead = member();
    leftovers(dead);
    for (const name of fs.readdirSync(dead.folder).filter((other) => other.startsWith('i-'))) {
      fs.unlinkSync(join(dead.folder, name));
    }
    expect(sweep(native, dead.folder).removed).toMatchObject({ members: 1, files: 2 });
  });

  test('files without a presence file are removed as well, files of others are not', () => {
    const living = member();
    fs.writeFileSync(join(living.folder, 'i-77.0'), 'x');
    fs.writeFileSync(join(living.folder, 'readme'), 'x');
    expect(sweep(native, living.folder).removed).toMatchObject({ files: 1 });
    expect(fs.existsSync(join(living.folder, 'readme'))).toBe(true);
    living.remove();
    expect(fs.readdirSync(living.folder)).toEqual(['readme']);
  });

  test('a file whose lock cannot be looked at counts as held', () => {
    const living = member();
    native.isPresent = () => {
      throw Object.assign(new Error('EMFILE'), { code: 'EMFILE' });
    };
    expect(sweep(native, living.folder).removed.files).toBe(0);
  });

  test('a decision made before a member was published does not hit it afterwards', () => {
    // The sweeper was stopped between its look and its removal.
    const folder = member().folder;
    const young = stage();
    const seen = scan(native, folder).find((entry) => entry.incarnation === young.incarnation)!;
    young.publish();
    for (const name of seen.files) fs.rmSync(join(folder, name), { force: true });
    expect(young.isIntact()).toBe(true);
  });
});

describe('what is in the way', () => {
  test('the base folder does not exist', () => {
    const error = caught(() => Registration.stage(native, join(base, 'nowhere'), 'd', note));
    expect(error).toMatchObject({ code: 'ERR_FOLDER_ACCESS', errnoName: 'ENOENT' });
    expect(error.message).toContain('MILLRACE_SHM_DIR');
  });

  test('the base is a file', () => {
    fs.writeFileSync(join(base, 'file'), '');
    const error = caught(() => Registration.stage(native, join(base, 'file'), 'd', note));
    expect(error).toMatchObject({ code: 'ERR_FOLDER_ACCESS', errnoName: 'ENOTDIR' });
  });

  test('the folder has another mode', () => {
    fs.mkdirSync(rootFolder(base), { mode: 0o700 });
    fs.chmodSync(rootFolder(base), 0o755);
    const error = caught(() => stage());
    expect(error.code).toBe('ERR_FOLDER_OWNER');
    expect(error.message).toContain('mode 0755');
    expect(error.message).toContain(`chmod 700 ${rootFolder(base)}`);
  });

  test('the folder is a link', () => {
    fs.mkdirSync(join(base, 'elsewhere'), { mode: 0o700 });
    fs.symlinkSync(join(base, 'elsewhere'), rootFolder(base));
    expect(caught(() => stage()).message).toContain('is a symbolic link');
  });

  test('the folder is a file', () => {
    fs.writeFileSync(rootFolder(base), '', { mode: 0o700 });
    expect(caught(() => stage()).message).toContain('is not a folder');
  });

  test.runIf(process.geteuid?.() === 0)('the folder belongs to another user', () => {
    fs.mkdirSync(rootFolder(base), { mode: 0o700 });
    fs.chownSync(rootFolder(base), 65534, 65534);
    const error = caught(() => stage());
    expect(error.code).toBe('ERR_FOLDER_OWNER');
    expect(error.message).toContain('belongs to user 65534, and this process runs as user 0');
    expect(error.message).not.toContain('chmod');
  });

  test.each([
    ['ENOSPC', 'ERR_SHM_FULL', /\d+ of \d+ bytes are free.*--shm-size/],
    ['EMFILE', 'ERR_OUT_OF_FILES', /limit of open files is \d+.*ulimit -n/],
    ['EACCES', 'ERR_FOLDER_ACCESS', /user \d+ may not write/],
    ['EIO', 'ERR_NATIVE', /EIO/],
  ])('%s while locking', (errno, code, message) => {
    native.fail.set(
      'lockPresence',
      Object.assign(new Error(`${errno}: x`), { code: errno, errno: -1, what: 'open', detail: '' }),
    );
    const error = caught(() => stage());
    expect(error).toMatchObject({ code, errnoName: errno, errno: -1 });
    expect(error.message).toMatch(message);
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('a path that is too long for a socket is seen through our descriptor', () => {
    const deep = join(base, 'x'.repeat(100));
    fs.mkdirSync(deep);
    const one = Registration.stage(native, deep, 'd', note);
    const address = one.socketAddress(one.incarnation);
    expect(Buffer.byteLength(address)).toBeLessThanOrEqual(SUN_PATH);
    expect(fs.realpathSync(join(address, '..'))).toBe(fs.realpathSync(one.folder));
    one.remove();
  });

  test('one that has no other way either says so', () => {
    const deep = join(base, 'x'.repeat(100));
    const error = caught(() => socketAddress(deep, -1, 5));
    expect(error).toMatchObject({ code: 'ERR_SOCKET_PATH', details: { limit: SUN_PATH } });
    expect(error.message).toContain(`takes ${Buffer.byteLength(join(deep, 'm-5.sock'))} bytes`);
  });

  test('another layout beside ours is found, if somebody lives in it', () => {
    const other = join(base, `millrace.2.${process.geteuid?.()}`);
    fs.mkdirSync(join(other, 'd'), { recursive: true });
    expect(otherLayouts(native, base, 'd')).toEqual([]);
    const held = native.lockPresence(join(other, 'd', 'm-abc.lock'));
    expect(otherLayouts(native, base, 'd')).toEqual([{ layout: 2, folder: join(other, 'd'), members: 1 }]);
    expect(otherLayouts(native, base, 'e')).toEqual([]);
    native.unlockPresence(held);
  });

  test("another layout of the software device's fabric is found, if somebody lives in it", () => {
    for (const layout of [1, 2]) {
      const folder = join(base, `millrace-soft.${layout}.${process.geteuid?.()}`, 'f');
      fs.mkdirSync(folder, { recursive: true });
      expect(otherFabrics(native, base)).toEqual([]);
      const held = native.lockPresence(join(folder, 'root'));
      expect(otherFabrics(native, base)).toEqual(layout === 1 ? [] : [{ layout, folder }]);
      native.unlockPresence(held);
    }
  });

  test('whatever is in a presence file, a note comes out', () => {
    const one = member();
    const [entry] = scan(native, one.folder);
    for (const text of ['', 'x', 'null', '7', '{"pid":"x","name":7,"started":null}', '\0'.repeat(10_000)]) {
      fs.writeFileSync(join(one.folder, lockName(one.incarnation)), text);
      expect(readNote(one.folder, entry!)).toEqual({ pid: 0, name: '?', started: 0 });
    }
    one.remove();
  });

  test('any files with any content: the living stay, what belongs to nobody goes, strangers are not touched', () => {
    const living = member();
    const kept = lockName(living.incarnation);
    const number = fc.oneof(
      fc.constantFrom(
        '0',
        '1',
        '7',
        '007',
        '9007199254740991',
        '9007199254740992',
        String(living.incarnation),
      ),
      fc.nat().map(String),
    );
    const ours = fc
      .tuple(
        fc.constantFrom('m-', 't-', 'i-', 'x-', 'm', ''),
        number,
        fc.constantFrom('.lock', '.sock', '.0', '.77', '.99999999999', '.lock~', ''),
      )
      .map((parts) => parts.join(''));
    const strange = fc
      .string({ unit: 'binary', minLength: 1, maxLength: 40 })
      .filter((name) => !/[/\0]|^\.{1,2}$/.test(name));
    const written = fc.oneof(
      fc.uint8Array({ maxLength: 60 }),
      fc
        .record({ pid: fc.jsonValue(), name: fc.jsonValue(), started: fc.jsonValue() })
        .map((value) => JSON.stringify(value)),
    );
    fc.assert(
      fc.property(
        fc.dictionary(fc.oneof(ours, strange), written, { maxKeys: 12 }),
        written,
        (files, text) => {
          for (const name of Object.keys(files).filter((other) => other !== kept)) {
            fs.writeFileSync(join(living.folder, name), files[name]!);
          }
          fs.writeFileSync(join(living.folder, kept), text);
          const before = fs.readdirSync(living.folder);
          for (const entry of scan(native, living.folder)) {
            const { pid, name, started } = readNote(living.folder, entry);
            expect(Number.isSafeInteger(pid) && typeof name === 'string' && Number.isFinite(started)).toBe(
              true,
            );
            expect(entry.alive).toBe(entry.incarnation === living.incarnation);
          }
          sweep(native, living.folder);
          const stays = (name: string) =>
            (parseFileName(name)?.incarnation ?? living.incarnation) === living.incarnation;
          expect(fs.readdirSync(living.folder)).toEqual(before.filter(stays));
          for (const name of before.filter((other) => other !== kept))
            fs.rmSync(join(living.folder, name), { force: true });
        },
      ),
    );
    living.remove();
  });
});
