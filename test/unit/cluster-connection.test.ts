import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ControlConnection } from '../../src/cluster/connection.js';
import { type ControlMessage, encodeFrame } from '../../src/cluster/framing.js';

/** Both ends of a Unix stream socket. */
async function socketPair(): Promise<[Socket, Socket]> {
  const folder = mkdtempSync(join(tmpdir(), 'c-'));
  const server = createServer({ allowHalfOpen: true });
  server.listen(join(folder, 's'));
  await once(server, 'listening');
  const one = connect(join(folder, 's'));
  const [[other]] = await Promise.all([once(server, 'connection'), once(one, 'connect')]);
  server.close();
  rmSync(folder, { recursive: true, force: true });
  return [one, other as Socket];
}

test('a goodbye that has arrived is read before something is written to who said it', async () => {
  const [ours, theirs] = await socketPair();
  const heard: ControlMessage[] = [];
  const closed = new Promise<void>((resolve) => {
    const connection = new ControlConnection(ours, {
      message: (_, message) => heard.push(message),
      closed: () => resolve(),
    });
    // In one turn: the peer says goodbye and is gone (the kernel has its bytes), and we write before we could read.
    theirs.write(encodeFrame({ type: 'goodbye' }));
    theirs.destroy();
    connection.send(encodeFrame({ type: 'ack', received: 1 }));
  });
  await closed;
  expect(heard).toEqual([{ type: 'goodbye' }]);
});

test('frames of one turn arrive in order, also when it is ended in that turn', async () => {
  const [ours, theirs] = await socketPair();
  const heard: ControlMessage[] = [];
  const ended = new Promise<void>((resolve) => {
    new ControlConnection(theirs, {
      message: (_, message) => heard.push(message),
      closed: () => resolve(),
    });
  });
  const connection = new ControlConnection(ours, { message: () => {}, closed: () => {} });
  for (let received = 0; received < 3; received++) connection.send(encodeFrame({ type: 'ack', received }));
  connection.finish(encodeFrame({ type: 'goodbye' }));
  theirs.on('end', () => theirs.end());
  await ended;
  expect(heard.map((message) => message.type)).toEqual(['ack', 'ack', 'ack', 'goodbye']);
});
