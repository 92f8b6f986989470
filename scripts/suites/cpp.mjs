/** The suites in C++: how it is built, tested, fuzzed and looked through. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fuzzCompiler, root, run, tail, which } from '../setup.mjs';
import { checks, endedWell, failed, sum } from './counts.mjs';

const MINUTE = 60_000;

/** The C++ sources below `folders`, as paths from the root. */
export function nativeSources(folders = ['native', 'test/native', 'test/fuzz', 'bench', 'examples']) {
  const found = [];
  const walk = (folder) => {
    if (!existsSync(join(root, folder))) return;
    for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
      const path = join(folder, entry.name);
      if (entry.isDirectory() && entry.name !== 'node_modules' && entry.name !== 'build') walk(path);
      else if (/\.(cc|h)$/.test(entry.name)) found.push(path);
    }
  };
  folders.forEach(walk);
  return found.sort();
}

/**
 * Configures and builds a CMake folder incrementally, with two jobs at most (the machines have two cores and 8 GB).
 * A cache of another checkout or generator is thrown away first: CMake refuses it.
 */
async function cmakeBuild(context, folder, options, env) {
  const cache = join(folder, 'CMakeCache.txt');
  const generator = which('ninja') ? 'Ninja' : 'Unix Makefiles';
  if (existsSync(cache)) {
    const text = readFileSync(cache, 'utf8');
    const same =
      text.includes(`CMAKE_HOME_DIRECTORY:INTERNAL=${root}\n`) &&
      text.includes(`CMAKE_GENERATOR:INTERNAL=${generator}\n`);
    if (!same) rmSync(folder, { recursive: true, force: true });
  }
  const common = { log: context.log, append: true, env };
  const flags = Object.entries(options).map(([key, value]) => `-D${key}=${value}`);
  const configured = await run('cmake', ['-S', root, '-B', folder, '-G', generator, ...flags], {
    ...common,
    limitMs: context.left(),
  });
  if (configured.code !== 0) return false;
  const built = await run('cmake', ['--build', folder, '-j', '2'], { ...common, limitMs: context.left() });
  return built.code === 0;
}

const executables = (folder, pattern) =>
  (existsSync(folder) ? readdirSync(folder, { recursive: true }) : [])
    .map((name) => join(folder, String(name)))
    .filter((path) => pattern.test(basename(path)) && !path.includes('CMakeFiles'))
    .filter((path) => statSync(path).isFile() && (statSync(path).mode & 0o111) !== 0)
    .sort();

/** ThreadSanitizer of older compilers cannot live with the widest address randomisation of newer kernels. */
async function withoutRandomisation() {
  if (!which('setarch')) return [];
  const args = [process.arch === 'x64' ? 'x86_64' : 'aarch64', '-R'];
  return (await run('setarch', [...args, 'true'])).code === 0 ? ['setarch', ...args] : [];
}

