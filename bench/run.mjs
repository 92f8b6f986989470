/**
 * npm run bench: this library against what Node.js programs use today, between two processes of one host.
 *
 * Speed drifts on shared machines, so peers take turns, each figure is the median over the turns, and what counts is the
 * ratio to a peer of the same run.
 */
import { execFileSync, fork, spawn, spawnSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { cpus, release, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const here = fileURLToPath(new URL('.', import.meta.url));
const root = join(here, '..');
const require = createRequire(import.meta.url);

const PEERS = ['millrace', 'zeromq', 'nats', 'socket', 'coalesced'];
/** From Debian's package of that name. */
const NATS_SERVER = 'nats-server';
const PAYLOADS = ['bytes', 'object', 'struct'];
const CASES = [...PAYLOADS, 'roundtrip', 'idle'];
const CASE_TITLES = {
  bytes: '64 B bytes',
  object: 'four-field object',
  struct: 'struct of 4 numbers',
  roundtrip: 'round trip, 64 B',
  idle: 'idle CPU, subscribed',
};

const HELP = `npm run bench -- [options]

Two processes on this host: throughput of 64 B bytes, a four-field object and a struct, the round trip of 64 B, and the CPU
that an idle subscriber takes. Peers take turns; medians are shown, with ratios within this run.

  --quick          two turns instead of five, and shorter ones
  --only NAMES     some peers and cases only, separated by commas:
                   ${PEERS.join(', ')}
                   ${CASES.join(', ')}
  --turns N        how many turns
  --profile DIR    write a .cpuprofile of each millrace process to DIR
  --help           this text

The peers are installed into bench/node_modules at the first run (npm ci). nats-server comes from Debian's package of that
name; without it NATS is left out. Results go to bench/results/ as JSON, with a description of the machine.`;

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
  for (const name of only) {
    if (!PEERS.includes(name) && !CASES.includes(name)) {
      fail(
        `--only ${name}: there is no such peer or case. Peers: ${PEERS.join(', ')}. Cases: ${CASES.join(', ')}.`,
      );
    }
  }
  const pick = (all) =>
    all.some((name) => only.includes(name)) ? all.filter((name) => only.includes(name)) : all;
  const turns = values.turns === undefined ? (values.quick ? 2 : 5) : Number(values.turns);
  if (!Number.isInteger(turns) || turns < 1 || turns > 100) fail('--turns takes a number from 1 to 100.');
  return {
    quick: values.quick === true,
    peers: pick(PEERS),
    cases: pick(CASES),
    turns,
    profile: values.profile,
    /** How busy the machine was before each measurement, in CPUs. */
    loads: [],
  };
}

// ---- preparation -----------------------------------------------------------------------------------------------------

/** The peers, as the lock file has them. */
function installPeers() {
  const wanted = readFileSync(join(here, 'package-lock.json'), 'utf8');
  const stamp = join(here, 'node_modules', '.installed');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) return null;
  console.log('Installing the peers into bench/node_modules ...');
  // Their binaries are inside the packages; no script needs to run.
  const args = ['ci', '--prefix', here, '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
  const run = spawnSync('npm', args, { stdio: ['ignore', 'inherit', 'inherit'] });
  if (run.status !== 0) return 'npm ci failed';
  writeFileSync(stamp, wanted);
  return null;
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

const children = new Set();
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});
for (const [signal, number] of [
  ['SIGINT', 2],
  ['SIGTERM', 15],
])
  process.on(signal, () => process.exit(128 + number));

