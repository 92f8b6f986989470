/** Loans and leases on one host: the publisher's own pages, ownership, and what bounds it. */
import { spawnSync } from 'node:child_process';
import { serialize } from 'node:v8';
import { BroadcastChannel, MessageChannel, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Channel, Lease, Member, StatusEvent } from '../../src/index.js';
import { addon, collected, Domain, millrace, until } from '../support/lending.js';

const MIB = 1 << 20;

let domain: Domain;
let warnings: string[];
const onWarning = (warning: Error & { code?: string }) => {
  if (warning.name === 'MillraceWarning') warnings.push(`${warning.code}: ${warning.message}`);
};
beforeEach(() => {
  domain = new Domain();
  warnings = [];
  process.on('warning', onWarning);
});
afterEach(async () => {
  process.off('warning', onWarning);
  vi.restoreAllMocks();
  expect(await domain.end()).toEqual([]);
});

/** A publisher and a subscriber of bytes. */
async function pair(
  options = {},
  channel = {},
): Promise<{ pub: Member; sub: Member; out: Channel<Uint8Array>; back: Channel<Uint8Array> }> {
  const pub = await domain.member('pub', options);
  const sub = await domain.member('sub');
  const out = pub.channel('x', { codec: 'bytes' });
  const back = sub.channel('x', { codec: 'bytes', ...channel });
  return { pub, sub, out, back };
}

const free = (member: Member): boolean => member.resources().blocksInUse === 0;

/** Publishes a loan whose bytes are all `fill`. */
function send(out: Channel<Uint8Array>, bytes: number, fill: number) {
  const loan = out.loan(bytes);
  loan.bytes.fill(fill);
  return out.publish(loan);
}

