/**
 * What a suite gives back: how many checks `passed`, `failed` and were `skipped`, the `failures` by name, and the text that is
 * `shown` of them. What its programs print goes to `context.log`.
 */
import { run, tail } from '../setup.mjs';

/** A suite that could not begin, or ended early, which is one failure. */
export const failed = (why) => ({ passed: 0, failed: 1, skipped: 0, failures: [why], shown: '' });

/** A program that failed and named no failure, or did not run a single check, is one itself. `result` is what run() gave. */
export function endedWell(total, result, name) {
  const why = result.timedOut
    ? 'had no time left'
    : result.code !== 0
      ? `ended with exit code ${result.code}`
      : total.passed + total.skipped === 0 && 'ran no check';
  if (total.failed === 0 && why) {
    total.failed = 1;
    total.failures.push(`${name} ${why}`);
  }
  return total;
}

/** The counts of several runs as one. */
export function sum(results) {
  const total = { passed: 0, failed: 0, skipped: 0, failures: [], shown: '' };
  for (const one of results) {
    for (const count of ['passed', 'failed', 'skipped']) total[count] += one[count];
    total.failures.push(...one.failures);
    total.shown += one.shown ?? '';
  }
  return total;
}

/** Runs commands one after the other, each is one check: [title, command, args, env?]. */
export async function checks(context, list) {
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

/**
 * Runs one program, a suite of its own: its last line reads `N passed, N failed, N skipped`.
 * @param failures finds the names of what failed in all that it printed
 */
export async function counted(context, command, args, failures) {
  const result = await run(command, args, {
    log: context.log,
    append: true,
    env: context.env,
    limitMs: context.left(),
  });
  const line = /(\d+) passed, (\d+) failed, (\d+) skipped\s*$/.exec(result.text.trimEnd());
  if (!line)
    return failed(result.timedOut ? 'it had no time left' : `it ended early, with exit code ${result.code}`);
  const [passed, bad, skipped] = line.slice(1).map(Number);
  const total = { passed, failed: bad, skipped, failures: failures(result.text), shown: '' };
  return endedWell(total, result, 'it');
}
