/** DESIGN, Semantics: "Sending", "Overflow is per (publisher, subscriber)", and what a publisher's end means. */
import { of } from 'rxjs';
import { describe, expect, test } from 'vitest';
import type { Channel } from '../../src/channels/channel.js';
import { custom } from '../../src/channels/codec/index.js';
import type { StatusEvent } from '../../src/channels/types.js';
import { collect, numbers, outcome } from '../support/collect.js';
import { World } from '../support/world.js';

const KIB = 1024;

/** A publisher and a subscriber whose inbox can be blocked; `bytes` messages of 1 KiB with a number in front. */
async function pair(
  options: {
    overflow?: unknown;
    windowBytes?: number;
    maxQueueBytes?: number;
    maxWait?: number;
    slotsPerPeer?: number;
  } = {},
) {
  const world = new World({ slotsPerPeer: options.slotsPerPeer ?? 1000 });
  const a = await world.join('test', { name: 'a' });
  const b = await world.join('test', { name: 'b' });
  const { overflow, windowBytes = 8 * KIB, maxQueueBytes = 8 * KIB, maxWait } = options;
  const out = a.channel('x', {
    codec: 'bytes',
    maxQueueBytes,
    ...(maxWait === undefined ? {} : { maxWait }),
  });
  const input = b.channel('x', {
    codec: 'bytes',
    windowBytes,
    ...(overflow === undefined ? {} : { overflow: overflow as never }),
  });
  const events = collect(input.messages$);
  await world.settle();
  const status: StatusEvent[] = collect(out.status$);
  return { world, a, b, out, input, events, status };
}

function message(n: number, size = KIB): Uint8Array {
  const bytes = new Uint8Array(size);
  new DataView(bytes.buffer).setUint32(0, n);
  return bytes;
}
const numberOf = (bytes: Uint8Array): number => new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);

/** Messages and gaps as short texts: `3`, `gap 4-6 overflow`. */
function told(events: { type: string }[]): string[] {
  return events.flatMap((event) => {
    if (event.type === 'message') return [`${numberOf((event as unknown as { value: Uint8Array }).value)}`];
    const gap = event as unknown as { from: number; to: number; reason: string };
    return event.type === 'gap' ? [`gap ${gap.from}-${gap.to} ${gap.reason}`] : [];
  });
}

test('what a turn publishes goes to the transport in one call, whatever the number of messages', async () => {
  const { world, a, out, events } = await pair({ windowBytes: 64 * KIB });
  const flushes = () => world.fabric.handleOf(a.incarnation).flushes;
  const before = flushes();
  for (const n of numbers(1, 10)) out.next(message(n));
  expect(flushes()).toBe(before);
  await world.settle();
  expect(flushes()).toBe(before + 1);
  expect(told(events)).toHaveLength(10);
});

