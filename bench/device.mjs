/**
 * npm run bench:device: the software device against UCX on the same host: perftest through the drop-in library, and
 * ucx_perftest on the transport of the same mechanism: shared memory (posix) where the buffers are in shared files, and
 * process_vm_writev (cma) where they are the programs' own.
 *
 * Speed drifts on shared machines, so the two take turns, each figure is the median over the turns, and what counts is the
 * ratio within this run.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus, release, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { freePort, runJob } from '../test/conformance/pair.mjs';

const root = join(import.meta.dirname, '..');
const { values: options } = parseArgs({
  options: { turns: { type: 'string', default: '5' }, help: { type: 'boolean', short: 'h', default: false } },
});
if (options.help) {
  console.log(
    'npm run bench:device -- [--turns N]\n\nNeeds perftest and ucx-utils (Debian), and the built addon.',
  );
  process.exit(0);
}

const shm = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'bd-'));
process.on('exit', () => rmSync(shm, { recursive: true, force: true }));
const { dropinFolder } = createRequire(import.meta.url)(join(root, 'dist', 'native', 'dropin.js'));
const library = dropinFolder();
const env = { ...process.env, LD_LIBRARY_PATH: library };

const KIB = 1024;
const MIB = KIB * KIB;
/** Messages of a size, so that each turn takes about as long. */
const iterations = (bytes) => Math.max(40, Math.min(5000, Math.floor((2048 * MIB) / bytes)));

/** A perftest program's table row, as numbers. */
const perftestRow = (text) => /^ *\d+ +\d+ +.*$/m.exec(text)[0].trim().split(/\s+/).map(Number);
/** The last line that ucx_perftest -f -v prints, as numbers. */
const ucxRow = (text) => text.trim().split('\n').at(-1).split(',').map(Number);

/** Buffers in files that the other side can map; sparse, so only what is used takes memory. */
const files = ['a', 'b'].map((name) => join(shm, name));
for (const file of files) {
  writeFileSync(file, '');
  truncateSync(file, 256 * MIB);
}

/** `mapped`: the buffers are in shared files; otherwise they are the programs' own memory. */
const perftest = (program, transport, mapped, bytes, count, column) => async (port) => {
  const words = ['-d', 'soft0', '-F', '-p', String(port), '-c', transport];
  words.push('-s', String(bytes), '-n', String(count));
  // As many outstanding as UCX has.
  if (program.endsWith('_bw')) words.push('-t', '16', ...(program === 'ib_read_bw' ? ['-o', '16'] : []));
  const [server, client] = files.map((file) => [program, ...words, ...(mapped ? [`--mmap=${file}`] : [])]);
  return perftestRow(await pair(server, [...client, '127.0.0.1'], env, port))[column];
};
const ucx = (test, transport, bytes, count, column) => async (port) => {
  const words = ['-p', String(port), '-f', '-v'];
  const more = ['-t', test, '-s', String(bytes), '-n', String(count), '-w', '20', '-O', '16'];
  // The lower layer's own tests name a transport; those of the upper one take it from the environment.
  if (transport === 'cma') more.push('-x', 'cma', '-d', 'memory', '-D', 'zcopy');
  const environment = { ...process.env, UCX_TLS: 'posix,self', UCX_WARN_UNUSED_ENV_VARS: 'n' };
  return ucxRow(
    await pair(
      ['ucx_perftest', ...words],
      ['ucx_perftest', '127.0.0.1', ...words, ...more],
      environment,
      port,
    ),
  )[column];
};

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
const send = (transport, memory) => [
  `send, 64 B, ${transport}`,
  memory,
  LATENCY,
  perftest('ib_send_lat', transport, memory === SHARED, 64, 20_000, 4),
  'tag_lat, posix',
  ucx('tag_lat', 'posix', 64, 20_000, 1),
];
const sized = (bytes) => (bytes < MIB ? `${bytes / KIB} KiB` : `${bytes / MIB} MiB`);
const rows = [
  send('XRC', SHARED),
  send('RC', SHARED),
  send('XRC', OWN),
  ...[64 * KIB, MIB, 64 * MIB].flatMap((bytes) => {
    const n = iterations(bytes);
    return [
      [
        `write, ${sized(bytes)}, XRC`,
        SHARED,
        BANDWIDTH,
        perftest('ib_write_bw', 'XRC', true, bytes, n, 3),
        'ucp_put_bw, posix',
        ucx('ucp_put_bw', 'posix', bytes, n, 5),
      ],
      [
        `write, ${sized(bytes)}, XRC`,
        OWN,
        BANDWIDTH,
        perftest('ib_write_bw', 'XRC', false, bytes, n, 3),
        'put_bw, cma',
        ucx('put_bw', 'cma', bytes, n, 5),
      ],
    ];
  }),
];

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
const show = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(2));

console.log(
  `${cpus()[0].model}, ${cpus().length} CPUs, Linux ${release()}; medians of ${options.turns} turns\n`,
);
console.log('| what | buffers | unit | soft device | UCX | UCX test | ours is |');
console.log('|---|---|---|---|---|---|---|');
for (const [what, memory, { unit, less }, ours, test, theirs] of rows) {
  const mine = [];
  const other = [];
  for (let turn = 0; turn < Number(options.turns); ++turn) {
    mine.push(await ours(await freePort()));
    other.push(await theirs(await freePort()));
  }
  const [a, b] = [median(mine), median(other)];
  const ratio = less ? b / a : a / b;
  console.log(
    `| ${what} | ${memory} | ${unit} | ${show(a)} | ${show(b)} | ${test} | ${ratio.toFixed(2)} x as ${less ? 'fast' : 'much'} |`,
  );
}

const program = join(shm, 'qps');
execFileSync(process.env.CXX || 'c++', [
  ...['-O2', '-std=c++20', join(root, 'bench', 'qps.cc'), join(library, 'libibverbs.so.1'), '-o', program],
]);
console.log('\n| QPs open in the process | ns a posted 8-byte WRITE and its completion |');
console.log('|---|---|');
for (const count of [2, 100, 10_000]) {
  const run = spawnSync(program, [String(count)], {
    encoding: 'utf8',
    env: { ...env, MILLRACE_SHM_DIR: shm },
  });
  console.log(`| ${count} | ${run.status === 0 ? run.stdout.trim() : run.stderr.trim()} |`);
}
