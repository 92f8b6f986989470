/** I4 at the end of a publisher: what it published to the last is delivered, or a gap says that it is missing. */
import { describe, expect, test } from 'vitest';
import type { Member } from '../../src/channels/member.js';
import type { ChannelEvent, StatusEvent } from '../../src/channels/types.js';
import { collect, numbers } from '../support/collect.js';
import { World } from '../support/world.js';

async function two(options: { slotsPerPeer?: number } = {}): Promise<{ world: World; a: Member; b: Member }> {
  const world = new World(options);
  return { world, a: await world.join('test', { name: 'a' }), b: await world.join('test', { name: 'b' }) };
}

const sequences = (events: ChannelEvent<unknown>[]) =>
  events.filter((event) => event.type === 'message').map(({ sequence }) => sequence);
const bytes = new Uint8Array(1000);

describe('a member leaves before its subscribers have taken everything', () => {
  test('what waited for a slow subscriber is a gap, in order, before publisher-left', async () => {
    const { world, a, b } = await two();
    const slow = b.channel('x', { codec: 'bytes', windowBytes: 4096 });
    const events = collect(slow.messages$);
    // Takes nothing, so the window is never given back.
    const loop = slow[Symbol.asyncIterator]();
    void loop.next();
    await world.settle();
    const out = a.channel('x', { codec: 'bytes' });
    for (const _ of numbers(1, 10)) out.next(bytes);
    await world.settle();
    void a.leave();
    await world.advance(1000);
    const got = sequences(events);
    expect(got).toEqual(numbers(1, got.length));
    expect(got.length).toBeLessThan(10);
    expect(events.slice(-2)).toMatchObject([
      { type: 'gap', from: got.length + 1, to: 10, count: 10 - got.length, reason: 'left' },
      { type: 'publisher-left', reason: 'left', sequence: 10 },
    ]);
    expect(slow.stats().missing).toBe(10 - got.length);
  });

  test('what waited for credits of a stopped one is a gap when it goes on', async () => {
    const { world, a, b } = await two({ slotsPerPeer: 2 });
    const events = collect(b.channel('x', { codec: 'bytes' }).messages$);
    await world.settle();
    const out = a.channel('x', { codec: 'bytes' });
    out.next(bytes);
    await world.settle();
    world.stop(b);
    for (const _ of numbers(2, 60)) {
      out.next(bytes);
      await world.settle();
    }
    void a.leave();
    await world.advance(1000);
    world.continue(b);
    await world.advance(1000);
    const got = sequences(events);
    expect(got).toEqual(numbers(1, got.length));
    expect(got.length).toBeLessThan(60);
    expect(events.slice(-2)).toMatchObject([
      { type: 'gap', from: got.length + 1, to: 60, reason: 'left' },
      { type: 'publisher-left', reason: 'left', sequence: 60 },
    ]);
  });

  test('a subscriber that not even the acknowledgement has reached is told on status$', async () => {
    const { world, a, b } = await two({ slotsPerPeer: 1 });
    const warm = a.channel('warm', { codec: 'bytes' });
    b.channel('warm', { codec: 'bytes' }).subscribe();
    await world.settle();
    const input = b.channel('x', { codec: 'bytes' });
    const [own, all] = [collect(input.status$), collect(b.status$)] as StatusEvent[][];
    const events = collect(input.messages$);
    await world.settle();
    world.stop(b);
    for (const _ of numbers(1, 5)) {
      warm.next(bytes);
      await world.settle();
    }
    const out = a.channel('x', { codec: 'bytes' });
    for (const _ of numbers(1, 3)) out.next(bytes);
    await world.settle();
    void a.leave();
    await world.advance(1000);
    world.continue(b);
    await world.advance(1000);
    expect(events).toEqual([]);
    const gap = { type: 'gap', channel: 'x', peer: { name: 'a' }, from: 1, to: 3, count: 3, reason: 'left' };
    expect(own.filter(({ type }) => type === 'gap')).toMatchObject([gap]);
    expect(all.filter((event) => event.type === 'gap' && event.channel === 'x')).toMatchObject([gap]);
  });

  test('who has got everything sees no gap', async () => {
    const { world, a, b } = await two();
    const events = collect(b.channel<number>('x').messages$);
    await world.settle();
    const out = a.channel<number>('x');
    for (const n of numbers(1, 500)) out.next(n);
    void a.leave();
    await world.advance(1000);
    expect(sequences(events)).toEqual(numbers(1, 500));
    expect(events.at(-1)).toMatchObject({ type: 'publisher-left', sequence: 500 });
    expect(events.some(({ type }) => type === 'gap')).toBe(false);
  });

  test('a last word that is not valid is a fault of that peer, and nothing else', async () => {
    const { world, a, b } = await two();
    const events = collect(b.channel<number>('x').messages$);
    await world.settle();
    const out = a.channel<number>('x');
    out.next(1);
    await world.settle();
    const bad = [
      null,
      'all',
      [null],
      [{ number: 0, name: 'x', from: 1, to: 2 }],
      [{ number: 1, name: '', from: 1, to: 2 }],
      [{ number: 1, name: 'x', from: 2, to: 1 }],
      [{ number: 1, name: 'x', from: 1, to: 1.5 }],
      [{ number: 1, name: 'x', from: 1, to: '9' }],
    ];
    const [peer] = b.peers;
    expect(peer).toMatchObject({ name: 'a' });
    for (const body of bad) world.portOf(a.incarnation).send(0, 'last', body);
    await world.settle();
    expect(b.inspect().faults).toBe(bad.length);
    void a.leave();
    await world.settle();
    expect(events.map(({ type }) => type)).toEqual(['publisher-joined', 'message', 'publisher-left']);
  });
});

