/**
 * `npm run conformance`: other people's programs on the software device, through the drop-in libibverbs.so.1: Debian's
 * ibverbs-utils and perftest, and rdma-core's own tests (python3-pyverbs), on InfiniBand and Ethernet ports; once as they
 * are, once with the device's delays on, and, where root runs it, some of it once as an ordinary user.
 *
 * A test that skips itself is expected to, with a reason, in test/conformance/expected.json; any other skip fails the
 * run, and so does an expected one that passes. Last line: 'N passed, N failed, N skipped'.
 */
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { endAll, freePort, runJob } from '../test/conformance/pair.mjs';
import { CHECKS } from '../test/conformance/programs.mjs';
import { runPyverbs } from '../test/conformance/pyverbs.mjs';
import { commandLine, duration, root, say } from './setup.mjs';

const HELP = `Usage: npm run conformance [-- OPTIONS] [-- NAME...]

Runs what has one of the NAMEs in its name (all, if none is given).
  --link infiniband|ethernet  one of the two (both unless given)
  --programs, --pyverbs       only these (both unless given)
  --round plain|delays|user   one of the three (all unless given; without root there is no "user")
  --full                      also what takes longer, and the tests that ask for a vendor's device
  --seed N                    of the delays (MILLRACE_SOFT_DELAYS; 1 unless given)
  --list                      the programs' names
  --verbose                   every row, not only what failed`;

const { values: options, positionals: names } = commandLine(
  HELP,
  {
    link: { type: 'string' },
    programs: { type: 'boolean', default: false },
    pyverbs: { type: 'boolean', default: false },
    full: { type: 'boolean', default: false },
    round: { type: 'string' },
    seed: { type: 'string', default: '1' },
    list: { type: 'boolean', default: false },
    verbose: { type: 'boolean', default: false },
  },
  { allowPositionals: true },
);
if (options.list) {
  for (const check of CHECKS) say(`${check.name}${check.full ? ' (with --full)' : ''}`);
  process.exit(0);
}
const LINKS = ['infiniband', 'ethernet'];
if (options.link !== undefined && !LINKS.includes(options.link)) {
  say(`--link is ${LINKS.join(' or ')}, not ${options.link}`);
  process.exit(2);
}
const links = options.link ? [options.link] : LINKS;
const everything = options.programs === options.pyverbs;
const isRoot = process.getuid?.() === 0;
/** Nobody: a user without any right. */
const NOBODY = { uid: 65_534, gid: 65_534 };
const ROUNDS = {
  plain: { title: '', env: {} },
  delays: { title: 'with delays', env: { MILLRACE_SOFT_DELAYS: options.seed } },
  user: { title: 'as an ordinary user', env: {}, user: NOBODY },
};
if (options.round !== undefined && !(options.round in ROUNDS)) {
  say(`--round is ${Object.keys(ROUNDS).join(', ')}, not ${options.round}`);
  process.exit(2);
}
const rounds = Object.entries(ROUNDS)
  .filter(([name, { user }]) => name === options.round || (options.round === undefined && (!user || isRoot)))
  .map(([, round]) => round);

/** A pattern of expected.json: `*` is any text. */
const pattern = (text) =>
  new RegExp(
    `^${text
      .split('*')
      .map((part) => part.replace(/[.\\[\]()+?^$|{}]/g, '\\$&'))
      .join('.*')}$`,
  );
const expected = JSON.parse(readFileSync(join(root, 'test', 'conformance', 'expected.json'), 'utf8'));
/** Pins with a condition only count where it holds. */
const CONDITIONS = {
  'not root': ({ user }) => user !== undefined || !isRoot,
  'no huge pages': () => {
    try {
      return readFileSync('/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages', 'utf8').trim() === '0';
    } catch {
      return true;
    }
  },
};
const pinsOf = (round) =>
  Object.entries(expected.skips)
    .filter(([, pin]) => pin.when === undefined || CONDITIONS[pin.when](round))
    .map(([id, pin]) => ({
      matches: pattern(id),
      links: pin.link ? [pin.link] : LINKS,
      reason: pin.reason,
      fails: pin.fails,
      except: pin.except ?? [],
    }));

/** Not in a folder of the caller's: that one may be closed to the ordinary user. */
const shm = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'millrace-conformance-'));
chmodSync(shm, 0o755);
/** The programs' files for XRC domains, which they leave there; another user's would stop them. */
const LEFT_BEHIND = ['/tmp/xrc_domain', '/tmp/xrc_domain_server', '/tmp/xrc_domain_client'];
const OURS = [process.getuid?.(), ...(isRoot ? [NOBODY.uid] : [])];
const forgetDomains = () => {
  for (const file of LEFT_BEHIND) {
    if (OURS.includes(statSync(file, { throwIfNoEntry: false })?.uid)) rmSync(file, { force: true });
  }
};
const tidy = () => {
  endAll();
  rmSync(shm, { recursive: true, force: true });
  forgetDomains();
};
process.on('exit', tidy);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(1));