describe('next(v) never blocks or throws', () => {
  test('when refused it is counted and one `refused` a turn shows on status$', async () => {
    const { world, a, b, out, status } = await pair();
    world.stop(b);
    for (const n of numbers(1, 40)) out.next(message(n));
    await world.settle();
    const refused = status.filter((event) => event.type === 'refused');
    expect(refused).toHaveLength(1);
    expect(refused[0]).toMatchObject({
      channel: 'x',
      count: out.stats().refused,
      error: { code: 'ERR_REFUSED' },
    });
    expect(out.stats().refused).toBeGreaterThan(20);
    expect(out.stats().published + out.stats().refused).toBe(40);
    expect(a.inspect().channels[0]!.publishing!.refused).toBe(out.stats().refused);
  });

  test('a loop that never yields still makes progress: next() polls when the queue is full', async () => {
    const { world, b, out, events } = await pair({ windowBytes: 4 * KIB, maxQueueBytes: 4 * KIB });
    let sent = 0;
    // The other process runs beside us: it takes a turn while we loop.
    for (let i = 0; i < 200; i++) {
      if (out.offer(message(sent + 1))) sent++;
      else while (world.runOne());
    }
    await world.settle();
    expect(sent).toBeGreaterThan(50);
    expect(told(events)).toEqual(numbers(1, sent).map(String));
    expect(b.closed).toBe(false);
  });

  test('a loop that goes on queueing sees what the subscriber took long before the queue is full', async () => {
    const { world, a, out, events } = await pair({ windowBytes: 64 * KIB, maxQueueBytes: 4096 * KIB });
    let most = 0;
    // We are the publisher, and never yield.
    world.stop(a);
    for (let n = 1; n <= 1000; n++) {
      expect(out.offer(message(n))).toBe(true);
      most = Math.max(most, out.stats().queuedBytes);
      // The subscriber's process takes what it has, beside us.
      while (world.runOne());
    }
    world.continue(a);
    await world.settle();
    expect(told(events)).toEqual(numbers(1, 1000).map(String));
    // The window is told about when half of it is taken, and a look comes every 16 KiB.
    expect(most).toBeLessThan(64 * KIB);
  });

  test('a wake-up that polling in next() takes is not missed: who slept arms again', async () => {
    const { world, a, b, out, events } = await pair({
      windowBytes: 32 * KIB,
      maxQueueBytes: 256 * KIB,
      slotsPerPeer: 1,
    });
    world.stop(b);
    for (const n of numbers(1, 60)) expect(out.offer(message(n))).toBe(true);
    await world.settle();
    // It sleeps. The subscriber goes on: credits come back, which wakes it, and its report is on its way.
    world.stop(a);
    world.fabric.block(b.incarnation, a.incarnation, true);
    world.continue(b);
    while (world.runOne());
    // The loop polls before the event loop looks at the descriptor, and finds no frame.
    for (const n of numbers(61, 100)) expect(out.offer(message(n))).toBe(true);
    world.continue(a);
    await world.settle();
    world.fabric.block(b.incarnation, a.incarnation, false);
    await world.settle();
    expect(told(events)).toEqual(numbers(1, 100).map(String));
  });

  test('a codec that throws: rewound, counted, on status$; offer says false, publish rejects, the next message arrives', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const codec = custom<string>({
      name: 'touchy',
      encode(value) {
        if (value === 'bad') throw new RangeError('no good');
        return Buffer.from(value);
      },
      decode: (bytes) => Buffer.from(bytes).toString(),
    });
    const out = a.channel('x', { codec });
    const got = collect(b.channel('x', { codec }));
    await world.settle();
    const status = collect(out.status$);
    out.next('one');
    expect(() => out.next('bad')).not.toThrow();
    expect(out.offer('bad')).toBe(false);
    await expect(out.publish('bad')).rejects.toMatchObject({
      code: 'ERR_ENCODE',
      cause: { message: 'no good' },
    });
    out.next('two');
    await world.settle();
    expect(got).toEqual(['one', 'two']);
    expect(
      status
        .filter((event) => event.type === 'encode-error')
        .reduce((sum, event) => sum + (event as { count: number }).count, 0),
    ).toBe(3);
    expect(out.stats()).toMatchObject({ published: 2, encodeErrors: 3, refused: 0 });
  });

  test('a toJSON that publishes while it is being encoded is refused, and its message is not', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const out = a.channel('x', { codec: 'json' });
    const got = collect(b.channel('x', { codec: 'json' }));
    await world.settle();
    const status = collect(out.status$);
    out.next({
      toJSON() {
        out.next('inner');
        expect(out.offer('inner')).toBe(false);
        return 'outer';
      },
    });
    await world.settle();
    expect(got).toEqual(['outer']);
    expect(status).toContainEqual(
      expect.objectContaining({
        type: 'encode-error',
        count: 2,
        error: expect.objectContaining({ code: 'ERR_REENTRANT_ENCODE' }),
      }),
    );
  });

  test('a message over a slot that no block can have is refused with the reason', async () => {
    const { out } = await pair();
    await expect(out.publish(new Uint8Array(16_384 - 64 - 32))).resolves.toBeDefined();
    await expect(out.publish(new Uint8Array(16_384 - 64 - 32 + 1))).rejects.toMatchObject({
      code: 'ERR_MESSAGE_TOO_LARGE',
      details: { what: 'lend', detail: 'the fake has no pool' },
    });
  });

  test('a message that is too large for one peer alone is a gap there', async () => {
    const world = new World();
    const a = await world.join('test', { slotBytes: 65_536 });
    const [small, large] = [await world.join(), await world.join('test', { slotBytes: 65_536 })];
    const [events, whole] = [
      collect(small.channel('x', { codec: 'bytes' }).messages$),
      collect(large.channel('x', { codec: 'bytes' }).messages$),
    ];
    await world.settle();
    const out = a.channel('x', { codec: 'bytes' });
    for (const size of [100, 30_000, 100]) out.next(message(size, size));
    await world.settle();
    expect(told(events)).toEqual(['100', 'gap 2-2 too-large', '100']);
    expect(told(whole)).toEqual(['100', '30000', '100']);
  });
});

