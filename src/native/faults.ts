import { readFileSync, statfsSync } from 'node:fs';
import { MillraceError } from '../errors.js';
import { baseFolder } from './base-folder.js';
import type { Native, NativeError } from './binding.js';

/**
 * Turns what the kernel or the addon refused into the typed error that says the exact cause, the measured limit and the
 * remedy. A remedy is given only where the limit behind it was read.
 */

let openFiles: string | undefined;

/**
 * Reads the limit of open files, for the message of a later EMFILE (when no file can be opened to read it). Cheap, once.
 */
export function measureLimits(): void {
  if (openFiles !== undefined) return;
  try {
    openFiles =
      /^Max open files\s+(\S+)/m.exec(readFileSync('/proc/self/limits', 'latin1'))?.[1] ?? 'unknown';
  } catch {
    openFiles = 'unknown';
  }
}

/** The name of an errno, such as `ENOSPC`, if the value is an error of the system or of the addon. */
export function errnoName(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' && /^E[A-Z0-9]+$/.test(code) ? code : undefined;
}

/** Free and total bytes of the file system under a path, as words for a message; files, where it is those that lack. */
function freeSpace(path: string): { text: string; free?: number; total?: number } {
  try {
    const { bavail, blocks, bsize, ffree, files } = statfsSync(path);
    return {
      text:
        files > 0 && ffree === 0
          ? `which has room for ${files} files, and none is left`
          : `${bavail * bsize} of ${blocks * bsize} bytes are free`,
      free: bavail * bsize,
      total: blocks * bsize,
    };
  } catch {
    return { text: 'its free space could not be read' };
  }
}

/**
 * An error of a system call in the registry.
 * @param doing what was attempted, like `create the registry folder`
 * @param path the file it was attempted on
 */
export function systemError(doing: string, path: string, base: string, error: unknown): MillraceError {
  if (error instanceof MillraceError) return error as MillraceError;
  const name = errnoName(error);
  const errno = (error as NodeJS.ErrnoException).errno;
  const given = {
    cause: error,
    ...(typeof errno === 'number' ? { errno } : {}),
    ...(name === undefined ? {} : { errnoName: name }),
  };
  const failed = `Could not ${doing} ${path}`;
  switch (name) {
    case 'ENOSPC':
    case 'EDQUOT': {
      const { text, free, total } = freeSpace(base);
      return new MillraceError(
        'ERR_SHM_FULL',
        `${failed}: ${base} is full, ${text} (${name}). ` +
          'Give the container more with --shm-size, or set MILLRACE_SHM_DIR to another tmpfs.',
        { ...given, details: { base, free, total } },
      );
    }
    case 'EMFILE':
    case 'ENFILE':
      return new MillraceError(
        'ERR_OUT_OF_FILES',
        `${failed}: no file descriptor is left (${name}; the limit of open files is ${openFiles ?? 'unknown'}` +
          `${name === 'ENFILE' ? ' a process, and the whole system is at its own' : ''}). Raise it with ulimit -n, or close files.`,
        { ...given, details: { limit: openFiles } },
      );
    case 'EACCES':
    case 'EPERM':
    case 'EROFS':
      return new MillraceError(
        'ERR_FOLDER_ACCESS',
        `${failed}: user ${process.geteuid?.()} may not write there (${name}). ` +
          'Set MILLRACE_SHM_DIR to a folder on a tmpfs that this user may write to.',
        { ...given, details: { base, uid: process.geteuid?.() } },
      );
    case 'ENOENT':
    case 'ENOTDIR':
      return new MillraceError(
        'ERR_FOLDER_ACCESS',
        `${failed}: ${base} is not a folder that exists (${name}). ` +
          'Set MILLRACE_SHM_DIR to an existing folder on a tmpfs, or mount one there.',
        { ...given, details: { base } },
      );
    default:
      return new MillraceError(
        'ERR_REGISTRY',
        `${failed}: ${(error as Error)?.message ?? String(error)}.`,
        given,
      );
  }
}

/** Steps of the addon that only fail because of the device that was chosen. */
const DEVICE_STEPS = new Set([
  ...['ibv_open_device', 'choose a GID', 'choose the kind of lanes'],
  // By variables that describe the software device.
  ...['choose fabric', 'choose the link layer', 'list RDMA devices'],
]);

/** An error that the addon threw. `doing` completes the sentence "Could not …". */
export function nativeError(doing: string, native: Native, error: unknown): MillraceError {
  if (error instanceof MillraceError) return error as MillraceError;
  const { code, errno, what, detail, message } = error as NativeError;
  const name = errnoName(error);
  const given = {
    cause: error,
    ...(typeof errno === 'number' ? { errno } : {}),
    ...(name === undefined ? {} : { errnoName: name }),
    details: { what, detail },
  };
  const reason = [what === undefined ? undefined : `${what} failed`, detail === '' ? undefined : detail]
    .filter((part) => part !== undefined)
    .join(': ');
  const text = `Could not ${doing}: ${reason === '' ? message : reason} (${code ?? 'no code'}).`;
  switch (name) {
    case 'ENOSPC':
    case 'EDQUOT': {
      // A verb says no more than its errno.
      if (/\bfree\b|none is left/.test(detail ?? '')) return new MillraceError('ERR_SHM_FULL', text, given);
      const base = baseFolder();
      const { text: space, free, total } = freeSpace(base);
      return new MillraceError(
        'ERR_SHM_FULL',
        `${text} Of ${base}, ${space}. Give the container more with --shm-size, or set MILLRACE_SHM_DIR to another tmpfs.`,
        { ...given, details: { what, detail, base, free, total } },
      );
    }
    case 'EMFILE':
    case 'ENFILE':
      measureLimits();
      return new MillraceError(
        'ERR_OUT_OF_FILES',
        `${text} The limit of open files is ${openFiles ?? 'unknown'}; raise it with ulimit -n.`,
        given,
      );
    case 'EACCES':
    case 'EROFS':
    case 'ENOENT':
    case 'ENOTDIR':
    case 'ELOOP':
      if (what?.endsWith('fabric folder') !== true) break;
      // What was opened is checked for its owner and mode; anything else is the folder above it.
      return new MillraceError(
        name === 'EACCES' && what === 'open fabric folder' ? 'ERR_FOLDER_OWNER' : 'ERR_FOLDER_ACCESS',
        text,
        given,
      );
    case 'EPROTONOSUPPORT':
      if (what === 'open fabric root') return new MillraceError('ERR_LAYOUT_VERSION', text, given);
      break;
    case 'ENODEV':
      return new MillraceError('ERR_DEVICE', text, given);
    case 'ENOMEM':
    case 'EPERM':
    case 'EAGAIN': {
      // Registering memory beyond RLIMIT_MEMLOCK says ENOMEM; the remedy is only worth its words if there is a limit.
      const limit = native.memlockLimit();
      if (name !== 'ENOMEM' || what?.includes('reg_mr') !== true || !Number.isFinite(limit)) break;
      return new MillraceError(
        'ERR_MEMLOCK',
        `${text} The limit of locked memory is ${limit} bytes; raise it with ulimit -l, or --ulimit memlock=-1 for a container.`,
        { ...given, details: { what, detail, limit } },
      );
    }
  }
  if (what !== undefined && DEVICE_STEPS.has(what)) return new MillraceError('ERR_DEVICE', text, given);
  if (/fork/.test(`${what} ${detail}`)) return new MillraceError('ERR_FORKED', text, given);
  return new MillraceError('ERR_NATIVE', text, given);
}