describe('a loan and its leases', () => {
  test('the lease has the bytes; after release() every view is empty; the block is used again', async () => {
    const { pub, sub, out, back } = await pair();
    const seen: number[][] = [];
    back.leases().subscribe((lease) => {
      const { bytes } = lease;
      const other = new Uint16Array(bytes.buffer);
      seen.push([bytes.length, bytes[0]!, bytes.at(-1)!]);
      lease.release();
      seen.push([bytes.length, other.length, lease.bytes.length, bytes.buffer.byteLength]);
      lease.release(); // no more than once
    });
    await out.ready();
    for (let i = 1; i <= 100; i++) {
      const loan = out.loan(MIB);
      const { bytes } = loan;
      bytes.fill(i);
      expect(await out.publish(loan)).toEqual({ sequence: i, received: 1, dropped: 0 });
      expect([bytes.length, loan.bytes.length]).toEqual([0, 0]);
      await until(() => seen.length === 2 * i);
      expect(seen.slice(-2)).toEqual([
        [MIB, i, i],
        [0, 0, 0, 0],
      ]);
    }
    // One in use at a time, and one spare that was made ahead, on a thread that may be slow.
    await until(() => pub.resources().blocks > 1);
    expect(pub.resources()).toMatchObject({ blocks: 2, pools: 1, copies: 0, copiedBytes: 0 });
    expect(sub.resources()).toMatchObject({ leases: 0, leasedBytes: 0, copies: 0, copiedBytes: 0 });
    expect(free(pub)).toBe(true);
  });

  test('a block stands ready for the next loan of the same size, is not in use, and gives way to others', async () => {
    const lend = vi.spyOn(addon, 'lend');
    const prepare = vi.spyOn(addon, 'lendFree');
    const { pub, sub, out, back } = await pair({ poolBytes: 4 * MIB });
    const seen: number[] = [];
    back.leases().subscribe((lease) => lease.use((bytes) => seen.push(bytes[0]!)));
    await out.ready();
    const sendAndSee = async (fill: number) => {
      const { sequence } = await send(out, MIB, fill);
      await until(() => seen.length === sequence && sub.resources().leases === 0);
    };
    const made = async () => {
      for (const loan of [out.loan(MIB), out.loan(MIB)]) loan.discard();
      for (let i = 0; i < 2; i++) await sendAndSee(i);
      expect(prepare).toHaveLastReturnedWith(expect.toSatisfy((block: number) => block >= 0));
      lend.mockClear();
    };
    await made();
    await sendAndSee(8);
    expect(lend).not.toHaveBeenCalled();
    expect(seen).toEqual([0, 1, 8]);
    // All of the pool: none of its blocks may be lent.
    out.loan(4 * MIB).discard();
    expect(lend).toHaveBeenCalledOnce();
    await made();
    expect(free(pub)).toBe(true);
  });

  test('a loan is used up once, whatever comes of it', async () => {
    const { pub, out } = await pair();
    const loan = out.loan(100_000);
    expect(pub.resources().blocksInUse).toBe(1);
    loan.discard();
    loan.discard();
    await expect(out.publish(loan)).rejects.toMatchObject({ code: 'ERR_LOAN' });
    const other = out.loan(100_000);
    const json = pub.channel<Uint8Array>('json', { codec: 'json' });
    await expect(json.publish(other)).rejects.toMatchObject({ code: 'ERR_LOAN' });
    // Before anything is rendered into it.
    for (const channel of [json, pub.channel('group', { codec: 'bytes', delivery: 'multicast' })])
      expect(() => channel.loan(1)).toThrow(expect.objectContaining({ code: 'ERR_LOAN' }));
    out.next(other); // nobody subscribes: it is over all the same
    expect(other.bytes.length).toBe(0);
    expect(free(pub)).toBe(true);
    expect(() => out.loan(0)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARGUMENT' }));
    out.complete();
    expect(() => out.loan(1)).toThrow(expect.objectContaining({ code: 'ERR_PUBLISHING_ENDED' }));
  });

  test('use(), retain() and their ends', async () => {
    const { pub, out, back } = await pair();
    const kept: Lease[] = [];
    const log: unknown[] = [];
    back.leases().subscribe((lease) => {
      if (lease.sequence === 1) log.push(lease.use((bytes) => bytes[0]));
      else if (lease.sequence === 2) {
        expect(() =>
          lease.use(() => {
            throw new Error('mine');
          }),
        ).toThrow('mine');
        log.push(lease.released);
      } else if (lease.sequence === 3) {
        const promise = lease.use(async (bytes) => {
          await new Promise((done) => setImmediate(done));
          return bytes.length;
        });
        log.push(lease.released);
        void promise.then((length) => log.push(length, lease.released));
      } else if (lease.sequence === 5) {
        // A promise of another library or realm.
        const then = (done: (value: unknown) => void) => setImmediate(() => done(lease.bytes.length));
        void Promise.resolve(lease.use(() => ({ then }))).then((length) => log.push(length, lease.released));
      } else kept.push(lease.retain());
    });
    await out.ready();
    for (let i = 1; i <= 5; i++) await send(out, 50_000, i);
    await until(() => kept.length === 1 && log.length === 7);
    expect(log).toEqual([1, true, false, 50_000, true, 50_000, true]);
    const [lease] = kept;
    lease!.release();
    expect([lease!.released, lease!.bytes[0]]).toEqual([false, 4]);
    lease!.release();
    expect([lease!.released, lease!.bytes.length]).toEqual([true, 0]);
    for (const use of [() => lease!.retain(), () => lease!.use(() => {})])
      expect(use).toThrow(expect.objectContaining({ code: 'ERR_LEASE_RELEASED' }));
    expect(free(pub)).toBe(true);
  });

  test('small messages come as leases, too, and large ones that were no loans', async () => {
    const { pub, sub, out, back } = await pair();
    const seen: [number, number, number][] = [];
    back.leases().subscribe((lease) => {
      const { bytes } = lease;
      const length = bytes.length;
      const first = bytes[0]!;
      lease.release();
      seen.push([length, first, bytes.length]);
    });
    await out.ready();
    await out.publish(new Uint8Array(10).fill(1));
    await out.publish(Buffer.alloc(100_000, 2));
    await out.publish(new Uint8Array(20).fill(3), { headers: { a: 'b' } });
    await until(() => seen.length === 3);
    expect(seen).toEqual([
      [10, 1, 0],
      [100_000, 2, 0],
      [20, 3, 0],
    ]);
    expect(pub.resources()).toMatchObject({ copies: 1, copiedBytes: 100_000 });
    expect(sub.resources()).toMatchObject({ copies: 2, copiedBytes: 30 });
  });

  test('messages$ has headers and bytes of a large message, in order with small ones', async () => {
    const { out, back } = await pair();
    const seen: unknown[] = [];
    back.messages$.subscribe((event) => {
      if (event.type !== 'message') return;
      seen.push([event.sequence, event.headers.n, event.bytes.length, event.value.length]);
    });
    await out.ready();
    for (let n = 1; n <= 6; n++)
      await out.publish(new Uint8Array(n % 2 === 0 ? 40_000 : 40), { headers: { n: String(n) } });
    await until(() => seen.length === 6);
    expect(seen).toEqual(
      [1, 2, 3, 4, 5, 6].map((n) => [n, String(n), ...(n % 2 === 0 ? [40_000, 40_000] : [40, 40])]),
    );
  });

  /** Node.js 20 ignores what it may not transfer, and copies; later ones refuse it. */
  const refusesToTransfer = Number(process.versions.node.split('.')[0]) > 20;
  const dataCloneError = expect.objectContaining({ name: 'DataCloneError' });

  test('so does a loan, and is published all the same', async () => {
    const { out, back } = await pair();
    const got: Uint8Array[] = [];
    back.subscribe((bytes) => got.push(bytes));
    await out.ready();
    const loan = out.loan(50_000);
    const posted = expect.objectContaining({
      code: 'ERR_LEASE_POSTED',
      message: expect.stringContaining('region.handle'),
    });
    const { port1 } = new MessageChannel();
    for (const form of [
      () => port1.postMessage({ loan }),
      () => structuredClone(loan),
      () => JSON.stringify(loan),
    ])
      expect(form).toThrow(posted);
    port1.close();
    loan.bytes.fill(7);
    await out.publish(loan);
    await until(() => got.length === 1);
  });

  test('a lease that is posted or cloned says what to do instead; its bytes are copied', async () => {
    const { out, back } = await pair();
    const kept: Lease[] = [];
    back.leases().subscribe((lease) => kept.push(lease));
    await out.ready();
    await send(out, 50_000, 1);
    await until(() => kept.length === 1);
    const [lease] = kept as [Lease];
    const { port1, port2 } = new MessageChannel();
    const broadcast = new BroadcastChannel('leases');
    const posted = expect.objectContaining({
      code: 'ERR_LEASE_POSTED',
      message: expect.stringContaining('region.handle'),
    });
    const transfer = [lease.bytes.buffer as ArrayBuffer];
    for (const [error, forms] of [
      [
        posted,
        [
          () => port1.postMessage(lease),
          () => port1.postMessage({ of: [lease] }),
          () => broadcast.postMessage(lease),
          () => structuredClone(lease),
          () => new Worker('', { eval: true, workerData: lease }),
          () => serialize(lease),
          () => JSON.stringify(lease),
        ],
      ],
      // With a list it is the list that is looked at first.
      [
        refusesToTransfer ? dataCloneError : posted,
        [() => port1.postMessage(lease, transfer), () => structuredClone(lease, { transfer })],
      ],
    ] as const)
      for (const form of forms) expect(form).toThrow(error);
    // V8 copies typed arrays and their buffers without asking anybody.
    port1.postMessage(lease.bytes);
    port1.postMessage(lease.bytes.buffer);
    for (const copy of [
      receiveMessageOnPort(port2)!.message,
      new Uint8Array(receiveMessageOnPort(port2)!.message),
      structuredClone(lease.bytes),
    ]) {
      expect(Buffer.compare(copy, lease.bytes)).toBe(0);
      expect(copy.buffer).not.toBe(lease.bytes.buffer);
    }
    expect(lease.bytes.length).toBe(50_000);
    port1.close();
    broadcast.close();
    lease.release();
  });

  test('memory of a lease, a loan and a value is not given away', async () => {
    const { pub, out, back } = await pair();
    const kept: Lease[] = [];
    const values: Uint8Array[] = [];
    back.leases().subscribe((lease) => kept.push(lease));
    back.subscribe((bytes) => values.push(bytes));
    await out.ready();
    await send(out, 50_000, 1);
    await until(() => kept.length === 1 && values.length === 1);
    const loan = out.loan(50_000);
    loan.bytes.fill(2);
    // A function of its own, whose end lets go of the bytes.
    const tryTo = (bytes: Uint8Array) => {
      const { port1, port2 } = new MessageChannel();
      const post = () => port1.postMessage(bytes, [bytes.buffer as ArrayBuffer]);
      const clone = () => structuredClone(bytes, { transfer: [bytes.buffer as ArrayBuffer] });
      if (refusesToTransfer) {
        for (const give of [post, clone]) expect(give).toThrow(dataCloneError);
      } else {
        post();
        expect(Buffer.compare(receiveMessageOnPort(port2)!.message, bytes)).toBe(0);
        expect(Buffer.compare(clone(), bytes)).toBe(0);
      }
      expect([bytes.length, bytes.buffer.byteLength]).toEqual([50_000, 50_000]);
      port1.close();
    };
    for (const bytesOf of [() => kept[0]!.bytes, () => loan.bytes, () => values[0]!]) tryTo(bytesOf());
    // They are all still what they were.
    kept[0]!.release();
    await out.publish(loan);
    await until(() => kept.length === 2);
    expect([kept[1]!.bytes[0], kept[1]!.bytes.at(-1)]).toEqual([2, 2]);
    kept[1]!.release();
    values.length = 0;
    await collected(() => free(pub));
    expect(warnings).toEqual([]);
  });

  test('echo: own subscribers get leases of own loans', async () => {
    const pub = await domain.member('pub');
    const out = pub.channel('x', { codec: 'bytes', echo: true });
    const seen: number[] = [];
    out.leases().subscribe((lease) => lease.use((bytes) => seen.push(bytes[0]!)));
    await out.ready();
    for (let i = 1; i <= 5; i++) await send(out, 50_000, i);
    await until(() => seen.length === 5);
    expect(seen).toEqual([1, 2, 3, 4, 5]);
    expect(free(pub)).toBe(true);
  });
});

describe('ordinary subscribers', () => {
  test('what they get may be kept for ever, and is given back when it is collected', async () => {
    const { pub, sub, out, back } = await pair();
    let kept: Uint8Array[] = [];
    back.subscribe((bytes) => kept.push(bytes));
    await out.ready();
    for (let i = 0; i < 20; i++) await out.publish(new Uint8Array(100_000).fill(i));
    await until(() => kept.length === 20);
    expect(kept.map((bytes) => [bytes[0], bytes.at(-1), bytes.length])).toEqual(
      kept.map((_, i) => [i, i, 100_000]),
    );
    expect(sub.resources().leases).toBe(20);
    expect(pub.resources()).toMatchObject({ holds: 20, blocksInUse: 20 });
    kept = [];
    await collected(() => sub.resources().leases === 0);
    expect(free(pub)).toBe(true);
    expect(warnings).toEqual([]);
  });

  test('one copy for all subscribers', async () => {
    const pub = await domain.member('pub');
    const out = pub.channel('x', { codec: 'bytes' });
    const kept: Uint8Array[] = [];
    for (const name of ['a', 'b', 'c'])
      (await domain.member(name)).channel('x', { codec: 'bytes' }).subscribe((bytes) => kept.push(bytes));
    await out.ready({ subscribers: 3 });
    await out.publish(new Uint8Array(MIB).fill(7));
    await until(() => kept.length === 3);
    expect(pub.resources()).toMatchObject({ holds: 3, blocksInUse: 1, blockBytesInUse: MIB });
    kept.length = 0;
    await collected(() => domain.members.every((one) => one.resources().leases === 0));
  });

  test('a lease of the same message can be released meanwhile', async () => {
    const { out, back, sub } = await pair();
    const kept: Uint8Array[] = [];
    const leased: number[] = [];
    back.subscribe((bytes) => kept.push(bytes));
    back.leases().subscribe((lease) => {
      const { bytes } = lease;
      lease.release();
      leased.push(bytes.length);
    });
    await out.ready();
    await send(out, 50_000, 5);
    await until(() => kept.length === 1 && leased.length === 1);
    expect([leased, kept[0]!.length, kept[0]![0], sub.resources().leases]).toEqual([[0], 50_000, 5, 1]);
    kept.length = 0;
    await collected(() => sub.resources().leases === 0);
  });

  test('large fields of objects arrive as views of their class, over the block', async () => {
    const pub = await domain.member('pub');
    const sub = await domain.member('sub');
    const out = pub.channel('objects');
    const seen: unknown[] = [];
    sub.channel('objects').subscribe((value) => seen.push(value));
    await out.ready();
    const value = {
      header: { width: 100, name: 'x' },
      pixels: new Float32Array(10_000).map((_, i) => i / 3),
      planes: [new Uint16Array(5000).fill(3), { deep: new BigInt64Array(3000).fill(-5n) }],
      buffer: Buffer.alloc(9000, 1),
      view: new DataView(new ArrayBuffer(8192)),
      small: new Int8Array([1, -1]),
      map: new Map([['k', new Uint8Array(5000).fill(2)]]),
    };
    const before = structuredClone({ ...value, buffer: 0 });
    await out.publish(value);
    await until(() => seen.length === 1);
    expect(seen[0]).toEqual(value);
    expect(structuredClone({ ...value, buffer: 0 })).toEqual(before);
    const got = seen[0] as typeof value;
    expect(Buffer.isBuffer(got.buffer)).toBe(true);
    expect(got.pixels.buffer).toBe(got.planes[0 as never]!['buffer' as never]);
    expect(got.pixels.byteOffset % 64).toBe(0);
    await out.publish({ text: 'y'.repeat(100_000), list: Array.from({ length: 5000 }, (_, i) => ({ i })) });
    await until(() => seen.length === 2);
    expect(seen[1]).toMatchObject({ text: 'y'.repeat(100_000) });
    await out.publish({ header: { width: 1, name: 'small' } });
    await until(() => seen.length === 3);
    expect(seen[2]).toEqual({ header: { width: 1, name: 'small' } });
    seen.length = 0;
  });
});

describe('what goes wrong', () => {
  test('a forgotten lease is released with a warning', async () => {
    await domain.end();
    domain = new Domain({ MILLRACE_DEV: '1' });
    const { sub, out, back } = await pair();
    const events: StatusEvent[] = [];
    back.status$.subscribe((event) => events.push(event));
    const lines: string[] = [];
    /** Notes the line after the one that it is called from. */
    const note = () => {
      const [, line] = /leases\.test\.ts:(\d+)/.exec(new Error().stack!.split('\n')[2]!)!;
      lines.push(`leases.test.ts:${Number(line) + 1}`);
    };
    note();
    back.leases().subscribe((lease) => {
      note();
      lease.retain();
    });
    await out.ready();
    await send(out, 50_000, 1);
    // It may be collected at any time from when it was handed out on.
    await collected(() => warnings.length === 1);
    expect(sub.resources().leases).toBe(0);
    expect(warnings[0]).toMatch(
      /^lease-forgotten: The lease of message 1 of pub on channel "x" \(50000 bytes\)/,
    );
    // The first line of each is the program's own.
    const first = /\n(leases\(\)\.subscribe\(\)|retain\(\))\n.*(leases\.test\.ts:\d+)/g;
    expect([...warnings[0]!.matchAll(first)].map(([, what, line]) => [what, line])).toEqual([
      ['leases().subscribe()', lines[0]],
      ['retain()', lines[1]],
    ]);
    expect(events).toContainEqual(
      expect.objectContaining({ type: 'lease-forgotten', channel: 'x', sequence: 1 }),
    );
  });

  test('so does a forgotten loan, and who waits for a block gets it', async () => {
    const { pub, out, back } = await pair({ poolBytes: 2 * MIB });
    back.leases().subscribe((lease) => lease.release());
    await out.ready();
    const forget = () => {
      out.loan(MIB).bytes[0] = 1;
      out.loan(MIB);
    };
    forget();
    expect(() => out.loan(MIB)).toThrow(expect.objectContaining({ code: 'ERR_POOL_FULL' }));
    let writable = false;
    const waiting = out.whenWritable().then(() => {
      writable = true;
    });
    await collected(() => writable);
    await waiting;
    await collected(() => free(pub));
    await until(() => warnings.length === 2);
    expect(warnings[0]).toMatch(/^loan-forgotten: A loan was collected/);
    await send(out, MIB, 1);
    await until(() => free(pub));
    // One whose bytes are still in use is not forgotten.
    const { bytes } = out.loan(MIB);
    for (let i = 0; i < 5; i++) await collected(() => true);
    bytes.fill(2);
    expect([bytes[MIB - 1], pub.resources().blocksInUse]).toEqual([2, 1]);
  });

  test('a stray write reaches nobody, is undone, and names the channel', async () => {
    const { pub, out, back } = await pair();
    const other = (await domain.member('other')).channel('x', { codec: 'bytes' });
    const leases: Lease[] = [];
    const theirs: Lease[] = [];
    back.leases().subscribe((lease) => leases.push(lease));
    other.leases().subscribe((lease) => theirs.push(lease));
    await out.ready({ subscribers: 2 });
    await send(out, MIB, 1);
    await until(() => leases.length === 1 && theirs.length === 1);
    const { bytes } = leases[0]!;
    bytes[5000] = 99;
    bytes[900_000] = 98;
    expect([bytes[5000], bytes[5001], bytes[900_000]]).toEqual([99, 1, 98]);
    expect(theirs[0]!.bytes[5000]).toBe(1);
    leases[0]!.release();
    theirs[0]!.release();
    await until(() => warnings.length === 1);
    expect(warnings[0]).toMatch(/^stray-write: Somebody wrote to 2 pages of message 1 of pub on channel "x"/);
    // The same block again: what comes is right at both.
    await send(out, MIB, 2);
    await until(() => leases.length === 2 && theirs.length === 2);
    // Besides it there is one spare at most, which a thread makes in its own time.
    expect(pub.resources().blocks).toBeLessThanOrEqual(2);
    for (const lease of [leases[1]!, theirs[1]!]) {
      expect([lease.bytes[5000], lease.bytes[900_000]]).toEqual([2, 2]);
      lease.release();
    }
    expect(warnings.length).toBe(1);
  });

  test('so does one to a value that was given away, once it is collected', async () => {
    const { pub, sub, out, back } = await pair();
    const theirs: Uint8Array[] = [];
    (await domain.member('other')).channel('x', { codec: 'bytes' }).subscribe((bytes) => theirs.push(bytes));
    const kept: Uint8Array[] = [];
    const events: StatusEvent[] = [];
    back.status$.subscribe((event) => events.push(event));
    back.subscribe((bytes) => kept.push(bytes));
    await out.ready({ subscribers: 2 });
    await send(out, MIB, 1);
    await until(() => kept.length === 1 && theirs.length === 1);
    kept[0]![70_000] = 99;
    expect([kept[0]![70_000], theirs[0]![70_000]]).toEqual([99, 1]);
    expect(warnings).toEqual([]);
    kept.length = 0;
    await collected(() => sub.resources().leases === 0);
    await until(() => warnings.length === 1);
    expect(warnings[0]).toMatch(/^stray-write: Somebody wrote to 1 page of message 1 of pub on channel "x"/);
    expect(events).toContainEqual(
      expect.objectContaining({ type: 'stray-write', channel: 'x', sequence: 1, bytes: MIB }),
    );
    theirs.length = 0;
    await collected(() => free(pub));
    await send(out, MIB, 2);
    await until(() => kept.length === 1 && theirs.length === 1);
    expect([kept[0]![70_000], theirs[0]![70_000]]).toEqual([2, 2]);
    kept.length = 0;
    theirs.length = 0;
    await collected(() => free(pub));
    expect(warnings.length).toBe(1);
  });

  test('released blocks are poisoned under MILLRACE_DEV=1', async () => {
    await domain.end();
    domain = new Domain({ MILLRACE_DEV: '1' });
    const { out } = await pair();
    const loan = out.loan(50_000);
    loan.bytes.fill(1);
    loan.discard();
    expect(out.loan(50_000).bytes.subarray(0, 3)).toEqual(new Uint8Array([0xdb, 0xdb, 0xdb]));
  });

  test('members that leave keep what they were given', async () => {
    const { sub, pub, out, back } = await pair();
    const kept: Uint8Array[] = [];
    back.subscribe((bytes) => kept.push(bytes));
    await out.ready();
    await send(out, 100_000, 1);
    await until(() => kept.length === 1);
    await sub.leave();
    await until(() => pub.peers.length === 0);
    for (let i = 2; i < 6; i++) {
      const loan = out.loan(100_000);
      loan.bytes.fill(i);
      loan.discard();
    }
    expect(free(pub)).toBe(true);
    expect(kept[0]!.every((byte) => byte === 1)).toBe(true);
    kept[0]![0] = 9; // it is its own
    expect(kept[0]![0]).toBe(9);
  });

  test('loans and leases may end after their member has left', async () => {
    const { sub, pub, out, back } = await pair();
    const leases: Lease[] = [];
    for (let i = 0; i < 2; i++) back.leases().subscribe((lease) => leases.push(lease));
    await out.ready();
    const [one, two, three] = [out.loan(50_000), out.loan(50_000), out.loan(50_000)];
    await send(out, 100_000, 7);
    await until(() => leases.length === 2);
    for (const member of [sub, pub]) await member.leave();
    const view = leases[0]!.bytes;
    expect(leases[0]!.use((bytes) => bytes[99_999])).toBe(7);
    expect([view.length, leases[1]!.bytes.length]).toEqual([100_000, 100_000]); // the other one's, too
    await leases[1]!.retain().use(async () => {});
    leases[1]!.release();
    expect([view.length, view.buffer.byteLength]).toEqual([0, 0]);
    one.bytes.fill(1);
    one.discard();
    out.next(two);
    await expect(out.publish(three)).rejects.toMatchObject({ code: 'ERR_MEMBER_CLOSED' });
    three[Symbol.dispose]();
    expect([one, two, three].map(({ bytes }) => bytes.buffer.byteLength)).toEqual([0, 0, 0]);
  });

  test('a publisher that leaves leaves its pages to who holds them, and then they go', async () => {
    const { sub, pub, out, back } = await pair();
    const leases: Lease[] = [];
    back.leases().subscribe((lease) => leases.push(lease));
    await out.ready();
    await send(out, 100_000, 1);
    await send(out, 100_000, 2);
    await until(() => leases.length === 2);
    await pub.leave();
    await until(() => sub.peers.length === 0);
    expect(leases.map(({ bytes }) => [bytes.length, bytes[99_999]])).toEqual([
      [100_000, 1],
      [100_000, 2],
    ]);
    expect(domain.files.length).toBeGreaterThan(1);
    leases[0]!.release();
    expect(domain.files.length).toBeGreaterThan(1);
    leases[1]!.release();
    await until(() => domain.files.length === 0);
    expect(sub.resources()).toMatchObject({ leases: 0, mappedPoolFiles: 0 });
  });
});

describe('bounds', () => {
  test('a pool without a free block refuses, and says when there is one', async () => {
    const { out, back, pub } = await pair({ poolBytes: 4 * MIB, heldBytes: 4 * MIB });
    const leases: Lease[] = [];
    back.leases().subscribe((lease) => leases.push(lease));
    await out.ready();
    for (let i = 0; i < 4; i++) await send(out, MIB, i);
    await until(() => leases.length === 4);
    expect(() => out.loan(MIB)).toThrow(expect.objectContaining({ code: 'ERR_POOL_FULL', retryable: true }));
    await expect(out.publish(new Uint8Array(MIB))).rejects.toMatchObject({ code: 'ERR_REFUSED' });
    expect(() => out.loan(5 * MIB)).toThrow(expect.objectContaining({ code: 'ERR_MESSAGE_TOO_LARGE' }));
    const writable = out.whenWritable();
    leases[2]!.release();
    await writable;
    await send(out, MIB, 9);
    await until(() => leases.length === 5);
    expect(leases[4]!.bytes[0]).toBe(9);
    for (const lease of leases) lease.release();
    expect(free(pub)).toBe(true);
  });

  test('what ordinary subscribers keep moves out of a pool that is short', async () => {
    const { out, back, pub, sub } = await pair({ poolBytes: 4 * MIB });
    const kept: Uint8Array[] = [];
    back.subscribe((bytes) => kept.push(bytes));
    await out.ready();
    for (let i = 0; i < 20; i++) {
      while (!out.offer(new Uint8Array(MIB).fill(i))) await out.whenWritable();
      await pub.flush();
    }
    await until(() => kept.length === 20);
    expect(kept.map((bytes) => [bytes.length, bytes[0], bytes[MIB - 1]])).toEqual(
      kept.map((_, i) => [MIB, i, i]),
    );
    expect(pub.resources()).toMatchObject({ copies: 20, copiedBytes: 20 * MIB });
    expect(pub.resources().poolBytes).toBeLessThanOrEqual(4 * MIB);
    const { copies, copiedBytes, leases } = sub.resources();
    expect([copies, copiedBytes]).toEqual([20 - leases, (20 - leases) * MIB]);
  });

  test('so does what is kept after the publisher asked for it, beside a subscriber that releases nothing', async () => {
    const { out, back, sub } = await pair({ poolBytes: 4 * MIB, heldBytes: 2 * MIB }, { overflow: 'wait' });
    const leaker = (await domain.member('leaker')).channel('x', { codec: 'bytes', overflow: 'drop-oldest' });
    const leaked: Lease[] = [];
    const kept: Uint8Array[] = [];
    leaker.leases().subscribe((lease) => leaked.push(lease));
    back.subscribe((bytes) => kept.push(bytes));
    await out.ready({ subscribers: 2 });
    for (let i = 0; i < 20; i++) {
      while (!out.offer(new Uint8Array(MIB).fill(i))) await out.whenWritable();
      // From when the leaker has its share there is always somebody who waits for blocks, and who has asked.
      await until(() => kept.length === i + 1 && (i < 2 || sub.resources().leases === 0));
      for (let turns = 0; turns < 10; turns++) await new Promise((done) => setImmediate(done));
    }
    expect(kept.map((bytes) => [bytes.length, bytes[0]])).toEqual(kept.map((_, i) => [MIB, i]));
    expect(leaked).toHaveLength(2);
    for (const lease of leaked) lease.release();
  });

  test('so does what a subscriber keeps that has unsubscribed', async () => {
    const { out, back } = await pair({ poolBytes: 4 * MIB, heldBytes: 4 * MIB });
    const other = (await domain.member('other')).channel('x', { codec: 'bytes' });
    const kept: Uint8Array[] = [];
    let seen = 0;
    other.leases().subscribe((lease) => lease.use(() => seen++));
    const keeping = back.subscribe((bytes) => kept.push(bytes));
    await out.ready({ subscribers: 2 });
    for (let i = 0; i < 4; i++) await out.publish(new Uint8Array(MIB).fill(i));
    await until(() => kept.length === 4);
    keeping.unsubscribe();
    await until(() => out.stats().subscribers === 1);
    for (let i = 4; i < 12; i++) {
      while (!out.offer(new Uint8Array(MIB).fill(i))) await out.whenWritable();
    }
    await until(() => seen === 12);
    expect(kept.map((bytes) => [bytes.length, bytes[0]])).toEqual(kept.map((_, i) => [MIB, i]));
  });

  test.for(['drop-newest', 'drop-oldest'] as const)(
    'what waits for a subscriber under %s is no reason for a pool to be full',
    async (overflow) => {
      const pub = await domain.member('pub', { poolBytes: 8 * MIB, heldBytes: 2 * MIB });
      const out = pub.channel('x', { codec: 'bytes', maxQueueBytes: 64 * MIB });
      const leaker = (await domain.member('leaker')).channel('x', { codec: 'bytes', overflow });
      const good = (await domain.member('good')).channel('x', { codec: 'bytes' });
      const leaked: Lease[] = [];
      const seen: number[] = [];
      const heard: number[] = [];
      leaker.messages$.subscribe((event) => {
        if (event.type === 'gap') heard.push(event.from, -event.to);
      });
      leaker.leases().subscribe((lease) => leaked.push(lease));
      good.leases().subscribe((lease) => lease.use((bytes) => seen.push(bytes[0]!)));
      await out.ready({ subscribers: 2 });
      for (let i = 1; i <= 20; i++) {
        await out.whenWritable();
        const loan = out.loan(MIB);
        loan.bytes.fill(i);
        out.next(loan);
        await until(() => seen.length === i);
      }
      expect(leaked.map(({ sequence }) => sequence)).toEqual([1, 2]);
      // What it gets when it releases are those of its queue, and a gap stands for the others.
      while (leaked.at(-1)?.sequence !== 20) {
        for (const lease of leaked) lease.release();
        await new Promise((done) => setImmediate(done));
      }
      const [sequences, gap] =
        overflow === 'drop-newest'
          ? [
              [3, 4, 5, 6, 7, 20],
              [8, -19],
            ]
          : [
              [15, 16, 17, 18, 19, 20],
              [3, -14],
            ];
      expect(leaked.slice(2).map(({ sequence }) => sequence)).toEqual(sequences);
      expect(heard).toEqual(gap);
      for (const lease of leaked) lease.release();
      await until(() => free(pub));
    },
  );

  test('a subscriber that releases nothing takes no more than its share', async () => {
    const pub = await domain.member('pub', { poolBytes: 8 * MIB, heldBytes: 2 * MIB });
    const out = pub.channel('x', { codec: 'bytes' });
    const leaker = (await domain.member('leaker')).channel('x', { codec: 'bytes', overflow: 'latest' });
    const good = (await domain.member('good')).channel('x', { codec: 'bytes' });
    const leaked: Lease[] = [];
    const seen: number[] = [];
    const gaps: number[] = [];
    leaker.leases().subscribe((lease) => leaked.push(lease));
    leaker.status$.subscribe((event) => event.type === 'gap' && gaps.push(event.count));
    good.leases().subscribe((lease) => lease.use((bytes) => seen.push(bytes[0]!)));
    await out.ready({ subscribers: 2 });
    for (let i = 1; i <= 50; i++) {
      await out.whenWritable();
      const loan = out.loan(MIB);
      loan.bytes.fill(i);
      out.next(loan);
      await until(() => seen.length === i);
    }
    expect(seen).toEqual(Array.from({ length: 50 }, (_, i) => i + 1));
    expect(leaked.map(({ sequence }) => sequence)).toEqual([1, 2]);
    leaked[0]!.release();
    // Room for the newest, which was kept for it; the rest is told as missing.
    await until(() => leaked.length === 3);
    expect(leaked[2]!.sequence).toBe(50);
    expect(leaked[2]!.bytes[0]).toBe(50);
    expect(gaps.reduce((sum, count) => sum + count, 0)).toBe(47);
    for (const lease of leaked) lease.release();
    expect(free(pub)).toBe(true);
  });

  test('large messages are replayed, each subscriber with its own hold', async () => {
    const pub = await domain.member('pub');
    const out = pub.channel('x', { codec: 'bytes', replay: 3, replayBytes: 8 * MIB });
    for (let i = 1; i <= 5; i++) await out.publish(new Uint8Array(200_000).fill(i));
    expect(pub.resources()).toMatchObject({ blocksInUse: 3, holds: 0 });
    const sub = await domain.member('sub');
    const back = sub.channel('x', { codec: 'bytes', replay: 10, replayBytes: 8 * MIB });
    const [one, two]: [number[], number[]] = [[], []];
    back.leases().subscribe((lease) => lease.use((bytes) => one.push(bytes[0]!)));
    back.leases().subscribe((lease) => lease.use((bytes) => two.push(bytes[0]!)));
    await until(() => one.length === 3 && two.length === 3);
    await out.publish(new Uint8Array(200_000).fill(6));
    await until(() => one.length === 4 && two.length === 4);
    expect([one, two]).toEqual([
      [3, 4, 5, 6],
      [3, 4, 5, 6],
    ]);
    out.close();
    await until(() => free(pub));
  });

  test('values of other codecs go through the pool, too', async () => {
    const pub = await domain.member('pub');
    const sub = await domain.member('sub');
    const { struct } = millrace;
    const layout = struct({ n: 'u32', data: 'bytes:40000' });
    const seen: unknown[] = [];
    for (const [name, codec, value] of [
      ['json', 'json' as const, { text: 'z'.repeat(50_000) }],
      ['struct', layout, { n: 7, data: new Uint8Array(40_000).fill(3) }],
    ] as const) {
      sub.channel(name, { codec: codec as never }).subscribe((got) => seen.push(got));
      const out = pub.channel(name, { codec: codec as never });
      await out.ready();
      await out.publish(value as never);
      await until(() => seen.length === 1);
      expect(seen.pop()).toEqual(value);
    }
  });
});

describe('surroundings', () => {
  test('hosts without external ArrayBuffers copy, and nothing else changes', async () => {
    await domain.end();
    domain = new Domain({ MILLRACE_EXTERNAL_BUFFERS: '0' });
    const { pub, sub, out, back } = await pair();
    const seen: number[][] = [];
    const kept: Uint8Array[] = [];
    back.leases().subscribe((lease) => {
      const { bytes } = lease;
      const first = bytes[0]!;
      lease.release();
      seen.push([first, bytes.length]);
    });
    back.subscribe((bytes) => kept.push(bytes));
    await out.ready();
    for (let i = 1; i <= 3; i++) await send(out, 100_000, i);
    await out.publish(new Uint8Array(100_000).fill(4));
    await until(() => seen.length === 4 && kept.length === 4);
    expect(seen).toEqual([1, 2, 3, 4].map((i) => [i, 0]));
    expect(kept.map((bytes) => [bytes[99_999], bytes.length])).toEqual([1, 2, 3, 4].map((i) => [i, 100_000]));
    expect(free(pub)).toBe(true);
    // At the publisher each loan when it ends, the value into the pool and that block's end; at the subscriber each lease and value.
    expect(pub.resources()).toMatchObject({ copies: 5, copiedBytes: 500_000 });
    expect(sub.resources()).toMatchObject({ leases: 0, copies: 8, copiedBytes: 800_000 });
  });

  test("a program's own use of msgpackr is not touched", async () => {
    const { Packr } = await import('msgpackr');
    const value = { a: new Float32Array(20_000), b: [new Uint8Array(9000)], c: new Date(0) };
    const options = { moreTypes: true, structuredClone: true };
    const before = new Packr(options).pack(value);
    const pub = await domain.member('pub');
    const out = pub.channel('objects');
    const seen: unknown[] = [];
    (await domain.member('sub')).channel('objects').subscribe((got) => seen.push(got));
    await out.ready();
    await out.publish(value);
    await until(() => seen.length === 1);
    expect(seen.pop()).toEqual(value);
    expect(new Packr(options).pack(value).equals(before)).toBe(true);
  });

  test('shared memory that is full is an error with what was measured, and nothing is half done', async (context) => {
    const mount = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=24m', 'tmpfs', domain.folder]);
    if (mount.status !== 0) context.skip('this user may not mount');
    try {
      const { pub, out, back } = await pair();
      const seen: number[] = [];
      back.leases().subscribe((lease) => lease.use((bytes) => seen.push(bytes.length)));
      await out.ready();
      expect(() => out.loan(64 * MIB)).toThrow(
        expect.objectContaining({
          code: 'ERR_SHM_FULL',
          message: expect.stringMatching(/67108864 bytes and the filesystem has \d+ bytes free/),
        }),
      );
      await expect(out.publish(new Uint8Array(64 * MIB))).rejects.toMatchObject({ code: 'ERR_SHM_FULL' });
      expect(domain.files.length).toBeLessThanOrEqual(1); // the table of holds
      expect(pub.resources()).toMatchObject({ poolBytes: 0, blocks: 0 });
      await send(out, MIB, 1);
      await until(() => seen.length === 1);

      // It is no fault of the value, and nobody spins who tries again when it may be different.
      const told = new Set<string>();
      out.status$.subscribe((event) => {
        if (event.type === 'refused' || event.type === 'encode-error')
          told.add(`${event.type} ${event.error.code}`);
      });
      const { refused, encodeErrors } = out.stats();
      let turns = 0;
      const ticking = setInterval(() => turns++);
      for (let tries = 0; tries < 4; tries++) {
        expect(out.offer(new Uint8Array(64 * MIB))).toBe(false);
        await out.whenWritable();
      }
      clearInterval(ticking);
      expect(turns).toBeGreaterThan(0);
      expect([...told]).toEqual(['refused ERR_SHM_FULL']);
      expect(out.stats()).toMatchObject({ refused: refused + 4, encodeErrors });

      // Blocks of one size that lie idle are no reason for having none of another, nor a region.
      const loans: { discard(): void }[] = [];
      const fill = () => {
        for (;;) loans.push(out.loan(MIB));
      };
      expect(fill).toThrow(expect.objectContaining({ code: 'ERR_SHM_FULL' }));
      expect(loans.length).toBeGreaterThan(8);
      await expect(domain.member('late')).rejects.toMatchObject({
        code: 'ERR_SHM_FULL',
        message: expect.stringMatching(/\d+ (of \d+ )?bytes (are )?free.*--shm-size/),
      });
      for (const loan of loans.splice(0)) loan.discard();
      await send(out, 8 * MIB, 2);
      await until(() => seen.length === 2);
      expect(fill).toThrow(expect.objectContaining({ code: 'ERR_SHM_FULL' }));
      for (const loan of loans) loan.discard();
      pub.region({ bytes: 8 * MIB }).close();
      for (const member of domain.members) await member.leave();
      await until(() => domain.files.length === 0);
    } finally {
      for (const member of domain.members) await member.leave();
      // A spare block may still be in the making, on a thread that has the folder open.
      await until(() => spawnSync('umount', [domain.folder]).status === 0);
    }
  });
});
