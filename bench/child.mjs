/**
 * One of the two processes of a measurement. Told what to do by its argument (JSON); answers its parent over the IPC
 * channel: {ready} once the other side may start, {result} at the end.
 */
import { readFileSync } from 'node:fs';
import { payload as payloadOf } from './payloads.mjs';

const spec = JSON.parse(process.argv[2]);
const peer = await import(`./peers/${spec.peer}.mjs`);
const tell = (message) => new Promise((resolve) => process.send(message, resolve));
const now = () => performance.now();

/** More round trips are not kept. */
const MOST_TRIPS = 500_000;

/** Resolves when the parent says so. */
const told = (word) =>
  new Promise((resolve) => {
    process.on('message', (message) => message === word && resolve());
  });

/** Clock ticks of this process, from the kernel's own account. */
function cpuTicks() {
  const stat = readFileSync('/proc/self/stat', 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return Number(fields[11]) + Number(fields[12]);
}

async function receive() {
  const payload = payloadOf(spec.payload);
  const { weigh } = payload;
  const last = spec.warm + spec.count;
  let count = 0;
  let sum = 0;
  let from = 0;
  let cpuFrom;
  const done = Promise.withResolvers?.() ?? {};
  const finished = done.promise ?? new Promise((resolve) => (done.resolve = resolve));
  const take = (value) => {
    sum += weigh(value);
    count++;
    if (count === spec.warm) {
      from = now();
      cpuFrom = process.cpuUsage();
    } else if (count === last) done.resolve(now());
  };
  const close = await peer.receiver(spec, payload, take);
  await tell({ ready: true });
  const until = await finished;
  const cpu = process.cpuUsage(cpuFrom);
  const expected = Math.floor(last / payload.pool) * payload.sum;
  await tell({
    result: {
      rate: (spec.count / (until - from)) * 1000,
      cpuMicros: cpu.user + cpu.system,
      correct: Math.abs(sum - expected) < 1e-6 * expected,
    },
  });
  await told('end');
  await close?.();
}

async function send() {
  const end = told('end');
  const { send, close } = await peer.sender(spec, payloadOf(spec.payload));
  await send(spec.warm);
  const from = process.cpuUsage();
  await send(spec.count);
  await end;
  const cpu = process.cpuUsage(from);
  await tell({ cpu: cpu.user + cpu.system });
  await close?.();
}

async function pong() {
  let reply;
  reply = await peer.duplex(spec, 'right', (bytes) => reply(bytes));
  await tell({ ready: true });
  await told('end');
  await reply.close?.();
}

/** Round trips one after the other: some time to warm up, then some time that counts. */
async function ping() {
  const end = told('end');
  const message = new Uint8Array(64).fill(7);
  const times = new Float64Array(MOST_TRIPS);
  let count = 0;
  let from = 0;
  let counts = false;
  let until = Infinity;
  let done;
  const finished = new Promise((resolve) => {
    done = resolve;
  });
  const send = await peer.duplex(spec, 'left', () => {
    const at = now();
    if (counts) times[count++] = at - from;
    if (at >= until || count === MOST_TRIPS) {
      if (counts) return done();
      counts = true;
      until = at + spec.seconds * 1000;
    }
    from = now();
    send(message);
  });
  from = now();
  until = from + spec.warmSeconds * 1000;
  send(message);
  await finished;
  const sorted = times.subarray(0, count).sort();
  const at = (share) => sorted[Math.min(count - 1, Math.floor(count * share))] * 1000;
  await tell({
    result: { p10: at(0.1), p50: at(0.5), p90: at(0.9), p99: at(0.99), rate: 1e6 / at(0.5), count },
  });
  await end;
  await send.close?.();
}

/** A subscriber that hears one message and then nothing, for some seconds. */
async function idle() {
  const payload = payloadOf('object');
  let heard;
  const first = new Promise((resolve) => {
    heard = resolve;
  });
  const close = await peer.receiver(spec, payload, heard);
  await tell({ ready: true });
  await first;
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  // The grace of polling that follows traffic is not idleness.
  await pause(500);
  const ticks = cpuTicks();
  const usage = process.cpuUsage();
  const from = now();
  await pause(spec.seconds * 1000);
  const seconds = (now() - from) / 1000;
  const fine = process.cpuUsage(usage);
  await tell({
    result: {
      percent: cpuTicks() - ticks === 0 ? 0 : ((cpuTicks() - ticks) / 100 / seconds) * 100,
      finePercent: ((fine.user + fine.system) / 1e6 / seconds) * 100,
      seconds,
    },
  });
  await told('end');
  await close?.();
}

const roles = { receive, send, ping, pong, idle };
try {
  await roles[spec.role]();
  process.exit(0);
} catch (error) {
  await tell({ failed: error?.stack ?? String(error) });
  process.exit(1);
}
