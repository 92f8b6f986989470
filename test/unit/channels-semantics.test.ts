/** DESIGN, Semantics: what the tests named after its lines (receiving, sending, lifecycle) leave out. */
import { describe, expect, test } from 'vitest';
import type { Member } from '../../src/channels/member.js';
import type { ChannelEvent, StatusEvent } from '../../src/channels/types.js';
import { KIND } from '../../src/channels/wire.js';
import { collect, numbers, outcome } from '../support/collect.js';
import { forge } from '../support/forge.js';
import { World } from '../support/world.js';

async function two(): Promise<{ world: World; a: Member; b: Member }> {
  const world = new World();
  return { world, a: await world.join('test', { name: 'a' }), b: await world.join('test', { name: 'b' }) };
}

describe('codec, schema and delivery are announced', () => {
  test('to each subscriber, on the control connection', async () => {
    const { world, a, b } = await two();
    b.channel('x', { codec: 'json', schemaId: 'tick/1' }).subscribe();
    await world.settle();
    a.channel('x', { codec: 'json', schemaId: 'tick/1' }).next(1);
    await world.settle();
    const announced = world.domain().log.filter(({ type }) => type === 'announce');
    expect(announced).toMatchObject([
      { from: 'a', to: 'b', body: { channel: 'x', codec: 'json', schema: 'tick/1', delivery: 'lane' } },
    ]);
  });
});

describe('what heals is on status$', () => {
  test('a control connection that breaks and is made again', async () => {
    const { world, a, b } = await two();
    const got = collect(b.channel('x'));
    const status = collect(b.status$) as StatusEvent[];
    await world.settle();
    world.domain().suspect(b.incarnation, a.incarnation, true);
    a.channel('x').next('meanwhile');
    await world.settle();
    world.domain().suspect(b.incarnation, a.incarnation, false);
    await world.settle();
    expect(status.filter(({ type }) => type === 'peer-suspect')).toMatchObject([
      { peer: { name: 'a' }, on: true },
      { peer: { name: 'a' }, on: false },
    ]);
    expect(got, 'nothing is dropped for it').toEqual(['meanwhile']);
  });

  test('members that begin a new session: the end, the gap between, and the new beginning', async () => {
    const { world, a, b } = await two();
    const input = b.channel<{ n: number; text: string }>('x');
    const events = collect(input.messages$) as ChannelEvent<{ n: number; text: string }>[];
    await world.settle();
    const out = a.channel<{ n: number; text: string }>('x');
    out.next({ n: 1, text: 'before' });
    await world.settle();
    world.domain().reconnect(a.incarnation, b.incarnation);
    await world.settle();
    // The same encoder: its record definitions reach the new session before the first message.
    out.next({ n: 2, text: 'after' });
    await world.settle();
    expect(events.map((event) => (event.type === 'message' ? event.value : event.type))).toEqual([
      'publisher-joined',
      { n: 1, text: 'before' },
      'publisher-left',
      'publisher-joined',
      { n: 2, text: 'after' },
    ]);
    expect(events[2]).toMatchObject({ reason: 'refused', sequence: 1 });
    expect(b.inspect().faults).toBe(0);
  });
});

