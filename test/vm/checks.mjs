/** What the guest's checks share: a list of named checks, and the tools that look at the kernel's RDMA. */
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The RDMA device of the virtual machine. */
export const DEVICE = 'rxe0';
/** The IPv4-mapped RoCE v2 GID: index 0 is the link-local one. */
export const GID_INDEX = 1;

/** Programs that were started and have not ended. */
const running = new Set();
const totals = { passed: 0, failed: 0, skipped: 0 };

const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

/** Runs one check and prints its line. What it throws is its failure. What it returns is shown behind its name. */
export async function check(name, body, limitMs = 60_000) {
  const began = Date.now();
  let timer;
  const over = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`no end after ${seconds(limitMs)}`)), limitMs);
  });
  try {
    const said = await Promise.race([body(), over]);
    totals.passed += 1;
    console.log(`  ok      ${name}${said ? `: ${said}` : ''}  (${seconds(Date.now() - began)})`);
  } catch (error) {
    totals.failed += 1;
    console.log(`  FAILED  ${name}  (${seconds(Date.now() - began)})`);
    for (const line of String(error?.stack ?? error).split('\n')) console.log(`          ${line}`);
  } finally {
    clearTimeout(timer);
    // What a failed check left running would disturb the next one.
    for (const child of running) child.kill('SIGKILL');
  }
}

/** The path of a GoogleTest program. */
export const nativeTest = (root, program) => join(root, 'build', 'tests', 'test', 'native', program);

/**
 * Runs some tests of a GoogleTest program on the device: a line for each, also of those that did not come to an end.
 * @param {string} root the project's folder, in which they were built
 * @param {string} program
 * @param {string[]} tests names, with wildcards
 */
export async function gtest(root, program, tests, limitMs = 120_000) {
  const path = nativeTest(root, program);
  if (!existsSync(path)) {
    totals.failed += 1;
    console.log(`  FAILED  ${program} was not built: ${path}`);
    return;
  }
  const env = { MILLRACE_TEST_DEVICE: DEVICE, MILLRACE_SHM_DIR: '/dev/shm' };
  const one = start(path, [`--gtest_filter=${tests.join(':')}`], env);
  const timer = setTimeout(() => one.child.kill('SIGKILL'), limitMs);
  const code = await one.ended;
  clearTimeout(timer);
  const lines = one.text().split('\n');
  const named = (pattern) => lines.map((line) => pattern.exec(line)).filter(Boolean);
  const good = named(/^\[ +OK \] (\S+) \((\d+) ms\)/);
  const bad = named(/^\[ +FAILED +\] (\S+?),? .*\((\d+) ms\)/);
  for (const [, name, ms] of good) console.log(`  ok      ${name}  (${seconds(Number(ms))})`);
  totals.passed += good.length;
  const failures = bad.map(([, name]) => name);
  // The one that it was killed in, or crashed in, has no end.
  const started = named(/^\[ +RUN +\] (\S+)/).map(([, name]) => name);
  const open = started.filter((name) => !good.some(([, done]) => done === name) && !failures.includes(name));
  failures.push(...open);
  if (failures.length === 0 && (code !== 0 || good.length === 0)) failures.push(program);
  for (const name of failures) console.log(`  FAILED  ${name} (${program} ended with ${code})`);
  totals.failed += failures.length;
  if (failures.length > 0)
    for (const line of lines.filter((text) => !/^\[/.test(text)).slice(-30)) console.log(`          ${line}`);
}

/** Prints the last line. @returns the exit code */
export function conclude() {
  console.log(`${totals.passed} passed, ${totals.failed} failed, ${totals.skipped} skipped`);
  return totals.failed > 0 ? 1 : 0;
}

/** A program's standard output. @throws with its standard error */
export const output = (command, args) => execFileSync(command, args, { encoding: 'utf8', timeout: 60_000 });

/** Counters of a device's port, as the kernel has them (`rdma statistic show`). */
export function statistics(device = DEVICE) {
  const words = output('rdma', ['statistic', 'show', 'link', `${device}/1`])
    .trim()
    .split(/\s+/);
  const numbers = {};
  // "link rxe0/1 sent_pkts 0 rcvd_pkts 0 ..."
  for (let i = 2; i + 1 < words.length; i += 2) numbers[words[i]] = Number(words[i + 1]);
  return numbers;
}

/** What exists on the device now, of all processes (`rdma resource show`). */
export function resources() {
  const line = output('rdma', ['resource', 'show'])
    .split('\n')
    .find((text) => text.includes(` ${DEVICE}: `));
  const words = line?.split(`${DEVICE}:`)[1].trim().split(/\s+/) ?? [];
  const numbers = {};
  for (let i = 0; i + 1 < words.length; i += 2) numbers[words[i]] = Number(words[i + 1]);
  return numbers;
}

/** What `after` has more than `before`, of the counters that changed, as text. */
export const growth = (before, after) =>
  Object.entries(after)
    .filter(([name, value]) => value !== before[name])
    .map(([name, value]) => `${name} +${value - (before[name] ?? 0)}`)
    .join(', ');

/**
 * Starts a program whose output is collected.
 * @returns {{ child: import('node:child_process').ChildProcess, text: () => string, ended: Promise<number>,
 *   until: (pattern: RegExp) => Promise<RegExpExecArray> }} `until` waits for a match in the output, and rejects when the
 *   program has ended without one
 */
export function start(command, args, env = {}) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  let collected = '';
  let exit;
  const waiting = new Set();
  const look = () => {
    for (const one of waiting) {
      const match = one.pattern.exec(collected);
      if (match) one.resolve(match);
      else if (exit !== undefined)
        one.reject(new Error(`${command} ended with ${exit} before ${one.pattern}:\n${collected}`));
      else continue;
      waiting.delete(one);
    }
  };
  const take = (chunk) => {
    collected += chunk;
    look();
  };
  child.stdout.on('data', take);
  child.stderr.on('data', take);
  const ended = new Promise((resolve) => {
    child.on('error', (error) => take(error.message));
    child.on('close', (code, signal) => {
      running.delete(child);
      exit = code ?? signal ?? 1;
      look();
      resolve(exit);
    });
  });
  const until = (pattern) =>
    new Promise((resolve, reject) => {
      waiting.add({ pattern, resolve, reject });
      look();
    });
  return { child, text: () => collected, ended, until };
}

/** Resolves when some program listens on a TCP port. */
export async function listening(port) {
  const wanted = new RegExp(`:${port.toString(16).toUpperCase().padStart(4, '0')} \\S+ 0A `);
  while (!['/proc/net/tcp', '/proc/net/tcp6'].some((file) => wanted.test(readFileSync(file, 'utf8'))))
    await new Promise((resolve) => setTimeout(resolve, 20));
}

/** @throws with `what` and the program's output unless its exit code is 0 */
export async function succeeds(program, what) {
  const code = await program.ended;
  if (code !== 0) throw new Error(`${what} ended with ${code}:\n${program.text().slice(-4000)}`);
}

/** @throws unless `condition` */
export function expect(condition, message) {
  if (!condition) throw new Error(message);
}
