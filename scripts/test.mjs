/**
 * `npm test`: prints its plan, sets up what is missing, then runs the suites one after the other.
 * Dependency-free, so that it works on a fresh clone. See --help.
 */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  BUILD_TOOLS,
  buildNative,
  buildTypeScript,
  duration,
  endWithChildren,
  installModules,
  installPackages,
  logs,
  missing,
  packagesOf,
  planSetup,
  root,
  say,
  tail,
} from './setup.mjs';
import { SUITES } from './suites.mjs';

const HELP = `Usage: npm test [-- SUITE... ] [-- --list | --help | --yes | --no-build]

Sets the machine up as far as it may, builds, and runs the named suites (all, if none is named).
  --list      the suites
  --yes       install missing Debian packages with sudo (root does so without being asked)
  --no-build  use the addon and dist/ as they are
Environment:
  CI=true            a suite whose tools are missing has failed (otherwise it is 'not run')
  MILLRACE_NO_APT=1  never run apt-get, print the line to run instead
What a suite prints is in build/logs/SUITE.log. Last line: 'N passed, N failed, N skipped' over all suites;
exit code 0 if nothing failed, 1 if something did, 2 for a wrong argument.`;

const argv = process.argv.slice(2);
const flags = new Set(argv.filter((a) => a.startsWith('-')));
const names = argv.filter((a) => !a.startsWith('-'));
for (const flag of flags) {
  if (!['--list', '--help', '-h', '--yes', '-y', '--no-build'].includes(flag)) {
    say(`Unknown option ${flag}.\n\n${HELP}`);
    process.exit(2);
  }
}
if (flags.has('--help') || flags.has('-h')) {
  say(HELP);
  process.exit(0);
}
if (flags.has('--list')) {
  for (const suite of SUITES)
    say(`${suite.name.padEnd(12)} ${suite.title}${suite.byName ? ' (only when named)' : ''}`);
  process.exit(0);
}
const unknown = names.filter((name) => !SUITES.some((suite) => suite.name === name));
if (unknown.length > 0) {
  say(
    `No suite is called ${unknown.join(', ')}. There are: ${SUITES.map((suite) => suite.name).join(', ')}.`,
  );
  process.exit(2);
}

const ci = process.env.CI === 'true';
const yes = flags.has('--yes') || flags.has('-y');
const chosen = SUITES.filter((suite) => (names.length > 0 ? names.includes(suite.name) : !suite.byName));
const builds = new Set(flags.has('--no-build') ? [] : chosen.flatMap((suite) => suite.built ?? []));
const started = Date.now();

const tools = [
  ...new Set([...(builds.has('native') ? BUILD_TOOLS : []), ...chosen.flatMap((suite) => suite.tools)]),
];
// Ninja is no suite's condition, make does too; it is worth a package where the C++ suites are built anyway.
if (chosen.some((suite) => suite.tools.includes('gtest'))) tools.push('ninja');
const plan = planSetup({ tools, yes });

say('Plan');
for (const line of plan.lines) {
  if (!line.startsWith('build') || builds.size > 0) say(`  ${line}`);
}
say(`  suites     ${chosen.map((suite) => suite.name).join(', ')}`);
say(`  logs       build/logs/`);
say();

/**
 * Shared memory of this run: a folder of its own, so that what a suite leaves behind is seen, and belongs to it.
 * Unix socket paths are short (107 bytes), so its name is too.
 */
const shm = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'mt-'));
// Some tests run as other users, in folders of their own in here.
chmodSync(shm, 0o711);
const tidy = () => rmSync(shm, { recursive: true, force: true });
endWithChildren(tidy);
process.on('exit', tidy);
mkdirSync(logs, { recursive: true });

say('Set-up');
await installPackages(plan);
const ready = { modules: await installModules(), native: true, ts: true };
if (ready.modules) {
  if (builds.has('native')) ready.native = await buildNative();
  if (builds.has('ts')) ready.ts = await buildTypeScript();
}
say(`  done after ${duration(Date.now() - started)}`);
say();

/** Runs one suite and prints its line. */
async function runSuite(suite, position) {
  const head = `[${String(position).padStart(String(chosen.length).length)}/${chosen.length}] ${suite.name.padEnd(12)}`;
  const absent = missing(suite.tools);
  if (absent.length > 0) {
    const remedy = `not run: ${suite.name} (apt-get install ${packagesOf(absent)})`;
    say(`${head} ${remedy}`);
    return ci
      ? { passed: 0, failed: 1, skipped: 0, failures: [remedy] }
      : { passed: 0, failed: 0, skipped: 1, failures: [] };
  }
  const unbuilt = (suite.built ?? []).filter((what) => !ready[what]);
  if (!ready.modules || unbuilt.length > 0) {
    const why = !ready.modules
      ? 'npm ci failed'
      : `the ${unbuilt.map((b) => (b === 'ts' ? 'compilation of src/' : 'build of the addon')).join(' and the ')} failed`;
    say(`${head} FAILED: ${why}, see above`);
    return { passed: 0, failed: 1, skipped: 0, failures: [why] };
  }

  const log = join(logs, `${suite.name}.log`);
  writeFileSync(log, '');
  const began = Date.now();
  const tty = process.stdout.isTTY === true;
  const status = (text) => process.stdout.write(`\r\x1b[2K${head} ${text}`);
  // On a terminal the line counts up; in a log a sign of life every half minute is enough.
  const ticker = setInterval(
    () =>
      tty
        ? status(`... ${duration(Date.now() - began)}`)
        : say(`${head} ... ${duration(Date.now() - began)}`),
    tty ? 1000 : 30_000,
  );
  if (tty) status('...');
  let counts;
  try {
    counts = await suite.run({
      log,
      env: { MILLRACE_SHM_DIR: shm },
      left: () => Math.max(1000, suite.limit * 60_000 - (Date.now() - began)),
    });
  } catch (error) {
    counts = { passed: 0, failed: 1, skipped: 0, failures: [String(error?.stack ?? error)] };
  }
  clearInterval(ticker);

  const failedItself = counts.failed > 0;
  const left = readdirSync(shm);
  if (left.length > 0) {
    counts.failed += 1;
    counts.failures.push(`left behind in shared memory: ${left.join(', ')}`);
    for (const name of left) rmSync(join(shm, name), { recursive: true, force: true });
  }
  const numbers = `${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`;
  const line = `${head} ${counts.failed > 0 ? 'FAILED' : 'ok'}  ${numbers}  ${duration(Date.now() - began)}`;
  if (tty) process.stdout.write(`\r\x1b[2K${line}\n`);
  else say(line);
  if (counts.failed > 0) {
    for (const failure of counts.failures.slice(0, 30)) say(`    x ${failure}`);
    if (failedItself) say(counts.shown || tail(readFileSync(log, 'utf8'), 60));
    say(`    (all of it: ${log.slice(root.length + 1)})`);
  }
  return counts;
}

const total = { passed: 0, failed: 0, skipped: 0 };
const bad = [];
for (const [index, suite] of chosen.entries()) {
  const counts = await runSuite(suite, index + 1);
  total.passed += counts.passed;
  total.failed += counts.failed;
  total.skipped += counts.skipped;
  if (counts.failed > 0) bad.push(suite.name);
}

say();
if (bad.length > 0) say(`Failed: ${bad.join(', ')} (build/logs/)`);
say(`All of it took ${duration(Date.now() - started)}.`);
say(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
process.exit(total.failed > 0 ? 1 : 0);
