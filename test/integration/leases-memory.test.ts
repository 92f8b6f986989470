/** What loans and leases do to the memory of the process: V8's account of it, mappings, and what ends with a worker. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { constants, type PerformanceEntry, PerformanceObserver } from 'node:perf_hooks';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Lease } from '../../src/index.js';
import { root } from '../support/cli-process.js';
import { collected, Domain, until } from '../support/lending.js';

const MIB = 1 << 20;
const FRAMES = Number(process.env.MILLRACE_TEST_FRAMES ?? 10_000);

let domain: Domain;
beforeEach(() => {
  domain = new Domain();
});
afterEach(async () => {
  expect(await domain.end()).toEqual([]);
});

/** Collections of the whole heap while `body` runs. */
async function collections(body: () => Promise<void>): Promise<number> {
  let count = 0;
  const major = [constants.NODE_PERFORMANCE_GC_MAJOR, constants.NODE_PERFORMANCE_GC_INCREMENTAL] as unknown[];
  const take = (entries: PerformanceEntry[]) => {
    // Of entries of 'gc', which the types do not tell apart.
    for (const { detail } of entries as unknown as { detail: { kind: number } }[])
      count += major.includes(detail.kind) ? 1 : 0;
  };
  const observer = new PerformanceObserver((list) => take(list.getEntries()));
  observer.observe({ entryTypes: ['gc'] });
  await body();
  take(observer.takeRecords());
  observer.disconnect();
  return count;
}

/** A publisher, and a subscriber that keeps the leases. */
async function leased() {
  const pub = await domain.member('pub');
  const sub = await domain.member('sub');
  const out = pub.channel('x', { codec: 'bytes' });
  const kept: Lease[] = [];
  sub
    .channel('x', { codec: 'bytes' })
    .leases()
    .subscribe((lease) => kept.push(lease));
  await out.ready();
  return { pub, out, kept };
}

test("V8 does not count a block's length, and starts no collection for it", async () => {
  const bytes = 80 * MIB; // more than V8 lets external memory grow by
  const { pub, out, kept } = await leased();
  const before = process.memoryUsage().external;
  const grown = () => process.memoryUsage().external - before;
  const all = await collections(async () => {
    for (let i = 0; i < 30; i++) {
      const loan = out.loan(bytes);
      expect(grown()).toBeLessThan(4 * MIB);
      loan.bytes[bytes - 1] = i;
      await out.publish(loan);
      await until(() => kept.length === 1);
      expect(grown()).toBeLessThan(4 * MIB);
      const lease = kept.pop()!;
      expect(lease.bytes[bytes - 1]).toBe(i);
      lease.release();
    }
  });
  // Some is for what the test itself leaves behind; it was one for each loan and one for each lease.
  expect(all).toBeLessThan(10);
  // One that nobody releases is found all the same.
  out.publish(out.loan(bytes)).catch(() => {});
  await until(() => kept.pop() !== undefined);
  await collected(() => pub.resources().blocksInUse === 0);
  expect(Math.abs(grown())).toBeLessThan(4 * MIB);
});

/** Moves an ArrayBuffer's memory to another one, which Node.js 20 can't, and 24 refuses for ours. @returns null if so */
function move(buffer: ArrayBufferLike): ArrayBuffer | null {
  const { transfer } = ArrayBuffer.prototype as { transfer?: () => ArrayBuffer };
  if (transfer === undefined) return null;
  try {
    return transfer.call(buffer as ArrayBuffer);
  } catch (error) {
    expect(error).toBeInstanceOf(TypeError);
    return null;
  }
}

test('memory that was moved to another ArrayBuffer is held until that one is collected', async () => {
  const { pub, out, kept } = await leased();
  const loan = out.loan(MIB);
  loan.bytes.fill(7);
  await out.publish(loan);
  await until(() => kept.length === 1);
  let moved = move(kept[0]!.bytes.buffer);
  expect(kept[0]!.bytes.length).toBe(moved === null ? MIB : 0);
  kept.pop()!.release();
  for (let i = 0; i < 5; i++) await out.publish(out.loan(MIB));
  await until(() => kept.length === 5);
  for (const lease of kept) lease.release();
  await until(() => pub.resources().holds === (moved === null ? 0 : 1));
  expect(moved === null || new Uint8Array(moved).every((byte) => byte === 7)).toBe(true);
  moved = null;
  await collected(() => pub.resources().blocksInUse === 0);

  const other = out.loan(MIB);
  if (move(other.bytes.buffer) === null) other.discard();
  else await expect(out.publish(other)).rejects.toMatchObject({ code: 'ERR_LOAN' });
  await collected(() => pub.resources().blocksInUse === 0);
});

