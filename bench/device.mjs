/**
 * npm run bench:device: the software device against others that copy by the same mechanism, on the same host and in the
 * same run:
 *  - perftest through the drop-in library against ucx_perftest: on shared memory (posix) where the buffers are in shared
 *    files, and by process_vm_writev (cma) where they are the programs' own;
 *  - the same with buffers in shared files against memcpy between two such files;
 *  - what a work request costs with 1 to 10,000 QPs open.
 *
 * Speed drifts on shared machines, by far more than what is measured here, so the two of a row take turns, and what counts
 * is the median of the ratios of the turns.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus, loadavg, release, tmpdir } from 'node:os';
import { join } from 'node:path';
import { commandLine } from '../scripts/setup.mjs';
import { endAll, freePort, runJob } from '../test/conformance/pair.mjs';
import { lineChart } from './plot.mjs';
import { runUcx } from './ucx.mjs';

const root = join(import.meta.dirname, '..');
const HELP = `Usage: npm run bench:device -- [--turns N] [--only TEXT] [--plot FILE]

  --turns N     how often each is measured (5)
  --only TEXT   only rows that have this text in their first three columns
  --plot FILE   writes the costs over the number of QPs as SVG, e.g. docs/soft-device-qps.svg

Needs perftest and ucx-utils (Debian), a C++ compiler, and the built addon. Exit code 1 if something could not be measured;
marks that are not met are printed and change nothing.`;
const { values: options } = commandLine(HELP, {
  turns: { type: 'string', default: '5' },
  only: { type: 'string', default: '' },
  plot: { type: 'string' },
});
const turns = Number(options.turns);
if (!(turns >= 1)) {
  console.log(`--turns takes a number from 1 on, not ${options.turns}.\n\n${HELP}`);
  process.exit(2);
}

const shm = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'bd-'));
process.on('exit', () => {
  endAll();
  rmSync(shm, { recursive: true, force: true });
});
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(1));
const { dropinFolder } = createRequire(import.meta.url)(join(root, 'dist', 'native', 'dropin.js'));
const library = dropinFolder();
const env = { ...process.env, LD_LIBRARY_PATH: library };

const KIB = 1024;
const MIB = KIB * KIB;
/** Messages of a size, so that each turn takes about as long. */
const iterations = (bytes) => Math.max(40, Math.floor((2048 * MIB) / bytes));

/** A perftest program's table row, as numbers. */
const perftestRow = (text) => /^ *\d+ +\d+ +.*$/m.exec(text)[0].trim().split(/\s+/).map(Number);

/** Buffers in files that the other side can map; sparse, so only what is used takes memory. */
const files = ['a', 'b'].map((name) => join(shm, name));
for (const file of files) {
  writeFileSync(file, '');
  truncateSync(file, 256 * MIB);
}

/** A program of this folder. */
function compile(name, libraries = []) {
  const program = join(shm, name);
  const source = join(root, 'bench', `${name}.cc`);
  execFileSync(process.env.CXX || 'c++', ['-O2', '-std=c++20', source, ...libraries, '-o', program]);
  return program;
}
const copier = compile('copy');
const counter = compile('qps', [join(library, 'libibverbs.so.1')]);

/** The number that one of them prints. */
function number(program, args, environment) {
  const run = spawnSync(program, args.map(String), { encoding: 'utf8', env: environment });
  if (run.status !== 0) throw new Error(`${program}: ${run.stderr.trim() || run.signal}`);
  return Number(run.stdout);
}

/** UCX's own tests allocate in transparent huge pages; so does malloc when it is told to. What copies by the kernel is twice
 * as fast with them. */
const HUGE_PAGES = { GLIBC_TUNABLES: 'glibc.malloc.hugetlb=1' };

/** `mapped`: the buffers are in shared files; otherwise they are the programs' own memory. */
const perftest = (program, transport, mapped, bytes, count, column) => async (port) => {
  const words = ['-d', 'soft0', '-F', '-p', String(port), '-c', transport];
  words.push('-s', String(bytes), '-n', String(count));
  // As many outstanding as UCX has.
  if (program.endsWith('_bw')) words.push('-t', '16', ...(program === 'ib_read_bw' ? ['-o', '16'] : []));
  const [server, client] = files.map((file) => [program, ...words, ...(mapped ? [`--mmap=${file}`] : [])]);
  const environment = mapped ? env : { ...env, ...HUGE_PAGES };
  return perftestRow(await pair(server, [...client, '127.0.0.1'], environment, port))[column];
};
const ucx = (test, transport, bytes, count, column) => async (port) =>
  (await runUcx(test, transport, bytes, count, shm, port))[column];

async function pair(server, client, environment, port) {
  const { result, reason, text } = await runJob(
    { server, clients: [client], limitMs: 120_000 },
    { env: environment, shm, port },
  );
  if (result !== 'pass') throw new Error(reason);
  return text;
}

const LATENCY = { unit: 'us', less: true };
const BANDWIDTH = { unit: 'MiB/s', less: false };
const SHARED = 'shared file';
const OWN = "program's own";
const sized = (bytes) => (bytes < MIB ? `${bytes / KIB} KiB` : `${bytes / MIB} MiB`);

