/**
 * Set-up that `npm test`, `npm run check` and `npm run demo` share. Dependency-free: it runs on a fresh clone,
 * before anything was installed. Everything here is idempotent and prints what it is about to do.
 */
import { spawn, spawnSync } from 'node:child_process';
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

/** The project's folder. */
export const root = dirname(dirname(fileURLToPath(import.meta.url)));
/** The folder of what every suite printed. */
export const logs = join(root, 'build', 'logs');

let out = process.stdout;
/** Sends what this file prints to another stream (standard error, when standard output is for JSON). */
export const routeTo = (stream) => {
  out = stream;
};
/** Prints one line. */
export const say = (text = '') => out.write(`${text}\n`);

/**
 * Reads a script's options as parseArgs() does. With --help it prints the help and ends; what is wrong is one line, with the
 * help, and exit code 2.
 */
export function commandLine(help, options = {}, rest = {}) {
  try {
    const read = parseArgs({ options: { ...options, help: { type: 'boolean', short: 'h' } }, ...rest });
    if (!read.values.help) return read;
  } catch (error) {
    say(`${error.message.split('. To specify')[0]}\n\n${help}`);
    process.exit(2);
  }
  say(help);
  process.exit(0);
}

/** '12.3 s' or '2 min 05 s'. */
export function duration(ms) {
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, '0')} s`;
}

/** The full path of the first of `names` that is on PATH, or undefined. */
export function which(...names) {
  for (const name of names) {
    for (const folder of (process.env.PATH ?? '').split(delimiter)) {
      if (folder && existsSync(join(folder, name))) return join(folder, name);
    }
  }
  return undefined;
}

const output = (command, args, input) => {
  const r = spawnSync(command, args, { encoding: 'utf8', input, cwd: root });
  return r.status === 0 ? r.stdout.trim() : '';
};

/** Whether the C++ compiler finds a header. */
const header = (name) => {
  const cxx = which(process.env.CXX || 'c++', 'g++');
  if (!cxx) return false;
  return (
    spawnSync(cxx, ['-E', '-x', 'c++', '-', '-o', '/dev/null'], { input: `#include <${name}>\n` }).status ===
    0
  );
};

/** Whether an administrator's program is here; users have no sbin folders on their PATH. */
const inSbin = (name) =>
  which(name) !== undefined || ['/usr/sbin', '/sbin'].some((folder) => existsSync(join(folder, name)));

/** clang++ with libFuzzer's run-time library, which Debian packs separately. */
export function fuzzCompiler() {
  const cxx = which('clang++-14', 'clang++');
  if (!cxx) return undefined;
  const runtime = output(cxx, [
    `-print-file-name=libclang_rt.fuzzer-${process.arch === 'arm64' ? 'aarch64' : 'x86_64'}.a`,
  ]);
  return runtime.includes('/') && existsSync(runtime) ? cxx : undefined;
}

/** clang-format 14: other major versions lay out the same code differently. */
export function clangFormat() {
  const exact = which('clang-format-14');
  if (exact) return exact;
  const any = which('clang-format');
  return any && /version 14\./.test(output(any, ['--version'])) ? any : undefined;
}

/** What a suite may need, how to see whether it is here, and Debian's package for it. */
export const TOOLS = {
  compiler: { have: () => which(process.env.CXX || 'c++', 'g++') !== undefined, apt: 'g++' },
  cmake: { have: () => which('cmake') !== undefined, apt: 'cmake' },
  make: { have: () => which('ninja') !== undefined || which('make') !== undefined, apt: 'make' },
  verbs: { have: () => header('infiniband/verbs.h'), apt: 'libibverbs-dev' },
  ninja: { have: () => which('ninja') !== undefined, apt: 'ninja-build' },
  gtest: { have: () => header('gtest/gtest.h'), apt: 'libgtest-dev' },
  libfuzzer: { have: () => fuzzCompiler() !== undefined, apt: 'clang-14 libclang-rt-14-dev' },
  'clang-format': { have: () => clangFormat() !== undefined, apt: 'clang-format-14' },
  'clang-tidy': { have: () => which('clang-tidy-14', 'clang-tidy') !== undefined, apt: 'clang-tidy-14' },
  spin: { have: () => which('spin') !== undefined, apt: 'spin' },
  bc: { have: () => which('bc') !== undefined, apt: 'bc' },
  'verbs-programs': { have: () => which('ibv_xsrq_pingpong') !== undefined, apt: 'ibverbs-utils' },
  perftest: { have: () => which('ib_send_lat') !== undefined, apt: 'perftest' },
  // rdma-core's tests are this package's documentation.
  pyverbs: {
    have: () =>
      existsSync('/usr/lib/python3/dist-packages/pyverbs') && existsSync('/usr/share/doc/rdma-core/tests'),
    apt: 'python3-pyverbs',
  },
  objdump: { have: () => which('objdump') !== undefined, apt: 'binutils' },
  qemu: { have: () => which('qemu-system-x86_64') !== undefined, apt: 'qemu-system-x86' },
  busybox: {
    have: () => existsSync('/usr/share/doc/busybox-static') && !!which('busybox'),
    apt: 'busybox-static',
  },
  kmod: { have: () => inSbin('depmod') && inSbin('modprobe'), apt: 'kmod' },
  rdma: { have: () => inSbin('rdma'), apt: 'iproute2' },
  ip: { have: () => inSbin('ip'), apt: 'iproute2' },
  tshark: { have: () => which('tshark') !== undefined, apt: 'tshark' },
  chromium: { have: () => which('chromium') !== undefined, apt: 'chromium' },
  python3: { have: () => which('python3') !== undefined, apt: 'python3' },
  ibverbs: {
    have: () => which('ibv_srq_pingpong') !== undefined && existsSync('/etc/libibverbs.d/rxe.driver'),
    apt: 'ibverbs-utils ibverbs-providers',
  },
};

