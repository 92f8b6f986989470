/** DESIGN, Semantics: what a subscriber sees, in which order, and how it may take it. */
import { map, Observable, Subject, take, toArray } from 'rxjs';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { custom, struct } from '../../src/channels/codec/index.js';
import { failOnGap } from '../../src/channels/events.js';
import type { Member } from '../../src/channels/member.js';
import { collect, numbers, outcome } from '../support/collect.js';
import { World } from '../support/world.js';

async function two(options: { slotsPerPeer?: number } = {}): Promise<{ world: World; a: Member; b: Member }> {
  const world = new World(options);
  return { world, a: await world.join('test', { name: 'a' }), b: await world.join('test', { name: 'b' }) };
}

afterEach(() => vi.restoreAllMocks());

describe('Channel extends Observable, not Subject; hot', () => {
  test('it is an Observable and an Observer, and operators work on it', async () => {
    const { world, a, b } = await two();
    const channel = b.channel<number>('x');
    expect(channel).toBeInstanceOf(Observable);
    expect(channel).not.toBeInstanceOf(Subject);
    const got = collect(
      channel.pipe(
        map((n) => n * 2),
        take(2),
        toArray(),
      ),
    );
    await world.settle();
    const source = new Subject<number>();
    source.subscribe(a.channel<number>('x'));
    for (const n of [1, 2, 3]) source.next(n);
    await world.settle();
    expect([...got]).toEqual([[2, 4]]);
    expect(got.ended).toBe('complete');
  });

  test('what was published before a subscriber came is not for it', async () => {
    const { world, a, b } = await two();
    const out = a.channel('x');
    out.next('early');
    const got = collect(b.channel('x'));
    out.next('still early');
    await world.settle();
    out.next('live');
    await world.settle();
    expect(got).toEqual(['live']);
  });

  test('many local subscribers share one subscription on the wire, which lingers 100 ms after the last', async () => {
    const { world, a, b } = await two();
    const [input, out] = [b.channel('x'), a.channel('x')];
    const got: unknown[][] = [[], [], []];
    const subscriptions = got.map((list) => input.subscribe((value) => list.push(value)));
    await world.settle();
    expect(b.resources().subscriptions).toBe(1);
    out.next(1);
    await world.settle();
    expect(got).toEqual([[1], [1], [1]]);
    expect(out.stats().subscribers).toBe(1);
    for (const one of subscriptions) one.unsubscribe();
    await world.advance(99);
    expect(out.stats().subscribers).toBe(1);
    const again = collect(input);
    await world.advance(1000);
    expect(out.stats().subscribers).toBe(1);
    out.next(2);
    await world.settle();
    expect(again).toEqual([2]);
    expect(got).toEqual([[1], [1], [1]]);
  });

  test('after the linger the publisher has no subscriber any more', async () => {
    const { world, a, b } = await two();
    const subscription = b.channel('x').subscribe();
    await world.settle();
    a.channel('x').next(1);
    subscription.unsubscribe();
    await world.advance(100);
    expect(a.channel('x').stats().subscribers).toBe(0);
    expect(b.resources().subscriptions).toBe(0);
  });

  test('a subscriber that throws does not disturb the others; its error is reported as RxJS reports it', async () => {
    const { world, a, b } = await two();
    const thrown: unknown[] = [];
    vi.stubGlobal('setTimeout', (run: () => void) => {
      try {
        run();
      } catch (error) {
        thrown.push(error);
      }
    });
    const input = b.channel<number>('x');
    const got: number[] = [];
    input.subscribe((value) => {
      if (value === 1) throw new Error('mine');
    });
    input.subscribe((value) => got.push(value));
    b.pattern<number>('*').subscribe(() => {
      throw new Error('pattern');
    });
    await world.settle();
    a.channel<number>('x').next(1);
    a.channel<number>('x').next(2);
    await world.settle();
    vi.unstubAllGlobals();
    expect(got).toEqual([1, 2]);
    expect(thrown.map((error) => (error as Error).message).sort()).toEqual(['mine', 'pattern', 'pattern']);
  });

  test('subscribing and unsubscribing while a message is delivered', async () => {
    const { world, a, b } = await two();
    const input = b.channel<number>('x');
    const got: string[] = [];
    const third = input.subscribe((n) => got.push(`third ${n}`));
    third.unsubscribe();
    const first = input.subscribe((n) => {
      got.push(`first ${n}`);
      if (n === 1) {
        second.unsubscribe();
        input.subscribe((m) => got.push(`late ${m}`));
      }
      if (n === 2) first.unsubscribe();
    });
    const second = input.subscribe((n) => got.push(`second ${n}`));
    await world.settle();
    for (const n of [1, 2, 3]) a.channel<number>('x').next(n);
    await world.settle();
    expect(got).toEqual(['first 1', 'first 2', 'late 2', 'late 3']);
  });
});

