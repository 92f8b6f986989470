import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { failure, here, prebuiltLack, type Runtime } from './load.js';

/**
 * The folder that holds the drop-in `libibverbs.so.1` and nothing else: that of this package, else the one that was
 * built in this tree. Put first into `LD_LIBRARY_PATH`, it makes programs find the software device.
 * @throws MillraceError `ERR_NATIVE_LOAD` with `details.reason` `platform`, `musl` or `missing`
 */
export function dropinFolder(root = join(__dirname, '..', '..'), runtime: Runtime = here): string {
  const lack = prebuiltLack('drop-in libibverbs', runtime);
  if (runtime.platform !== 'linux') throw lack;
  const files = [
    join(root, 'prebuilds', 'linux-x64-glibc', 'verbs', 'libibverbs.so.1'),
    join(root, 'build', 'Release', 'verbs', 'libibverbs.so.1'),
  ];
  const found = files.slice(lack === undefined ? 0 : 1).find((file) => existsSync(file));
  if (found === undefined && lack !== undefined) throw lack;
  if (found === undefined) {
    throw failure(
      'missing',
      `The drop-in libibverbs is missing: there is neither ${files[0]} nor ${files[1]}. ` +
        'In a checkout, run "npm run build:native" (needs a C++ compiler, CMake and libibverbs-dev). ' +
        'An installed package contains it, so install the package again.',
    );
  }
  return dirname(found);
}
