/**
 * The publisher: this host's readings ten times a second on host.cpu, host.memory and host.network, and the lines of a
 * file on file.lines. Every message carries its number and the time it was sent.
 *   node publisher.mjs DOMAIN FILE SECONDS
 */
import { createReadStream, statSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { join } from 'millrace';
import { endCleanly, now, tell } from './child.mjs';
import { cpuReader, networkReader, readMemory } from './readings.mjs';

const [domain, file, seconds] = process.argv.slice(2);
const member = await join(domain, { name: 'publisher' });
const end = endCleanly(() => member.leave());

const readings = {
  'host.cpu': cpuReader(),
  'host.memory': readMemory,
  'host.network': networkReader(),
};
const channels = Object.fromEntries(
  [...Object.keys(readings), 'file.lines'].map((name) => [name, member.channel(name)]),
);
const sent = Object.fromEntries(Object.keys(channels).map((name) => [name, 0]));

/**
 * Sends one message, waiting for room instead of dropping anything.
 * @param {string} name
 * @param {unknown} body
 */
async function send(name, body) {
  const channel = channels[name];
  for (;;) {
    const message = { n: sent[name] + 1, time: now(), body };
    if (channel.offer(message)) break;
    await channel.whenWritable();
  }
  sent[name] += 1;
}

// Nothing is sent before its subscribers are there: two processes for each channel, see run.mjs.
await Promise.all(
  Object.values(channels).map((channel) => channel.ready({ subscribers: 2, timeout: 20_000 })),
);
tell({ type: 'started' });

const begun = performance.now();
const duration = Number(seconds) * 1000;
const host = (async () => {
  while (performance.now() < begun + duration) {
    for (const [name, read] of Object.entries(readings)) await send(name, read());
    await sleep(100);
  }
})();
const lines = (async () => {
  // Spread over nine tenths of the time by the file's size; a file that is too long for that ends with the time.
  const perByte = (0.9 * duration) / Math.max(1, statSync(file).size);
  let bytes = 0;
  for await (const line of createInterface({
    input: createReadStream(file),
    crlfDelay: Number.POSITIVE_INFINITY,
  })) {
    bytes += Buffer.byteLength(line) + 1;
    const early = begun + bytes * perByte - performance.now();
    if (early > 10) await sleep(early);
    if (performance.now() >= begun + duration) return;
    await send('file.lines', line);
  }
})();
await Promise.all([host, lines]);

// Everything has been handed to the subscribers when drain() resolves, or it says what was not.
const { complete, undelivered } = await member.drain(10_000);
if (!complete) console.error('not delivered:', undelivered);
await tell({ type: 'sent', sent });
await end(0);