describe('codec and schema are announced; a mismatch is reported naming the peer, never decoded', () => {
  test('codec: both sides report it, nothing arrives, other publishers do', async () => {
    const { world, a, b } = await two();
    const c = await world.join('test', { name: 'c' });
    const input = b.channel('x', { codec: 'json' });
    const [got, theirs] = [collect(input), collect(input.status$)];
    const out = a.channel('x', { codec: 'msgpackr' });
    const ours = collect(out.status$);
    await world.settle();
    out.next('in msgpackr');
    c.channel('x', { codec: 'json' }).next('in json');
    await world.settle();
    c.channel('x').next('in json');
    await world.settle();
    expect(got).toEqual(['in json', 'in json']);
    expect(theirs.filter((event) => event.type === 'mismatch')).toEqual([
      expect.objectContaining({
        ours: 'json',
        theirs: 'msgpackr',
        peer: expect.objectContaining({ name: 'a' }),
        error: expect.objectContaining({ code: 'ERR_CODEC_MISMATCH' }),
      }),
    ]);
    expect(ours).toContainEqual(
      expect.objectContaining({
        type: 'mismatch',
        ours: 'msgpackr',
        theirs: 'json',
        peer: expect.objectContaining({ name: 'b' }),
      }),
    );
    expect(out.stats().subscribers).toBe(0);
  });

  test('the layout of a struct is part of its name', async () => {
    const { world, a, b } = await two();
    const status = collect(b.channel('x', { codec: struct({ n: 'u32' }) }).status$);
    collect(b.channel('x'));
    await world.settle();
    a.channel('x', { codec: struct({ n: 'u64' }) }).complete();
    await world.settle();
    expect(status).toContainEqual(expect.objectContaining({ type: 'mismatch' }));
  });

  test('a layout whose name is longer than a record', async () => {
    const { world, a, b } = await two();
    const fields = (type: 'f64' | 'u32') =>
      struct(
        Object.fromEntries(Array.from({ length: 900 }, (_, i) => [`a_rather_long_field_name_${i}`, type])),
      );
    const layout = fields('f64');
    expect(layout.name.length).toBeGreaterThan(16_384);
    const [got, other] = [
      collect(b.channel('x', { codec: layout })),
      b.channel('y', { codec: fields('u32') }),
    ];
    const status = collect(other.status$);
    collect(other);
    await world.settle();
    const value = Object.fromEntries(
      Array.from({ length: 900 }, (_, i) => [`a_rather_long_field_name_${i}`, i]),
    );
    a.channel('x', { codec: layout }).next(value);
    a.channel('y', { codec: layout }).next(value);
    await world.settle();
    expect(got).toEqual([value]);
    expect(status).toContainEqual(expect.objectContaining({ type: 'mismatch' }));
  });

  test('schema', async () => {
    const { world, a, b } = await two();
    const input = b.channel('x', { schemaId: 'tick/2' });
    const [got, status] = [collect(input), collect(input.status$)];
    await world.settle();
    a.channel('x', { schemaId: 'tick/1' }).next(1);
    await world.settle();
    expect(got).toEqual([]);
    expect(status).toContainEqual(
      expect.objectContaining({
        type: 'mismatch',
        ours: 'tick/2',
        theirs: 'tick/1',
        error: expect.objectContaining({ code: 'ERR_SCHEMA_MISMATCH' }),
      }),
    );
  });

  test('what cannot be decoded is counted, on status$ once a turn, and a gap', async () => {
    const { world, a, b } = await two();
    const codec = custom<number>({
      name: 'picky',
      encode: (n) => Buffer.from([n]),
      decode(bytes) {
        if (bytes[0] === 2 || bytes[0] === 3) throw new Error(`not ${bytes[0]}`);
        return bytes[0]!;
      },
    });
    const input = b.channel('x', { codec });
    const [events, status] = [collect(input.messages$), collect(input.status$)];
    await world.settle();
    for (const n of [1, 2, 3, 4]) a.channel('x', { codec }).next(n);
    await world.settle();
    expect(events.map((event) => (event.type === 'message' ? event.value : event.type))).toEqual([
      'publisher-joined',
      1,
      'gap',
      'gap',
      4,
    ]);
    expect(status.filter((event) => event.type === 'decode-error')).toEqual([
      expect.objectContaining({
        count: 2,
        peer: expect.objectContaining({ name: 'a' }),
        error: expect.objectContaining({ code: 'ERR_CODEC_MALFORMED' }),
      }),
    ]);
    expect(input.stats()).toMatchObject({ received: 2, decodeErrors: 2, missing: 2 });
  });
});