/** Bytes of pools' files that this process has mapped and resident, and how many mappings of them. */
function mapped() {
  const text = readFileSync('/proc/self/smaps', 'utf8');
  let mappings = 0;
  let resident = 0;
  let ours = false;
  for (const line of text.split('\n')) {
    if (/^[0-9a-f]+-[0-9a-f]+ /.test(line)) {
      ours = line.includes(domain.folder) && /\/b-\d+\.\d+/.test(line);
      if (ours) mappings++;
    } else if (ours && line.startsWith('Rss:')) resident += Number(/\d+/.exec(line)![0]) * 1024;
  }
  return { mappings, resident };
}

test.each(['loans', 'copies'])('frame after frame takes no more memory: %s', async (what) => {
  const pub = await domain.member('pub');
  const sub = await domain.member('sub');
  const out = pub.channel('x', { codec: 'bytes' });
  let seen = 0;
  sub
    .channel('x', { codec: 'bytes' })
    .leases()
    .subscribe((lease) => lease.use((bytes) => (seen += bytes[0]!)));
  await out.ready();
  const value = new Uint8Array(MIB).fill(1);
  const frames = async (count: number) => {
    for (let i = 0; i < count; i++) {
      const expected = seen + 1;
      if (what === 'copies') out.next(value);
      else {
        const loan = out.loan(MIB);
        loan.bytes[0] = 1;
        out.next(loan);
      }
      await until(() => seen === expected);
    }
    await until(() => pub.resources().blocksInUse === 0);
    const { pools, poolBytes, blocks, holds } = pub.resources();
    const { leases, leasedBytes } = sub.resources();
    return { pools, poolBytes, blocks, holds, leases, leasedBytes, ...mapped() };
  };
  await frames(200);
  // The spare block, which another thread makes.
  await until(() => pub.resources().poolBytes > MIB);
  const before = await frames(1);
  expect(before.resident).toBeGreaterThan(MIB);
  expect(await frames(FRAMES)).toEqual(before);
});

test.each([
  ['exit', 0, ''],
  ['terminate', 1, ''],
  ['throw', 1, 'on purpose'],
])('a worker that ends by %s with loans and leases', async (end, code, words) => {
  const pub = await domain.member('pub');
  const out = pub.channel('x', { codec: 'bytes' });
  const worker = new Worker(
    `const { workerData, parentPort } = require('node:worker_threads');
     const { join } = require(workerData.library);
     join('lend', { name: 'worker' }).then(async (member) => {
       const own = member.channel('own', { codec: 'bytes' });
       globalThis.kept = [own.loan(100_000), own.loan(200_000)];
       own.loan(300_000);
       let came = 0;
       member.channel('x', { codec: 'bytes' }).leases().subscribe((lease) => {
         globalThis.kept.push(lease, lease.bytes.subarray(1));
         if (++came < 3) return;
         if (workerData.end === 'exit') process.exit(0);
         if (workerData.end === 'throw') throw new Error('on purpose');
         parentPort.postMessage('came');
       });
     });`,
    { eval: true, workerData: { library: join(root, 'dist', 'index.js'), end }, stderr: true },
  );
  worker.on('message', () => worker.terminate());
  let said = '';
  worker.on('error', ({ message }) => {
    said = message;
  });
  const ended = new Promise((done) => worker.once('exit', done));
  await out.ready();
  for (let i = 0; i < 3; i++) out.next(out.loan(100_000));
  expect({ code: await ended, said }).toEqual({ code, said: words });
  // What it held comes back, and this process goes on.
  await until(() => pub.resources().blocksInUse === 0);
  expect(pub.resources().holds).toBe(0);
});