const { dropinFolder } = createRequire(import.meta.url)(join(root, 'dist', 'native', 'dropin.js'));
/** A copy, for the same reason. */
const library = mkdtempSync(join(shm, 'library-'));
chmodSync(library, 0o755);
for (const name of readdirSync(dropinFolder())) copyFileSync(join(dropinFolder(), name), join(library, name));
const environment = (link, round) => ({
  ...process.env,
  LD_LIBRARY_PATH: library,
  MILLRACE_SOFT_LINK: link,
  MILLRACE_SOFT_DEVICES: '',
  MILLRACE_FABRIC: '',
  ...round.env,
});

const totals = { pass: 0, fail: 0, skip: 0 };
/** Per link and kind, for the table at the end. */
const table = [];

/** Counts a row against what is expected of it, and says what needs to be said. */
function record(counts, link, { title, pins }, id, row) {
  const pin = pins.find(
    (one) => one.links.includes(link) && one.matches.test(id) && !one.except.includes(id),
  );
  let { result, reason } = row;
  // A few tests don't look whether the device can do it.
  if (result === 'fail' && pin?.fails !== undefined && reason.includes(pin.fails)) result = 'skip';
  if (result === 'skip' && !pin) {
    result = 'fail';
    reason = `skipped, and expected.json does not say so: ${reason}`;
  } else if (result === 'pass' && pin) {
    result = 'fail';
    reason = `passed, and expected.json says that it is skipped (${pin.reason})`;
  }
  counts[result] += 1;
  totals[result] += 1;
  if (result === 'fail' || options.verbose) {
    say(`${result.padEnd(4)} ${link.padEnd(10)} ${id}${title && ` ${title}`}  ${duration(row.ms)}`);
    if (reason !== '')
      say(
        reason
          .trimEnd()
          .split('\n')
          .map((line) => `       ${line}`)
          .join('\n'),
      );
  }
}

const began = Date.now();
for (const round of rounds.map((one) => ({ ...one, pins: pinsOf(one) }))) {
  forgetDomains();
  for (const link of links) await runRound(round, link);
}

/** All that is chosen, one way, on one kind of port. */
async function runRound(round, link) {
  const { title, user } = round;
  const env = environment(link, round);
  if (everything || options.programs) {
    const counts = { pass: 0, fail: 0, skip: 0 };
    const started = Date.now();
    for (const check of CHECKS) {
      if (!check.links.includes(link) || (check.full && !options.full)) continue;
      if (user && !check.user && !options.full) continue;
      if (names.length > 0 && !names.some((name) => check.name.includes(name))) continue;
      if (check.root && (user !== undefined || !isRoot)) {
        record(counts, link, round, check.name, { result: 'skip', reason: 'needs CAP_NET_RAW', ms: 0 });
        continue;
      }
      const port = await freePort();
      const place = { env, shm, port, user };
      record(counts, link, round, check.name, await runJob(check.job({ port, link }), place));
    }
    table.push(['programs', link, title, counts, Date.now() - started]);
  }
  // Of the user alone: the programs, which open the device in more ways; all of it with --full.
  if ((everything && (!user || options.full)) || options.pyverbs) {
    const counts = { pass: 0, fail: 0, skip: 0 };
    const started = Date.now();
    const fault = await runPyverbs({
      env,
      shm,
      user,
      which: options.full ? 'all' : 'common',
      names,
      limitS: 60,
      each: (row) => record(counts, link, round, row.id, row),
    });
    if (fault !== '') record(counts, link, round, 'pyverbs', { result: 'fail', reason: fault, ms: 0 });
    table.push(['pyverbs', link, title, counts, Date.now() - started]);
  }
}

say();
say('              link        passed  failed  skipped');
for (const [kind, link, title, counts, ms] of table) {
  const columns = [counts.pass, counts.fail, counts.skip].map((n) => String(n).padStart(6));
  say(
    `${kind.padEnd(13)} ${link.padEnd(10)} ${columns.join('  ')}   ${duration(ms)}${title && `, ${title}`}`,
  );
}
say(`All of it took ${duration(Date.now() - began)}.`);
say(`${totals.pass} passed, ${totals.fail} failed, ${totals.skip} skipped`);
process.exitCode = totals.fail > 0 ? 1 : 0;
