/**
 * Builds the addon: build/Release/millrace.node. Needs a C++20 compiler, CMake, make or ninja, and libibverbs-dev
 * (headers only); no network and no npm configuration, since all Node-API headers come from node_modules.
 *
 *   node scripts/build-native.mjs [--debug]
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { BUILD_TOOLS, duration, missing, packagesOf, root, run, say } from './setup.mjs';

const addon = join(root, 'build', 'Release', 'millrace.node');
const prebuilt = join(root, 'prebuilds', 'linux-x64-glibc', 'millrace.node');
// Not build/ itself: cmake-js takes the whole folder as its own, and others build beside it.
const config = process.argv.includes('--debug') ? 'Debug' : 'Release';
const folder = join(root, 'build', config === 'Debug' ? 'addon-debug' : 'addon');

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
const build = () =>
  run(
    process.execPath,
    [cmakeJs, 'build', '--out', folder, '--config', config, '--target', 'millrace', '--parallel', '2'],
    { show: true },
  );

const built = join(folder, config, 'millrace.node');

/** Loads it in a process of its own, since a broken one may crash; LD_BIND_NOW finds every symbol now, not at its call. */
const load = () =>
  spawnSync(process.execPath, ['-p', `require(${JSON.stringify(built)}).abi`], {
    encoding: 'utf8',
    env: { ...process.env, LD_BIND_NOW: '1' },
  });

let result = await build();
let check = result.code === 0 ? load() : undefined;
// A cache of another place or generator can't be used again, nor objects of headers that changed during their compilation.
// What doesn't compile won't the second time either.
const stale = /CMakeCache\.txt|Does not match the generator|undefined symbol/;
if (check?.status !== 0 && stale.test(result.text + (check?.stderr ?? ''))) {
  say('What was built before does not fit: starting anew.');
  rmSync(folder, { recursive: true, force: true });
  result = await build();
  check = result.code === 0 ? load() : undefined;
}
if (!check) give_up('The addon was not built (see above).');
if (check.status !== 0) give_up(`The addon was built, but does not load:\n${check.stderr}`);

// Only what loads takes the place of the last one, and in one step: programs may be starting.
if (!existsSync(addon) || !readFileSync(addon).equals(readFileSync(built))) {
  mkdirSync(dirname(addon), { recursive: true });
  copyFileSync(built, `${addon}.new`);
  renameSync(`${addon}.new`, addon);
}

// The loader takes the prebuilt addon first, and an older one would hide this one.
if (existsSync(prebuilt) && statSync(prebuilt).mtimeMs < statSync(addon).mtimeMs) {
  rmSync(prebuilt);
  say(`removed ${relative(root, prebuilt)}, which is older (scripts/prebuild.mjs makes it again)`);
}
say(
  `${relative(root, addon)}: ${statSync(addon).size >> 10} KiB, table layout ${check.stdout.trim()}, in ${duration(Date.now() - started)}`,
);
