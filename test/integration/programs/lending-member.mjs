/**
 * A member that lends, leases, retains and releases by chance, and looks whether what it holds stays as it was. Takes
 * commands as lines of JSON, answers with lines of JSON: `lending-member.mjs NAME OPTIONS`. Ends when standard input ends.
 */
import { createInterface } from 'node:readline';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import millrace from '../../../dist/index.js';

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc');
const [name, options = '{}'] = process.argv.slice(2);
const { overflow = 'wait', seed = 1, keeps = 8, ...join } = JSON.parse(options);
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

// mulberry32
let state = seed;
const random = (below) => {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) % below;
};

const SIZES = [20_000, 65_536, 200_000, 1_000_000];
let stamp = 0;
/** Marks a block at its ends and in between, so that one that is used too early shows. */
function fill(bytes) {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length >>> 2);
  const mark = (process.pid << 12) ^ ++stamp;
  for (let i = 0; i < words.length; i += 1024) words[i] = mark;
  words[words.length - 1] = mark;
}
function markOf(bytes) {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length >>> 2);
  const mark = words[0];
  for (let i = 0; i < words.length; i += 1024) if (words[i] !== mark) return -1;
  return words[words.length - 1] === mark ? mark : -1;
}

const member = await millrace.join(undefined, { name, ...join });
const out = member.channel('leased', { codec: 'bytes', overflow });
const owned = member.channel('owned', {
  codec: 'bytes',
  overflow: overflow === 'wait' ? 'drop-oldest' : overflow,
});
out.status$.subscribe((event) => {
  if (event.type === 'payload-failed') say({ type: 'failed', code: event.error.code });
});
const counts = { loans: 0, full: 0, refused: 0, leases: 0, values: 0, broken: 0, steps: 0 };

/** So much it keeps of each kind. */
let most = keeps;
const held = [];
function drop(at) {
  const [one] = held.splice(at, 1);
  if (markOf(one.lease.bytes) !== one.mark) counts.broken++;
  one.lease.release();
  for (let i = 0; i < one.retained; i++) {
    if (markOf(one.lease.bytes) !== one.mark) counts.broken++;
    one.lease.release();
  }
  if (one.lease.bytes.length !== 0) counts.broken++;
}
out.leases().subscribe((lease) => {
  counts.leases++;
  const mark = markOf(lease.bytes);
  if (mark === -1) counts.broken++;
  held.push({ lease, mark, retained: 0 });
  while (held.length > most) drop(0);
});
let kept = [];
function look(one) {
  if (markOf(one.bytes) !== one.mark) counts.broken++;
}
owned.subscribe((bytes) => {
  counts.values++;
  const one = { bytes, mark: markOf(bytes) };
  if (one.mark === -1) counts.broken++;
  kept.push(one);
  if (kept.length > most) look(kept.shift());
});

function step() {
  counts.steps++;
  const dice = random(100);
  if (dice < 40) {
    let loan;
    try {
      loan = out.loan(SIZES[random(SIZES.length)]);
    } catch (error) {
      if (error.code !== 'ERR_POOL_FULL') throw error;
      counts.full++;
      return;
    }
    counts.loans++;
    fill(loan.bytes);
    if (dice < 32) {
      if (!out.offer(loan)) {
        counts.refused++;
        loan.discard();
      }
    } else loan.discard();
  } else if (dice < 55) {
    const bytes = new Uint8Array(SIZES[random(SIZES.length)]);
    fill(bytes);
    if (!owned.offer(bytes)) counts.refused++;
  } else if (dice < 80) {
    if (held.length > 0) drop(random(held.length));
  } else if (dice < 90) {
    const one = held[random(held.length)];
    if (one !== undefined) {
      one.lease.retain();
      one.retained++;
    }
  } else if (kept.length > 0) look(kept.splice(random(kept.length), 1)[0]);
}

/** Takes so many steps, or goes on until it is halted. */
let halted = false;
async function walk(steps = Infinity) {
  halted = false;
  for (let i = 0; i < steps && !halted; i++) {
    if (i === 10) say({ type: 'under way' });
    step();
    if (random(4) === 0) await new Promise((done) => setImmediate(done));
    if (random(200) === 0) gc();
  }
}

/** Publishes a loan. @returns whether it was taken */
function lend(bytes) {
  let loan;
  try {
    loan = out.loan(bytes);
  } catch (error) {
    if (error.code !== 'ERR_POOL_FULL') throw error;
    counts.full++;
    return false;
  }
  counts.loans++;
  fill(loan.bytes);
  if (out.offer(loan)) return true;
  counts.refused++;
  loan.discard();
  return false;
}

/** Publishes loans of one size, as fast as they are taken, until it is told to stop. */
let streaming = false;
async function stream(bytes) {
  for (streaming = true; streaming; await new Promise((done) => setImmediate(done))) lend(bytes);
}

/** Publishes so many in a loop that never yields. */
function burst(bytes, count) {
  for (let sent = 0; sent < count; ) if (lend(bytes)) sent++;
  say({ type: 'burst' });
}

/** Gives everything back, and waits until the others have, too. */
async function settle() {
  streaming = false;
  // Also of what the others send from here on.
  most = 0;
  while (held.length > 0) drop(0);
  kept = [];
  for (let told = Date.now(); ; ) {
    gc();
    await new Promise((done) => setImmediate(done));
    const { holds, leases, blocksInUse, queuedBytes } = member.resources();
    if (holds + leases + blocksInUse + queuedBytes === 0) break;
    if (Date.now() - told < 5000) continue;
    told = Date.now();
    say({ type: 'waits', holds, leases, blocksInUse, queuedBytes });
  }
  setInterval(gc, 50).unref();
}

/** Waits for so many others. */
async function peers(count) {
  while (member.peers.length < count) await new Promise((done) => setImmediate(done));
  say({ type: 'peers' });
}

say({ type: 'up' });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.do === 'walk') void walk(command.steps).then(() => say({ type: 'walked', ...counts }));
  else if (command.do === 'halt') halted = true;
  else if (command.do === 'stream') void stream(command.bytes);
  else if (command.do === 'burst') burst(command.bytes, command.count);
  else if (command.do === 'peers') void peers(command.count);
  else if (command.do === 'loan') {
    try {
      out.loan(command.bytes).discard();
      say({ type: 'loan' });
    } catch ({ code, message, details }) {
      say({ type: 'loan', code, message, details });
    }
  } else if (command.do === 'counts') say({ type: 'counts', ...counts });
  else if (command.do === 'settle')
    void settle().then(() => say({ type: 'settled', ...counts, ...member.resources() }));
  else if (command.do === 'leave') break;
}
await member.leave();
process.stdin.destroy();
