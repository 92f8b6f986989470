/**
 * One process of a measurement of large messages: the publisher (hub), or a subscriber (leaf) that answers each message. Told
 * what to do by its argument (JSON), then asked over the IPC channel.
 */
import { readFileSync } from 'node:fs';
import { isMainThread, parentPort, workerData } from 'node:worker_threads';
import { peers } from './large-peers.mjs';

const now = () => performance.now();
const tell = (message) => new Promise((resolve) => process.send(message, resolve));

/** Bytes that this process has in memory, shared ones with them. */
function resident() {
  globalThis.gc?.();
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync('/proc/self/status', 'utf8'))[1]) * 1024;
}

/** Answers questions until told to end. */
async function serve(answer, close) {
  const end = new Promise((resolve) => {
    process.on('message', async (question) => {
      if (question === 'end') return resolve();
      try {
        await tell({ answer: question === 'resident' ? resident() : await answer(question) });
      } catch (error) {
        await tell({ failed: error?.stack ?? String(error) });
        process.exit(1);
      }
    });
  });
  await tell({ ready: true });
  await end;
  await close?.();
}

async function hub(spec) {
  /** Of each leaf. */
  const answers = new Array(spec.subscribers).fill(0);
  let wake = () => {};
  const peer = await peers[spec.peer].hub(spec, (_bytes, index) => {
    // What is echoed to a single one says nothing.
    answers[spec.subscribers === 1 ? 0 : index]++;
    wake();
  });
  /** Sends until the time is over, or so many. @returns microseconds of each, and bytes a second */
  const send = async ({ bytes, window, seconds = Infinity, most = 20_000, least = 3 }) => {
    const before = answers[0];
    // What all have answered: a leaf that is ahead must not stand for one that is behind.
    const done = () => Math.min(...answers) - before;
    const times = [];
    const from = now();
    const until = from + seconds * 1000;
    let sent = 0;
    let at = from;
    const room = async (outstanding) => {
      while (sent - done() > outstanding) {
        await new Promise((resolve) => {
          wake = resolve;
        });
      }
    };
    for (; sent < most && (sent < least || at < until); sent++) {
      if (window === 1) at = now();
      const waiting = peer.send(bytes);
      if (waiting !== undefined) await waiting;
      if (window === 1) {
        sent++;
        await room(0);
        sent--;
        times.push((now() - at) * 1000);
      } else {
        await room(window - 2);
        at = now();
      }
    }
    await room(0);
    return { times, rate: (sent * bytes * 1000) / (now() - from) };
  };
  await serve(async (question) => {
    const { seconds, most, warm = seconds / 4 } = question;
    // Until as much was under way at once as may be: what that takes is made anew for each size.
    const least = 2 * question.window;
    await send({
      ...question,
      ...(most === undefined ? { seconds: warm, most: Infinity } : { most: least }),
      least,
    });
    const { times, rate } = await send(question);
    times.sort((a, b) => a - b);
    return { micros: times.length > 0 ? times[times.length >> 1] : (question.bytes / rate) * 1e6, rate };
  }, peer.close);
}

async function leaf(spec) {
  let answer = () => {};
  const peer = await peers[spec.peer].leaf(spec, (bytes) => answer(spec.echo ? bytes : 64));
  answer = (bytes) => peer.answer(bytes);
  await serve(undefined, peer.close);
}

if (!isMainThread) peers.threads.leaf(workerData, parentPort);
else {
  const spec = JSON.parse(process.argv[2]);
  try {
    await { hub, leaf }[spec.role](spec);
    process.exit(0);
  } catch (error) {
    await tell({ failed: error?.stack ?? String(error) });
    process.exit(1);
  }
}
