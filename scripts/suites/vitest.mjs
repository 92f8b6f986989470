/** The suites that run in vitest, under this Node.js and under newer ones. */
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fetchNode, NODES } from '../nodes.mjs';
import { head, root, run, say } from '../setup.mjs';
import { checks, endedWell, sum } from './counts.mjs';

/** Runs one project of vitest.config.mts, or some files of it, and counts from its JSON report. */
export async function vitest(
  context,
  project,
  { program = process.execPath, files = [], only = '', env = {}, title = '' } = {},
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
  return endedWell(total, result, 'vitest');
}

/** All of it with XRC, as the device comes, and publish and subscribe also without, as on most adapters (lanes over RC). */
export const integration = async (context) =>
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
export async function nodes(context) {
  const results = [];
  for (const [version, digest] of NODES) {
    const { log } = context;
    const { program, why } = await fetchNode(version, digest, { log, append: true, limitMs: context.left() });
    const title = ` on Node.js ${version}`;
    if (program === undefined) {
      // No tool of this machine: a registry that does not have it, or no network, is not this project's fault.
      say(`    not run${title}: ${why}`);
      results.push({ passed: 0, failed: 0, skipped: 1, failures: [], shown: '' });
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