test('there is one bound and no queue behind it: what was taken is within window and queue, and both are visible', async () => {
  const { world, a, b, out, events } = await pair();
  world.fabric.block(a.incarnation, b.incarnation, true);
  let taken = 0;
  for (let turns = 0; turns < 50; turns++) {
    for (let n = 0; n < 10; n++) if (out.offer(message(n))) taken++;
    await world.settle();
  }
  // 8 KiB each, of messages of 1 KiB and their headers.
  expect(taken).toBeGreaterThan(8);
  expect(taken).toBeLessThanOrEqual(16);
  const { queuedBytes, backlogBytes } = a.resources();
  expect(queuedBytes).toBe(out.stats().queuedBytes);
  expect(queuedBytes + backlogBytes).toBeGreaterThanOrEqual(taken * KIB);
  world.fabric.block(a.incarnation, b.incarnation, false);
  await world.advance(10);
  expect(told(events)).toHaveLength(taken);
});

describe('offer(v) takes nothing when false; whenWritable(signal?)', () => {
  test('offer is false at the bound of the queue, whenWritable resolves when there is room, and nothing is lost', async () => {
    const { world, b, out, events } = await pair();
    world.stop(b);
    let n = 0;
    while (out.offer(message(n + 1))) n++;
    expect(n).toBeGreaterThanOrEqual(14); // window and queue of 8 KiB each, records of 1,056 bytes
    expect(n).toBeLessThanOrEqual(15);
    expect(out.stats().published).toBe(n);
    const writable = outcome(out.whenWritable());
    await world.settle();
    expect(writable.done).toBe(false);
    world.continue(b);
    await world.settle();
    expect(writable.done).toBe(true);
    expect(out.offer(message(n + 1))).toBe(true);
    await world.settle();
    expect(told(events)).toEqual(numbers(1, n + 1).map(String));
  });

  test('whenWritable resolves at once when nothing is full, and rejects by its signal', async () => {
    const { world, b, out } = await pair();
    await out.whenWritable();
    world.stop(b);
    while (out.offer(message(1)));
    const stop = new AbortController();
    const waiting = outcome(out.whenWritable(stop.signal));
    stop.abort(new Error('enough'));
    await world.settle();
    expect(waiting.error).toMatchObject({ code: 'ERR_ABORTED', cause: { message: 'enough' } });
    await expect(out.whenWritable(AbortSignal.abort())).rejects.toMatchObject({ code: 'ERR_ABORTED' });
  });

  test('a message larger than half the bound: offer and whenWritable do not spin', async () => {
    const { world, b, out, events } = await pair({ windowBytes: 8 * KIB, maxQueueBytes: 12 * KIB });
    world.stop(b);
    const big = () => out.offer(message(7, 7 * KIB));
    let n = 0;
    while (big()) n++;
    const writable = outcome(out.whenWritable());
    await world.settle();
    expect(writable.done).toBe(false);
    world.continue(b);
    await world.settle();
    expect(writable.done).toBe(true);
    expect(big()).toBe(true);
    await world.settle();
    expect(told(events)).toHaveLength(n + 1);
  });

  test('maxWait: a full `wait` subscriber is skipped with a gap once the publisher has waited so long', async () => {
    const { world, b, out, events, status } = await pair({ maxWait: 500 });
    world.stop(b);
    let n = 0;
    while (out.offer(message(n + 1))) n++;
    const writable = outcome(out.whenWritable());
    await world.advance(499);
    expect(writable.done).toBe(false);
    expect(out.offer(message(0))).toBe(false);
    await world.advance(1);
    expect(writable.done).toBe(true);
    for (let i = 0; i < 5; i++) expect(out.offer(message(n + 1 + i))).toBe(true);
    await world.advance(100);
    expect(status).toContainEqual(expect.objectContaining({ type: 'dropped', reason: 'max-wait', count: 5 }));
    world.continue(b);
    await world.settle();
    expect(told(events)).toEqual([...numbers(1, n).map(String), `gap ${n + 1}-${n + 5} max-wait`]);
    expect(out.offer(message(n + 6))).toBe(true);
    await world.settle();
    expect(told(events).at(-1)).toBe(`${n + 6}`);
  });
});