describe('messages$ is an ordered union', () => {
  test('message: publisher, sequence, time, headers, bytes', async () => {
    const { world, a, b } = await two();
    const events = collect(b.channel('x', { codec: 'json' }).messages$);
    await world.settle();
    world.now = 5.25;
    a.channel('x', { codec: 'json' }).next([1]);
    await world.settle();
    expect(events).toEqual([
      {
        type: 'publisher-joined',
        channel: 'x',
        publisher: { incarnation: a.incarnation, name: 'a', pid: expect.any(Number) },
        sequence: 1,
      },
      {
        type: 'message',
        channel: 'x',
        publisher: { incarnation: a.incarnation, name: 'a', pid: expect.any(Number) },
        sequence: 1,
        time: 1_700_000_000_005.25,
        headers: {},
        value: [1],
        bytes: new Uint8Array(Buffer.from('[1]')),
        replayed: false,
      },
    ]);
  });

  test('publisher-left stands after the last message: left, died, closed', async () => {
    for (const end of ['left', 'died', 'closed'] as const) {
      const { world, a, b } = await two();
      const events = collect(b.channel<number>('x').messages$);
      await world.settle();
      for (const n of [1, 2, 3]) a.channel<number>('x').next(n);
      if (end === 'closed') a.channel('x').close();
      await Promise.resolve(); // the end of the publisher's turn
      if (end === 'left') void a.leave();
      if (end === 'died') world.kill(a);
      await world.settle();
      expect(events.map((event) => (event.type === 'message' ? event.value : event.type))).toEqual([
        'publisher-joined',
        1,
        2,
        3,
        'publisher-left',
      ]);
      expect(events.at(-1)).toMatchObject({ reason: end, sequence: 3 });
    }
  });

  test('failOnGap() is an operator', async () => {
    const { world, a, b } = await two();
    const input = b.channel<number>('x', { overflow: 'drop-newest', windowBytes: 4096 });
    const strict = collect(input.messages$.pipe(failOnGap()));
    const got = collect(input);
    await world.settle();
    const out = a.channel<number>('x', { maxQueueBytes: 0 });
    world.stop(b);
    for (const n of numbers(1, 200)) out.next(n);
    world.continue(b);
    await world.settle();
    expect(got.length).toBeLessThan(200);
    expect(strict).toHaveLength(got.length + 1);
    expect(strict.ended).toMatchObject({ code: 'ERR_GAP', details: { reason: 'overflow', to: 200 } });
  });

  test('messages of several publishers: each in its own order', async () => {
    const { world, a, b } = await two();
    const c = await world.join();
    const got = collect(b.channel<string>('x'));
    await world.settle();
    for (const n of numbers(1, 50)) {
      a.channel<string>('x').next(`a${n}`);
      c.channel<string>('x').next(`c${n}`);
    }
    await world.settle();
    for (const who of ['a', 'c']) {
      expect(got.filter((value) => value.startsWith(who))).toEqual(numbers(1, 50).map((n) => `${who}${n}`));
    }
  });
});

describe('owned by default', () => {
  test('what a subscriber gets may be kept for ever', async () => {
    const { world, a, b } = await two();
    const kept = collect(b.channel('x', { codec: 'bytes' }));
    await world.settle();
    const out = a.channel('x', { codec: 'bytes' });
    for (let i = 0; i < 2000; i++) {
      out.next(new Uint8Array(300).fill(i));
      if (i % 100 === 0) await world.settle();
    }
    await world.settle();
    expect(kept).toHaveLength(2000);
    kept.forEach((bytes, i) => {
      expect(bytes.length).toBe(300);
      expect(bytes.every((byte) => byte === i % 256)).toBe(true);
    });
    // Batches of 64 KiB that are never used again (I5).
    const buffers = new Set(kept.map((bytes) => bytes.buffer));
    expect(buffers.size).toBeGreaterThan(5);
    for (const buffer of buffers) expect(buffer.byteLength).toBe(65_536);
  });
});

describe("lane: 'shared' | 'own'", () => {
  test('an own lane gives a channel its own queue pairs, and they go with it', async () => {
    const { world, a, b } = await two();
    const got = collect(b.channel('prompt'));
    await world.settle();
    expect(a.resources().qps).toBe(2);
    const out = a.channel('prompt', { lane: 'own' });
    out.next(1);
    expect(a.resources().qps).toBe(4);
    await world.settle();
    expect(got).toEqual([1]);
    out.close();
    await world.settle();
    expect(a.resources().qps).toBe(2);
  });

  test('where there is none next() does not throw: it counts, status$ has the reason, and publish() rejects with it', async () => {
    const { world, a } = await two();
    world.fabric.laneError = Object.assign(new Error('no lane'), {
      code: 'ENOBUFS',
      what: 'open a lane',
      detail: 'all are taken',
    });
    const out = a.channel('prompt', { lane: 'own' });
    const status = collect(out.status$);
    out.next(1);
    expect(out.offer(2)).toBe(false);
    const error = {
      code: 'ERR_NATIVE',
      message:
        'Could not open a lane of its own for channel "prompt": open a lane failed: all are taken (ENOBUFS).',
    };
    await expect(out.publish(3)).rejects.toMatchObject(error);
    await expect(out.whenWritable()).rejects.toMatchObject(error);
    expect(() => out.loan(1)).toThrow(error.message);
    expect(status).toEqual([{ type: 'fault', error: expect.objectContaining(error) }]);
    expect(out.stats()).toMatchObject({ published: 0, refused: 2 });
    out.close();
    world.fabric.laneError = null;
    const again = a.channel('prompt', { lane: 'own' });
    await expect(again.publish(1)).resolves.toMatchObject({ sequence: 1 });
  });

  test('nor does it where the codec makes no encoder', async () => {
    const { a } = await two();
    const codec = custom<number>({ name: 'none', encode: () => new Uint8Array(), decode: () => 0 });
    const out = a.channel('x', {
      lane: 'own',
      codec: {
        ...codec,
        encoder() {
          throw new Error('not today');
        },
      },
    });
    out.next(1);
    await expect(out.publish(1)).rejects.toMatchObject({
      code: 'ERR_ENCODE',
      message: 'A value for "x" could not be encoded (none): not today',
    });
    expect(a.resources().qps, 'its lane is closed again').toBe(2);
  });
});

