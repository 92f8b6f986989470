/**
 * Builds the addon, build/Release/millrace.node, and the drop-in library for other programs,
 * build/Release/verbs/libibverbs.so.1 (native/dropin). Needs a C++20 compiler, CMake, make or ninja, and libibverbs-dev
 * (headers only); no network and no npm configuration, since all Node-API headers come from node_modules.
 *
 *   node scripts/build-native.mjs [--debug]
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { BUILD_TOOLS, commandLine, duration, missing, packagesOf, root, run, say } from './setup.mjs';

const addon = join(root, 'build', 'Release', 'millrace.node');
const prebuilt = join(root, 'prebuilds', 'linux-x64-glibc', 'millrace.node');
// In a folder of its own, which goes into LD_LIBRARY_PATH.
const dropin = join(root, 'build', 'Release', 'verbs', 'libibverbs.so.1');
const prebuiltDropin = join(root, 'prebuilds', 'linux-x64-glibc', 'verbs', 'libibverbs.so.1');
// Not build/ itself: cmake-js takes the whole folder as its own, and others build beside it.
const { values: options } = commandLine(
  'Usage: npm run build:native [-- --debug]\nBuilds the addon and the drop-in libibverbs.so.1; with --debug without optimisation.',
  { debug: { type: 'boolean' } },
);
const config = options.debug ? 'Debug' : 'Release';
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
const builtDropin = join(folder, config, 'libibverbs.so.1');

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

const preload = spawnSync(process.execPath, ['-p', '1'], {
  encoding: 'utf8',
  env: { ...process.env, LD_BIND_NOW: '1', LD_PRELOAD: builtDropin },
});
// The dynamic loader goes on without what it could not preload, and says so.
if (preload.status !== 0 || /ld\.so/.test(preload.stderr)) {
  give_up(`libibverbs.so.1 was built, but does not load:\n${preload.stderr}`);
}

for (const [from, to, shipped] of [
  [built, addon, prebuilt],
  [builtDropin, dropin, prebuiltDropin],
]) {
  // Only what loads takes the place of the last one, and in one step: programs may be starting.
  if (!existsSync(to) || !readFileSync(to).equals(readFileSync(from))) {
    mkdirSync(dirname(to), { recursive: true });
    copyFileSync(from, `${to}.new`);
    renameSync(`${to}.new`, to);
  }
  // The prebuilt one is taken first, and an older one would hide this one.
  if (existsSync(shipped) && statSync(shipped).mtimeMs < statSync(to).mtimeMs) {
    rmSync(shipped);
    say(`removed ${relative(root, shipped)}, which is older (scripts/prebuild.mjs makes it again)`);
  }
}
say(`${relative(root, dropin)}: ${statSync(dropin).size >> 10} KiB`);
say(
  `${relative(root, addon)}: ${statSync(addon).size >> 10} KiB, table layout ${check.stdout.trim()}, in ${duration(Date.now() - started)}`,
);
