/**
 * The publisher: frames as loans, until the time is over, so many are sent, or the file has no more.
 *   node publisher.mjs DOMAIN OPTIONS        OPTIONS is JSON of options.mjs
 */
import { statfsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { join, MillraceError } from 'millrace';
import { endCleanly, tell } from '../demo/child.mjs';
import { pictureSource } from './picture.mjs';
import { failure, Problem } from './problem.mjs';
import { sampleSource } from './sample.mjs';
import { videoSource } from './video.mjs';

/** Frames that the pool has room for, if there is that much shared memory. */
const BLOCKS = 16;
/** What the members of a small domain take of shared memory besides. */
const TABLES = 20 * 2 ** 20;

const [domain, options] = process.argv.slice(2);
const { file, size, frames = Number.POSITIVE_INFINITY, seconds, fps } = JSON.parse(options);

/** @typedef {{ width: number, height: number, name: string, how: string, next(into: Uint8Array): Promise<boolean>, close(): void }} Source */
/** @type {Source | undefined} */
let source;
/** @type {import('millrace').Member | undefined} */
let member;
const end = endCleanly(async () => {
  source?.close();
  await member?.leave();
});

/** @param {number} bytes of one frame; @returns what the pool may grow to */
function poolBytesFor(bytes) {
  const folder = process.env.MILLRACE_SHM_DIR ?? '/dev/shm';
  const { bavail, bsize } = statfsSync(folder);
  // Blocks come in steps of a quarter of a power of two.
  const block = 1.25 * bytes + 4096;
  const blocks = Math.min(BLOCKS, Math.floor((bavail * bsize - TABLES) / block));
  /** @param {number} n */
  const mb = (n) => `${(n / 1e6).toFixed(1)} MB`;
  if (blocks < 2) {
    throw new Problem(
      `two frames of ${mb(bytes)} need ${mb(2 * block + TABLES)} of shared memory, and ${folder} has ${mb(bavail * bsize)} free. ` +
        'Ask for smaller frames with --size, give the container more with --shm-size, or set MILLRACE_SHM_DIR to another tmpfs.',
    );
  }
  return Math.ceil(blocks * block);
}

/**
 * A block to draw a frame into; waits for one that subscribers give back.
 * @param {import('millrace').Channel<Uint8Array>} channel
 * @param {number} bytes
 */
async function lend(channel, bytes) {
  for (;;) {
    try {
      return channel.loan(bytes);
    } catch (error) {
      if (!(error instanceof MillraceError && error.code === 'ERR_POOL_FULL')) throw error;
      await channel.whenWritable();
    }
  }
}

/**
 * @param {Source} from
 * @param {import('millrace').Channel<Uint8Array>} channel
 * @param {number} bytes
 */
async function publish(from, channel, bytes) {
  const begun = performance.now();
  let sent = 0;
  const ticker = setInterval(() => tell({ type: 'progress', frames: sent }), 500);
  while (sent < frames && performance.now() < begun + seconds * 1000) {
    if (fps !== undefined) await sleep(begun + (sent * 1000) / fps - performance.now());
    const loan = await lend(channel, bytes);
    if (!(await from.next(loan.bytes))) {
      loan.discard();
      break;
    }
    while (!channel.offer(loan)) await channel.whenWritable();
    sent++;
  }
  clearInterval(ticker);
  // Handed to every subscriber: now they are looked at, or wait for that.
  const { complete, undelivered } = await channel.drain(60_000);
  if (!complete) console.error('not delivered:', undelivered);
  return { sent, seconds: (performance.now() - begun) / 1000 };
}

async function main() {
  source =
    file === undefined ? sampleSource(size) : ((await pictureSource(file, size)) ?? videoSource(file, size));
  const { width, height, name, how } = source;
  const bytes = 4 * width * height;
  const poolBytes = poolBytesFor(bytes);
  await tell({ type: 'opened', source: { name, how, width, height, bytes } });
  member = await join(domain, { name: 'publisher', poolBytes });
  // The bytes of a frame say nothing of its shape: who comes later gets that, too.
  member.channel('shape', { replay: 1 }).next({ width, height });
  const channel = member.channel('frames', { codec: 'bytes', overflow: 'wait' });
  await channel.ready({ subscribers: 2, timeout: 20_000 });
  await tell({ type: 'started' });
  const result = await publish(source, channel, bytes);
  await end(0, { type: 'sent', ...result, copies: member.resources().copies });
}

await main().catch((error) => {
  const message = failure(error);
  return end(message.code, message);
});
