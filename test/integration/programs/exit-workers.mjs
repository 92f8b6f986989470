/**
 * Workers that end while they join: `exit-workers.mjs terminate|exit COUNT`. Each is ended a number of turns of its event loop,
 * another number each time: every other one after it has begun to join, the rest after it has joined, so that the ends spread
 * over joining and the first traffic.
 */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import millrace from '../../../dist/index.js';

if (isMainThread) {
  const [how, count] = process.argv.slice(2);
  const own = await millrace.join(undefined, { name: 'main' });
  own.channel('x').subscribe();
  let ended = 0;
  for (let i = 0; i < Number(count); i++) {
    const worker = new Worker(new URL(import.meta.url), { workerData: { i, how } });
    await new Promise((resolve, reject) => {
      worker.on('error', reject);
      worker.on('exit', resolve);
      worker.on('message', () => void worker.terminate());
    });
    ended++;
  }
  await own.leave();
  process.stdout.write(`${ended} ended\n`);
} else {
  const { i, how } = workerData;
  let turns = i;
  const turn = () => {
    if (turns-- > 0) setImmediate(turn);
    else if (how === 'exit') process.exit(0);
    else parentPort.postMessage('now');
  };
  if (i % 2 === 0) turn();
  const member = await millrace.join(undefined, { name: `worker-${i}` });
  if (i % 2 === 1) turn();
  const channel = member.channel('x');
  const more = () => {
    for (let n = 0; n < 10; n++) channel.next({ n });
    setImmediate(more);
  };
  more();
}
