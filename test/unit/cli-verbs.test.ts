import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { environment } from '../../src/cli/verbs.js';
import { dropinFolder } from '../../src/native/dropin.js';

describe("the program's environment", () => {
  test('the library comes first; what is not asked for stays as it was', () => {
    expect(environment({ LD_LIBRARY_PATH: '/a:/b', MILLRACE_SOFT_LINK: 'ethernet' }, '/x', {})).toEqual({
      LD_LIBRARY_PATH: '/x:/a:/b',
      MILLRACE_SOFT_LINK: 'ethernet',
    });
  });

  test('no empty entry, which would mean the working folder', () => {
    expect(environment({}, '/x', {}).LD_LIBRARY_PATH).toBe('/x');
    expect(environment({ LD_LIBRARY_PATH: '' }, '/x', {}).LD_LIBRARY_PATH).toBe('/x');
  });

  test('options become variables', () => {
    expect(environment({}, '/x', { link: 'ethernet', devices: 3, fabric: 'lab' })).toMatchObject({
      MILLRACE_SOFT_LINK: 'ethernet',
      MILLRACE_SOFT_DEVICES: '3',
      MILLRACE_FABRIC: 'lab',
    });
  });
});

describe('where the library is', () => {
  let root: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'millrace-dropin-'));
  });
  afterEach(() => rmSync(root, { recursive: true, force: true }));
  const runtime = { platform: 'linux', arch: 'x64', libc: () => 'glibc' };
  const put = (...path: string[]) => {
    const folder = join(root, ...path);
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'libibverbs.so.1'), '');
    return folder;
  };

  test('the prebuilt one comes before the built one', () => {
    const built = put('build', 'Release', 'verbs');
    expect(dropinFolder(root, runtime)).toBe(built);
    const prebuilt = put('prebuilds', 'linux-x64-glibc', 'verbs');
    expect(dropinFolder(root, runtime)).toBe(prebuilt);
    // It is of no use elsewhere; what was built there is.
    for (const other of [{ arch: 'arm64' }, { libc: () => 'musl' }])
      expect(dropinFolder(root, { ...runtime, ...other })).toBe(built);
  });

  test.each([
    ['missing', runtime, /npm run build:native/],
    ['musl', { ...runtime, libc: () => 'musl' }, /musl/],
    ['platform', { ...runtime, platform: 'darwin' }, /this is darwin-x64/],
    ['platform', { ...runtime, arch: 'arm64' }, /this is linux-arm64/],
  ])('refused: %s', (reason, where, words) => {
    expect(() => dropinFolder(root, where)).toThrow(
      expect.objectContaining({
        code: 'ERR_NATIVE_LOAD',
        details: { reason },
        message: expect.stringMatching(words),
      }),
    );
  });
});