describe('echo: true', () => {
  test('own subscribers hear own messages in the same order as everyone, never inside next()', async () => {
    const { world, a, b } = await two();
    const channel = a.channel<number>('x', { echo: true });
    let inside = false;
    const mine: number[] = [];
    channel.subscribe((n) => {
      expect(inside).toBe(false);
      mine.push(n);
    });
    const theirs = collect(b.channel<number>('x'));
    await world.settle();
    inside = true;
    for (const n of numbers(1, 500)) channel.next(n);
    inside = false;
    expect(mine).toEqual([]);
    await world.settle();
    expect(mine).toEqual(numbers(1, 500));
    expect(theirs).toEqual(mine);
    await expect(channel.publish(501)).resolves.toMatchObject({ received: 2 });
  });

  test('without it they do not', async () => {
    const { world, a } = await two();
    const mine = collect(a.channel('x'));
    a.channel('x').next(1);
    await world.settle();
    expect(mine).toEqual([]);
  });

  test('a re-entrant next() goes to the next frame', async () => {
    const { world, a, b } = await two();
    const channel = a.channel<number>('x', { echo: true });
    const order: string[] = [];
    channel.subscribe((n) => {
      order.push(`begin ${n}`);
      if (n < 3) channel.next(n + 1);
      order.push(`end ${n}`);
    });
    const theirs = collect(b.channel<number>('x'));
    await world.settle();
    channel.next(1);
    await world.settle();
    expect(order).toEqual(['begin 1', 'end 1', 'begin 2', 'end 2', 'begin 3', 'end 3']);
    expect(theirs).toEqual([1, 2, 3]);
  });

  test('the echo is encoded and decoded like everything: nobody shares an object with the publisher', async () => {
    const { world, a } = await two();
    const channel = a.channel<{ n: number }>('x', { echo: true });
    const mine = collect(channel);
    await world.settle();
    const value = { n: 1 };
    channel.next(value);
    value.n = 2;
    await world.settle();
    expect(mine).toEqual([{ n: 1 }]);
  });

  test('a pattern with echo hears own channels', async () => {
    const { world, a } = await two();
    const got = collect(a.pattern('t.*', { echo: true }));
    await world.settle();
    a.channel('t.one').next(1);
    a.channel('u.one').next(2);
    await world.settle();
    expect(got).toEqual([expect.objectContaining({ channel: 't.one', value: 1 })]);
  });
});