describe('publish(v) resolves { sequence, received, dropped }', () => {
  test('once every current subscriber has it in its inbox, delivered or not', async () => {
    const world = new World();
    const [a, b, c] = [await world.join(), await world.join(), await world.join()];
    const out = a.channel('x');
    await expect(out.publish('nobody')).resolves.toEqual({ sequence: 1, received: 0, dropped: 0 });
    const got = [b, c].map((member) => collect(member.channel('x')));
    await world.settle();
    world.stop(b);
    const receipt = outcome(out.publish('hello'));
    await world.settle();
    expect(receipt.value).toEqual({ sequence: 2, received: 2, dropped: 0 });
    expect(got).toEqual([[], ['hello']]);
  });

  test('waits while a peer has no slot, and counts who dropped it', async () => {
    const { world, a, b, out } = await pair({ overflow: 'drop-newest' });
    const fabric = world.fabric;
    fabric.block(a.incarnation, b.incarnation, true);
    const receipts = numbers(1, 20).map((n) => outcome(out.publish(message(n))));
    await world.settle();
    const dropped = receipts.filter((one) => one.value?.dropped === 1);
    expect(dropped.length).toBeGreaterThanOrEqual(5);
    expect(receipts.filter((one) => one.done)).toEqual(dropped);
    fabric.block(a.incarnation, b.incarnation, false);
    await world.advance(10);
    expect(receipts.every((one) => one.done)).toBe(true);
    expect(receipts.filter((one) => one.value?.received === 1)).toHaveLength(20 - dropped.length);
  });

  test('rejects when refused', async () => {
    const { world, b, out } = await pair();
    world.stop(b);
    while (out.offer(message(1)));
    await expect(out.publish(message(2))).rejects.toMatchObject({ code: 'ERR_REFUSED', retryable: true });
  });

  test('rejects when a peer is lost, `ambiguous` set if it may have it', async () => {
    const { world, a, b, out } = await pair({ windowBytes: 4 * KIB });
    world.fabric.block(a.incarnation, b.incarnation, true);
    const handed = outcome(out.publish(message(1)));
    const rest = numbers(2, 6).map((n) => outcome(out.publish(message(n))));
    await world.settle();
    world.kill(b);
    await world.settle();
    expect(handed.error).toMatchObject({ code: 'ERR_PEER_LOST', ambiguous: true });
    expect(rest.at(-1)!.error).toMatchObject({ code: 'ERR_PEER_LOST', ambiguous: false });
  });

  test('a peer that leaves is no current subscriber any more', async () => {
    const { world, a, b, out } = await pair();
    world.fabric.block(a.incarnation, b.incarnation, true);
    const receipt = outcome(out.publish(message(1)));
    await b.leave();
    await world.settle();
    expect(receipt.value).toEqual({ sequence: 1, received: 0, dropped: 0 });
  });
});

