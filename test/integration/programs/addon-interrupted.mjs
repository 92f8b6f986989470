/**
 * Workers that are terminated in the middle of the addon: `addon-interrupted.mjs FOLDER load|calls COUNT`. Each does nothing but be
 * inside it, so that nearly every end falls into a call, where from then on Node-API refuses whatever would run JavaScript. It
 * begins with a turn that nobody interrupts: that one must not fail.
 */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { addonPath, Endpoint } from '../../support/addon.mjs';

/** The module's initialisation. */
function load() {
  process.dlopen({ exports: {} }, addonPath);
}

/** Calls that make objects and buffers, and calls of everything with arguments that it refuses: each makes an error. */
function callsOf(folder) {
  const { handle, native } = new Endpoint(folder);
  const names = Object.keys(native).filter((name) => typeof native[name] === 'function');
  // These end what the others work on, or reach beyond this worker.
  const others = names.filter(
    (name) => !['close', 'cleanFabric', 'flush', 'poll', 'linger', 'offer'].includes(name),
  );
  return () => {
    native.resources(handle);
    native.disconnect(handle, native.offer(handle).peer);
    const block = native.lend(handle, 4096, false);
    native.endLoan(handle, block, native.loanBuffer(handle, block, 4096));
    native.retireBlock(handle, block);
    let refused = 0;
    for (const name of others) {
      for (const given of [[handle, {}, name, -1], []]) {
        try {
          native[name](...given);
        } catch {
          refused += 1;
        }
      }
    }
    if (refused < others.length) throw new Error(`${refused} refused of ${others.length} calls`);
  };
}

if (isMainThread) {
  const [folder, what, count] = process.argv.slice(2);
  for (let i = 0; i < Number(count); i++) {
    const worker = new Worker(new URL(import.meta.url), { workerData: { folder, what } });
    await new Promise((resolve, reject) => {
      worker.on('error', reject);
      worker.on('exit', resolve);
      worker.on('message', () => {
        let turns = i;
        const turn = () => void (turns-- > 0 ? setImmediate(turn) : worker.terminate());
        turn();
      });
    });
  }
  process.stdout.write(`${count} ended\n`);
} else {
  const turn = workerData.what === 'load' ? load : callsOf(workerData.folder);
  turn();
  parentPort.postMessage('begins');
  for (;;) turn();
}
