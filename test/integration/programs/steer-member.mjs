/**
 * A process with steering rules of its own, driven over IPC: `rules` puts a set in the place of what is there, `report` tells
 * what came. Sequence numbers in the first four bytes of a payload show what is missing.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const folder = mkdtempSync(join(tmpdir(), 'steer-'));
process.env.MILLRACE_SHM_DIR = folder;
/** Of this library. */
const warnings = [];
process.on('warning', ({ code }) => {
  if (code?.startsWith('MILLRACE_')) warnings.push(code);
});
const { loadNative } = await import('../../../dist/native/load.js');
const { Ports } = await import('../../../dist/steering/ports.js');
const { Steering } = await import('../../../dist/steering/steering.js');

const ports = new Ports(loadNative(), 'soft');
const steering = new Steering(ports);
/** What came, by channel. */
const channels = new Map();
/** Payloads and where they came from, of the first ones. */
const KEPT = 2000;

function listen(name) {
  if (channels.has(name)) return;
  const seen = { count: 0, gaps: 0, next: new Map(), kept: [] };
  channels.set(name, seen);
  ports.stream(name).subscribe((datagram) => {
    seen.count++;
    const { bytes } = datagram;
    if (bytes.length >= 4) {
      const sequence = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
      const from = `${datagram.source} ${datagram.sourcePort}`;
      if (seen.next.has(from) && seen.next.get(from) !== sequence) seen.gaps++;
      seen.next.set(from, sequence + 1);
    }
    if (seen.kept.length < KEPT) {
      const { source, destination, sourcePort, port, rule, frame, time } = datagram;
      const payload = Buffer.from(bytes).toString('latin1');
      seen.kept.push({ payload, source, destination, sourcePort, port, rule, frame: frame.length, time });
    }
  });
}

const requests = {
  rules: (list) => {
    steering.replace(list);
    for (const { to } of list) if (to !== undefined) listen(to);
  },
  report: () =>
    Object.fromEntries([...channels].map(([name, { count, gaps, kept }]) => [name, { count, gaps, kept }])),
  stats: () => ({ rules: steering.stats(), ports: ports.counters(), warnings }),
  leave: () => {
    steering.close();
    ports.close();
    rmSync(folder, { recursive: true, force: true });
  },
};

process.on('message', ({ id, what, argument }) => {
  try {
    process.send({ id, result: requests[what](argument) });
  } catch (error) {
    process.send({ id, error: { message: error.message, code: error.code } });
  }
  if (what === 'leave') process.disconnect();
});
process.send({ id: 0 });