describe('flush(), drain(timeout = 5 s) wait until delivered', () => {
  test("delivered means handed to the subscriber's next", async () => {
    const { world, b, out, events } = await pair();
    out.next(message(1));
    await world.settle();
    const flushed = outcome(out.flush());
    expect(flushed.done).toBe(false);
    await world.settle();
    expect(flushed.value).toEqual({ complete: true, undelivered: [] });
    world.stop(b);
    out.next(message(2));
    const again = outcome(out.flush());
    await world.settle();
    expect(again.done).toBe(false);
    world.continue(b);
    await world.settle();
    expect(again.value).toEqual({ complete: true, undelivered: [] });
    expect(told(events)).toEqual(['1', '2']);
  });

  test('drain returns what was not delivered, per channel and peer, after 5 s', async () => {
    const { world, a, b, out } = await pair();
    const c = await world.join('test', { name: 'c' });
    collect(c.channel('x', { codec: 'bytes' }));
    collect(b.channel('y'));
    await world.settle();
    world.stop(b);
    for (const n of numbers(1, 3)) out.next(message(n));
    a.channel('y').next('hi');
    const drained = outcome(a.drain());
    await world.advance(4999);
    expect(drained.done).toBe(false);
    await world.advance(1);
    const peer = expect.objectContaining({ name: 'b' });
    expect(drained.value).toEqual({
      complete: false,
      undelivered: [
        { channel: 'x', peer, from: 1, to: 3, count: 3, reason: 'timeout', ambiguous: true },
        { channel: 'y', peer, from: 1, to: 1, count: 1, reason: 'timeout', ambiguous: true },
      ],
    });
    const atOnce = outcome(out.drain(0));
    await world.advance(0);
    expect(atOnce.value).toMatchObject({ complete: false });
  });

  test('with nothing published, or nobody there, it is done at once', async () => {
    const { out, a } = await pair();
    await expect(out.flush()).resolves.toEqual({ complete: true, undelivered: [] });
    await expect(a.drain()).resolves.toEqual({ complete: true, undelivered: [] });
    await expect(a.channel('nobody').drain()).resolves.toEqual({ complete: true, undelivered: [] });
  });

  test('a peer that dies is reported, not waited for; a signal ends the waiting', async () => {
    const { world, b, out } = await pair();
    world.stop(b);
    out.next(message(1));
    const stop = new AbortController();
    const [one, two] = [outcome(out.flush()), outcome(out.flush({ signal: stop.signal }))];
    stop.abort();
    await world.settle();
    expect(two.value).toMatchObject({ complete: false, undelivered: [{ reason: 'aborted' }] });
    expect(one.done).toBe(false);
    world.kill(b);
    await world.settle();
    expect(one.value).toMatchObject({
      complete: false,
      undelivered: [{ reason: 'died', from: 1, to: 1, ambiguous: true }],
    });
  });

  test('a subscriber that takes the last message and leaves at once: that is delivered', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const values = b.channel<number>('x').values();
    await world.settle();
    const out = a.channel<number>('x');
    for (const n of numbers(1, 3)) out.next(n);
    const flushed = outcome(out.flush());
    const gone = outcome(
      (async () => {
        for (const n of numbers(1, 2)) expect(await values.next()).toEqual({ done: false, value: n });
        await b.leave();
      })(),
    );
    await world.settle();
    expect(gone.done).toBe(true);
    expect(flushed.value).toMatchObject({ undelivered: [{ from: 3, to: 3, reason: 'left' }] });
  });

  test('a slow for-await loop: delivered is what the loop took', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const values = b.channel<number>('x')[Symbol.asyncIterator]();
    await world.settle();
    const out = a.channel<number>('x');
    for (const n of numbers(1, 3)) out.next(n);
    const flushed = outcome(out.flush());
    await world.settle();
    expect(flushed.done).toBe(false);
    for (const n of numbers(1, 3)) {
      expect(flushed.done).toBe(false);
      expect(await values.next()).toEqual({ done: false, value: n });
      await world.settle();
    }
    expect(flushed.value).toEqual({ complete: true, undelivered: [] });
  });
});