describe('delivery yields after 1 ms or 4,096 messages', () => {
  test('after 4,096 messages', async () => {
    const { world, a, b } = await two({ slotsPerPeer: 10_000 });
    let got = 0;
    b.channel('x', { codec: 'bytes' }).subscribe(() => got++);
    await world.settle();
    world.stop(b);
    const out = a.channel('x', { codec: 'bytes', maxQueueBytes: 0 });
    for (let i = 0; i < 6000; i++) out.next(new Uint8Array(8));
    await world.settle();
    const sent = out.stats().published;
    expect(sent).toBeGreaterThan(4500);
    world.continue(b);
    const turns: number[] = [];
    while (got < sent) {
      const before = got;
      if (!world.runOne()) break;
      if (got > before) turns.push(got - before);
    }
    expect(Math.max(...turns)).toBe(4096);
    expect(got).toBe(sent);
  });

  test('after 1 ms', async () => {
    const { world, a, b } = await two();
    let got = 0;
    b.channel<number>('x').subscribe(() => {
      got++;
      world.now += 0.25;
    });
    await world.settle();
    world.stop(b);
    for (const n of numbers(1, 300)) a.channel<number>('x').next(n);
    await world.settle();
    world.continue(b);
    const turns: number[] = [];
    for (;;) {
      const before = got;
      if (!world.runOne()) break;
      if (got > before) turns.push(got - before);
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(got).toBe(300);
    expect(Math.max(...turns)).toBeLessThanOrEqual(32); // it looks at the clock every 32 messages
  });

  test('what was taken is told within a turn, so that a publisher with a full window need not wait for its end', async () => {
    const { world, a, b } = await two({ slotsPerPeer: 10_000 });
    const told: number[] = []; // frames that the subscriber had sent when it got each message
    b.channel('x', { codec: 'bytes', windowBytes: 16_384 }).subscribe(() => {
      told.push(b.resources().framesSent);
      world.now += 0.004;
    });
    await world.settle();
    world.stop(b);
    const out = a.channel('x', { codec: 'bytes' });
    for (let i = 0; i < 1000; i++) out.next(new Uint8Array(32));
    await world.settle();
    world.continue(b);
    // One turn of 1 ms: the whole window is 256 records of 64 bytes, and half of it is said to have been taken in between.
    while (told.length === 0 && world.runOne()) await new Promise((resolve) => setImmediate(resolve));
    expect(told.length).toBeGreaterThan(200);
    expect(told.at(-1)).toBeGreaterThan(told[0]!);
    await world.settle();
    expect(told).toHaveLength(1000);
  });
});

describe('ready({ subscribers, timeout, signal })', () => {
  test('resolves when there are so many subscribers, and from then on nothing is lost to them', async () => {
    const { world, a, b } = await two();
    const c = await world.join();
    const out = a.channel<number>('x');
    const one = outcome(out.ready());
    const both = outcome(out.ready({ subscribers: 2 }));
    await world.settle();
    expect(one.done).toBe(false);
    const got = [collect(b.channel<number>('x'))];
    await world.settle();
    expect(one.value).toEqual({ subscribers: 1, publishers: 0 });
    expect(both.done).toBe(false);
    got.push(collect(c.pattern<number>('>').pipe(map(({ value }) => value))));
    both.value ?? (await world.settle());
    expect(both.value).toEqual({ subscribers: 2, publishers: 0 });
    out.next(1);
    await world.settle();
    expect(got).toEqual([[1], [1]]);
  });

  test('time-out and signal say what is missing', async () => {
    const { world, a } = await two();
    const late = outcome(a.channel('x').ready({ subscribers: 3, timeout: 50 }));
    await world.advance(50);
    expect(late.error).toMatchObject({
      code: 'ERR_TIMEOUT',
      message: expect.stringContaining('0 of 3 subscribers are there'),
    });
    const stop = new AbortController();
    const stopped = outcome(a.channel('x').ready({ signal: stop.signal }));
    stop.abort('why not');
    await world.settle();
    expect(stopped.error).toMatchObject({ code: 'ERR_ABORTED', cause: 'why not' });
    const closed = outcome(a.channel('x').ready());
    a.channel('x').close();
    await world.settle();
    expect(closed.error).toMatchObject({ code: 'ERR_CHANNEL_CLOSED' });
  });

  test('publishers: a subscriber waits until it was acknowledged', async () => {
    const { world, a, b } = await two();
    collect(b.channel('x'));
    const ready = outcome(b.channel('x').ready({ publishers: 1 }));
    await world.settle();
    expect(ready.done).toBe(false);
    a.channel('x').next('for nobody yet');
    await world.settle();
    expect(ready.value).toEqual({ subscribers: 0, publishers: 1 });
  });
});

describe('replay: n bounded by replayBytes', () => {
  test('acknowledgement with sequence s, replay before s, then live from s; no message twice, none missing', async () => {
    const { world, a, b } = await two();
    const out = a.channel<number>('x', { replay: 3 });
    for (const n of numbers(1, 5)) out.next(n);
    const events = collect(b.channel<number>('x', { replay: 10 }).messages$);
    await world.settle();
    out.next(6);
    await world.settle();
    expect(
      events.map((event) =>
        event.type === 'message' ? `${event.sequence}${event.replayed ? 'r' : ''}` : event.type,
      ),
    ).toEqual(['publisher-joined', '3r', '4r', '5r', '6']);
    expect(events[0]).toMatchObject({ sequence: 6 });
  });

  test('a subscriber that asks for fewer gets fewer, one that asks for none gets none', async () => {
    const { world, a, b } = await two();
    const c = await world.join();
    const out = a.channel<number>('x', { replay: 10 });
    for (const n of numbers(1, 5)) out.next(n);
    const [some, none] = [collect(b.channel<number>('x', { replay: 2 })), collect(c.channel<number>('x'))];
    await world.settle();
    expect(some).toEqual([4, 5]);
    expect(none).toEqual([]);
  });

  test('replayBytes bounds what is kept and what is asked for', async () => {
    const { world, a, b } = await two();
    const out = a.channel('x', { codec: 'bytes', replay: 100, replayBytes: 4000 });
    for (const n of numbers(1, 20)) out.next(new Uint8Array(1000).fill(n));
    const got = collect(b.channel('x', { codec: 'bytes', replay: 100 }));
    const fewer = collect(b.pattern<Uint8Array>('x', { codec: 'bytes', replay: 100, replayBytes: 2100 }));
    await world.settle();
    expect(got.map((bytes) => bytes[0])).toEqual([18, 19, 20]);
    expect(fewer.map(({ value }) => value[0])).toEqual([19, 20]);
  });

  test('each local subscriber that comes later has its own replay; the others hear nothing twice', async () => {
    const { world, a, b } = await two();
    const out = a.channel<number>('x', { replay: 5 });
    const input = b.channel<number>('x', { replay: 5 });
    const first = collect(input);
    await world.settle();
    for (const n of [1, 2]) out.next(n);
    await world.settle();
    const second = collect(input);
    out.next(3);
    await world.settle();
    out.next(4);
    await world.settle();
    expect(first).toEqual([1, 2, 3, 4]);
    expect(second).toEqual([1, 2, 3, 4]);
  });

  test('record definitions reach a late subscriber before its replay', async () => {
    const { world, a, b } = await two();
    const out = a.channel('x', { replay: 5 });
    for (let i = 0; i < 5; i++) out.next({ [`key${i}`]: i, more: { deep: i } });
    const got = collect(b.channel('x', { replay: 5 }));
    await world.settle();
    out.next({ key1: 'again', more: { deep: 9 } });
    await world.settle();
    expect(got).toEqual([
      ...numbers(0, 4).map((i) => ({ [`key${i}`]: i, more: { deep: i } })),
      { key1: 'again', more: { deep: 9 } },
    ]);
  });

  test('a replay larger than the window', async () => {
    const { world, a, b } = await two();
    const out = a.channel('x', { codec: 'bytes', replay: 100 });
    for (const n of numbers(1, 60)) out.next(new Uint8Array(1000).fill(n));
    const got = collect(b.channel('x', { codec: 'bytes', replay: 100, windowBytes: 4096 }));
    await world.settle();
    out.next(new Uint8Array(1).fill(61));
    await world.settle();
    expect(got.map((bytes) => bytes[0])).toEqual(numbers(1, 61));
  });
});

describe('for await, batches, Web streams, AbortSignal', () => {
  test('for await; leaving the loop unsubscribes', async () => {
    const { world, a, b } = await two();
    const input = b.channel<number>('x');
    const got: number[] = [];
    const loop = (async () => {
      for await (const n of input) {
        got.push(n);
        if (n === 3) break;
      }
    })();
    await world.settle();
    for (const n of numbers(1, 5)) a.channel<number>('x').next(n);
    await world.settle();
    await loop;
    expect(got).toEqual([1, 2, 3]);
    await world.advance(100);
    expect(b.resources().subscriptions).toBe(0);
  });

  test('byte-bounded: a loop that does not take holds back the publisher, not the memory', async () => {
    const { world, a, b } = await two();
    const values = b.channel('x', { codec: 'bytes', windowBytes: 8192 }).values();
    await world.settle();
    const out = a.channel('x', { codec: 'bytes', maxQueueBytes: 8192 });
    let sent = 0;
    for (let i = 0; i < 100; i++) {
      if (out.offer(new Uint8Array(1000).fill(i))) sent++;
      await world.settle();
    }
    expect(sent).toBeLessThanOrEqual(16);
    expect(out.stats().queuedBytes).toBeLessThanOrEqual(8192);
    for (let i = 0; i < sent; i++) {
      expect((await values.next()).value[0]).toBe(i);
      await world.settle();
    }
    expect(out.offer(new Uint8Array(1000))).toBe(true);
    await values.return?.();
  });

  test('a loop that ends gives its bytes back', async () => {
    const { world, a, b } = await two();
    const input = b.channel('x', { codec: 'bytes', windowBytes: 8192 });
    const got = collect(input);
    const values = input.values();
    await world.settle();
    const out = a.channel('x', { codec: 'bytes', maxQueueBytes: 65_536 });
    for (let i = 0; i < 30; i++) out.next(new Uint8Array(1000));
    await world.settle();
    expect(got.length).toBeLessThan(10);
    await values.return?.();
    await world.settle();
    expect(got).toHaveLength(30);
  });

  test('close() and leave() end the loop behind what is there; a signal makes it throw', async () => {
    const { world, a, b } = await two();
    const input = b.channel<number>('x');
    const stop = new AbortController();
    const [loop, stopped] = [input.values(), input.values({ signal: stop.signal })];
    await world.settle();
    a.channel<number>('x').next(1);
    await world.settle();
    const waiting = outcome(stopped.next().then(() => stopped.next()));
    stop.abort(new Error('stop'));
    await b.leave();
    expect(await loop.next()).toEqual({ done: false, value: 1 });
    expect(await loop.next()).toEqual({ done: true, value: undefined });
    await world.settle();
    expect(waiting.error).toMatchObject({ code: 'ERR_ABORTED', cause: { message: 'stop' } });
  });

  test('batches({ max })', async () => {
    const { world, a, b } = await two();
    const [all, small] = [
      collect(b.channel<number>('x').batches()),
      collect(b.channel<number>('x').batches({ max: 4 })),
    ];
    await world.settle();
    for (const n of numbers(1, 10)) a.channel<number>('x').next(n);
    await world.settle();
    a.channel<number>('x').next(11);
    await world.settle();
    expect(all).toEqual([numbers(1, 10), [11]]);
    expect(small).toEqual([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], [11]]);
    expect(() => b.channel('x').batches({ max: 0 })).toThrow(RangeError);
  });

  test('readable()', async () => {
    const { world, a, b } = await two();
    const reader = b.channel<number>('x').readable().getReader();
    await world.settle();
    for (const n of [1, 2]) a.channel<number>('x').next(n);
    await world.settle();
    expect(await reader.read()).toEqual({ done: false, value: 1 });
    expect(await reader.read()).toEqual({ done: false, value: 2 });
    await reader.cancel();
    await world.advance(100);
    expect(b.resources().subscriptions).toBe(0);
  });

  test('writable(): backpressure of the channel; closing completes', async () => {
    const { world, a, b } = await two();
    const input = b.channel('x', { codec: 'bytes', windowBytes: 4096 });
    const [got, status] = [collect(input), collect(input.status$)];
    await world.settle();
    const writer = a.channel('x', { codec: 'bytes', maxQueueBytes: 4096 }).writable().getWriter();
    world.stop(b);
    const writes = numbers(1, 20).map((n) => outcome(writer.write(new Uint8Array(1000).fill(n))));
    await world.settle();
    expect(writes.filter((one) => one.done).length).toBeLessThan(8);
    world.continue(b);
    await world.settle();
    expect(writes.every((one) => one.done && one.error === undefined)).toBe(true);
    const closed = outcome(writer.close());
    await world.settle();
    expect(closed.done).toBe(true);
    expect(got.map((bytes) => bytes[0])).toEqual(numbers(1, 20));
    expect(status).toContainEqual(expect.objectContaining({ type: 'publisher-done', how: 'complete' }));
  });

  test('writable(): a value that cannot be sent errors the stream; abort is error(reason)', async () => {
    const { world, a, b } = await two();
    const status = collect(b.channel('x', { codec: 'bytes' }).status$);
    collect(b.channel('x'));
    await world.settle();
    const writer = a.channel('x', { codec: 'bytes' }).writable().getWriter();
    writer.closed.catch(() => {});
    await expect(writer.write('text' as never)).rejects.toMatchObject({ code: 'ERR_CODEC_VALUE' });
    const other = a.channel('x').writable().getWriter();
    other.closed.catch(() => {});
    await other.abort(new Error('gave up'));
    await world.settle();
    expect(status).toContainEqual(
      expect.objectContaining({
        type: 'publisher-done',
        how: 'error',
        error: { name: 'Error', message: 'gave up' },
      }),
    );
  });
});