test('all that a member had sent when it died is delivered, however many frames lie in the inbox', async () => {
  const { world, a, b } = await two({ slotsPerPeer: 400 });
  const events = collect(b.channel<number>('x').messages$);
  await world.settle();
  const out = a.channel<number>('x');
  out.next(1);
  await world.settle();
  world.stop(b);
  for (const n of numbers(2, 300)) {
    out.next(n);
    await world.settle();
  }
  world.kill(a);
  world.continue(b);
  await world.settle();
  expect(sequences(events)).toEqual(numbers(1, 300));
  expect(events.at(-1)).toMatchObject({ type: 'publisher-left', reason: 'died', sequence: 300 });
});

describe('a subscription that was acknowledged while older messages were queued for its member', () => {
  for (const end of ['left', 'died'] as const) {
    test(`is told of what was for it, and of the end (${end})`, async () => {
      const { world, a, b } = await two();
      const input = b.channel('x', { codec: 'bytes', windowBytes: 4096, replay: 1 });
      const first = collect(input.messages$);
      const loop = input[Symbol.asyncIterator]();
      void loop.next();
      await world.settle();
      const out = a.channel('x', { codec: 'bytes' });
      for (const _ of numbers(1, 10)) out.next(bytes);
      await world.settle();
      // With replay each subscriber has a subscription of its own: live from 11 on, while 4 to 10 are queued.
      const second = collect(input.messages$);
      await world.settle();
      for (const _ of numbers(11, 15)) out.next(bytes);
      await world.settle();
      if (end === 'left') void a.leave();
      else world.kill(a);
      await world.advance(1000);
      const gaps = (events: ChannelEvent<unknown>[]) =>
        events.filter((event) => event.type === 'gap').map(({ from, to }) => [from, to]);
      const taken = sequences(first).length;
      expect(gaps(first)).toEqual(
        end === 'died'
          ? []
          : [
              [taken + 1, 10],
              [11, 15],
            ],
      );
      expect(gaps(second)).toEqual(end === 'died' ? [] : [[11, 15]]);
      for (const events of [first, second]) {
        expect(events.at(-1)).toMatchObject({
          type: 'publisher-left',
          reason: end,
          sequence: end === 'died' ? taken : 15,
        });
      }
    });
  }
});
