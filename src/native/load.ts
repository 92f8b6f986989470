import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { familySync, MUSL } from 'detect-libc';
import { NATIVE_ABI, type Native } from './binding.js';

/** Why the addon could not be loaded. */
export type NativeLoadReason = 'platform' | 'musl' | 'glibc' | 'missing' | 'abi' | 'broken';

/** Thrown by {@link loadNative}: says in plain words why, and what to do. `cause` is the loader's own error. */
export class NativeLoadError extends Error {
  override readonly name = 'NativeLoadError';
  readonly code = 'ERR_NATIVE_LOAD';
  constructor(
    readonly reason: NativeLoadReason,
    message: string,
    options?: { cause?: unknown },
  ) {
    super(message, options);
  }
}

let loaded: Native | undefined;

/**
 * Loads the addon: the prebuilt one of this package, else one built from source in this tree. Cached per environment.
 * @throws NativeLoadError
 */
export function loadNative(): Native {
  loaded ??= check(requireAddon());
  return loaded;
}

/** The paths are literal so that bundlers see them; a switch, so that they take only what exists. */
function requireAddon(): unknown {
  const target = `${process.platform}-${process.arch}`;
  switch (target) {
    case 'linux-x64': {
      if (familySync() === MUSL) {
        throw new NativeLoadError(
          'musl',
          'millrace has no addon for musl (Alpine): it is built for glibc. Use an image with glibc, such as node:20-bookworm-slim.',
        );
      }
      return attempt(
        'linux-x64-glibc',
        () => require('../../prebuilds/linux-x64-glibc/millrace.node'),
        () => require('../../build/Release/millrace.node'),
      );
    }
    default:
      throw new NativeLoadError(
        'platform',
        `millrace runs on linux-x64 (glibc); this is ${target}. There is no addon for it in the package.`,
      );
  }
}

/** The development build wins where there is one: it is newer than what was copied to prebuilds/. */
function attempt(name: string, prebuilt: () => unknown, built: () => unknown): unknown {
  const root = join(__dirname, '..', '..');
  const files: [string, () => unknown][] = [
    [join(root, 'prebuilds', name, 'millrace.node'), prebuilt],
    [join(root, 'build', 'Release', 'millrace.node'), built],
  ];
  let failure: unknown;
  for (const [file, load] of files) {
    try {
      return load();
    } catch (error) {
      if (existsSync(file)) throw explain(file, error);
      failure ??= error;
    }
  }
  throw new NativeLoadError(
    'missing',
    `millrace's addon is missing: neither ${files[0]?.[0]} nor ${files[1]?.[0]} is there. ` +
      'In a checkout, run "node scripts/build-native.mjs" (needs a C++ compiler, CMake and libibverbs-dev). ' +
      'From the registry, install the package again: the addon is part of it and nothing is downloaded.',
    { cause: failure },
  );
}

/** Turns the dynamic linker's words into a reason. */
function explain(file: string, error: unknown): NativeLoadError {
  const text = error instanceof Error ? error.message : String(error);
  const missing = /version [`'](GLIBC(?:XX)?_[0-9.]+)' not found/.exec(text);
  if (missing) {
    return new NativeLoadError(
      'glibc',
      `${file} needs ${missing[1]}, which this system's C library does not have: it is too old. ` +
        'Use a newer distribution (Debian 11 or later), or build from source here.',
      { cause: error },
    );
  }
  return new NativeLoadError('broken', `${file} exists but could not be loaded: ${text}`, { cause: error });
}

function check(addon: unknown): Native {
  const native = addon as Native;
  if (native?.abi !== NATIVE_ABI) {
    throw new NativeLoadError(
      'abi',
      `millrace's addon has table layout ${native?.abi}, its JavaScript needs ${NATIVE_ABI}: they come from different ` +
        'versions. Build again with "node scripts/build-native.mjs", or install the package again.',
    );
  }
  return native;
}
