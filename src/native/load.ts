import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { familySync, MUSL } from 'detect-libc';
import { MillraceError } from '../errors.js';
import { NATIVE_ABI, type Native } from './binding.js';

/** Why the addon could not be loaded: `details.reason` of the error that {@link loadNative} throws. */
export type NativeLoadReason = 'platform' | 'musl' | 'glibc' | 'missing' | 'broken';

/** What the choice depends on; a test passes its own. */
export interface Runtime {
  platform: string;
  arch: string;
  /** The C library's family as detect-libc names it; null when it cannot be told. */
  libc(): string | null;
}

/** This process. */
export const here: Runtime = { platform: process.platform, arch: process.arch, libc: familySync };
let loaded: Native | undefined;

/**
 * Loads the addon: the prebuilt one of this package, else the one that was built in this tree. Cached per environment.
 * @throws MillraceError `ERR_NATIVE_LOAD` (with `details.reason`, see {@link NativeLoadReason}) or `ERR_NATIVE_ABI`
 */
export function loadNative(): Native {
  // The addon's own object has so many properties that V8 keeps them in a hash table, which each call would look into.
  loaded ??= { ...checkAbi(requireAddon(here)) };
  return loaded;
}

/**
 * The paths are literal so that bundlers see them. The prebuilt addon comes first; `npm run build:native` removes a
 * prebuilt one that is older than what it has built. Where the package has none for this machine, what was built on it counts.
 * @param root of the package; a test passes another one
 */
export function requireAddon(runtime: Runtime, root = join(__dirname, '..', '..')): unknown {
  const built = () => require('../../build/Release/millrace.node');
  const lack = prebuiltLack('addon', runtime);
  if (lack === undefined) {
    return firstOf(
      ['prebuilds', 'linux-x64-glibc', 'millrace.node'],
      () => require('../../prebuilds/linux-x64-glibc/millrace.node'),
      built,
    );
  }
  const file = join(root, 'build', 'Release', 'millrace.node');
  if (runtime.platform !== 'linux' || !existsSync(file)) throw lack;
  try {
    return built();
  } catch (error) {
    throw explain(file, error);
  }
}

/** Why the package has nothing prebuilt for a machine; undefined where it has. */
export function prebuiltLack(
  what: 'addon' | 'drop-in libibverbs',
  runtime: Runtime,
): MillraceError | undefined {
  const target = `${runtime.platform}-${runtime.arch}`;
  const build = 'In a clone, "npm run build" makes one.';
  if (runtime.platform !== 'linux')
    return failure('platform', `The ${what} of millrace runs on Linux; this is ${target}.`);
  if (runtime.arch !== 'x64')
    return failure(
      'platform',
      `The ${what} of millrace is prebuilt for linux-x64; this is ${target}. ${build}`,
    );
  if (runtime.libc() !== MUSL) return undefined;
  return failure(
    'musl',
    `The ${what} of millrace is prebuilt for glibc, and this system has musl (Alpine). ` +
      `Use an image with glibc, such as node:20-bookworm-slim. ${build}`,
  );
}

function firstOf(path: string[], prebuilt: () => unknown, built: () => unknown): unknown {
  const root = join(__dirname, '..', '..');
  const files: [string, () => unknown][] = [
    [join(root, ...path), prebuilt],
    [join(root, 'build', 'Release', 'millrace.node'), built],
  ];
  let cause: unknown;
  for (const [file, load] of files) {
    try {
      return load();
    } catch (error) {
      if (existsSync(file)) throw explain(file, error);
      cause ??= error;
    }
  }
  throw failure(
    'missing',
    `The addon of millrace is missing: there is neither ${files[0]![0]} nor ${files[1]![0]}. ` +
      'In a checkout, run "npm run build:native" (needs a C++ compiler, CMake and libibverbs-dev). ' +
      'An installed package contains it and downloads nothing, so install the package again.',
    cause,
  );
}

/** Turns the dynamic loader's words into a reason. Exported for its test. */
export function explain(file: string, error: unknown): MillraceError {
  const text = error instanceof Error ? error.message : String(error);
  const version = /version [`'](GLIBC(?:XX)?_[0-9.]+)' not found/.exec(text)?.[1];
  if (version !== undefined) {
    return failure(
      'glibc',
      `${file} needs ${version}, and the C library of this system is older. ` +
        'Use a newer distribution, or build from source on this machine with "npm run build:native".',
      error,
    );
  }
  return failure('broken', `${file} is there, but could not be loaded: ${text}`, error);
}

/** Refuses an addon whose tables have another layout. Exported for its test. */
export function checkAbi(addon: unknown): Native {
  const native = addon as Native | undefined;
  if (native?.abi !== NATIVE_ABI) {
    throw new MillraceError(
      'ERR_NATIVE_ABI',
      `The addon has table layout ${native?.abi}, and the JavaScript of millrace needs ${NATIVE_ABI}: they come from ` +
        'different versions. Install the package again, or run "npm run build:native" in a checkout.',
      { details: { found: native?.abi, needed: NATIVE_ABI } },
    );
  }
  return native;
}

/** The error that says why something native cannot be used. */
export function failure(reason: NativeLoadReason, message: string, cause?: unknown): MillraceError {
  return new MillraceError('ERR_NATIVE_LOAD', message, {
    details: { reason },
    ...(cause === undefined ? {} : { cause }),
  });
}
