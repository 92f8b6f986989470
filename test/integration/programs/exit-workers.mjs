/**
 * Workers that end while they join: `exit-workers.mjs terminate|exit COUNT`. Each is ended a number of turns of its event loop
 * after it has begun, another number each time, so that the ends spread over joining and the first traffic.
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
  let turns = i * 2;
  const turn = () => {
    if (turns-- > 0) setImmediate(turn);
    else if (how === 'exit') process.exit(0);
    else parentPort.postMessage('now');
  };
  turn();
  const member = await millrace.join(undefined, { name: `worker-${i}` });
  const channel = member.channel('x');
  const more = () => {
    for (let n = 0; n < 10; n++) channel.next({ n });
    setImmediate(more);
  };
  more();
}
