/** Sends numbered UDP datagrams as it is told over IPC, and says when the kernel has them. */
import { createSocket } from 'node:dgram';
import { setTimeout as pause } from 'node:timers/promises';

const sockets = new Map();

async function socketFor(v6, multicast) {
  const key = `${v6} ${multicast ?? ''}`;
  if (!sockets.has(key)) {
    const socket = createSocket(v6 ? 'udp6' : 'udp4');
    await new Promise((resolve) => socket.bind(0, resolve));
    if (multicast) {
      socket.setMulticastInterface(v6 ? '::%eth0' : multicast);
      socket.setMulticastTTL(4);
    }
    sockets.set(key, { socket, next: 0 });
  }
  return sockets.get(key);
}

/** `burst` datagrams, then a pause of a millisecond. */
async function send({ to, port, count, bytes = 64, burst = 16, from, text }) {
  const state = await socketFor(to.includes(':'), from);
  const payload = text === undefined ? Buffer.alloc(bytes, 0x2e) : Buffer.from(text);
  for (let i = 0; i < count; i++) {
    if (text === undefined) payload.writeUInt32BE(state.next++, 0);
    await new Promise((resolve, reject) =>
      state.socket.send(payload, port, to, (error) => (error ? reject(error) : resolve())),
    );
    if (i % burst === burst - 1) await pause(1);
  }
}

process.on('message', ({ id, what, argument }) => {
  if (what === 'leave') {
    for (const { socket } of sockets.values()) socket.close();
    process.disconnect();
    return;
  }
  send(argument).then(
    () => process.send({ id }),
    (error) => process.send({ id, error: { message: error.message, code: error.code } }),
  );
});
process.send({ id: 0 });
