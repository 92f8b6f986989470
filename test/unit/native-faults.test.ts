/** What the kernel or the addon refuses becomes a code, the exact cause, the measured limit, and a remedy for it. */
import { mkdtempSync, rmdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { MillraceError } from '../../src/errors.js';
import type { Native } from '../../src/native/binding.js';
import { errnoName, measureLimits, nativeError, systemError } from '../../src/native/faults.js';

const native = (memlock: number) => ({ memlockLimit: () => memlock }) as unknown as Native;
const thrown = (code: string, what: string, detail: string) =>
  Object.assign(new Error(`${what}: ${detail}`), { code, errno: -1, what, detail });

describe('what the addon throws', () => {
  test.each([
    ['ENOSPC', 'reserve inbox', '4096 bytes needed, 0 free', 'ERR_SHM_FULL', /4096 bytes needed, 0 free/],
    ['ENOSPC', 'ibv_create_srq_ex', 'the inbox', 'ERR_SHM_FULL', /of \d+ bytes are free.*--shm-size/],
    ['EMFILE', 'open chunk', '', 'ERR_OUT_OF_FILES', /limit of open files is \d+.*ulimit -n/],
    ['ENOMEM', 'ibv_reg_mr', '', 'ERR_MEMLOCK', /limit of locked memory is 65536 bytes.*ulimit -l/],
    ['EPERM', 'create a CQ', 'this process was forked', 'ERR_FORKED', /this process was forked/],
    ['EACCES', 'open fabric folder', 'x belongs to user 1', 'ERR_FOLDER_OWNER', /belongs to user 1/],
    ['EACCES', 'make fabric folder', 'x: Permission denied', 'ERR_FOLDER_ACCESS', /Permission denied/],
    ['EROFS', 'make fabric folder', 'x', 'ERR_FOLDER_ACCESS', /EROFS/],
    ['ENOENT', 'make fabric folder', 'MILLRACE_SHM_DIR', 'ERR_FOLDER_ACCESS', /MILLRACE_SHM_DIR/],
    ['ENOENT', 'use the fabric folder', 'somebody has removed it', 'ERR_FOLDER_ACCESS', /has removed it/],
    ['EPROTONOSUPPORT', 'open fabric root', 'layout 2.0', 'ERR_LAYOUT_VERSION', /layout 2\.0/],
    [
      'EPROTO',
      'open fabric root',
      'is damaged',
      'ERR_NATIVE',
      /open fabric root failed: is damaged \(EPROTO\)/,
    ],
    ['EACCES', 'open chunk', 'x', 'ERR_NATIVE', /open chunk failed/],
    ['ENODEV', 'open RDMA device', 'no mlx5_0', 'ERR_DEVICE', /no mlx5_0/],
    ['EACCES', 'ibv_open_device', 'mlx5_0: Permission denied', 'ERR_DEVICE', /Permission denied/],
    ['EINVAL', 'choose a GID', 'MILLRACE_GID_INDEX is "9"', 'ERR_DEVICE', /MILLRACE_GID_INDEX/],
    ['EOPNOTSUPP', 'choose the kind of lanes', 'efa_0 has neither', 'ERR_DEVICE', /efa_0/],
  ] as const)('%s at %j (%s) is %s', (code, what, detail, expected, message) => {
    const cause = thrown(code, what, detail);
    const error = nativeError('open the device "soft"', native(65536), cause);
    expect(error).toBeInstanceOf(MillraceError);
    expect(error).toMatchObject({ code: expected, cause, errnoName: code, errno: -1 });
    expect(error.message).toMatch(message);
    expect(error.message).toMatch(/^Could not open the device "soft": /);
  });

  test('no remedy for a limit that there is not', () => {
    const error = nativeError('x', native(Number.POSITIVE_INFINITY), thrown('ENOMEM', 'ibv_reg_mr', ''));
    expect(error.code).toBe('ERR_NATIVE');
    expect(error.message).not.toMatch(/ulimit/);
  });

  test('what is typed already stays as it is', () => {
    const typed = new MillraceError('ERR_TIMEOUT', 'x');
    expect(nativeError('y', native(0), typed)).toBe(typed);
    expect(systemError('y', '/p', '/', typed)).toBe(typed);
  });
});

describe('what the kernel refuses in the registry', () => {
  const base = mkdtempSync(join(tmpdir(), 'faults-'));
  test.each([
    ['ENOSPC', 'ERR_SHM_FULL', /is full, \d+ of \d+ bytes are free \(ENOSPC\).*--shm-size/],
    ['EDQUOT', 'ERR_SHM_FULL', /EDQUOT/],
    ['EMFILE', 'ERR_OUT_OF_FILES', /limit of open files is \d+\).*ulimit -n/],
    ['ENFILE', 'ERR_OUT_OF_FILES', /the whole system is at its own/],
    ['EACCES', 'ERR_FOLDER_ACCESS', /user \d+ may not write there.*MILLRACE_SHM_DIR/],
    ['EPERM', 'ERR_FOLDER_ACCESS', /EPERM/],
    ['EROFS', 'ERR_FOLDER_ACCESS', /EROFS/],
    ['ENOENT', 'ERR_FOLDER_ACCESS', /is not a folder that exists.*existing folder/],
    ['ENOTDIR', 'ERR_FOLDER_ACCESS', /ENOTDIR/],
    ['EIO', 'ERR_REGISTRY', /a disk on fire/],
  ] as const)('%s is %s', (code, expected, message) => {
    measureLimits();
    const cause = Object.assign(new Error('a disk on fire'), { code, errno: -5 });
    const error = systemError('create the registry folder', join(base, 'x'), base, cause);
    expect(error).toMatchObject({ code: expected, cause, errnoName: code, errno: -5 });
    expect(error.message).toMatch(message);
    expect(error.message).toContain(`create the registry folder ${join(base, 'x')}`);
  });

  test('the free space is that of the base; a base that is gone says so', () => {
    rmdirSync(base);
    const cause = Object.assign(new Error('x'), { code: 'ENOSPC' });
    expect(systemError('x', 'y', base, cause).message).toMatch(/free space could not be read/);
  });
});

test('only names of errors count as such', () => {
  expect(errnoName({ code: 'ENOSPC' })).toBe('ENOSPC');
  for (const other of [null, undefined, {}, { code: 5 }, { code: 'nope' }, 'ENOSPC'])
    expect(errnoName(other)).toBeUndefined();
});
