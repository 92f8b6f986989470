/**
 * Members in workers of one process: `pubsub-workers.mjs COUNT ROUNDS HOW`. Each round COUNT workers join, publish and hear
 * each other, and end as HOW says: leave, exit, throw, terminate (in the middle of traffic). Prints one line a round.
 */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import millrace from '../../../dist/index.js';

if (isMainThread) await main();
else await work();

async function main() {
  const [count, rounds, how] = process.argv.slice(2);
  const own = await millrace.join(undefined, { name: 'main' });
  const heard = new Map();
  own.channel('x').messages$.subscribe((event) => {
    const key = event.publisher.incarnation;
    const known = heard.get(key) ?? { last: 0, disorder: 0 };
    heard.set(key, known);
    if (event.type === 'gap') known.disorder++;
    if (event.type !== 'message') return;
    if (known.last !== 0 && event.value.n !== known.last + 1) known.disorder++;
    known.last = event.value.n;
  });
  for (let round = 0; round < Number(rounds); round++) {
    const workers = Array.from(
      { length: Number(count) },
      (_, i) => new Worker(new URL(import.meta.url), { workerData: { i, count, how } }),
    );
    await Promise.all(
      workers.map(
        (worker) =>
          new Promise((resolve, reject) => {
            let failed = null;
            worker.on('error', (error) => {
              if (how !== 'throw' || !/on purpose/.test(error.message)) failed = error;
            });
            worker.on('message', () => {
              if (how === 'terminate') void worker.terminate();
            });
            worker.on('exit', (code) => (failed === null ? resolve(code) : reject(failed)));
          }),
      ),
    );
    const disorder = [...heard.values()].reduce((sum, one) => sum + one.disorder, 0);
    process.stdout.write(`round ${round} publishers ${heard.size} disorder ${disorder}\n`);
  }
  await own.leave();
}

async function work() {
  const { i, count, how } = workerData;
  const member = await millrace.join(undefined, { name: `worker-${i}` });
  const channel = member.channel('x');
  channel.subscribe();
  await channel.ready({ subscribers: 1 });
  let n = 0;
  const burst = () => {
    for (let k = 0; k < 100; k++) channel.next({ n: ++n, i, count });
  };
  burst();
  const drained = await channel.drain(20_000);
  // Another worker may have left meanwhile; that is said, and no loss.
  if (drained.undelivered.some(({ reason }) => reason === 'timeout'))
    throw new Error(JSON.stringify(drained));
  if (how === 'leave') return member.leave();
  if (how === 'exit') {
    burst();
    return process.exit(0);
  }
  if (how === 'throw') {
    burst();
    throw new Error('on purpose');
  }
  parentPort.postMessage('traffic');
  const more = () => {
    burst();
    setImmediate(more);
  };
  more();
}