describe('record definitions', () => {
  test('are exempt from drops: whatever was dropped, what arrives can be decoded', async () => {
    const { world, a, b } = await two();
    const input = b.channel<Record<string, unknown>>('x', { overflow: 'latest', windowBytes: 4096 });
    const events = collect(input.messages$) as ChannelEvent<Record<string, unknown>>[];
    await world.settle();
    const out = a.channel<Record<string, unknown>>('x');
    // In one turn, far more than the window: each value has a shape of its own, and most are dropped.
    for (const n of numbers(1, 60)) out.next({ [`field${n}`]: n, pad: 'x'.repeat(500) });
    await world.settle();
    for (const n of numbers(1, 60)) {
      out.next({ [`field${n}`]: n, pad: '' });
      await world.settle();
    }
    const dropped = events.filter((event) => event.type === 'gap');
    expect(dropped.length).toBeGreaterThan(0);
    expect(dropped.every(({ reason }) => reason === 'overflow')).toBe(true);
    const values = events.filter((event) => event.type === 'message').map(({ value }) => value);
    expect(values.slice(-60)).toEqual(numbers(1, 60).map((n) => ({ [`field${n}`]: n, pad: '' })));
    expect(input.stats().decodeErrors).toBe(0);
  });

  test('belong to (publisher, channel): the same number may mean other things elsewhere', async () => {
    const { world, a, b } = await two();
    const c = await world.join('test', { name: 'c' });
    const got = collect(c.pattern<object>('*'));
    await world.settle();
    a.channel('x').next({ one: 1, two: 2 });
    a.channel('y').next({ three: 3, four: 4 });
    b.channel('x').next({ five: 5, six: 6 });
    await world.settle();
    for (const member of [a, b]) member.channel('x').next({ seven: 7, eight: 8 });
    await world.settle();
    expect(got.map(({ value }) => JSON.stringify(value)).sort()).toEqual(
      [
        { one: 1, two: 2 },
        { three: 3, four: 4 },
        { five: 5, six: 6 },
        { seven: 7, eight: 8 },
        { seven: 7, eight: 8 },
      ]
        .map((value) => JSON.stringify(value))
        .sort(),
    );
  });

  test('a different second definition of a number is an error against that publisher', async () => {
    const { world, a, b } = await two();
    const input = b.channel<object>('x');
    const [got, status] = [collect(input), collect(b.status$) as StatusEvent[]];
    await world.settle();
    const out = a.channel<object>('x');
    out.next({ bid: 1, ask: 2 });
    await world.settle();
    const again = JSON.stringify([[0, ['other', 'keys']]]);
    forge(world, a.incarnation, b.incarnation, (write) => write(1, KIND.DEFINE, Buffer.from(again)));
    await world.settle();
    out.next({ bid: 3, ask: 4 });
    await world.settle();
    expect(got).toEqual([
      { bid: 1, ask: 2 },
      { bid: 3, ask: 4 },
    ]);
    const faults = status.filter((event) => event.type === 'fault');
    expect(faults).toMatchObject([{ peer: { name: 'a' } }]);
    expect(faults[0]).toMatchObject({ error: { code: expect.stringMatching(/^ERR_/) } });
  });
});

describe('AbortSignal, asyncDispose', () => {
  test('a pattern is disposed of: its subscribers complete', async () => {
    const { b } = await two();
    const pattern = b.pattern('a.*');
    const got = collect(pattern);
    await pattern[Symbol.asyncDispose]();
    expect(pattern.closed).toBe(true);
    expect(got.ended).toBe('complete');
  });

  test('a channel is disposed of: what was published is delivered first', async () => {
    const { world, a, b } = await two();
    const got = collect(b.channel('x'));
    await world.settle();
    const out = a.channel('x');
    out.next('last words');
    const disposed = outcome(out[Symbol.asyncDispose]());
    expect(out.closed).toBe(false);
    await world.settle();
    expect(disposed.done).toBe(true);
    expect(got).toEqual(['last words']);
    expect(out.closed).toBe(true);
  });
});

describe('channel names and patterns that are not valid: typed, and nothing else happens', () => {
  const odd: unknown[] = [
    '',
    '.',
    'a.',
    '.a',
    'a..b',
    ' a',
    'a ',
    'a\n',
    'a\u0000b',
    'a*',
    'x'.repeat(256),
    1,
    null,
  ];
  test.each(odd)('channel(%j)', async (name) => {
    const { world, a, b } = await two();
    const got = collect(b.channel('x'));
    await world.settle();
    expect(() => a.channel(name as string)).toThrow(
      expect.objectContaining({ code: 'ERR_CHANNEL_NAME', scope: 'operation' }),
    );
    a.channel('x').next('goes on');
    await world.settle();
    expect(got).toEqual(['goes on']);
  });
  test.each(['', 'a.', 'a*', '>.a', 'a.>b', 5])('pattern(%j)', async (text) => {
    const { a } = await two();
    expect(() => a.pattern(text as string)).toThrow(expect.objectContaining({ code: 'ERR_PATTERN' }));
    expect(a.closed).toBe(false);
  });
});