describe('overflow is per (publisher, subscriber)', () => {
  /** With a window of 4 KiB three records fit; eight messages meet a queue of 4 KiB, which takes three. */
  async function overflowing(overflow: unknown) {
    const setup = await pair({ overflow, windowBytes: 4 * KIB, maxQueueBytes: 4 * KIB });
    setup.world.stop(setup.b);
    for (const n of numbers(1, 10)) setup.out.next(message(n));
    return setup;
  }

  test('drop-oldest', async () => {
    const { world, b, out, events, status } = await overflowing('drop-oldest');
    await world.advance(100);
    const told4 = expect.objectContaining({ type: 'dropped', count: 4, total: 4, reason: 'overflow' });
    expect(status.filter((event) => event.type === 'dropped')).toEqual([told4]);
    expect(out.stats()).toMatchObject({ published: 10, dropped: 4, refused: 0 });
    world.continue(b);
    await world.settle();
    expect(told(events)).toEqual(['1', '2', '3', 'gap 4-7 overflow', '8', '9', '10']);
  });

  test('drop-newest', async () => {
    const { world, b, events } = await overflowing('drop-newest');
    world.continue(b);
    await world.settle();
    expect(told(events)).toEqual(['1', '2', '3', '4', '5', '6', 'gap 7-10 overflow']);
  });

  test('latest', async () => {
    const { world, b, events } = await overflowing('latest');
    world.continue(b);
    await world.settle();
    expect(told(events)).toEqual(['1', '2', '3', 'gap 4-9 overflow', '10']);
  });

  test('{ latestBy: key } keeps the newest of each key, in the order of their sequences', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    type Quote = { of: { symbol: string }; n: number; pad: string };
    const input = b.channel<Quote>('q', { overflow: { latestBy: 'of.symbol' }, windowBytes: 4 * KIB });
    const events = collect(input.messages$);
    await world.settle();
    const out = a.channel<Quote>('q', { maxQueueBytes: 64 * KIB });
    world.stop(b);
    const pad = 'x'.repeat(1200);
    const symbols = ['A', 'A', 'A', 'A', 'B', 'A', 'C', 'B', 'B', 'A'];
    for (const [i, symbol] of symbols.entries()) out.next({ of: { symbol }, n: i + 1, pad });
    world.continue(b);
    await world.settle();
    const seen = events.flatMap<number | string>((event) =>
      event.type === 'message'
        ? [event.value.n]
        : event.type === 'gap'
          ? [`gap ${event.from}-${event.to}`]
          : [],
    );
    expect(seen).toEqual([1, 2, 3, 'gap 4-6', 7, 'gap 8-8', 9, 10]);
  });

  test('wait: nothing is lost, the publisher is refused', async () => {
    const { world, b, out, events } = await overflowing('wait');
    const { published, refused } = out.stats();
    expect(published).toBe(6);
    expect(refused).toBe(4);
    world.continue(b);
    await world.settle();
    expect(told(events)).toEqual(numbers(1, 6).map(String));
  });

  test('only a `wait` subscriber can slow a publisher, and only one that is full', async () => {
    const world = new World();
    const [a, slow, fast] = [await world.join(), await world.join(), await world.join()];
    const out = a.channel('x', { codec: 'bytes', maxQueueBytes: 4 * KIB });
    const dropped = collect(
      slow.channel('x', { codec: 'bytes', overflow: 'latest', windowBytes: 4 * KIB }).messages$,
    );
    const whole = collect(fast.channel('x', { codec: 'bytes' }).messages$);
    await world.settle();
    world.stop(slow);
    for (const n of numbers(1, 100)) {
      expect(out.offer(message(n))).toBe(true);
      await world.settle();
    }
    expect(told(whole)).toEqual(numbers(1, 100).map(String));
    world.continue(slow);
    await world.settle();
    expect(told(dropped)).toEqual(['1', '2', '3', 'gap 4-99 overflow', '100']);
  });

  test('a gap record follows within 100 ms even if nothing else is sent', async () => {
    // The window is kept closed by a loop that waits and does not take, while the channel's own policy decides what is dropped.
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const input = b.channel('x', { codec: 'bytes', overflow: 'drop-oldest', windowBytes: 4 * KIB });
    const events = collect(input.messages$);
    const loop = b.pattern<Uint8Array>('*', { overflow: 'wait' }).values();
    await world.settle();
    const out = a.channel('x', { codec: 'bytes', maxQueueBytes: 2 * KIB });
    for (const n of numbers(1, 8)) out.next(message(n));
    await world.advance(99);
    expect(told(events)).toEqual(['1', '2', '3']);
    await world.advance(1);
    expect(told(events)).toEqual(['1', '2', '3', 'gap 4-7 overflow']);
    for (const n of [1, 2, 3, 8]) {
      expect(numberOf((await loop.next()).value.value)).toBe(n);
      await world.settle();
    }
  });

  test('options by name win over those of a pattern', async () => {
    const { world, a, b, out } = await pair({ overflow: 'drop-oldest' });
    collect(b.pattern('*', { overflow: 'wait' }));
    await world.settle();
    out.next(message(1));
    expect(a.inspect().channels[0]!.publishing!.subscribers).toMatchObject([{ overflow: 'drop-oldest' }]);
    expect(out.stats().subscribers).toBe(1);
  });
});

