/** Small messages between two processes: throughput, what a message costs, the round trip, and what an idle subscriber takes. */
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { digits, micros, percent, perSecond } from './figures.mjs';
import { firstLine } from './machine.mjs';
import { newFolder, owned, scene } from './processes.mjs';

const PAYLOADS = { bytes: '64 B bytes', object: 'four-field object', struct: 'struct of 4 numbers' };
/** From Debian's package of that name. */
const NATS_SERVER = 'nats-server';

export const name = 'small';
export const title =
  'Two processes: 64 B bytes, a four-field object and a struct; the round trip of 64 B; idle CPU.';
export const peers = {
  millrace: 'millrace',
  zeromq: 'zeromq 6, pub/sub',
  nats: 'NATS',
  socket: 'Unix socket,\na write each',
  coalesced: 'Unix socket,\ncoalesced',
};
export const cases = [...Object.keys(PAYLOADS), 'roundtrip', 'idle'];
const nanos = (value) => `${value.toFixed(0)} ns`;
export const tables = {
  rate: { title: 'messages a second', ours: 'millrace', show: perSecond },
  cpu: { title: 'CPU a message', ours: 'millrace', show: nanos, less: true },
  roundtrip: { title: 'round trip, 64 B', ours: 'millrace', show: micros, less: true },
  idle: { title: 'idle, subscribed', ours: 'millrace', show: percent, less: true },
};

/** @returns the server's address, or null where there is no nats-server */
async function startNats() {
  if (firstLine(NATS_SERVER, ['--version']) === null) return null;
  const folder = newFolder();
  const args = ['-a', '127.0.0.1', '-p', '-1', '--ports_file_dir', folder, '-l', '/dev/null'];
  const child = owned(spawn(NATS_SERVER, args, { stdio: 'ignore' }));
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

/** Two processes: the right one must be ready before the left one starts. @returns what `from` measured */
function pair(left, right, from, context) {
  let serial = 0;
  const profiled = (spec) => {
    if (context.profile === undefined || spec.peer !== 'millrace') return [];
    const name = `${spec.case}-${spec.role}-${process.pid}-${Date.now()}-${++serial}.cpuprofile`;
    return ['--cpu-prof', `--cpu-prof-dir=${context.profile}`, `--cpu-prof-name=${name}`];
  };
  return scene(left.peer, 60_000, async (start) => {
    const run = (spec) => start('child.mjs', { ...spec, nats: context.nats }, { execArgv: profiled(spec) });
    const b = run(right);
    const resultOfB = b.first('result');
    await b.first('ready');
    const a = run(left);
    const resultOfA = a.first('result');
    const cpu = left.role === 'send' ? a.first('cpu') : Promise.resolve(0);
    const [mine, other] = from === 'left' ? [resultOfA, resultOfB] : [resultOfB, resultOfA];
    // The other one has no result: it can only fail.
    const result = await Promise.race([mine, other]);
    for (const { child } of [a, b]) child.send('end');
    const senderMicros = await cpu;
    await Promise.all([a.ended, b.ended]);
    return { ...result, senderMicros };
  });
}

/** Counts are multiples of the pool, so that the receiver's sum is known. */
const even = (count) => Math.max(640, Math.round(count / 640) * 640);

async function throughput(peer, payload, count, context) {
  const spec = { peer, payload, case: payload, warm: even(count / 4), count: even(count) };
  const result = await pair({ ...spec, role: 'send' }, { ...spec, role: 'receive' }, 'right', context);
  if (!result.correct) throw new Error(`${peer}: the values that arrived are not those that were sent`);
  // The rate is a matter of the whole machine; what a message costs is less so.
  const { rate, cpuMicros, senderMicros } = result;
  return {
    rate,
    sendNanos: (senderMicros * 1000) / spec.count,
    receiveNanos: (cpuMicros * 1000) / spec.count,
  };
}

/** How many messages make a turn of the wanted length. Looked at twice: a short run says little about a warm one. */
async function turnLength(peer, payload, seconds, context) {
  let count = 40_000;
  for (let look = 0; look < 2; look++) {
    const { rate } = await throughput(peer, payload, count, context);
    count = Math.min(20_000_000, rate * seconds);
  }
  return count;
}

function throughputOf(peer, payload, seconds, context) {
  let count;
  return async () => {
    count ??= await turnLength(peer, payload, seconds, context);
    const { rate, sendNanos, receiveNanos } = await throughput(peer, payload, count, context);
    return [
      ['rate', PAYLOADS[payload], rate],
      ['cpu', `${PAYLOADS[payload]}, sent`, sendNanos],
      ['cpu', `${PAYLOADS[payload]}, received`, receiveNanos],
    ];
  };
}

/** The same time for everybody, so that a slow peer does not get a longer warm-up than a fast one, or the other way round. */
const roundTripOf = (peer, seconds, context) => async () => {
  const spec = { peer, case: 'roundtrip', warmSeconds: seconds / 2, seconds };
  const found = await pair({ ...spec, role: 'ping' }, { ...spec, role: 'pong' }, 'left', context);
  return ['p10', 'p50', 'p90', 'p99'].map((key) => ['roundtrip', key, found[key]]);
};

const idleOf = (peer, seconds, context) => async () => {
  const spec = { peer, payload: 'object', case: 'idle', warm: 1, count: 0, seconds };
  const found = await pair({ ...spec, role: 'send' }, { ...spec, role: 'idle' }, 'right', context);
  return [
    ['idle', "CPU, by the kernel's ticks", found.percent],
    ['idle', 'CPU, by rusage', found.finePercent],
  ];
};

export async function rows(context) {
  const chosen = context.pick(Object.keys(peers));
  if (chosen.includes('nats') && context.missing.nats === undefined) {
    context.nats = await startNats();
    if (context.nats === null) context.missing.nats = 'apt-get install nats-server';
  }
  const seconds = context.quick ? 0.4 : 1.2;
  return context.pick(cases).flatMap((one) => {
    if (one in PAYLOADS) {
      return chosen.map((peer) => ({
        group: PAYLOADS[one],
        peer,
        measure: throughputOf(peer, one, seconds, context),
      }));
    }
    if (one === 'roundtrip') {
      const answering = chosen.filter((peer) => peer !== 'coalesced');
      return answering.map((peer) => ({ group: one, peer, measure: roundTripOf(peer, seconds, context) }));
    }
    const ours = chosen.filter((peer) => peer === 'millrace');
    return ours.map((peer) => ({
      group: one,
      peer,
      once: true,
      measure: idleOf(peer, context.quick ? 2 : 5, context),
    }));
  });
}

/** The marks that the project set itself. A benchmark says whether they are met; it is not a test. */
export function marks(value) {
  const list = [];
  const [ours, zeromq] = ['millrace', 'zeromq'].map((peer) => value('rate', PAYLOADS.object, peer));
  if (ours && zeromq) {
    list.push({
      mark: "objects: ten times zeromq's throughput",
      measured: `${digits(ours / zeromq)} times`,
      met: ours >= 10 * zeromq,
    });
  }
  const [trip, socket] = ['millrace', 'socket'].map((peer) => value('roundtrip', 'p50', peer));
  if (trip && socket) {
    list.push({
      mark: "round trip while busy: a quarter of the Unix socket's",
      measured: `${digits(trip / socket)} of it`,
      met: trip <= socket / 4,
    });
  }
  const idle = value('idle', "CPU, by the kernel's ticks", 'millrace');
  if (idle !== undefined) {
    list.push({
      mark: 'idle CPU of a subscribed process: under 1 %',
      measured: percent(idle),
      met: idle < 1,
    });
  }
  return list;
}
