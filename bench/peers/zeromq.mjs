/** zeromq.js 6 over ipc://, publish and subscribe without drops, a send per message. */
import { Pull, Push, Subscriber, XPublisher } from 'zeromq';

export const title = 'zeromq 6, pub/sub over ipc';

const address = (spec, name) => `ipc://${spec.folder}/${name}`;

export async function receiver(spec, payload, take) {
  const socket = new Subscriber({ receiveHighWaterMark: 10_000 });
  socket.connect(address(spec, 'zmq'));
  socket.subscribe('');
  const { fromBytes } = payload;
  (async () => {
    for await (const [message] of socket) take(fromBytes(message));
  })();
}

export async function sender(spec, payload) {
  const socket = new XPublisher({ noDrop: true, sendHighWaterMark: 10_000 });
  await socket.bind(address(spec, 'zmq'));
  // The subscription arrives as a message, so nothing is sent too early.
  await socket.receive();
  const { values, mask, toBytes } = payload;
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  return {
    async send(count) {
      for (let i = 0; i < count; i++) {
        const bytes = toBytes(values[i & mask]);
        for (;;) {
          try {
            await socket.send(bytes);
            break;
          } catch (error) {
            // noDrop: at the high-water mark a send is refused, and tried again.
            if (error.code !== 'EAGAIN') throw error;
            await turn();
          }
        }
      }
    },
  };
}

export async function duplex(spec, side, take) {
  const out = new Push();
  const into = new Pull();
  await out.bind(address(spec, side));
  into.connect(address(spec, side === 'left' ? 'right' : 'left'));
  (async () => {
    for await (const [message] of into) take(message);
  })();
  return (bytes) => out.send(bytes);
}
