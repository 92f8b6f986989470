/**
 * One member of a pair; the other end is the parent, which carries cards and tunnel messages. Runs as a forked process
 * (`addon-peer.mjs FOLDER JSON`) or as a worker (workerData: [FOLDER, JSON]).
 * Messages: card, tunnel, send {count, bytes}, end {how}; answers: card, tunnel, got {count}.
 * Sleeps on the completion channel's descriptor while there is nothing to do.
 */
import { isMainThread, parentPort, workerData } from 'node:worker_threads';
import { Endpoint } from '../../support/addon.mjs';

const [folder, options = '{}'] = isMainThread ? process.argv.slice(2) : workerData;
const tell = (message) => {
  if (parentPort) parentPort.postMessage(message);
  else if (process.connected) process.send(message, () => {});
};
const hangUp = () => (parentPort ? parentPort.close() : process.disconnect());

const endpoint = new Endpoint(folder, JSON.parse(options));
const card = endpoint.card();
let toSend = 0;
let bytes = 64;
let reported = 0;
let scheduled = false;
let ended = false;

endpoint.onTunnel = (_peer, message) =>
  tell({ type: 'tunnel', data: Buffer.from(message).toString('base64') });

function turn() {
  scheduled = false;
  if (ended) return;
  endpoint.poll();
  while (toSend > 0 && endpoint.send([card.peer], bytes)) toSend -= 1;
  const bits = endpoint.flush();
  const seen = endpoint.received.get(card.peer);
  if (seen !== undefined && seen.count !== reported) {
    reported = seen.count;
    tell({ type: 'got', count: seen.count, disorder: endpoint.disorder, events: endpoint.events });
  }
  if (toSend > 0 || (bits & 2) !== 0 || !endpoint.native.arm(endpoint.handle)) soon();
  else endpoint.native.sleep(endpoint.handle, true);
}
function soon() {
  if (scheduled || ended) return;
  scheduled = true;
  endpoint.native.sleep(endpoint.handle, false);
  setImmediate(turn);
}

endpoint.native.watch(endpoint.handle, soon);
endpoint.native.ref(endpoint.handle, true);

/** Endings, each in the middle of traffic. */
const endings = {
  exit: () => process.exit(7),
  close: () => {
    ended = true;
    endpoint.close();
    hangUp();
  },
  // With the member open and the watcher unreferenced: the loop runs dry.
  leave: () => {
    ended = true;
    endpoint.native.ref(endpoint.handle, false);
    hangUp();
  },
  throw: () => {
    throw new Error('on purpose');
  },
  reject: () => void Promise.reject(new Error('on purpose')),
  // Out of a record's handler, in the watcher's callback or the turn after it.
  record: () => {
    endpoint.onRecord = () => {
      throw new Error('on purpose');
    };
  },
  kill: () => process.kill(process.pid, 'SIGKILL'),
};

const take = (message) => {
  if (message.type === 'card') endpoint.connect(card.peer, message.card);
  if (message.type === 'tunnel' && !ended) {
    endpoint.native.tunnel(endpoint.handle, card.peer, Buffer.from(message.data, 'base64'));
  }
  if (message.type === 'send') {
    toSend += message.count;
    bytes = message.bytes;
  }
  if (message.type === 'end') endings[message.how]();
  soon();
};
if (parentPort) parentPort.on('message', take);
else process.on('message', take);
tell({ type: 'card', card });