describe('patterns are read-only and carry the channel name', () => {
  test('they hear all channels that match, now and later, each with its name', async () => {
    const { world, a, b } = await two();
    const [one, tail] = [collect(b.pattern('ticks.*')), collect(b.pattern('ticks.>'))];
    a.channel('ticks.eur').next('before');
    await world.settle();
    for (const name of ['ticks.eur', 'ticks.usd', 'ticks.eur.bid', 'other']) a.channel(name).next(name);
    await world.settle();
    expect(one.map(({ channel, value }) => [channel, value])).toEqual([
      ['ticks.eur', 'ticks.eur'],
      ['ticks.usd', 'ticks.usd'],
    ]);
    expect(tail.map(({ channel }) => channel)).toEqual(['ticks.eur', 'ticks.usd', 'ticks.eur.bid']);
    expect(one[0]!.publisher).toMatchObject({ name: 'a' });
    expect(b.pattern('ticks.*')).not.toHaveProperty('next');
  });

  test('a channel and a pattern of one member: one stream on the wire, each hears it once', async () => {
    const { world, a, b } = await two();
    const [exact, pattern] = [collect(b.channel('t.x')), collect(b.pattern('t.*'))];
    await world.settle();
    const out = a.channel('t.x');
    for (const n of numbers(1, 3)) out.next(n);
    await world.settle();
    expect(out.stats().subscribers).toBe(1);
    expect(exact).toEqual([1, 2, 3]);
    expect(pattern.map(({ value }) => value)).toEqual([1, 2, 3]);
  });

  test('any built-in codec is decoded; a struct needs its definition', async () => {
    const { world, a, b } = await two();
    const layout = struct({ n: 'u32' });
    const any = b.pattern('*');
    const [got, status] = [collect(any), collect(any.status$)];
    const structs = collect(b.pattern('s', { codec: layout }));
    await world.settle();
    a.channel('m').next({ a: 1 });
    a.channel('j', { codec: 'json' }).next({ a: 2 });
    a.channel('b', { codec: 'bytes' }).next(new Uint8Array([3]));
    a.channel('s', { codec: layout }).next({ n: 4 });
    await world.settle();
    expect(got.map(({ value }) => value)).toEqual([{ a: 1 }, { a: 2 }, new Uint8Array([3])]);
    expect(structs.map(({ value }) => value)).toEqual([{ n: 4 }]);
    expect(status).toContainEqual(
      expect.objectContaining({ type: 'mismatch', channel: 's', ours: 'any built-in codec' }),
    );
  });
});