/** What building the addon takes; every command needs it. */
export const BUILD_TOOLS = ['compiler', 'cmake', 'make', 'verbs'];

/** The names of `tools` that are not on this machine. */
export const missing = (tools) => [...new Set(tools)].filter((name) => !TOOLS[name].have());

/** The Debian packages of `tools`, one string. */
export const packagesOf = (tools) => tools.map((name) => TOOLS[name].apt).join(' ');

const isRoot = () => process.getuid?.() === 0;

/**
 * How missing packages would be installed: 'apt' as root, 'sudo' with --yes, 'tell' when only the line to run may be
 * printed (an ordinary user, MILLRACE_NO_APT=1, or not a Debian-like system).
 */
export function aptMode({ yes = false } = {}) {
  if (process.env.MILLRACE_NO_APT === '1' || !which('apt-get')) return 'tell';
  if (isRoot()) return 'apt';
  return yes && which('sudo') ? 'sudo' : 'tell';
}

/** Whether node_modules is there and is what package-lock.json says (npm leaves its own copy of the lock inside). */
export function modulesAreCurrent() {
  try {
    const want = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')).packages;
    const have = JSON.parse(readFileSync(join(root, 'node_modules', '.package-lock.json'), 'utf8')).packages;
    return Object.entries(want).every(
      ([path, entry]) => path === '' || entry.optional || have[path]?.version === entry.version,
    );
  } catch {
    return false;
  }
}

const running = new Set();

/** Ends a child and everything that it started (each child leads a process group of its own). */
function killGroup(child, signal) {
  try {
    process.kill(-child.pid, signal);
  } catch {
    // The group is gone already.
  }
}

/** Ends every child started with run(), at once. */
export function killAll() {
  for (const child of running) killGroup(child, 'SIGKILL');
}

/** Ctrl-C and a kill of this script end what it started; `before` runs first and must be synchronous. */
export function endWithChildren(before = () => {}) {
  for (const [signal, code] of [
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ]) {
    process.on(signal, () => {
      killAll();
      before();
      process.exit(code);
    });
  }
}

/**
 * Runs a command in its own process group.
 * @param {string} command
 * @param {string[]} args
 * @param {{ log?: string, append?: boolean, show?: boolean, env?: object, cwd?: string, limitMs?: number }} options
 *   `log`: a file for what it prints; `show`: print it here too; `limitMs`: after this it is killed and has failed.
 * @returns {Promise<{ code: number, ms: number, text: string, timedOut: boolean }>} never rejects; code 127 = could
 *   not be started. `text` is the last 4 MiB of its output.
 */
