/** docs/guarantees.md: what a slow `for await` costs itself, its publishers, and this member's other subscribers. */
import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Member } from '../../src/channels/member.js';
import type { Overflow } from '../../src/channels/overflow/index.js';
import type { Origin } from '../../src/channels/subscription.js';
import type { StatusEvent } from '../../src/channels/types.js';
import { DroppingValues } from '../../src/channels/value-queue.js';
import { collect, numbers, outcome } from '../support/collect.js';
import { World } from '../support/world.js';

interface Value {
  n: number;
  key: string;
  pad: string;
}

const sample = (n: number): Value => ({ n, key: `k${n % 3}`, pad: 'x'.repeat(900) });

/** `b` has a subscriber that takes everything at once and a loop that takes nothing yet; `a` publishes `count` values. */
async function slowAndFast(overflow: Overflow, count: number) {
  const world = new World();
  const a = await world.join('test', { name: 'a' });
  const b: Member = await world.join('test', { name: 'b' });
  const input = b.channel<Value>('x', { overflow, windowBytes: 8192 });
  const fast = collect(input);
  const status = collect(input.status$) as StatusEvent[];
  const loop = input.values();
  await world.settle();
  const out = a.channel<Value>('x');
  for (const n of numbers(1, count)) {
    out.next(sample(n));
    await world.settle();
  }
  /** Takes what the loop holds. */
  const takeAll = async () => {
    const got: number[] = [];
    for (;;) {
      const next = outcome(loop.next());
      await world.settle();
      if (!next.done) return got;
      got.push(next.value!.value.n);
    }
  };
  return { world, a, b, out, input, fast, status, takeAll };
}

describe('a slow loop under a policy that drops', () => {
  const expected: [Overflow, (got: number[]) => void][] = [
    ['drop-oldest', (got) => expect(got).toEqual(numbers(101 - got.length, 100))],
    ['drop-newest', (got) => expect(got).toEqual(numbers(1, got.length))],
    ['latest', (got) => expect(got).toEqual([100])],
    [{ latestBy: 'key' }, (got) => expect(got).toEqual([98, 99, 100])],
  ];
  for (const [overflow, check] of expected) {
    test(`${JSON.stringify(overflow)}: it loses for itself alone, and says so`, async () => {
      const { out, fast, status, takeAll, world } = await slowAndFast(overflow, 100);
      expect(
        fast.map(({ n }) => n),
        'who takes at once misses nothing',
      ).toEqual(numbers(1, 100));
      expect(out.stats()).toMatchObject({ dropped: 0, refused: 0, queuedBytes: 0 });
      const got = await takeAll();
      check(got);
      expect(got.length).toBeLessThan(10);
      const dropped = status.filter((event) => event.type === 'dropped');
      expect(dropped.reduce((sum, { count }) => sum + count, 0)).toBe(100 - got.length);
      expect(dropped.at(-1)).toMatchObject({
        at: 'subscriber',
        channel: 'x',
        peer: { name: 'a' },
        total: 100 - got.length,
        reason: 'overflow',
      });
      const flushed = outcome(out.flush());
      await world.settle();
      expect(flushed.value).toEqual({ complete: true, undelivered: [] });
    });
  }

  test('what the loop still holds is not delivered yet', async () => {
    const { out, world, takeAll } = await slowAndFast('drop-oldest', 20);
    const drained = outcome(out.drain(100));
    await world.advance(100);
    expect(drained.value?.complete).toBe(false);
    await takeAll();
    const again = outcome(out.drain(100));
    await world.settle();
    expect(again.value?.complete).toBe(true);
  });

  test('each publisher has a bound of its own', async () => {
    const { world, takeAll } = await slowAndFast('drop-newest', 20);
    const c = await world.join('test', { name: 'c' });
    const other = c.channel<Value>('x');
    await world.settle();
    for (const n of numbers(501, 520)) other.next(sample(n));
    await world.settle();
    const got = await takeAll();
    expect(got.filter((n) => n < 500).length).toBeGreaterThan(5);
    expect(got.filter((n) => n > 500).length).toBeGreaterThan(5);
  });
});

describe('a slow loop under wait', () => {
  test('slows the publisher and with it the other subscribers; nobody loses anything', async () => {
    const { out, fast, world, takeAll } = await slowAndFast('wait', 100);
    const before = fast.length;
    expect(before, 'they share a window').toBeLessThan(20);
    expect(out.stats().queuedBytes).toBeGreaterThan(0);
    const got = await takeAll();
    await world.settle();
    expect(got).toEqual(numbers(1, 100));
    expect(fast.map(({ n }) => n)).toEqual(numbers(1, 100));
  });
});

test('the queue holds what its policy says, for any pushes and takes', () => {
  const origins = [{}, {}] as Origin[];
  fc.assert(
    fc.property(
      fc.constantFrom<Overflow>('drop-oldest', 'drop-newest', 'latest', { latestBy: 'key' }),
      fc.array(
        fc.record({
          take: fc.boolean(),
          from: fc.nat(1),
          size: fc.integer({ min: 1, max: 60 }),
          key: fc.nat(3),
        }),
        { maxLength: 60 },
      ),
      (overflow, steps) => {
        const dropped = new Set<number>();
        const queue = new DroppingValues<number>(overflow, 100, ({ sequence }) => dropped.add(sequence));
        // The model: a plain list, looked through each time.
        let held: { sequence: number; from: number; size: number; key: number }[] = [];
        const gone = new Set<number>();
        const drop = (sequence: number) => {
          held = held.filter((one) => one.sequence !== sequence);
          gone.add(sequence);
        };
        steps.forEach(({ take, from, size, key }, sequence) => {
          if (take) {
            expect(queue.empty).toBe(held.length === 0);
            if (held.length > 0) expect(queue.take().sequence).toBe(held.shift()!.sequence);
            return;
          }
          const mine = () => held.filter((one) => one.from === from);
          const full = () => mine().length > 0 && mine().reduce((sum, one) => sum + one.size, size) > 100;
          queue.push({ value: sequence, origin: origins[from]!, sequence, size, key: undefined }, { key });
          if (overflow === 'drop-newest' && full()) gone.add(sequence);
          else {
            if (typeof overflow === 'object')
              for (const one of mine()) if (one.key === key) drop(one.sequence);
            while (mine().length > 0 && (overflow === 'latest' || full())) drop(mine()[0]!.sequence);
            held.push({ sequence, from, size, key });
          }
          expect(dropped).toEqual(gone);
        });
      },
    ),
  );
});