describe('schema and validate', () => {
  const even = (transform: boolean) => ({
    '~standard': {
      version: 1 as const,
      vendor: 'test',
      validate: (value: unknown) =>
        typeof value === 'number' && value % 2 === 0
          ? { value: transform ? value / 2 : value }
          : { issues: [{ message: `${String(value)} is odd` }] },
    },
  });

  test("'all': the publisher refuses, the subscriber skips with a gap, values are the schema's output", async () => {
    const { world, a, b } = await two();
    const schema = even(true);
    const out = a.channel('x', { schema });
    const input = b.channel('x', { schema });
    const events = collect(input.messages$);
    await world.settle();
    const status = collect(out.status$);
    out.next(2);
    out.next(3);
    await expect(out.publish(5)).rejects.toMatchObject({ code: 'ERR_SCHEMA' });
    await world.settle();
    expect(events.flatMap((event) => (event.type === 'message' ? [event.value] : []))).toEqual([1]);
    expect(status).toContainEqual(expect.objectContaining({ type: 'encode-error', count: 2 }));
    const careless = (await world.join()).channel('x');
    await world.settle();
    careless.next(7);
    await world.settle();
    careless.next(7);
    careless.next(8);
    await world.settle();
    expect(
      events.flatMap((event) =>
        event.type === 'message' ? [event.value] : event.type === 'gap' ? [event.reason] : [],
      ),
    ).toEqual([1, 'schema', 'schema', 4]);
  });

  test("'first' trusts a publisher after one good value, 'off' checks nothing", async () => {
    const { world, a, b } = await two();
    const schema = even(false);
    const got = [
      collect(b.channel('x', { schema, validate: 'first' })),
      collect((await world.join()).channel('x', { schema, validate: 'off' })),
    ];
    await world.settle();
    for (const n of [1, 2, 3]) a.channel('x').next(n);
    await world.settle();
    expect(got).toEqual([
      [2, 3],
      [1, 2, 3],
    ]);
  });
});

