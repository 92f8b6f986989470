import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
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

/** What a connection told, until it was over. */
function listen(socket: Socket): {
  readonly connection: ControlConnection;
  readonly heard: ControlMessage[];
  readonly closed: Promise<unknown>;
} {
  const heard: ControlMessage[] = [];
  let over: (reason: unknown) => void;
  const closed = new Promise<unknown>((resolve) => {
    over = resolve;
  });
  const connection = new ControlConnection(socket, {
    message: (_, message) => heard.push(message),
    closed: (_, reason) => over(reason),
  });
  return { connection, heard, closed };
}

const GOODBYE = { type: 'goodbye' };
const ack = (received: number) => encodeFrame({ type: 'ack', received });

describe('a goodbye that has arrived is read, whatever is written to who said it', () => {
  test('before it is read, in the same tick', async () => {
    const [ours, theirs] = await socketPair();
    const { connection, heard, closed } = listen(ours);
    // The kernel has its bytes, it is gone, and we write before the event loop looks for what has arrived.
    theirs.write(encodeFrame(GOODBYE));
    theirs.destroy();
    connection.send(ack(1));
    await closed;
    expect(heard).toEqual([GOODBYE]);
  });

  test('by a peer that did not read all that we had sent', async () => {
    const [ours, theirs] = await socketPair();
    const { connection, heard, closed } = listen(ours);
    theirs.pause();
    connection.send(ack(1));
    await new Promise(process.nextTick);
    theirs.write(encodeFrame({ type: 'ack', received: 7 }));
    theirs.write(encodeFrame(GOODBYE));
    // With our frame unread the kernel resets the connection: ECONNRESET for the next call that asks.
    theirs.destroy();
    connection.send(ack(2));
    await closed;
    expect(heard).toEqual([{ type: 'ack', received: 7 }, GOODBYE]);
  });

  test('while frames wait that the kernel did not take', async () => {
    const [ours, theirs] = await socketPair();
    const { connection, heard, closed } = listen(ours);
    theirs.pause();
    const large = encodeFrame({ type: 'large', text: 'x'.repeat(900_000) });
    for (let i = 0; i < 8; i++) connection.send(large);
    await new Promise(process.nextTick);
    expect(connection.unsent).toBeGreaterThan(large.length);
    theirs.write(encodeFrame(GOODBYE));
    theirs.destroy();
    connection.send(ack(1));
    connection.end();
    await closed;
    expect(heard).toEqual([GOODBYE]);
  });

  test('and then nothing is written any more', async () => {
    const [ours, theirs] = await socketPair();
    const { connection, closed } = listen(ours);
    theirs.destroy();
    connection.send(ack(1));
    await new Promise(process.nextTick);
    connection.send(ack(2));
    expect(connection.unsent).toBe(0);
    expect(await closed).toMatchObject({ code: expect.stringMatching(/^(EPIPE|ECONNRESET)$/) });
  });
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