/** @returns the server's address, or null where there is no nats-server */
async function startNats(folder) {
  const found = spawnSync(NATS_SERVER, ['--version']);
  if (found.error) return null;
  const child = spawn(
    NATS_SERVER,
    ['-a', '127.0.0.1', '-p', '-1', '--ports_file_dir', folder, '-l', '/dev/null'],
    {
      stdio: 'ignore',
    },
  );
  children.add(child);
  const until = Date.now() + 10_000;
  for (;;) {
    const file = readdirSync(folder).find(
      (name) => name.startsWith('nats-server_') && name.endsWith('.ports'),
    );
    if (file !== undefined) {
      try {
        return JSON.parse(readFileSync(join(folder, file), 'utf8')).nats[0];
      } catch {
        // Half written.
      }
    }
    if (Date.now() > until || child.exitCode !== null) return null;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// ---- one measurement -------------------------------------------------------------------------------------------------

let serial = 0;

/** Starts one child. `first` resolves with its first message of each kind, or rejects when it fails or ends. */
function start(spec, settings) {
  const profile = settings.profile !== undefined && spec.peer === 'millrace';
  const execArgv = profile
    ? [
        '--cpu-prof',
        `--cpu-prof-dir=${settings.profile}`,
        `--cpu-prof-name=${spec.case}-${spec.role}-${serial}.cpuprofile`,
      ]
    : [];
  const child = fork(join(here, 'child.mjs'), [JSON.stringify(spec)], {
    execArgv,
    // A fabric of its own: other programs of this user neither disturb the figures nor see these members.
    env: { ...process.env, MILLRACE_FABRIC: `bench-${process.pid}` },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  children.add(child);
  let errors = '';
  child.stderr.on('data', (text) => {
    errors = (errors + text).slice(-4000);
  });
  const waiting = new Map();
  const ended = new Promise((resolve) => {
    child.on('exit', (code, signal) => {
      children.delete(child);
      for (const { reject } of waiting.values())
        reject(new Error(`${spec.peer} ${spec.role} ended (${signal ?? code}): ${errors.trim()}`));
      resolve();
    });
  });
  child.on('message', (message) => {
    if (message.failed !== undefined) errors += message.failed;
    for (const kind of Object.keys(message)) waiting.get(kind)?.resolve(message[kind]);
  });
  const first = (kind) =>
    new Promise((resolve, reject) => {
      waiting.set(kind, { resolve, reject });
    });
  return { child, first, ended };
}

/** Two processes: the right one must be ready before the left one starts. @returns what `from` measured */
async function pair(left, right, from, settings, deadlineMs) {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-bench-'));
  const shared = { folder, domain: `bench-${process.pid}-${++serial}`, nats: settings.nats };
  const started = [];
  let timer;
  try {
    const late = new Promise((_, reject) => {
      timer = setTimeout(
        () => reject(new Error(`${left.peer}: no result within ${deadlineMs / 1000} s`)),
        deadlineMs,
      );
    });
    const b = start({ ...right, ...shared }, settings);
    started.push(b);
    const resultOfB = b.first('result');
    resultOfB.catch(() => {});
    await Promise.race([b.first('ready'), late]);
    const a = start({ ...left, ...shared }, settings);
    started.push(a);
    const resultOfA = a.first('result');
    resultOfA.catch(() => {});
    const failed = from === 'left' ? resultOfB : resultOfA;
    const cpu = left.role === 'send' ? a.first('cpu') : Promise.resolve(0);
    cpu.catch(() => {});
    const result = await Promise.race([
      from === 'left' ? resultOfA : resultOfB,
      late,
      failed.then(() => late),
    ]);
    for (const { child } of started) child.send('end');
    const senderMicros = await Promise.race([cpu, late]);
    await Promise.race([Promise.all(started.map(({ ended }) => ended)), late]);
    return left.role === 'send' ? { ...result, senderMicros } : result;
  } finally {
    clearTimeout(timer);
    for (const { child } of started) if (child.exitCode === null) child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Counts are multiples of the pool, so that the receiver's sum is known. */
const even = (count) => Math.max(640, Math.round(count / 640) * 640);

async function throughput(peer, payload, count, settings) {
  const spec = { peer, payload, case: payload, warm: even(count / 4), count: even(count) };
  const result = await pair(
    { ...spec, role: 'send' },
    { ...spec, role: 'receive' },
    'right',
    settings,
    60_000,
  );
  if (!result.correct) throw new Error(`${peer}: the values that arrived are not those that were sent`);
  // The rate is a matter of the whole machine; what a message costs is less so.
  const { rate, cpuMicros, senderMicros } = result;
  return { rate, sendMicros: senderMicros / spec.count, receiveMicros: cpuMicros / spec.count };
}

/** How many messages make a turn of the wanted length. Looked at twice: a short run says little about a warm one. */
async function turnLength(peer, payload, seconds, settings) {
  let count = 40_000;
  for (let look = 0; look < 2; look++) {
    const { rate } = await throughput(peer, payload, count, settings);
    count = Math.min(20_000_000, rate * seconds);
  }
  return count;
}

/** The same time for everybody, so that a slow peer does not get a longer warm-up than a fast one, or the other way round. */
const roundTrip = (peer, seconds, settings) => {
  const spec = { peer, case: 'roundtrip', warmSeconds: seconds / 2, seconds };
  return pair({ ...spec, role: 'ping' }, { ...spec, role: 'pong' }, 'left', settings, 60_000);
};

const idleCpu = (seconds, settings) => {
  const spec = { peer: 'millrace', payload: 'object', case: 'idle', warm: 1, count: 0, seconds };
  return pair({ ...spec, role: 'send' }, { ...spec, role: 'idle' }, 'right', settings, 60_000);
};

// ---- the run ---------------------------------------------------------------------------------------------------------

const median = (list) => {
  const sorted = [...list].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

/** A share of all CPUs that others may take before the report says so. */
const BUSY = 0.1;

/** The share of CPU time that somebody took in a moment in which we do nothing, times the number of CPUs. */
async function otherLoad() {
  const sum = () =>
    cpus().reduce(
      ({ idle, total }, { times }) => ({
        idle: idle + times.idle,
        total: total + times.user + times.nice + times.sys + times.irq + times.idle,
      }),
      { idle: 0, total: 0 },
    );
  const before = sum();
  await new Promise((resolve) => setTimeout(resolve, 100));
  const after = sum();
  const total = after.total - before.total;
  return total === 0 ? 0 : (1 - (after.idle - before.idle) / total) * cpus().length;
}

function progress(text) {
  if (process.stdout.isTTY) process.stdout.write(`\r\x1b[2K${text}`);
  else if (text !== '') console.log(text);
}

async function main() {
  const settings = options();
  if (settings.peers.includes('millrace')) buildOurs();
  const missing = {};
  const installed = installPeers();
  if (installed !== null) for (const name of ['zeromq', 'nats']) missing[name] = installed;
  const folder = mkdtempSync(join(tmpdir(), 'millrace-bench-nats-'));
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
  if (settings.profile !== undefined) mkdirSync(settings.profile, { recursive: true });
  if (settings.peers.includes('nats') && missing.nats === undefined) {
    settings.nats = await startNats(folder);
    if (settings.nats === null) missing.nats = 'apt-get install nats-server';
  }

  const seconds = settings.quick ? 0.4 : 1.2;
  /** results[case][peer] = list of what each turn gave */
  const results = {};
  const counts = new Map();
  const peersOf = (name) => {
    if (name === 'idle') return settings.peers.filter((peer) => peer === 'millrace');
    return settings.peers.filter((peer) => name !== 'roundtrip' || peer !== 'coalesced');
  };
  const total = settings.cases.reduce(
    (sum, name) => sum + (name === 'idle' ? peersOf(name).length : peersOf(name).length * settings.turns),
    0,
  );
  let step = 0;

  for (const name of settings.cases) {
    results[name] = {};
    for (let turn = 0; turn < (name === 'idle' ? 1 : settings.turns); turn++) {
      const peers = peersOf(name);
      // Each turn begins with another peer, so that none always runs on a warm or a tired machine.
      const order = peers.map((_, i) => peers[(i + turn) % peers.length]);
      for (const peer of order) {
        step++;
        if (missing[peer] !== undefined) continue;
        progress(`[${step}/${total}] ${CASE_TITLES[name]}: ${peer}, turn ${turn + 1}`);
        settings.loads.push(await otherLoad());
        try {
          let result;
          if (name === 'idle') result = await idleCpu(settings.quick ? 2 : 5, settings);
          else if (name === 'roundtrip') result = await roundTrip(peer, seconds, settings);
          else {
            const key = `${name} ${peer}`;
            if (!counts.has(key)) counts.set(key, await turnLength(peer, name, seconds, settings));
            result = await throughput(peer, name, counts.get(key), settings);
          }
          results[name][peer] = [...(results[name][peer] ?? []), result];
        } catch (error) {
          missing[peer] = error.message.split('\n')[0];
          progress('');
          console.error(`${peer}: ${error.message}`);
        }
      }
    }
  }
  progress('');
  report(settings, results, missing);
  process.exit(settings.peers.includes('millrace') && missing.millrace !== undefined ? 1 : 0);
}

// ---- the report ------------------------------------------------------------------------------------------------------

const mega = (rate) => (rate >= 1e6 ? `${(rate / 1e6).toFixed(2)} M/s` : `${(rate / 1e3).toFixed(0)} k/s`);
const ratio = (value) => (value >= 10 ? value.toFixed(0) : value.toFixed(value >= 1 ? 1 : 2));

function version(file) {
  try {
    return JSON.parse(readFileSync(file, 'utf8')).version;
  } catch {
    return null;
  }
}

function machine() {
  const quietly = (command, args) => {
    try {
      return execFileSync(command, args, {
        encoding: 'utf8',
        cwd: root,
        stdio: ['ignore', 'pipe', 'ignore'],
      }).trim();
    } catch {
      return null;
    }
  };
  const system = existsSync('/etc/os-release')
    ? /PRETTY_NAME="?([^"\n]*)/.exec(readFileSync('/etc/os-release', 'utf8'))?.[1]
    : null;
  return {
    cpu: cpus()[0]?.model ?? null,
    processors: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    system,
    node: process.version,
    v8: process.versions.v8,
    versions: {
      millrace: version(join(root, 'package.json')),
      commit: quietly('git', ['rev-parse', '--short', 'HEAD']),
      zeromq: version(join(here, 'node_modules', 'zeromq', 'package.json')),
      nats: version(join(here, 'node_modules', '@nats-io', 'transport-node', 'package.json')),
      natsServer: quietly(NATS_SERVER, ['--version']),
      msgpackr: version(join(root, 'node_modules', 'msgpackr', 'package.json')),
    },
  };
}

/** The marks that the project set itself. A benchmark says whether they are met; it is not a test. */
function marks(value) {
  const list = [];
  const add = (text, measured, met) => list.push({ mark: text, measured, met });
  const [ours, zeromq] = [value('object', 'millrace', 'rate'), value('object', 'zeromq', 'rate')];
  if (ours && zeromq)
    add("objects: ten times zeromq's throughput", `${ratio(ours / zeromq)} times`, ours >= 10 * zeromq);
  const [trip, socket] = [value('roundtrip', 'millrace', 'p50'), value('roundtrip', 'socket', 'p50')];
  if (trip && socket) {
    add(
      "round trip while busy: a quarter of the Unix socket's",
      `${ratio(trip / socket)} of it`,
      trip <= socket / 4,
    );
  }
  const idle = value('idle', 'millrace', 'percent');
  if (idle !== undefined)
    add('idle CPU of a subscribed process: under 1 %', `${idle.toFixed(2)} %`, idle < 1);
  return list;
}

function report(settings, results, missing) {
  const Table = require('cli-table3');
  const all = (name, peer, key) => (results[name]?.[peer] ?? []).map((result) => result[key]);
  const value = (name, peer, key) => {
    const list = all(name, peer, key);
    return list.length === 0 ? undefined : median(list);
  };
  /** The least and the most of the turns: how far one figure can be trusted. */
  const spread = (name, peer, key, text) => {
    const list = all(name, peer, key);
    return `${text(Math.min(...list))} .. ${text(Math.max(...list))}`;
  };
  const titles = {
    millrace: 'millrace',
    zeromq: 'zeromq 6, pub/sub',
    nats: 'NATS',
    socket: 'Unix socket, a write each',
    coalesced: 'Unix socket, coalesced',
  };
  const plain = { style: { head: [], border: [] } };

  const rates = settings.cases.filter((name) => PAYLOADS.includes(name));
  if (rates.length > 0) {
    const table = new Table({
      ...plain,
      head: ['messages a second', ...rates.flatMap((name) => [CASE_TITLES[name], 'millrace is'])],
    });
    for (const peer of settings.peers) {
      const cells = rates.flatMap((name) => {
        const rate = value(name, peer, 'rate');
        const ours = value(name, 'millrace', 'rate');
        if (rate === undefined) return ['', ''];
        return [mega(rate), peer === 'millrace' || ours === undefined ? '' : `${ratio(ours / rate)} x`];
      });
      table.push([titles[peer], ...cells]);
    }
    console.log(table.toString());
  }
  if (rates.length > 0) {
    const head = ['CPU ns a message: send + receive', ...rates.map((name) => CASE_TITLES[name])];
    const table = new Table({ ...plain, head });
    for (const peer of settings.peers) {
      const cell = (name) => {
        const [send, receive] = ['sendMicros', 'receiveMicros'].map((key) => value(name, peer, key));
        return send === undefined ? '' : `${(send * 1000).toFixed(0)} + ${(receive * 1000).toFixed(0)}`;
      };
      table.push([titles[peer], ...rates.map(cell)]);
    }
    console.log(table.toString());
  }
  if (rates.length > 0) {
    const head = ['rates of the turns, least .. most', ...rates.map((name) => CASE_TITLES[name])];
    const table = new Table({ ...plain, head });
    for (const peer of settings.peers) {
      const cell = (name) =>
        value(name, peer, 'rate') === undefined ? '' : spread(name, peer, 'rate', mega);
      table.push([titles[peer], ...rates.map(cell)]);
    }
    console.log(table.toString());
  }
  if (settings.cases.includes('roundtrip')) {
    const table = new Table({
      ...plain,
      head: [
        CASE_TITLES.roundtrip,
        'p10 us',
        'p50 us',
        'p50 of the turns',
        'p90 us',
        'p99 us',
        'millrace takes',
      ],
    });
    const ours = value('roundtrip', 'millrace', 'p50');
    for (const peer of settings.peers.filter((name) => name !== 'coalesced')) {
      const p50 = value('roundtrip', peer, 'p50');
      if (p50 === undefined) continue;
      const micros = (key) => value('roundtrip', peer, key).toFixed(1);
      table.push([
        titles[peer],
        micros('p10'),
        micros('p50'),
        spread('roundtrip', peer, 'p50', (us) => us.toFixed(1)),
        micros('p90'),
        micros('p99'),
        peer === 'millrace' || ours === undefined ? '' : `${ratio(ours / p50)} of it`,
      ]);
    }
    console.log(table.toString());
  }
  const idle = value('idle', 'millrace', 'percent');
  if (idle !== undefined) {
    console.log(
      `Idle, subscribed: ${idle.toFixed(2)} % of a CPU (kernel ticks), ${value('idle', 'millrace', 'finePercent').toFixed(3)} % (rusage).`,
    );
  }
  for (const [peer, why] of Object.entries(missing))
    if (settings.peers.includes(peer)) console.log(`not run: ${peer} (${why})`);
  const met = marks(value);
  for (const { mark, measured, met: yes } of met)
    console.log(`${yes ? 'met    ' : 'not met'}  ${mark}: ${measured}`);

  const medians = {};
  for (const [name, peers] of Object.entries(results)) {
    medians[name] = {};
    for (const [peer, list] of Object.entries(peers)) {
      medians[name][peer] = Object.fromEntries(
        Object.keys(list[0])
          .filter((key) => typeof list[0][key] === 'number')
          .map((key) => [key, value(name, peer, key)]),
      );
    }
  }
  const busy = settings.loads.filter((load) => load > BUSY * cpus().length).length;
  if (busy > 0) {
    console.log(
      `Other programs were running before ${busy} of ${settings.loads.length} measurements: repeat them on a quiet machine.`,
    );
  }
  const date = new Date().toISOString();
  mkdirSync(join(here, 'results'), { recursive: true });
  const path = join(here, 'results', `${date.slice(0, 19).replaceAll(':', '-')}.json`);
  const page = {
    date,
    quick: settings.quick,
    turns: settings.turns,
    machine: machine(),
    loads: settings.loads,
    medians,
    marks: met,
    missing,
    turnsOf: results,
  };
  writeFileSync(path, `${JSON.stringify(page, null, 2)}\n`);
  console.log(`Written to ${path}`);
}

await main();
