/**
 * npm run bench:large: large messages between two processes of one host, as loans (leased on the other side), as values that
 * the publisher copies (leased), and as bytes over a Unix socket. Peers take turns; what counts is the ratio within a run.
 */
import { fork } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { loadavg } from 'node:os';
import { join as path } from 'node:path';
import { fileURLToPath } from 'node:url';
import { join } from '../dist/index.mjs';

const SIZES = [64, 64 * 1024, 1024 * 1024, 16 * 1024 * 1024, 64 * 1024 * 1024];
const WAYS = ['loan', 'copy', 'socket'];
const TURNS = 3;
const [role, folderOf] = process.argv.slice(2);
let folder = folderOf;

/** One side. On the left, `trip` sends so many bytes, first and last of which are written, and resolves when as many came back. */
async function millrace(way, side) {
  const member = await join('bench', { name: side, poolBytes: 2 ** 31, heldBytes: 2 ** 30 });
  const out = member.channel(side === 'left' ? 'right' : 'left', { codec: 'bytes' });
  const into = member.channel(side, { codec: 'bytes' });
  const copies = new Map(SIZES.map((bytes) => [bytes, new Uint8Array(bytes)]));
  const send = (bytes) => {
    if (way === 'copy' || bytes <= 64) return out.next(copies.get(bytes));
    const loan = out.loan(bytes);
    loan.bytes[0] = 1;
    loan.bytes[bytes - 1] = 1;
    out.next(loan);
  };
  let came = () => {};
  into.leases().subscribe((lease) => {
    const { length } = lease.bytes;
    if (length > 64 && way === 'loan' && lease.bytes[length - 1] !== 1) throw new Error('not what was sent');
    lease.release();
    came(length);
  });
  if (side === 'right') {
    came = send;
    process.on('disconnect', () => member.leave());
    process.send('up');
    return undefined;
  }
  await out.ready();
  return {
    trip: (bytes) =>
      new Promise((done) => {
        came = done;
        send(bytes);
      }),
    close: () => member.leave(),
  };
}

async function socket(_way, side) {
  const at = path(folder, 'socket');
  const chunks = new Map(SIZES.map((bytes) => [bytes, Buffer.alloc(bytes)]));
  let got = 0;
  let wanted = 0;
  let came = () => {};
  const listen = (stream) =>
    stream.on('data', (data) => {
      got += data.length;
      if (got < wanted) return;
      got = 0;
      came(stream);
    });
  if (side === 'right') {
    process.on('message', (bytes) => {
      wanted = bytes;
      process.send('set');
    });
    came = (stream) => stream.write(chunks.get(wanted));
    const server = createServer(listen).listen(at, () => process.send('up'));
    process.on('disconnect', () => server.close());
    return undefined;
  }
  const stream = connect(at);
  await new Promise((done) => stream.once('connect', done));
  listen(stream);
  return {
    trip: (bytes) =>
      new Promise((done) => {
        wanted = bytes;
        came = done;
        stream.write(chunks.get(bytes));
      }),
    close: () => stream.destroy(),
  };
}

const peers = { loan: millrace, copy: millrace, socket };

if (role !== undefined) {
  await peers[role](role, 'right');
} else {
  const times = new Map();
  for (let turn = 0; turn < TURNS; turn++) {
    for (const way of WAYS) {
      const place = mkdtempSync('/dev/shm/millrace-bench-');
      process.env.MILLRACE_SHM_DIR = place;
      const child = fork(fileURLToPath(import.meta.url), [way, place]);
      await new Promise((done) => child.once('message', done));
      folder = place;
      const peer = await peers[way](way, 'left');
      for (const bytes of SIZES) {
        if (way === 'socket') {
          child.send(bytes);
          await new Promise((done) => child.once('message', done));
        }
        const count = bytes >= 2 ** 24 ? 20 : 500;
        for (let i = 0; i < count / 4; i++) await peer.trip(bytes);
        const key = `${way} ${bytes}`;
        const list = times.get(key) ?? [];
        times.set(key, list);
        for (let i = 0; i < count; i++) {
          const from = process.hrtime.bigint();
          await peer.trip(bytes);
          list.push(Number(process.hrtime.bigint() - from) / 1000);
        }
      }
      await peer.close();
      child.disconnect();
      await new Promise((done) => child.once('exit', done));
      rmSync(place, { recursive: true, force: true });
    }
  }
  const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
  console.log(`round trip, median in us (load ${loadavg()[0].toFixed(1)})`);
  console.log(['bytes', ...WAYS].map((word) => word.padStart(12)).join(''));
  for (const bytes of SIZES) {
    const row = WAYS.map((way) => median(times.get(`${way} ${bytes}`)).toFixed(1));
    console.log([String(bytes), ...row].map((word) => word.padStart(12)).join(''));
  }
}
