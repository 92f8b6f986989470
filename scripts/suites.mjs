/**
 * The suites of `npm test`. Each has the tools it needs, a limit, and a run() that returns its counts.
 * A suite writes everything it prints to `context.log`; the runner shows the tail of that when it fails.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fetchNode, NODES } from './nodes.mjs';
import { bin, clangFormat, fuzzCompiler, head, root, run, say, tail, which } from './setup.mjs';

const MINUTE = 60_000;
const node = process.execPath;

/** Runs commands one after the other, each is one check: [title, command, args, env?]. */
async function checks(context, list) {
  const failures = [];
  let shown = '';
  for (const [title, command, args, env] of list) {
    const result = await run(command, args, {
      log: context.log,
      append: true,
      env: { ...context.env, ...env },
      limitMs: context.left(),
    });
    if (result.code === 0) continue;
    failures.push(title);
    shown += tail(result.text, list.length > 1 ? 30 : 60);
    shown += '\n';
  }
  return { passed: list.length - failures.length, failed: failures.length, skipped: 0, failures, shown };
}

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
  if (result.code !== 0 && total.failed === 0) {
    total.failed = 1;
    total.failures.push(
      `${title} ended with ${result.timedOut ? 'its time over' : `exit code ${result.code}`}`,
    );
  }
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
async function nativeTests(context, folder, sanitize, env, atOnce = 1) {
  const built = await buildNativeTests(context, folder, sanitize);
  const failed = (why) => ({ passed: 0, failed: 1, skipped: 0, failures: [why] });
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

/** The counts of several runs as one. */
function sum(results) {
  const total = { passed: 0, failed: 0, skipped: 0, failures: [], shown: '' };
  for (const one of results) {
    for (const count of ['passed', 'failed', 'skipped']) total[count] += one[count];
    total.failures.push(...one.failures);
    total.shown += one.shown ?? '';
  }
  return total;
}

/** The compiler on a project, which remembers what it has checked: the second time it looks at what has changed. */
const typesOf = (project) => [
  'node_modules/typescript/bin/tsc',
  ...['-p', project, '--incremental', '--tsBuildInfoFile', join(root, 'build', 'types', `${project}.info`)],
];

/** Runs one project of vitest.config.mts, or some files of it, and counts from its JSON report. */
async function vitest(
  context,
  project,
  { program = node, files = [], only = '', env = {}, title = '' } = {},
) {
  const report = join(root, 'build', 'logs', `${project}${title.replaceAll(' ', '-')}.json`);
  rmSync(report, { force: true });
  const args = ['node_modules/vitest/vitest.mjs', 'run', '--project', project, ...files];
  if (only !== '') args.push('--testNamePattern', only);
  args.push('--reporter=default', '--reporter=json', `--outputFile.json=${report}`);
  const result = await run(program, args, {
    log: context.log,
    append: true,
    env: { ...context.env, ...env },
    limitMs: context.left(),
  });
  const total = { passed: 0, failed: 0, skipped: 0, failures: [], shown: '' };
  try {
    const json = JSON.parse(readFileSync(report, 'utf8'));
    total.passed = json.numPassedTests;
    // Those that nobody asked for are pending, too.
    total.skipped = only === '' ? json.numPendingTests + (json.numTodoTests ?? 0) : 0;
    for (const file of json.testResults) {
      const bad = file.assertionResults.filter((test) => test.status === 'failed');
      for (const test of bad) {
        const name = `${file.name.slice(root.length + 1)} > ${test.fullName}${title}`;
        total.failures.push(name);
        // What it says itself: the end of the log has other tests' output, which tells nobody why this one failed.
        total.shown += `${head([name, ...test.failureMessages].join('\n'), 40)}\n`;
      }
      // A file that could not be loaded has no tests to fail.
      if (bad.length === 0 && file.status === 'failed')
        total.failures.push(`${file.name.slice(root.length + 1)}: ${file.message.split('\n')[0]}`);
    }
    total.failed = total.failures.length;
  } catch {
    // No report: vitest itself ended early.
  }
  if (result.code !== 0 && total.failed === 0) {
    total.failed = 1;
    total.failures.push(result.timedOut ? 'its time was over' : `vitest ended with exit code ${result.code}`);
  }
  return total;
}

/** All of it with XRC, as the device comes, and publish and subscribe also without, as on most adapters (lanes over RC). */
const integration = async (context) =>
  sum([
    await vitest(context, 'integration'),
    await vitest(context, 'integration', {
      files: ['test/integration/pubsub-'],
      env: { MILLRACE_SOFT_XRC: '0' },
      title: ' over RC',
    }),
  ]);

/** What hangs on how a version gives memory to JavaScript and takes it back. */
const LEASES = ['test/integration/leases.test.ts', 'test/integration/leases-memory.test.ts'];

/** What differs between versions of Node.js, and the package, with the same build under newer ones. */
async function nodes(context) {
  const results = [];
  for (const [version, sum] of NODES) {
    const { log } = context;
    const { program, why } = await fetchNode(version, sum, { log, append: true, limitMs: context.left() });
    const title = ` on Node.js ${version}`;
    if (program === undefined) {
      // No tool of this machine: a registry that does not have it, or no network, is not this project's fault.
      say(`    not run${title}: ${why}`);
      results.push({ passed: 0, failed: 0, skipped: 1, failures: [] });
      continue;
    }
    results.push(
      await vitest(context, 'integration', { program, files: LEASES, title }),
      // Without a test runner, whose heap hides what a small one shows.
      await checks(context, [[`frames${title}`, program, ['examples/frames/run.mjs', '--frames', '20']]]),
      // Types are no matter of the version.
      await vitest(context, 'package', { program, only: '^(?!the types)', title }),
    );
  }
  return sum(results);
}

/** Each libFuzzer target for a few seconds from its seeds; a crash leaves its input in build/fuzz/artifacts. */
async function fuzz(context) {
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
  if (!built) return { passed: 0, failed: 1, skipped: 0, failures: ['build'] };
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
  if (list.length === 0) return { passed: 0, failed: 1, skipped: 0, failures: ['no fuzz target was built'] };
  return checks(context, list);
}

/** The Promela models; the script's last line is `N passed, N failed, N skipped`. */
async function models(context) {
  const script = join(root, 'native', 'models', 'run_all.sh');
  const result = await run('bash', [script, 'quick'], {
    log: context.log,
    append: true,
    env: context.env,
    limitMs: context.left(),
  });
  const counts = /(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$/.exec(result.text.trimEnd());
  const bad = result.text.split('\n').filter((line) => /UNEXPECTED|ERROR/.test(line));
  const total = counts
    ? { passed: Number(counts[1]), failed: Number(counts[2]), skipped: Number(counts[3] ?? 0), failures: bad }
    : { passed: 0, failed: 0, skipped: 0, failures: bad };
  if ((result.code !== 0 || !counts) && total.failed === 0) {
    total.failed = 1;
    total.failures.push(
      result.timedOut ? 'its time was over' : `run_all.sh ended with exit code ${result.code}`,
    );
  }
  return total;
}

/** The transport on the kernel's RDMA, in a virtual machine; the script's last line has the counts. */
async function vm(context) {
  if (!(await buildNativeTests(context))) return { passed: 0, failed: 1, skipped: 0, failures: ['build'] };
  const result = await run(node, [join(root, 'scripts', 'test-vm.mjs'), '--no-build'], {
    log: context.log,
    append: true,
    env: context.env,
    limitMs: context.left(),
  });
  const counts = /(\d+) passed, (\d+) failed, (\d+) skipped\s*$/.exec(result.text.trimEnd());
  const bad = result.text.split('\n').filter((line) => /^ {2}FAILED /.test(line));
  const total = counts
    ? { passed: Number(counts[1]), failed: Number(counts[2]), skipped: Number(counts[3]), failures: bad }
    : { passed: 0, failed: 0, skipped: 0, failures: bad };
  if (result.code !== 0 && total.failed === 0) {
    total.failed = 1;
    total.failures.push(
      result.timedOut ? 'its time was over' : `test-vm.mjs ended with exit code ${result.code}`,
    );
  }
  return total;
}

/** Other people's programs; the script's last line is `N passed, N failed, N skipped`. */
async function conformance(context) {
  const result = await run(node, ['scripts/conformance.mjs'], {
    log: context.log,
    append: true,
    env: context.env,
    limitMs: context.left(),
  });
  const counts = /(\d+) passed, (\d+) failed, (\d+) skipped\s*$/.exec(result.text.trimEnd());
  const [passed, failed, skipped] = counts ? counts.slice(1).map(Number) : [0, 0, 0];
  const total = { passed, failed, skipped, failures: [] };
  for (const [, link, name] of result.text.matchAll(/^fail (\w+) +(.*?) {2}[\d.]+ /gm))
    total.failures.push(`${link}: ${name}`);
  if ((result.code !== 0 || !counts) && total.failed === 0) {
    total.failed = 1;
    total.failures.push(result.timedOut ? 'its time was over' : `ended with exit code ${result.code}`);
  }
  return total;
}

/** The demos as their users run them: to the end, and ended by Ctrl-C, after which nothing may be left. */
const demo = (context) => {
  const [publish, fanout] = ['examples/demo/run.mjs', 'examples/fanout/demo.mjs'];
  return checks(context, [
    ['to the end', node, [publish, '--seconds', '4']],
    ['ended by Ctrl-C', node, ['scripts/demo-interrupt.mjs', publish, 'received:']],
    ['fan-out ended by Ctrl-C', node, ['scripts/demo-interrupt.mjs', fanout, 'packets/s']],
  ]);
};

/**
 * Every suite, in the order of running. `built` names what must have been built first; `byName` suites run only when
 * they are asked for.
 */
export const SUITES = [
  {
    name: 'lint',
    title: 'format and lint of TypeScript, JavaScript, JSON (Biome)',
    tools: [],
    limit: 5,
    run: (context) =>
      checks(context, [
        ['biome', bin('biome'), ['ci', '--colors=off', '--max-diagnostics=60', '--error-on-warnings']],
      ]),
  },
  {
    name: 'lint-native',
    title: 'format of C++ (clang-format 14)',
    tools: ['clang-format'],
    limit: 5,
    run: (context) =>
      checks(context, [['clang-format', clangFormat(), ['--dry-run', '-Werror', ...nativeSources()]]]),
  },
  {
    name: 'directions',
    title: 'dependency directions of src/ and native/',
    tools: [],
    limit: 3,
    run: (context) =>
      checks(context, [
        [
          'src',
          bin('depcruise'),
          ['src', '--config', '.dependency-cruiser.cjs', '--output-type', 'err-long'],
        ],
        ['native', node, ['scripts/native-layers.mjs']],
      ]),
  },
  {
    name: 'types',
    title: 'types of src/, tests and examples',
    tools: [],
    limit: 5,
    run: (context) =>
      checks(context, [
        ['src', node, [...typesOf('tsconfig.json'), '--noEmit']],
        ['tests', node, typesOf('tsconfig.test.json')],
        // A call with an argument too few only throws at run time, which a program that is to be interrupted hides.
        ['programs', node, typesOf('tsconfig.programs.json')],
        ['examples', node, typesOf('tsconfig.examples.json')],
      ]),
  },
  {
    name: 'hygiene',
    title: 'unused code (knip), the package (publint, are-the-types-wrong)',
    tools: [],
    built: ['ts'],
    limit: 5,
    run: (context) =>
      checks(context, [
        ['knip', bin('knip'), ['--no-progress']],
        ['publint', bin('publint'), ['--strict']],
        ['attw', bin('attw'), ['--pack', '.', '--profile', 'node16', '--no-emoji']],
      ]),
  },
  {
    name: 'native',
    title: 'C++ tests',
    tools: ['compiler', 'cmake', 'make', 'verbs', 'gtest'],
    limit: 12,
    run: (context) => nativeTests(context, join(root, 'build', 'tests'), '', {}, 2),
  },
  {
    name: 'unit',
    title: 'TypeScript tests in memory',
    tools: [],
    limit: 8,
    run: (context) => vitest(context, 'unit'),
  },
  {
    name: 'integration',
    title: 'real processes, workers, kills and stops',
    tools: ['ip', 'tshark', 'python3'],
    built: ['native', 'ts'],
    limit: 20,
    run: integration,
  },
  {
    name: 'package',
    title: 'the packed tarball, installed elsewhere',
    tools: ['objdump'],
    built: ['native', 'ts'],
    limit: 10,
    run: (context) => vitest(context, 'package'),
  },
  {
    name: 'nodes',
    title: 'leases and the package under Node.js 22 and 24, which are fetched',
    tools: ['objdump'],
    built: ['native', 'ts'],
    limit: 10,
    run: nodes,
  },
  {
    name: 'demo',
    title: 'the demos, to their ends and ended by Ctrl-C',
    tools: [],
    built: ['native', 'ts'],
    limit: 5,
    run: demo,
  },
  {
    name: 'page',
    title: "the fan-out example's page in a real browser",
    tools: ['chromium'],
    built: ['native', 'ts'],
    limit: 5,
    run: (context) => vitest(context, 'page'),
  },
  {
    name: 'vm',
    title: "the transport on the kernel's RDMA (rxe), in a virtual machine",
    tools: ['compiler', 'cmake', 'make', 'verbs', 'gtest', 'qemu', 'busybox', 'kmod', 'rdma', 'ibverbs'],
    built: ['native', 'ts'],
    limit: 20,
    run: vm,
  },
  {
    name: 'conformance',
    title: "ibverbs-utils, perftest and rdma-core's tests on the software device",
    tools: ['verbs-programs', 'perftest', 'pyverbs'],
    built: ['native', 'ts'],
    limit: 20,
    run: conformance,
  },
  {
    name: 'asan',
    title: 'C++ tests with AddressSanitizer and UBSan',
    tools: ['compiler', 'cmake', 'make', 'verbs', 'gtest'],
    limit: 15,
    run: (context) =>
      nativeTests(context, join(root, 'build', 'asan'), 'address', {
        ASAN_OPTIONS: 'detect_stack_use_after_return=1:strict_string_checks=1',
        UBSAN_OPTIONS: 'print_stacktrace=1',
      }),
  },
  {
    name: 'tsan',
    title: 'C++ tests with ThreadSanitizer',
    tools: ['compiler', 'cmake', 'make', 'verbs', 'gtest'],
    limit: 15,
    run: (context) =>
      nativeTests(context, join(root, 'build', 'tsan'), 'thread', {
        TSAN_OPTIONS: 'halt_on_error=0 second_deadlock_stack=1',
      }),
  },
  {
    name: 'fuzz',
    title: 'libFuzzer smoke on the decoders',
    tools: ['cmake', 'make', 'verbs', 'libfuzzer'],
    limit: 10,
    run: fuzz,
  },
  {
    name: 'models',
    title: 'the protocol models (spin, quick)',
    tools: ['spin', 'compiler', 'bc'],
    limit: 12,
    run: models,
  },
  {
    name: 'tidy',
    title: 'clang-tidy with the chosen list',
    tools: ['cmake', 'verbs', 'gtest', 'clang-tidy'],
    limit: 20,
    byName: true,
    run: async (context) => {
      const folder = join(root, 'build', 'tests');
      const built = await cmakeBuild(context, folder, { MILLRACE_TESTS: 'ON' });
      if (!built) return { passed: 0, failed: 1, skipped: 0, failures: ['build'] };
      const sources = nativeSources(['native']).filter(
        (path) => path.endsWith('.cc') && !path.startsWith('native/addon'),
      );
      return checks(
        context,
        sources.map((path) => [path, which('clang-tidy-14', 'clang-tidy'), ['-p', folder, '--quiet', path]]),
      );
    },
  },
];
