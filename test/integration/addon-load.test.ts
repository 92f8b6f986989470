import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import ts from 'typescript';
import { afterAll, expect, test } from 'vitest';
import type { MillraceError } from '../../src/errors.js';
import { NATIVE_ABI } from '../../src/native/binding.js';
import { checkAbi, explain, loadNative, requireAddon } from '../../src/native/load.js';

const made: string[] = [];
afterAll(() => {
  for (const folder of made) rmSync(folder, { recursive: true, force: true });
});

function thrown(run: () => unknown): MillraceError {
  try {
    run();
  } catch (error) {
    return error as MillraceError;
  }
  throw new Error('it did not throw');
}

/** The loader, compiled, as it would lie in a package at another place: with no addon, or with a file in its stead. */
function installedElsewhere(addon?: string | Buffer) {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-load-'));
  made.push(folder);
  for (const name of ['errors', 'native/binding', 'native/load']) {
    const source = readFileSync(join('src', `${name}.ts`), 'utf8');
    const { outputText } = ts.transpileModule(source, {
      compilerOptions: { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022 },
    });
    mkdirSync(join(folder, 'dist', 'native'), { recursive: true });
    writeFileSync(join(folder, 'dist', `${name}.js`), outputText);
  }
  mkdirSync(join(folder, 'node_modules'));
  const detect = createRequire(import.meta.url)
    .resolve('detect-libc/package.json')
    .replace('/package.json', '');
  mkdirSync(join(folder, 'node_modules', 'detect-libc', 'lib'), { recursive: true });
  for (const name of [
    'package.json',
    'lib/detect-libc.js',
    'lib/filesystem.js',
    'lib/process.js',
    'lib/elf.js',
  ]) {
    copyFileSync(join(detect, name), join(folder, 'node_modules', 'detect-libc', name));
  }
  if (addon !== undefined) {
    mkdirSync(join(folder, 'prebuilds', 'linux-x64-glibc'), { recursive: true });
    writeFileSync(join(folder, 'prebuilds', 'linux-x64-glibc', 'millrace.node'), addon);
  }
  const loader = createRequire(join(folder, 'dist', 'native', 'load.js'))('./load.js');
  return { folder, loader: loader as { loadNative(): unknown } };
}

test('the addon loads, once, and offers exactly what binding.ts names', () => {
  const native = loadNative();
  expect(loadNative()).toBe(native);
  expect(native.abi).toBe(NATIVE_ABI);
  expect(Object.keys(native).sort()).toEqual(
    [
      ...[
        'abi',
        'arm',
        'armPort',
        'buffers',
        'cancelFetch',
        'cleanFabric',
        'close',
        'closeGroup',
        'closeLane',
        'closeLeases',
        'closeQueue',
        'closeRegion',
      ],
      ...[
        'collectHolds',
        'connect',
        'createFlow',
        'createRegion',
        'destroyFlow',
        'detachBuffer',
        'disconnect',
        'endHold',
        'endLoan',
        'fabricLayout',
        'fetch',
        'flush',
      ],
      ...[
        'holdBuffer',
        'holdRoom',
        'inspectRegion',
        'isElsewhere',
        'isPresent',
        'land',
        'landedHold',
        'lend',
        'lendFree',
        'linger',
        'loanBuffer',
        'lockPresence',
        'memlockLimit',
        'offer',
        'offerHold',
      ],
      ...[
        'onCollected',
        'onLoanCollected',
        'open',
        'openGroup',
        'openLane',
        'openPort',
        'openQueue',
        'openRegion',
        'poll',
        'pollPort',
        'portCounters',
        'probe',
        'publisherGone',
      ],
      ...[
        'readFlow',
        'receiverGone',
        'ref',
        'regionBuffer',
        'regionState',
        'resources',
        'retireBlock',
        'revokeHold',
        'sleep',
        'sweepPool',
        'sweepRegions',
        'takeHold',
      ],
      ...['tunnel', 'unlockPresence', 'vacate', 'watch'],
    ].sort(),
  );
});

test('another platform and another libc are named', () => {
  const other = thrown(() => requireAddon({ platform: 'darwin', arch: 'arm64', libc: () => null }));
  expect(other).toMatchObject({ code: 'ERR_NATIVE_LOAD', details: { reason: 'platform' } });
  expect(other.message).toContain('darwin-arm64');
  const alpine = { platform: 'linux', arch: 'x64', libc: () => 'musl' };
  const musl = thrown(() => requireAddon(alpine, '/nowhere'));
  expect(musl).toMatchObject({ code: 'ERR_NATIVE_LOAD', details: { reason: 'musl' } });
  expect(musl.message).toContain('musl');
  const arm = thrown(() => requireAddon({ ...alpine, arch: 'arm64', libc: () => 'glibc' }, '/nowhere'));
  expect(arm).toMatchObject({ code: 'ERR_NATIVE_LOAD', details: { reason: 'platform' } });
  expect(arm.message).toMatch(/prebuilt for linux-x64; this is linux-arm64.*npm run build/);
  // What was built on the machine itself counts, whatever machine it is.
  expect(requireAddon(alpine)).toMatchObject({ abi: NATIVE_ABI });
});

test('a missing file is named, with how to build it', () => {
  const { folder, loader } = installedElsewhere();
  const error = thrown(() => loader.loadNative());
  expect(error).toMatchObject({ code: 'ERR_NATIVE_LOAD', details: { reason: 'missing' } });
  expect(error.message).toContain(join(folder, 'prebuilds', 'linux-x64-glibc', 'millrace.node'));
  expect(error.message).toContain('npm run build:native');
});

test('a broken file is told from a missing one', () => {
  const { loader } = installedElsewhere('this is no ELF file');
  const error = thrown(() => loader.loadNative());
  expect(error).toMatchObject({ code: 'ERR_NATIVE_LOAD', details: { reason: 'broken' } });
  expect(error.cause).toBeInstanceOf(Error);
});

test('a too old C library is told by the symbol version that it lacks', () => {
  const words =
    "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.99' not found (required by /x/millrace.node)";
  const error = explain('/x/millrace.node', new Error(words));
  expect(error).toMatchObject({ code: 'ERR_NATIVE_LOAD', details: { reason: 'glibc' } });
  expect(error.message).toContain('GLIBC_2.99');
});

test('an addon with another layout of the tables is refused', () => {
  const error = thrown(() => checkAbi({ abi: 999 }));
  expect(error).toMatchObject({ code: 'ERR_NATIVE_ABI', details: { found: 999, needed: NATIVE_ABI } });
  expect(thrown(() => checkAbi(undefined)).code).toBe('ERR_NATIVE_ABI');
});
