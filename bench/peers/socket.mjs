/** A Unix socket, written once per message: what a program does that knows nothing better. */
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { deframer, frame } from './frames.mjs';

export const title = 'Unix socket, a write per message';

export async function listen(spec) {
  const server = createServer();
  server.listen(`${spec.folder}/socket`);
  await once(server, 'listening');
  return server;
}

/** The connection that the other side made. */
export async function accept(server) {
  const [socket] = await once(server, 'connection');
  server.close();
  return socket;
}

export async function dial(spec) {
  const socket = connect(`${spec.folder}/socket`);
  await once(socket, 'connect');
  return socket;
}

export async function receiver(spec, payload, take) {
  const server = await listen(spec);
  const { fromBytes } = payload;
  accept(server).then((socket) =>
    socket.on(
      'data',
      deframer((bytes) => take(fromBytes(bytes))),
    ),
  );
}

export async function sender(spec, payload) {
  const socket = await dial(spec);
  const { values, mask, toBytes } = payload;
  return {
    async send(count) {
      for (let i = 0; i < count; i++) {
        if (!socket.write(frame(toBytes(values[i & mask])))) await once(socket, 'drain');
      }
    },
  };
}

export async function duplex(spec, side, take) {
  const attach = (socket) => {
    socket.on('data', deframer(take));
    return (bytes) => socket.write(frame(bytes));
  };
  if (side === 'left') return attach(await dial(spec));
  const server = await listen(spec);
  let send;
  accept(server).then((socket) => {
    send = attach(socket);
  });
  return (bytes) => send(bytes);
}