export function run(command, args, options = {}) {
  const started = Date.now();
  return new Promise((resolve) => {
    let fd;
    if (options.log) {
      mkdirSync(dirname(options.log), { recursive: true });
      fd = openSync(options.log, options.append ? 'a' : 'w');
      writeSync(fd, `$ ${[command, ...args].join(' ')}\n`);
    }
    const child = spawn(command, args, {
      cwd: options.cwd ?? root,
      // Logs and reports are read as text.
      env: { ...process.env, NO_COLOR: '1', FORCE_COLOR: undefined, ...options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    running.add(child);
    const chunks = [];
    let size = 0;
    let timedOut = false;
    const take = (chunk) => {
      if (fd !== undefined) writeSync(fd, chunk);
      if (options.show) out.write(chunk);
      chunks.push(chunk);
      size += chunk.length;
      while (size > 4 << 20 && chunks.length > 1) size -= chunks.shift().length;
    };
    child.stdout.on('data', take);
    child.stderr.on('data', take);
    const timer = options.limitMs
      ? setTimeout(() => {
          timedOut = true;
          take(Buffer.from(`\n(killed: over its limit of ${duration(options.limitMs)})\n`));
          killGroup(child, 'SIGKILL');
        }, options.limitMs)
      : undefined;
    const done = (code) => {
      clearTimeout(timer);
      if (running.delete(child)) {
        // Whatever the command left running in its group would hold on to the pipes and to our log.
        if (child.pid !== undefined) killGroup(child, 'SIGKILL');
        if (fd !== undefined) closeSync(fd);
        resolve({ code, ms: Date.now() - started, text: Buffer.concat(chunks).toString('utf8'), timedOut });
      }
    };
    child.on('error', (error) => {
      take(Buffer.from(`${command}: ${error.message}\n`));
      done(127);
    });
    child.on('exit', (code, signal) => {
      // 'close' also waits for the pipes, which a stray grandchild could hold open for ever.
      const finish = () => done(timedOut ? 124 : (code ?? 128 + (signal ? 1 : 0)));
      child.once('close', finish);
      setTimeout(finish, 2000).unref();
    });
  });
}

/** Runs a set-up step: one line on success, the tail of its output on failure. */
async function step(title, command, args, options) {
  out.write(`  ${title} ... `);
  const result = await run(command, args, { ...options, show: false });
  say(result.code === 0 ? `ok (${duration(result.ms)})` : `FAILED (${duration(result.ms)})`);
  if (result.code !== 0) {
    say(tail(result.text, 40));
    if (options?.log) say(`  (all of it: ${options.log.slice(root.length + 1)})`);
  }
  return result.code === 0;
}

/** Text without colours, as lines set off from the runner's own. */
const setOff = (text, part) =>
  part(
    text
      // biome-ignore lint/suspicious/noControlCharactersInRegex: the escape sequences of colours
      .replace(/\x1b\[[0-9;]*m|\x1b\]8;;.*?\x1b\\/g, '')
      .trimEnd()
      .split('\n'),
  )
    .map((line) => `    | ${line}`)
    .join('\n');

/** The last lines of a text, set off. */
export const tail = (text, lines) => setOff(text, (all) => all.slice(-lines));

/** The first lines of a text, set off. */
export const head = (text, lines) => setOff(text, (all) => all.slice(0, lines));

/**
 * The plan of the set-up, as lines to print, and what it found.
 * @param {{ tools: string[], yes?: boolean }} options
 */
export function planSetup({ tools, yes = false }) {
  const absent = missing(tools);
  const mode = aptMode({ yes });
  const modules = modulesAreCurrent();
  const lines = [];
  if (absent.length === 0) lines.push('packages   nothing to install');
  else if (mode === 'tell')
    lines.push(`packages   missing, not installed by this script: ${packagesOf(absent)}`);
  else lines.push(`packages   ${mode === 'sudo' ? 'sudo ' : ''}apt-get install ${packagesOf(absent)}`);
  lines.push(modules ? 'npm        node_modules is current' : 'npm        npm ci --ignore-scripts');
  lines.push('build      the addon (CMake, C++20) and dist/ (tsc)');
  return { absent, mode, modules, lines };
}

/**
 * Installs what planSetup() found missing, as far as it may.
 * @returns {Promise<string[]>} the tools that are still missing
 */
export async function installPackages(plan) {
  if (plan.absent.length === 0) return [];
  const names = packagesOf(plan.absent).split(' ');
  if (plan.mode === 'tell') {
    say(`  To install what is missing, run:  sudo apt-get install -y ${names.join(' ')}`);
    return plan.absent;
  }
  const log = join(logs, 'apt.log');
  const env = { DEBIAN_FRONTEND: 'noninteractive' };
  const apt = (...args) => (plan.mode === 'sudo' ? ['sudo', ['-n', 'apt-get', ...args]] : ['apt-get', args]);
  await step('apt-get update', ...apt('update', '-q'), { log, env });
  await step(
    `apt-get install ${names.join(' ')}`,
    ...apt(
      // Images without documentation leave out what is tested with.
      ...['-o', 'Dpkg::Options::=--path-include=/usr/share/doc/rdma-core/tests/*'],
      ...['install', '-y', '-q', '--no-install-recommends', ...names],
    ),
    {
      log,
      append: true,
      env,
    },
  );
  return missing(plan.absent);
}

/** `npm ci --ignore-scripts` when node_modules is not what the lock says. False when it failed. */
export async function installModules() {
  if (modulesAreCurrent()) return true;
  const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund'];
  if (await step('npm ci --ignore-scripts', 'npm', args, { log: join(logs, 'npm-ci.log') })) return true;
  rmSync(join(root, 'node_modules', '.package-lock.json'), { force: true });
  return false;
}

/** Builds the addon in place. False when it failed. */
export const buildNative = () =>
  step('build the addon', process.execPath, ['scripts/build-native.mjs'], {
    log: join(logs, 'build-native.log'),
  });

/** Compiles src/ to dist/ and writes its ESM face. False when it failed. */
export async function buildTypeScript() {
  const log = join(logs, 'build-ts.log');
  const node = process.execPath;
  return (
    (await step('compile src/ to dist/', node, ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.json'], {
      log,
    })) && (await step('write the ESM face', node, ['scripts/esm-face.mjs'], { log, append: true }))
  );
}

/** A program of node_modules/.bin, as [command, ...first arguments]. */
export const bin = (name) => join(root, 'node_modules', '.bin', name);