/** A row: what, on which memory, by which measure, ours, the other's name and itself, and how many times as good ours must be. */
const send = (transport, memory) => ({
  what: `send, 64 B, ${transport}`,
  memory,
  ...LATENCY,
  ours: perftest('ib_send_lat', transport, memory === SHARED, 64, 20_000, 4),
  other: 'tag_lat, posix',
  theirs: ucx('tag_lat', 'posix', 64, 20_000, 'latency'),
  mark: 0.5,
});
const bulk = (verb, memory, bytes) => {
  const [program, ucp, uct] =
    verb === 'write' ? ['ib_write_bw', 'ucp_put_bw', 'put_bw'] : ['ib_read_bw', 'ucp_get', 'get'];
  const [test, transport] = memory === SHARED ? [ucp, 'posix'] : [uct, 'cma'];
  const n = iterations(bytes);
  return {
    what: `${verb}, ${sized(bytes)}, XRC`,
    memory,
    ...BANDWIDTH,
    ours: perftest(program, 'XRC', memory === SHARED, bytes, n, 3),
    other: `${test}, ${transport}`,
    theirs: ucx(test, transport, bytes, n, 'bandwidth'),
    mark: verb === 'write' ? 1 : undefined,
  };
};
const copy = (bytes) => {
  const n = iterations(bytes);
  return {
    what: `write, ${sized(bytes)}, XRC`,
    memory: SHARED,
    ...BANDWIDTH,
    ours: perftest('ib_write_bw', 'XRC', true, bytes, n, 3),
    other: 'memcpy',
    theirs: () => number(copier, [...files, bytes, n], process.env),
    mark: 0.9,
  };
};
const SIZES = [64 * KIB, MIB, 64 * MIB];
const rows = [
  send('XRC', SHARED),
  send('RC', SHARED),
  send('XRC', OWN),
  ...['write', 'read'].flatMap((verb) =>
    [SHARED, OWN].flatMap((memory) => SIZES.map((bytes) => bulk(verb, memory, bytes))),
  ),
  ...SIZES.map(copy),
].filter(({ what, memory, other }) => `${what} | ${memory} | ${other}`.includes(options.only));

const sorted = (values) => values.toSorted((a, b) => a - b);
const median = (values) => sorted(values)[Math.floor(values.length / 2)];
const show = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(2));
let failed = 0;
const marks = { met: 0, missed: 0 };

/** Both of a row, in turns. */
async function measure({ what, memory, unit, less, ours, other, theirs, mark }) {
  const mine = [];
  const others = [];
  for (let turn = 0; turn < turns; ++turn) {
    // Each goes first in every other turn.
    if (turn % 2 === 0) mine.push(await ours(await freePort()));
    others.push(await theirs(await freePort()));
    if (turn % 2 !== 0) mine.push(await ours(await freePort()));
  }
  const best = (values) => (less ? sorted(values)[0] : sorted(values).at(-1));
  const ratio = (a, b) => (less ? b / a : a / b);
  const typical = median(mine.map((value, turn) => ratio(value, others[turn])));
  const verdict = mark === undefined ? '' : `${mark}: ${typical >= mark ? 'met' : 'not met'}`;
  if (mark !== undefined) ++marks[typical >= mark ? 'met' : 'missed'];
  const cells = [what, memory, unit, show(median(mine)), show(best(mine)), other];
  cells.push(
    show(median(others)),
    show(best(others)),
    typical.toFixed(2),
    ratio(best(mine), best(others)).toFixed(2),
  );
  console.log(`| ${[...cells, verdict].join(' | ')} |`);
}

const load = () => loadavg()[0].toFixed(1);
console.log(
  `${cpus()[0].model}, ${cpus().length} CPUs, Linux ${release()}; ${turns} turns; load average ${load()} at the start\n`,
);
if (rows.length > 0) {
  console.log(
    '| what | buffers | unit | ours, median | best | other | median | best | ours is, median of turns | of the best | at least |',
  );
  console.log('|---|---|---|---|---|---|---|---|---|---|---|');
}
for (const row of rows) {
  try {
    await measure(row);
  } catch (error) {
    ++failed;
    console.log(
      `| ${row.what} | ${row.memory} | could not be measured: ${error.message.replaceAll('\n', ' ')} |`,
    );
  }
}

const COUNTS = [1, 10, 100, 1000, 10_000];
if ('QPs'.includes(options.only)) {
  const costs = COUNTS.map(() => []);
  for (let turn = 0; turn < turns; ++turn) {
    COUNTS.forEach((count, i) => {
      costs[i].push(number(counter, [count], { ...env, MILLRACE_SHM_DIR: shm }));
    });
  }
  console.log('\n| QPs open in the process | ns a posted 8-byte WRITE and its completion, median | best |');
  console.log('|---|---|---|');
  COUNTS.forEach((count, i) => {
    console.log(
      `| ${count.toLocaleString('en')} | ${median(costs[i]).toFixed(1)} | ${sorted(costs[i])[0].toFixed(1)} |`,
    );
  });
  const flat = sorted(costs.at(-1))[0] / sorted(costs[0])[0];
  // A fifth more than with one QP counts as flat: the caches hold less of what is used.
  const verdict = flat <= 1.2 ? 'met' : 'missed';
  ++marks[verdict];
  console.log(
    `\n10,000 QPs cost ${flat.toFixed(2)} times what one costs; at most 1.2: ${flat <= 1.2 ? 'met' : 'not met'}`,
  );
  if (options.plot !== undefined) {
    const chart = {
      title: 'A posted 8-byte WRITE and its completion',
      x: 'QPs open in the process',
      y: 'ns',
      at: COUNTS,
      series: [
        { name: 'median', values: costs.map(median) },
        { name: 'best', values: costs.map((values) => sorted(values)[0]) },
      ],
    };
    writeFileSync(options.plot, lineChart(chart));
    console.log(`plot in ${options.plot}`);
  }
}
console.log(
  `\n${marks.met} marks met, ${marks.missed} not met, ${failed} rows could not be measured; load average ${load()} at the end`,
);
process.exitCode = failed > 0 ? 1 : 0;