describe("complete() and error() end this member's publishing only", () => {
  test('source$.subscribe(channel) does not end it for others', async () => {
    const world = new World();
    const [a, b, c] = [
      await world.join('test', { name: 'a' }),
      await world.join('test', { name: 'b' }),
      await world.join(),
    ];
    const got = collect(c.channel<number>('x'));
    const status = collect(c.channel('x').status$);
    const events = collect(c.channel('x').messages$);
    await world.settle();
    of(1, 2).subscribe(a.channel<number>('x'));
    await world.settle();
    b.channel<number>('x').next(3);
    await world.settle();
    expect(got).toEqual([1, 2, 3]);
    expect(got.ended).toBeUndefined();
    expect(events.ended).toBeUndefined();
    expect(status).toContainEqual({
      type: 'publisher-done',
      channel: 'x',
      peer: expect.objectContaining({ name: 'a' }),
      how: 'complete',
    });
  });

  test('the end is told behind the last message, with the error', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const order: string[] = [];
    b.channel('x').subscribe((value) => order.push(`value ${value}`));
    b.channel('x').status$.subscribe((event) => order.push(event.type));
    await world.settle();
    const out = a.channel('x');
    out.next(1);
    out.error(Object.assign(new TypeError('broken'), { code: 'E_BROKEN' }));
    await world.settle();
    expect(order).toEqual(['value 1', 'publisher-done']);
    expect(out.offer(2)).toBe(false);
    await expect(out.publish(2)).rejects.toMatchObject({ code: 'ERR_PUBLISHING_ENDED' });
    await expect(out.whenWritable()).rejects.toMatchObject({ code: 'ERR_PUBLISHING_ENDED' });
    expect(out.stats().refused).toBe(2);
  });

  test('its own subscribing goes on, and a new channel object can publish again', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const [mine, theirs] = [collect(a.channel('x')), collect(b.channel('x'))];
    await world.settle();
    a.channel('x').complete();
    b.channel('x').next('to a');
    await world.settle();
    expect(mine).toEqual(['to a']);
    a.channel('x').close();
    (a.channel('x') as Channel<unknown>).next('again');
    await world.settle();
    expect(theirs).toEqual(['again']);
  });
});

test('headers travel with offer and publish', async () => {
  const world = new World();
  const [a, b] = [await world.join(), await world.join()];
  const events = collect(b.channel('x').messages$);
  await world.settle();
  a.channel('x').offer(1, { headers: { trace: 'ab', ünï: 'cödé' } });
  await a.channel('x').publish(2, { headers: { n: '2' } });
  a.channel('x').next(3);
  await world.settle();
  expect(events.flatMap((event) => (event.type === 'message' ? [event.headers] : []))).toEqual([
    { trace: 'ab', ünï: 'cödé' },
    { n: '2' },
    {},
  ]);
  expect(() => a.channel('x').offer(1, { headers: { n: 2 as never } })).toThrow(/must be a string/);
  await expect(a.channel('x').publish(1, { heders: {} } as never)).rejects.toThrow(/Did you mean "headers"/);
});