/** Runs one GoogleTest program, counting from its JSON report. */
async function nativeProgram(context, program, prefix, env, title = basename(program)) {
  const total = { passed: 0, failed: 0, skipped: 0, failures: [], shown: '' };
  const report = join(dirname(program), `${title.replaceAll(' ', '-')}.json`);
  rmSync(report, { force: true });
  const line = [...prefix, program, `--gtest_output=json:${report}`];
  const result = await run(line[0], line.slice(1), {
    log: context.log,
    append: true,
    env: { ...context.env, ...env },
    limitMs: Math.min(context.left(), 6 * MINUTE),
  });
  try {
    for (const suite of JSON.parse(readFileSync(report, 'utf8')).testsuites) {
      for (const test of suite.testsuite) {
        if (test.result === 'SKIPPED' || test.status === 'NOTRUN') total.skipped += 1;
        else if (test.failures) {
          total.failed += 1;
          total.failures.push(`${title} ${suite.name}.${test.name}`);
        } else total.passed += 1;
      }
    }
  } catch {
    // No report: the program ended before its last test, which the exit code shows.
  }
  endedWell(total, result, title);
  // The tests that passed say nothing; what is left is the failures and the sanitizer's report.
  const passing = /^\[ +(RUN|OK) +\].*$|^\[-+\].*$/;
  const text = result.text
    .split('\n')
    .filter(
      (line, i, all) => !passing.test(line) || (/^\[ +RUN/.test(line) && !/^\[ +OK/.test(all[i + 1] ?? '')),
    );
  if (total.failed > 0) total.shown = `${tail(text.join('\n'), 50)}\n`;
  return total;
}

/** Builds the GoogleTest programs one way. @returns whether it went well */
export const buildNativeTests = (context, folder = join(root, 'build', 'tests'), sanitize = '') =>
  cmakeBuild(context, folder, {
    MILLRACE_TESTS: 'ON',
    MILLRACE_SANITIZE: sanitize,
    CMAKE_BUILD_TYPE: 'RelWithDebInfo',
    // No NDEBUG: the assertions are part of what is tested.
    CMAKE_CXX_FLAGS_RELWITHDEBINFO: sanitize ? '-O1 -g' : '-O2 -g',
  });

/**
 * Builds the GoogleTest programs one way and runs each.
 * @param atOnce programs that run at the same time: they mostly wait for children, and each has a place of its own
 */
export async function nativeTests(context, folder, sanitize, env, atOnce = 1) {
  const built = await buildNativeTests(context, folder, sanitize);
  if (!built) return failed('build');
  const programs = executables(join(folder, 'test', 'native'), /_test$/);
  if (programs.length === 0) return failed('no *_test program was built');
  const prefix = sanitize ? await withoutRandomisation() : [];
  // What is above the device runs on each kind of it: with XRC, and without, as most adapters are (lanes over RC).
  const rounds = programs.flatMap((program) => {
    const plain = [program, prefix, env];
    if (!basename(program).startsWith('transport_')) return [plain];
    return [plain, [program, prefix, { ...env, MILLRACE_SOFT_XRC: '0' }, `${basename(program)} over RC`]];
  });
  const results = [];
  const left = rounds.entries();
  const work = async () => {
    for (const [at, round] of left) results[at] = await nativeProgram(context, ...round);
  };
  await Promise.all(Array.from({ length: atOnce }, work));
  return sum(results);
}

/** Each libFuzzer target for a few seconds from its seeds; a crash leaves its input in build/fuzz/artifacts. */
export async function fuzz(context) {
  const cxx = fuzzCompiler();
  const folder = join(root, 'build', 'fuzz');
  const built = await cmakeBuild(context, folder, {
    MILLRACE_FUZZ: 'ON',
    MILLRACE_SANITIZE: 'address',
    CMAKE_CXX_COMPILER: cxx,
    CMAKE_C_COMPILER: cxx.replace('clang++', 'clang'),
    CMAKE_BUILD_TYPE: 'RelWithDebInfo',
    CMAKE_CXX_FLAGS_RELWITHDEBINFO: '-O1 -g',
  });
  if (!built) return failed('build');
  const targets = executables(join(folder, 'test', 'fuzz'), /(^fuzz_|_fuzz$|_fuzzer$)/);
  const artifacts = join(folder, 'artifacts');
  mkdirSync(artifacts, { recursive: true });
  const seconds = Number(process.env.MILLRACE_FUZZ_SECONDS ?? 10);
  const list = targets.map((target) => {
    const name = basename(target);
    const corpus = join(folder, 'corpus', name);
    const seeds = join(root, 'test', 'fuzz', 'corpus', name.replace(/_fuzz$/, ''));
    mkdirSync(corpus, { recursive: true });
    const args = [corpus, ...(existsSync(seeds) ? [seeds] : [])];
    args.push(
      `-max_total_time=${seconds}`,
      '-timeout=10',
      '-rss_limit_mb=2048',
      `-artifact_prefix=${artifacts}/${name}-`,
      '-print_final_stats=1',
    );
    return [name, target, args];
  });
  if (list.length === 0) return failed('no fuzz target was built');
  return checks(context, list);
}

/** clang-tidy on each source. The addon's needs Node's headers, which its own build has. */
export async function tidy(context) {
  const folder = join(root, 'build', 'tests');
  if (!(await cmakeBuild(context, folder, { MILLRACE_TESTS: 'ON' }))) return failed('build');
  const sources = nativeSources(['native']).filter(
    (path) => path.endsWith('.cc') && !path.startsWith('native/addon'),
  );
  const program = which('clang-tidy-14', 'clang-tidy');
  return checks(
    context,
    sources.map((path) => [path, program, ['-p', folder, '--quiet', path]]),
  );
}
