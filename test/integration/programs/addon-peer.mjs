/**
 * One member of a pair, in a process of its own; the other end is the parent, over the process channel.
 *   addon-peer.mjs FOLDER [JSON options]
 * Messages: card, tunnel, send {count, bytes}, end {how}; answers: card, tunnel, got {count}, sent.
 * Sleeps on the completion channel's descriptor while there is nothing to do.
 */
import { Endpoint } from '../../support/addon.mjs';

const [folder, options = '{}'] = process.argv.slice(2);
const endpoint = new Endpoint(folder, JSON.parse(options));
const card = endpoint.card();
let toSend = 0;
let bytes = 64;
let reported = 0;
let scheduled = false;
const tell = (message) => process.connected && process.send(message);

endpoint.onTunnel = (_peer, message) =>
  tell({ type: 'tunnel', data: Buffer.from(message).toString('base64') });

function turn() {
  scheduled = false;
  endpoint.poll();
  while (toSend > 0 && endpoint.send([card.peer], bytes)) {
    toSend -= 1;
    if (toSend === 0) tell({ type: 'sent' });
  }
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
  if (scheduled) return;
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
    endpoint.close();
    process.disconnect();
  },
  leave: () => process.disconnect(), // with the member open and the watcher unreferenced: the loop runs dry
  throw: () => {
    throw new Error('on purpose');
  },
  reject: () => void Promise.reject(new Error('on purpose')),
  callback: () => {
    // Out of the watcher's callback: the most awkward place to throw.
    endpoint.onRecord = () => {
      throw new Error('on purpose');
    };
  },
  abort: () => process.kill(process.pid, 'SIGKILL'),
};

process.on('message', (message) => {
  if (message.type === 'card') endpoint.connect(card.peer, message.card);
  if (message.type === 'tunnel')
    endpoint.native.tunnel(endpoint.handle, card.peer, Buffer.from(message.data, 'base64'));
  if (message.type === 'send') {
    toSend += message.count;
    bytes = message.bytes;
  }
  if (message.type === 'end') {
    if (message.how === 'leave') endpoint.native.ref(endpoint.handle, false);
    return endings[message.how]();
  }
  soon();
});
tell({ type: 'card', card });
