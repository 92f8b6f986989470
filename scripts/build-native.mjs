/**
 * Builds the addon: build/Release/millrace.node. Needs a C++20 compiler, CMake, make or ninja, and libibverbs-dev
 * (headers only); no network and no npm configuration, since all Node-API headers come from node_modules.
 *
 *   node scripts/build-native.mjs [--debug]
 */
import { spawnSync } from 'node:child_process';
import { existsSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, relative } from 'node:path';
import { BUILD_TOOLS, duration, missing, packagesOf, root, run, say } from './setup.mjs';

const addon = join(root, 'build', 'Release', 'millrace.node');
const prebuilt = join(root, 'prebuilds', 'linux-x64-glibc', 'millrace.node');
// Not build/ itself: cmake-js takes the whole folder as its own, and others build beside it.
const folder = join(root, 'build', 'addon');

function give_up(text) {
  say(text);
  process.exit(1);
}

const absent = missing(BUILD_TOOLS);
if (absent.length > 0) {
  give_up(
    `The addon cannot be built here, for lack of: ${absent.join(', ')}.\n` +
      `On Debian and Ubuntu: sudo apt-get install -y ${packagesOf(absent)}`,
  );
}
let cmakeJs;
try {
  cmakeJs = createRequire(join(root, 'package.json')).resolve('cmake-js/bin/cmake-js');
} catch {
  give_up('cmake-js is not installed. Run: npm ci --ignore-scripts');
}

const started = Date.now();
const config = process.argv.includes('--debug') ? 'Debug' : 'Release';
const build = () =>
  run(
    process.execPath,
    [cmakeJs, 'build', '--out', folder, '--config', config, '--target', 'millrace', '--parallel', '2'],
    { show: true },
  );

let result = await build();
// A cache of another place or another generator can't be used again; what doesn't compile won't either way.
if (result.code !== 0 && /CMakeCache\.txt|Does not match the generator/.test(result.text)) {
  say('The build folder belongs to another place or generator: starting it anew.');
  rmSync(folder, { recursive: true, force: true });
  result = await build();
}
if (result.code !== 0 || !existsSync(addon)) give_up(`The addon was not built (see above).`);

// In a process of its own, since a broken one may crash; LD_BIND_NOW finds every symbol now, not at its first call.
const check = spawnSync(process.execPath, ['-p', `require(${JSON.stringify(addon)}).abi`], {
  encoding: 'utf8',
  env: { ...process.env, LD_BIND_NOW: '1' },
});
if (check.status !== 0) give_up(`The addon was built, but does not load:\n${check.stderr}`);

// The loader takes the prebuilt addon first, and an older one would hide this one.
if (existsSync(prebuilt) && statSync(prebuilt).mtimeMs < statSync(addon).mtimeMs) {
  rmSync(prebuilt);
  say(`removed ${relative(root, prebuilt)}, which is older (scripts/prebuild.mjs makes it again)`);
}
say(
  `${relative(root, addon)}: ${statSync(addon).size >> 10} KiB, table layout ${check.stdout.trim()}, in ${duration(Date.now() - started)}`,
);