describe('re-entrancy', () => {
  test('leaving and closing from within a delivery', async () => {
    for (const end of ['close', 'leave'] as const) {
      const { world, a, b } = await two();
      const input = b.channel<number>('x');
      const got: number[] = [];
      const other = collect(b.pattern<number>('*'));
      input.subscribe((n) => {
        got.push(n);
        if (n === 2) end === 'close' ? input.close() : b.close();
      });
      await world.settle();
      for (const n of numbers(1, 5)) a.channel<number>('x').next(n);
      await world.settle();
      expect(got).toEqual([1, 2]);
      expect(other.map(({ value }) => value)).toEqual(end === 'close' ? numbers(1, 5) : [1]);
      expect(a.closed).toBe(false);
      expect(b.closed).toBe(end === 'leave');
    }
  });

  test('publishing from within a delivery, on a full arena', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join('test', { arenaBytes: 65_536 })];
    const back = collect(a.channel('back', { codec: 'bytes', windowBytes: 2 ** 20 }));
    b.channel<number>('x').subscribe(() => {
      for (let i = 0; i < 30; i++) b.channel('back', { codec: 'bytes' }).next(new Uint8Array(5000).fill(i));
    });
    await world.settle();
    for (const n of [1, 2, 3]) a.channel<number>('x').next(n);
    await world.settle();
    expect(back.map((bytes) => bytes[0])).toEqual([1, 2, 3].flatMap(() => numbers(0, 29)));
  });
});

test('a peer whose inbox fails for good: nobody goes on waiting for it', async () => {
  const { world, a, b } = await two();
  collect(b.channel('x'));
  await world.settle();
  world.fabric.block(a.incarnation, b.incarnation, true);
  const out = a.channel('x');
  const [receipt, flushed] = [outcome(out.publish(1)), outcome(out.flush())];
  await world.settle();
  const handle = world.fabric.handleOf(a.incarnation);
  handle.faults.push({ peer: 0, status: 13, reason: 6 });
  world.fabric.schedule(handle.life, () => handle.readable?.());
  await world.settle();
  expect(receipt.error).toMatchObject({ code: 'ERR_PEER_LOST', ambiguous: true });
  expect(flushed.value).toMatchObject({ complete: false });
  expect(out.stats().subscribers).toBe(0);
});

test('counts of names that only patterns hear are not kept', async () => {
  const { world, a, b } = await two();
  const got = collect(b.pattern('*'));
  await world.settle();
  for (let i = 0; i < 50; i++) {
    const channel = a.channel(`c${i}`);
    channel.next(i);
    channel.close();
  }
  await world.settle();
  expect(got).toHaveLength(50);
  expect(b.channel('c1').stats()).toMatchObject({ received: 0, publishers: 0 });
  expect([...b.inspect().channels]).toHaveLength(1);
});
