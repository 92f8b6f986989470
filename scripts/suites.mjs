/**
 * The suites of `npm test`. Each has the tools it needs, a limit, and a run() that returns its counts.
 * A suite writes everything it prints to `context.log`; the runner shows the tail of that when it fails.
 */
import { join } from 'node:path';
import { bin, clangFormat, root } from './setup.mjs';
import { checks, counted, failed } from './suites/counts.mjs';
import { buildNativeTests, fuzz, nativeSources, nativeTests, tidy } from './suites/cpp.mjs';
import { integration, nodes, vitest } from './suites/vitest.mjs';

const node = process.execPath;

/** The compiler on a project, which remembers what it has checked: the second time it looks at what has changed. */
const typesOf = (project) => [
  'node_modules/typescript/bin/tsc',
  ...['-p', project, '--incremental', '--tsBuildInfoFile', join(root, 'build', 'types', `${project}.info`)],
];

/** The Promela models. */
const models = (context) =>
  counted(context, 'bash', [join(root, 'native', 'models', 'run_all.sh'), 'quick'], (text) =>
    text.split('\n').filter((line) => /UNEXPECTED|ERROR/.test(line)),
  );

/** The transport on the kernel's RDMA, in a virtual machine. */
async function vm(context) {
  if (!(await buildNativeTests(context))) return failed('build');
  return counted(context, node, [join(root, 'scripts', 'test-vm.mjs'), '--no-build'], (text) =>
    text.split('\n').filter((line) => /^ {2}FAILED /.test(line)),
  );
}

/** Other people's programs. */
const conformance = (context) =>
  counted(context, node, ['scripts/conformance.mjs'], (text) =>
    [...text.matchAll(/^fail (\w+) +(.*?) {2}[\d.]+ /gm)].map(([, link, name]) => `${link}: ${name}`),
  );

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
    run: tidy,
  },
];
