/**
 * A main thread and three workers, each with two members that talk without end; when all are busy, the main thread ends
 * the process.
 *   addon-crowd.mjs FOLDER exit|throw|dry|terminate
 */
import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { Endpoint, link } from '../../support/addon.mjs';

const [folder, how] = isMainThread ? process.argv.slice(2) : workerData;
const a = new Endpoint(folder);
const b = new Endpoint(folder);
const [toB, toA] = link(a, b);
let stopped = false;

function turn() {
  if (stopped) return;
  for (let i = 0; i < 20; i++) {
    a.send([toB], 200);
    b.send([toA], 200);
  }
  for (const each of [a, b]) {
    each.flush();
    each.poll();
  }
  if (b.received.get(toA)?.count >= 2000) busy();
  setImmediate(turn);
}

let told = false;
let waiting = 4;
const workers = [];
function busy() {
  if (told) return;
  told = true;
  if (isMainThread) oneIsBusy();
  else parentPort.postMessage('busy');
}
async function oneIsBusy() {
  waiting -= 1;
  if (waiting > 0) return;
  if (how === 'exit') process.exit(7);
  if (how === 'throw') throw new Error('on purpose');
  if (how === 'terminate') await Promise.all(workers.map((worker) => worker.terminate()));
  // The loops run dry with all members open.
  stopped = true;
  for (const worker of workers) worker.postMessage('stop');
}

if (isMainThread) {
  for (let i = 0; i < 3; i++) {
    const worker = new Worker(fileURLToPath(import.meta.url), { workerData: [folder, how] });
    worker.on('message', oneIsBusy);
    workers.push(worker);
  }
} else {
  parentPort.once('message', () => {
    stopped = true;
  });
}
turn();
