/**
 * npm run bench: this library against what programs use today, on one host, section by section.
 *
 * Speed drifts on shared machines, so peers take turns, each figure is the median over the turns, and what counts is the
 * ratio to a peer of the same run.
 *
 * A section is a module (small.mjs is one) that exports
 *   name     what --only calls it
 *   title    what it measures, in a line
 *   peers    {name: title}: the columns of its tables; --only can name them
 *   cases    what --only can name besides
 *   tables   {key: {title, ours, show, less}}: `ours` is the peer that the others are compared with, `show` makes text of a
 *            figure, `less` says that less is better
 *   rows     (context) -> a list, or the promise of one, of measurements {group, peer, once, measure}. Measurements of one group
 *            take turns; `once` is measured in the first turn only. `measure()` resolves with a list of [table, row, figure]; a text
 *            in place of the figure says why there is none.
 *   marks    (value) -> a list of {mark, measured, met}, where value(table, row, peer) is a median or undefined
 *
 * The context has `quick`, `turns`, `profile` (a folder or undefined), `pick(names)`: those of the names that were asked for, or all,
 * `missing`: {peer: why} of peers that can't run, to which rows() may add.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import * as large from './large.mjs';
import { otherLoad } from './machine.mjs';
import { Results, report } from './report.mjs';
import * as small from './small.mjs';
import * as steering from './steering.mjs';

const here = import.meta.dirname;
const root = join(here, '..');
const SECTIONS = [small, large, steering];

const unique = (names) => [...new Set(names)].join(', ');
const HELP = `Usage: npm run bench -- [options]

Sections: ${SECTIONS.map(({ name, title }) => `\n  ${name.padEnd(16)} ${title}`).join('')}

Peers take turns; medians are shown, with ratios within this run.

  --quick          one short turn
  --only NAMES     some sections, peers and cases only, separated by commas:
                   ${unique(SECTIONS.map(({ name }) => name))}
                   ${unique(SECTIONS.flatMap(({ peers }) => Object.keys(peers)))}
                   ${unique(SECTIONS.flatMap(({ cases }) => cases))}
  --turns N        how many turns
  --profile DIR    write a .cpuprofile of each millrace process of section small to DIR
  --help           this text

The peers are installed into bench/node_modules at the first run (npm ci). nats-server and ucx_perftest come from Debian's
packages nats-server and ucx-utils; without them they are left out. Results go to bench/results/ as JSON, with a description of
the machine.`;

function fail(message) {
  console.error(message);
  process.exit(2);
}

function options() {
  let values;
  try {
    ({ values } = parseArgs({
      options: {
        quick: { type: 'boolean' },
        only: { type: 'string', multiple: true },
        turns: { type: 'string' },
        profile: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    }));
  } catch (error) {
    fail(`${error.message}\n\n${HELP}`);
  }
  if (values.help) {
    console.log(HELP);
    process.exit(0);
  }
  const only = (values.only ?? []).flatMap((text) => text.split(',')).map((name) => name.trim());
  const namesOf = ({ name, peers, cases }) => [name, ...Object.keys(peers), ...cases];
  const known = SECTIONS.flatMap(namesOf);
  for (const name of only)
    if (!known.includes(name)) fail(`--only ${name}: there is no such section, peer or case.\n\n${HELP}`);
  const turns = values.turns === undefined ? (values.quick ? 1 : 5) : Number(values.turns);
  if (!Number.isInteger(turns) || turns < 1 || turns > 100) fail('--turns takes a number from 1 to 100.');
  const named = SECTIONS.filter(({ name }) => only.includes(name));
  const some = (all) => all.filter((name) => only.includes(name));
  return {
    quick: values.quick === true,
    turns,
    profile: values.profile,
    missing: {},
    /** How busy the machine was before each measurement, in CPUs. */
    loads: [],
    pick: (all) => (some(all).length > 0 ? some(all) : all),
    sections:
      named.length > 0 ? named : SECTIONS.filter((one) => only.length === 0 || some(namesOf(one)).length > 0),
  };
}

/** The peers, as the lock file has them. */
function installPeers() {
  const wanted = readFileSync(join(here, 'package-lock.json'), 'utf8');
  const stamp = join(here, 'node_modules', '.installed');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) return {};
  console.log('Installing the peers into bench/node_modules ...');
  // Their binaries are inside the packages; no script needs to run.
  const args = ['ci', '--prefix', here, '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
  const run = spawnSync('npm', args, { stdio: ['ignore', 'inherit', 'inherit'] });
  if (run.status !== 0) return { zeromq: 'npm ci failed', nats: 'npm ci failed' };
  writeFileSync(stamp, wanted);
  return {};
}

function buildOurs() {
  const addons = [
    ['prebuilds', 'linux-x64-glibc'],
    ['build', 'Release'],
  ].map((folder) => join(root, ...folder, 'millrace.node'));
  const built = existsSync(join(root, 'dist', 'index.mjs')) && addons.some((path) => existsSync(path));
  if (built) return;
  console.log('Building millrace ...');
  const run = spawnSync('npm', ['run', 'build'], { cwd: root, stdio: 'inherit' });
  if (run.status !== 0) fail('The build failed.');
}

function progress(text) {
  if (process.stdout.isTTY) process.stdout.write(`\r\x1b[2K${text}`);
  else if (text !== '') console.log(text);
}

/** In which order things are measured: group by group, in turns. Each turn begins with another peer, so that none always runs
 * on a warm or a tired machine. */
function plan(measurements, turns) {
  const groups = new Map();
  for (const one of measurements) groups.set(one.group, [...(groups.get(one.group) ?? []), one]);
  const steps = [];
  for (const group of groups.values()) {
    for (let turn = 0; turn < turns; turn++) {
      for (let i = 0; i < group.length; i++) {
        const measurement = group[(i + turn) % group.length];
        if (turn === 0 || !measurement.once) steps.push({ ...measurement, turn });
      }
    }
  }
  return steps;
}

async function main() {
  const context = options();
  buildOurs();
  Object.assign(context.missing, installPeers());
  if (context.profile !== undefined) mkdirSync(context.profile, { recursive: true });
  const done = [];
  let failed = false;
  for (const section of context.sections) {
    const results = new Results();
    done.push({ section, results });
    const steps = plan(await section.rows(context), context.turns);
    for (const [step, { group, peer, turn, measure }] of steps.entries()) {
      if (context.missing[peer] !== undefined) continue;
      progress(`${section.name} [${step + 1}/${steps.length}] ${group}: ${peer}, turn ${turn + 1}`);
      context.loads.push(await otherLoad());
      try {
        for (const [table, row, figure] of await measure()) results.add(table, row, peer, figure);
      } catch (error) {
        context.missing[peer] = error.message.split('\n')[0];
        failed ||= Object.values(section.tables).some(({ ours }) => ours === peer);
        progress('');
        console.error(`${peer}: ${error.message}`);
      }
    }
  }
  progress('');
  report(done, context);
  process.exit(failed ? 1 : 0);
}

await main();
