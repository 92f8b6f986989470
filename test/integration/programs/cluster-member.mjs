/**
 * A member for the tests of the cluster: joins the domain of the environment, publishes numbers on one channel, counts what
 * it hears on it, and does what lines on standard input say. Prints one JSON object a line.
 *   cluster-member.mjs NAME          a member
 *   cluster-member.mjs NAME loop N   joins and leaves N times
 *   cluster-member.mjs NAME workers N MODE   N workers join; they leave, exit, throw, or are terminated, as MODE says
 */
import { createInterface } from 'node:readline';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import millrace from '../../../dist/index.js';

const { join } = millrace;
const [name, mode, count, how] = isMainThread ? process.argv.slice(2) : workerData;
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

if (!isMainThread) await worker();
else if (mode === 'loop') await loop(Number(count));
else if (mode === 'workers') await workers(Number(count), how);
else await stay();

async function stay() {
  const member = await join(undefined, { name });
  const heard = new Map();
  member.status$.subscribe((event) => {
    const { type, peer, on, error } = event;
    if (type.startsWith('peer-') || type === 'fault' || type === 'gap') {
      say({ type, peer: peer?.name, on, error: error?.message });
    }
  });
  const channel = member.channel('numbers');
  channel.messages$.subscribe((event) => {
    const key = event.publisher.name;
    const known = heard.get(key) ?? { count: 0, last: 0, gaps: 0, disorder: 0 };
    heard.set(key, known);
    if (event.type === 'gap') known.gaps += event.count;
    if (event.type !== 'message') return;
    known.count += 1;
    if (event.value !== known.last + 1 && known.last !== 0) known.disorder += 1;
    known.last = event.value;
  });
  say({ type: 'joined', pid: process.pid, incarnation: member.incarnation });
  let sent = 0;
  let goal = 0;
  let sending = false;
  const send = async () => {
    if (sending) return;
    sending = true;
    while (sent < goal) {
      if (channel.offer(sent + 1)) sent += 1;
      else await channel.whenWritable();
      if (sent % 64 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    sending = false;
    say({ type: 'sent', count: sent });
  };
  createInterface({ input: process.stdin }).on('line', async (line) => {
    const [word, argument] = line.split(' ');
    if (word === 'send') {
      // Without a number until it is told to stop.
      goal += argument === undefined ? Infinity : Number(argument);
      send().catch((error) => say({ type: 'failed', error: error.message }));
    } else if (word === 'stop') {
      goal = sent;
    } else if (word === 'ready') {
      await channel.ready({ subscribers: Number(argument), timeout: 60_000 });
      say({ type: 'ready', subscribers: Number(argument) });
    } else if (word === 'heard') {
      say({ type: 'heard', heard: Object.fromEntries(heard), peers: member.peers.map((peer) => peer.name) });
    } else if (word === 'leave') {
      await member.leave();
      say({ type: 'left' });
      process.stdin.destroy();
    } else if (word === 'exit') {
      process.exit(Number(argument));
    } else if (word === 'throw') {
      throw new Error('on purpose');
    }
  });
}

async function loop(times) {
  for (let i = 0; i < times; i += 1) {
    const member = await join(undefined, { name: `${name}.${i}` });
    // Every third one leaves at once, in the middle of the others' hellos.
    if (i % 3 !== 0) await new Promise((resolve) => setImmediate(resolve));
    await member.leave();
  }
  say({ type: 'looped' });
}

async function workers(times, ending) {
  for (let i = 0; i < times; i += 1) {
    const one = new Worker(new URL(import.meta.url), { workerData: [`${name}.${i}`, ending] });
    const ended = new Promise((resolve) => {
      let words = '';
      one.on('error', ({ message }) => {
        words = message;
      });
      one.on('exit', (code) => resolve({ code, words }));
    });
    await new Promise((resolve) => one.once('message', resolve));
    if (ending === 'terminate') await one.terminate();
    say({ type: 'worker-ended', ...(await ended) });
  }
  say({ type: 'worked' });
}

async function worker() {
  const member = await join(undefined, { name });
  const channel = member.channel('numbers');
  channel.subscribe(() => {});
  channel.next(1);
  parentPort.postMessage('joined');
  if (mode === 'leave') await member.leave();
  else if (mode === 'exit') process.exit(3);
  else if (mode === 'throw')
    setImmediate(() => {
      throw new Error('on purpose');
    });
  // terminate: it stays in the event loop, with its subscriber, until it is ended
}
