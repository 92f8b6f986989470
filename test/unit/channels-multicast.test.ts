/** Multicast channels in a world where datagrams get lost as the test says: order, repair, gaps, pace, ends. */
import { beforeEach, describe, expect, test } from 'vitest';
import type { Channel } from '../../src/channels/channel.js';
import type { Member } from '../../src/channels/member.js';
import { groupKey } from '../../src/channels/multicast/groups.js';
import type { ChannelEvent, StatusEvent } from '../../src/channels/types.js';
import { KIND } from '../../src/channels/wire.js';
import { forge } from '../support/forge.js';
import { splitmix, World } from '../support/world.js';

const MULTICAST = { delivery: 'multicast' } as const;

let world: World;
beforeEach(() => {
  world = new World();
});

/** What a subscriber was told: numbers for messages, `a-b reason` for gaps. */
function listen(channel: Channel<number>): (number | string)[] {
  const heard: (number | string)[] = [];
  channel.messages$.subscribe((event: ChannelEvent<number>) => {
    if (event.type === 'message') heard.push(event.sequence);
    else if (event.type === 'gap') heard.push(`${event.from}-${event.to} ${event.reason}`);
    else if (event.type === 'publisher-left') heard.push(event.reason);
  });
  return heard;
}

async function pair(
  options: object = {},
  sending = options,
): Promise<{
  pub: Member;
  sub: Member;
  out: Channel<number>;
  heard: (number | string)[];
}> {
  const pub = await world.join('test', { name: 'pub' });
  const sub = await world.join('test', { name: 'sub' });
  const heard = listen(sub.channel<number>('m', { ...MULTICAST, ...options }));
  const out = pub.channel<number>('m', { ...MULTICAST, ...sending });
  await world.settle();
  out.next(0);
  await world.settle();
  return { pub, sub, out, heard };
}

const numbers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i);

/** Loses what `script` says, by the number of the datagram that a member gets. */
function lose(script: (count: number, to: number) => boolean): () => number {
  const counts = new Map<number, number>();
  let lost = 0;
  world.fabric.loses = (_from, to) => {
    const count = (counts.get(to) ?? 0) + 1;
    counts.set(to, count);
    const gone = script(count, to);
    if (gone) lost++;
    return gone;
  };
  return () => lost;
}

describe('without loss', () => {
  test('each message is one datagram, whoever listens, and nothing of it goes on a lane', async () => {
    const { pub, out, heard } = await pair();
    const more = await Promise.all([world.join('test'), world.join('test'), world.join('test')]);
    const all = more.map((member) => listen(member.channel<number>('m', MULTICAST)));
    await world.settle();
    const before = pub.resources();
    for (let n = 2; n <= 11; n++) {
      out.next(n);
      await world.settle();
    }
    const after = pub.resources();
    expect(after.datagramsSent - before.datagramsSent).toBe(10);
    expect(after.framesSent).toBe(before.framesSent);
    expect(heard).toEqual(numbers(1, 11));
    for (const one of all) expect(one).toEqual(numbers(2, 11));
  });

  test('messages of one turn share datagrams', async () => {
    const { pub, out, heard } = await pair();
    const { datagramsSent } = pub.resources();
    for (let n = 2; n <= 50; n++) out.next(n);
    await world.settle();
    expect(pub.resources().datagramsSent - datagramsSent).toBe(1);
    expect(heard).toEqual(numbers(1, 50));
  });

  test('frames are self-contained: no definitions, each record with its own keys', async () => {
    const pub = await world.join('test');
    const sub = await world.join('test');
    const got: unknown[] = [];
    sub.channel('m', MULTICAST).subscribe((value) => got.push(value));
    const out = pub.channel('m', MULTICAST);
    await world.settle();
    out.next({ a: 1, b: { c: 'x' } });
    await world.settle();
    out.next({ a: 2, b: { c: 'y' } });
    await world.settle();
    expect(got).toEqual([
      { a: 1, b: { c: 'x' } },
      { a: 2, b: { c: 'y' } },
    ]);
    expect(out.stats().encodeErrors).toBe(0);
  });

  test('a message larger than a datagram is split and joined', async () => {
    const pub = await world.join('test');
    const sub = await world.join('test');
    const got: Uint8Array[] = [];
    sub.channel('m', { ...MULTICAST, codec: 'bytes' }).subscribe((value) => got.push(value));
    const out = pub.channel('m', { ...MULTICAST, codec: 'bytes' });
    const sent = [1, 4000, 4001, 9000, 16_000].map((size) =>
      new Uint8Array(size).map((_, i) => (i * 7 + size) & 0xff),
    );
    await world.settle();
    out.next(new Uint8Array(1));
    await world.settle();
    got.length = 0;
    for (const one of sent) out.next(one);
    await world.settle();
    expect(got).toEqual(sent);
    expect(out.offer(new Uint8Array(17_000))).toBe(false);
    expect(out.stats().encodeErrors).toBe(1);
  });

  test('echo, headers, replay and a pattern', async () => {
    const pub = await world.join('test');
    const options = { ...MULTICAST, echo: true, replay: 3 } as const;
    const own = listen(pub.channel<number>('m', options));
    const out = pub.channel<number>('m', options);
    for (let n = 1; n <= 5; n++) out.next(n);
    await world.settle();
    const late = await world.join('test');
    const heard = listen(late.channel<number>('m', options));
    const all: number[] = [];
    late.pattern<number>('*', { overflow: 'drop-oldest' }).subscribe(({ sequence }) => all.push(sequence));
    await world.settle();
    out.offer(6, { headers: { k: 'v' } });
    await world.settle();
    expect(own).toEqual(numbers(1, 6));
    expect(heard).toEqual(numbers(3, 6));
    expect(all).toEqual([6]);
  });

  test('publish() resolves when every subscriber has it, drain() when all is delivered', async () => {
    const { out } = await pair();
    const receipt = out.publish(2);
    await world.settle();
    expect(await receipt).toEqual({ sequence: 2, received: 1, dropped: 0 });
    const report = out.drain();
    await world.settle();
    expect(await report).toEqual({ complete: true, undelivered: [] });
  });
});

describe('loss', () => {
  test('one message: held until it is repaired, then in order', async () => {
    const { sub, out, heard } = await pair();
    lose((count) => count === 2);
    for (let n = 2; n <= 6; n++) {
      out.next(n);
      await world.settle();
    }
    expect(heard).toEqual([1, 2]);
    await world.advance(10);
    expect(heard).toEqual(numbers(1, 6));
    expect(sub.inspect().channels[0]!.multicast).toMatchObject({
      requests: 1,
      repaired: 1,
      held: 0,
      givenUp: 0,
    });
  });

  test('the last one: the heartbeat tells', async () => {
    const { out, heard } = await pair();
    lose((count) => count <= 1);
    out.next(2);
    await world.settle();
    expect(heard).toEqual([1]);
    await world.advance(30);
    expect(heard).toEqual([1, 2]);
  });

  test('the last one and the first heartbeats', async () => {
    const { out, heard } = await pair();
    lose((count) => count <= 5);
    out.next(2);
    await world.advance(5000);
    expect(heard).toEqual([1, 2]);
  });

  test('a part of a message', async () => {
    const pub = await world.join('test');
    const sub = await world.join('test');
    const got: number[] = [];
    sub.channel('m', { ...MULTICAST, codec: 'bytes' }).subscribe((value) => got.push(value.length));
    const out = pub.channel('m', { ...MULTICAST, codec: 'bytes' });
    await world.settle();
    out.next(new Uint8Array(1));
    await world.settle();
    for (const which of [1, 2, 3]) {
      lose((count) => count === which);
      out.next(new Uint8Array(9000 + which));
      await world.advance(100);
    }
    expect(got).toEqual([1, 9001, 9002, 9003]);
  });

  test('what the publisher does not keep any more is a gap in order', async () => {
    const { pub, out, heard } = await pair({}, { repairBytes: 4096, maxQueueBytes: 0 });
    lose((count) => count >= 2 && count <= 20);
    for (let n = 2; n <= 2000; n++) {
      out.next(n);
      if (n % 40 === 0) await world.settle();
    }
    await world.advance(3000);
    const { requests, evicted } = pub.inspect().channels[0]!.publishing!.multicast!;
    expect(requests).toBeGreaterThan(0);
    expect(evicted).toBeGreaterThan(0);
    checkOrder(heard, 2000);
    expect(heard.at(-1)).toBe(2000);
  });

  test('a publisher that answers no more: the gap comes after a bounded number of requests', async () => {
    const { pub, sub, out, heard } = await pair();
    lose((count) => count === 2);
    for (let n = 2; n <= 4; n++) {
      out.next(n);
      await world.settle();
    }
    world.stop(pub);
    await world.advance(10_000);
    expect(heard).toEqual([1, 2, '3-3 lost', 4]);
    expect(sub.inspect().channels[0]!.multicast).toMatchObject({ requests: 8, givenUp: 1, held: 0 });
    world.continue(pub);
    await world.advance(1000);
    // It hears what was given up; its repairs come too late and are duplicates.
    expect(pub.inspect().channels[0]!.publishing!.subscribers[0]!.dropped).toBe(1);
    expect(heard).toEqual([1, 2, '3-3 lost', 4]);
  });

  test('more than may be held: the oldest is given up at once', async () => {
    const { sub, out, heard } = await pair({ repair: 4 });
    lose((count) => count === 1);
    for (let n = 2; n <= 8; n++) {
      out.next(n);
      await world.settle();
    }
    expect(heard).toEqual([1, '2-2 lost', ...numbers(3, 8)]);
    expect(sub.channel('m').stats().missing).toBe(1);
  });

  test('publish() counts who gave it up', async () => {
    const { sub, out } = await pair({ repair: 0 });
    lose(() => true);
    const receipt = out.publish(2);
    await world.settle();
    lose(() => false);
    out.next(3);
    await world.advance(1000);
    expect(await receipt).toEqual({ sequence: 2, received: 0, dropped: 1 });
    expect(sub.channel('m').stats()).toMatchObject({ received: 2, missing: 1 });
  });

  test('many lose the same: requests are spread', async () => {
    const pub = await world.join('test');
    const times: number[] = [];
    const heard: (number | string)[][] = [];
    for (let i = 0; i < 20; i++)
      heard.push(listen((await world.join('test')).channel<number>('m', MULTICAST)));
    const out = pub.channel<number>('m', MULTICAST);
    await world.settle();
    out.next(1);
    await world.settle();
    lose((count) => count === 1);
    out.next(2);
    out.status$.subscribe();
    await world.settle();
    out.next(3);
    await world.settle();
    const asked = () => pub.inspect().channels[0]!.publishing!.multicast!.requests;
    for (let last = 0; world.now < 40; last = asked()) {
      await world.advance(0.5);
      if (asked() > last) times.push(world.now);
    }
    expect(asked()).toBe(20);
    expect(new Set(times).size).toBeGreaterThan(4);
    for (const one of heard) expect(one).toEqual([1, 2, 3]);
  });

  const seeds = Number(process.env.MILLRACE_MULTICAST_SEEDS ?? 40);
  test(
    `${seeds} random scripts: in order, every message or a gap for it, and counts that agree`,
    async () => {
      for (let seed = 1; seed <= seeds; seed++) {
        world = new World({ seed });
        const random = splitmix(seed * 7919);
        const pub = await world.join('test', { name: 'pub' });
        const rate = random() * 0.4;
        const small = random() < 0.3;
        const options = {
          ...MULTICAST,
          codec: 'bytes',
          ...(small ? { repair: 8, repairBytes: 16_384 } : {}),
        } as const;
        const subs: { member: Member; heard: (number | string)[] }[] = [];
        for (let i = 0; i < 3; i++) {
          const member = await world.join('test');
          subs.push({ member, heard: listen(member.channel('m', options) as unknown as Channel<number>) });
        }
        const out = pub.channel('m', options);
        await world.settle();
        out.next(new Uint8Array(1));
        await world.settle();
        world.fabric.loses = () => random() < rate;
        const total = 1 + Math.floor(random() * 120);
        for (let n = 2; n <= total; n++) {
          out.next(new Uint8Array(random() < 0.2 ? Math.floor(random() * 15_000) : 10));
          if (random() < 0.3) await world.settle();
          if (random() < 0.1) await world.advance(random() * 20);
        }
        await world.settle();
        const drained = out.drain(60_000);
        await world.advance(60_000);
        expect([seed, await drained]).toEqual([seed, { complete: true, undelivered: [] }]);
        for (const { member, heard } of subs) {
          const missing = checkOrder(heard, total, `seed ${seed}`);
          expect(member.channel('m').stats().missing).toBe(missing);
          expect(member.inspect().channels[0]!.multicast).toMatchObject({ held: 0 });
        }
      }
    },
    seeds * 1000,
  );
});

/** Every number from 1 to `total` once, in order, by itself or in a gap. @returns how many are in gaps */
function checkOrder(heard: readonly (number | string)[], total: number, what = ''): number {
  let next = 1;
  let missing = 0;
  for (const one of heard) {
    const [from, to] = typeof one === 'number' ? [one, one] : one.split(' ')[0]!.split('-').map(Number);
    expect([what, from]).toEqual([what, next]);
    if (typeof one === 'string') missing += to! - from! + 1;
    next = to! + 1;
  }
  expect([what, next]).toEqual([what, total + 1]);
  return missing;
}

describe('pace', () => {
  test('what is ahead of it waits, then is refused, and all of it comes in order at that pace', async () => {
    const { pub, out, heard } = await pair({ pace: 10_000, maxQueueBytes: 4000 });
    let taken = 1;
    while (out.offer(taken + 1)) taken++;
    expect(out.stats()).toMatchObject({ refused: 1 });
    expect(out.stats().queuedBytes).toBeGreaterThan(3900);
    expect(pub.resources().queuedBytes).toBe(out.stats().queuedBytes);
    let writable = false;
    void out.whenWritable().then(() => {
      writable = true;
    });
    await world.advance(100);
    expect(writable).toBe(false);
    expect(heard.length * 40).toBeLessThan(10_000 * 0.15);
    await world.advance(150);
    expect(writable).toBe(true);
    await world.advance(1000);
    expect(heard).toEqual(numbers(1, taken));
    expect(out.stats().queuedBytes).toBe(0);
  });

  test('what waits when its last subscriber leaves is for nobody, and who comes then hears what comes then', async () => {
    const { pub, sub, out } = await pair({ pace: 1000 });
    for (let n = 2; n <= 20; n++) out.next(n);
    sub.channel('m').close();
    await world.settle();
    expect(out.stats().queuedBytes).toBeGreaterThan(0);
    for (let n = 21; n <= 25; n++) out.next(n);
    const later = await world.join('test');
    const heard = listen(later.channel<number>('m', MULTICAST));
    await world.settle();
    for (let n = 26; n <= 30; n++) out.next(n);
    await world.advance(3000);
    expect(heard).toEqual(numbers(26, 30));
    expect(out.stats().queuedBytes).toBe(0);
    expect(pub.inspect().channels[0]!.publishing!.multicast).toMatchObject({ sent: 30 });
  });

  test('close() waits for its turn, drain() too', async () => {
    const { out, heard } = await pair({ pace: 1000 });
    for (let n = 2; n <= 20; n++) out.next(n);
    const drained = out.drain(10_000);
    out.close();
    await world.advance(3000);
    expect(heard).toEqual([...numbers(1, 20), 'closed']);
    expect(await drained).toMatchObject({ complete: true });
  });
});

describe('ends', () => {
  test('close(): what was lost at the end is still repaired', async () => {
    const { pub, sub, out, heard } = await pair();
    lose((count) => count <= 2);
    for (let n = 2; n <= 3; n++) {
      out.next(n);
      await world.settle();
    }
    out.close();
    await world.advance(100);
    expect(heard).toEqual([1, 2, 3, 'closed']);
    expect(pub.resources()).toMatchObject({ groups: 0, channels: 0 });
    sub.channel('m').close();
    await world.advance(200);
    expect(sub.resources()).toMatchObject({ groups: 0, groupSlots: 0 });
  });

  test('leave(): a gap says what of it was lost', async () => {
    const { pub, out, heard } = await pair();
    lose((count) => count === 2 || count === 4);
    for (let n = 2; n <= 5; n++) {
      out.next(n);
      await world.settle();
    }
    void pub.leave();
    await world.settle();
    expect(heard).toEqual([1, 2, '3-3 left', 4, '5-5 left', 'left']);
  });

  test('a kill of the publisher: what is held comes with its gaps', async () => {
    const { pub, out, heard } = await pair();
    lose((count) => count === 2);
    for (let n = 2; n <= 4; n++) {
      out.next(n);
      await world.settle();
    }
    world.kill(pub);
    await world.settle();
    expect(heard).toEqual([1, 2, '3-3 lost', 4, 'died']);
    await world.advance(5000);
    expect(heard.length).toBe(5);
  });

  test('a kill and a stop of a subscriber leave the publisher and the others alone', async () => {
    const { pub, sub, out } = await pair();
    const other = await world.join('test');
    const heard = listen(other.channel<number>('m', MULTICAST));
    await world.settle();
    world.stop(sub);
    for (let n = 2; n <= 1000; n++) {
      out.next(n);
      if (n % 10 === 0) await world.settle();
    }
    world.kill(sub);
    await world.settle();
    expect(heard).toEqual(numbers(2, 1000));
    expect(out.stats()).toMatchObject({ subscribers: 1, refused: 0 });
    expect(pub.resources().backlogBytes).toBe(0);
  });

  test('a stopped subscriber goes on with repairs, or with a gap', async () => {
    const { sub, out, heard } = await pair({ repair: 64, maxQueueBytes: 0, repairBytes: 8192 });
    world.stop(sub);
    for (let n = 2; n <= 3000; n++) {
      out.next(n);
      await world.settle();
    }
    world.continue(sub);
    await world.advance(5000);
    checkOrder(heard, 3000);
  });

  test('the group is left with the last subscriber, and joined again by the next', async () => {
    const sub = await world.join('test');
    const channel = sub.channel<number>('m', MULTICAST);
    const one = channel.subscribe();
    const two = channel.subscribe();
    expect(sub.resources()).toMatchObject({ groups: 1, groupSlots: 256 });
    one.unsubscribe();
    two.unsubscribe();
    await world.advance(200);
    expect(sub.resources()).toMatchObject({ groups: 0 });
    channel.subscribe();
    expect(sub.resources()).toMatchObject({ groups: 1 });
  });
});

describe('agreement', () => {
  test.each([
    [undefined, 'multicast'],
    ['multicast', undefined],
  ])('%s here, %s there: reported on both sides, nothing delivered', async (ours, theirs) => {
    const pub = await world.join('test');
    const sub = await world.join('test');
    const status: StatusEvent[] = [];
    for (const member of [pub, sub]) member.status$.subscribe((event) => status.push(event));
    const got: unknown[] = [];
    sub
      .channel('m', theirs === undefined ? {} : { delivery: theirs as 'multicast' })
      .subscribe((v) => got.push(v));
    const out = pub.channel('m', ours === undefined ? {} : { delivery: ours as 'multicast' });
    out.next(1);
    await world.settle();
    out.next(2);
    await world.settle();
    const found = status.filter((event) => event.type === 'mismatch');
    expect(found.map(({ error }) => error.code)).toEqual(['ERR_DELIVERY_MISMATCH', 'ERR_DELIVERY_MISMATCH']);
    expect(found.map(({ ours: mine, theirs: other }) => [mine, other])).toContainEqual(['lane', 'multicast']);
    expect(got).toEqual([]);
  });

  test('a pattern that waits does not hear it, and is told so', async () => {
    const { sub, out } = await pair();
    const pattern = sub.pattern('*');
    const status: StatusEvent[] = [];
    pattern.status$.subscribe((event) => status.push(event));
    pattern.subscribe();
    out.next(2);
    await world.settle();
    expect(status.map((event) => (event.type === 'mismatch' ? event.error.code : event.type))).toEqual([
      'ERR_DELIVERY_MISMATCH',
    ]);
  });

  test.each([
    [{ overflow: 'wait' }, 'overflow'],
    [{ overflow: 'latest' }, 'overflow'],
    [{ overflow: { latestBy: 'id' } }, 'overflow'],
    [{ lane: 'own' }, 'lane'],
    [{ maxWait: 10 }, 'maxWait'],
    [{ delivery: 'lane', pace: 10 }, 'pace'],
    [{ delivery: 'lane', repair: 10 }, 'repair'],
  ])('%j is refused', async (options, option) => {
    const member = await world.join('test');
    expect(() => member.channel('m', { ...MULTICAST, ...options } as never)).toThrow(
      expect.objectContaining({ code: 'ERR_DELIVERY', details: expect.objectContaining({ option }) }),
    );
  });

  test('two channels whose group is the same hear only their own', async () => {
    const [a, b] = [groupKey('d', 'one'), groupKey('d', 'one')];
    expect(a).toEqual(b);
    expect(groupKey('d', 'two')).not.toEqual(a);
    expect(groupKey('e', 'one')).not.toEqual(a);
    expect(a).toHaveLength(16);
  });

  test('a device that makes no groups: said on status$, and publishing is refused with its reason', async () => {
    const { fabric } = world;
    fabric.groupError = Object.assign(new Error('no groups'), {
      code: 'EOPNOTSUPP',
      what: 'ibv_attach_mcast',
      detail: '',
    });
    const member = await world.join('test');
    const status: StatusEvent[] = [];
    member.status$.subscribe((event) => status.push(event));
    const channel = member.channel('m', MULTICAST);
    channel.subscribe();
    channel.next(1);
    await expect(channel.publish(2)).rejects.toMatchObject({
      message: expect.stringContaining('ibv_attach_mcast'),
    });
    expect(status.map((event) => event.type)).toEqual(['fault', 'fault']);
    expect(channel.stats().refused).toBe(1);
  });
});

describe('what a peer sends that it should not (I9)', () => {
  const pairs = (...values: number[]) => new Uint8Array(new Float64Array(values).buffer);

  test('requests and reports that make no sense are faults of that peer alone', async () => {
    const { pub, sub, out, heard } = await pair();
    const faults: string[] = [];
    pub.status$.subscribe(
      (event) => event.type === 'fault' && faults.push((event.error as { code?: string }).code!),
    );
    for (const payload of [
      pairs(),
      pairs(0, 1),
      pairs(3, 2),
      pairs(1, 2 ** 60),
      pairs(1),
      pairs(...new Array(80).fill(1)),
    ])
      for (const kind of [KIND.REPAIR, KIND.MISSED])
        forge(world, sub.incarnation, pub.incarnation, (write) => write(1, kind, payload));
    await world.settle();
    expect(faults).toEqual(new Array(12).fill('ERR_PEER_INPUT'));
    // Of a generation that is not, or of a channel that is not: nothing.
    forge(world, sub.incarnation, pub.incarnation, (write) => {
      write(1, KIND.REPAIR, pairs(1, 1000));
      write(99, KIND.MISSED, pairs(1, 1000));
    });
    out.next(2);
    await world.settle();
    expect(faults.length).toBe(12);
    expect(heard).toEqual([1, 2]);
  });

  test('sequences beyond counting, and parts that do not fit together', async () => {
    const { pub, sub, out, heard } = await pair();
    const part = (total: number, offset: number, bytes: number) => {
      const payload = new Uint8Array(8 + bytes);
      new Uint32Array(payload.buffer, 0, 2).set([total, offset]);
      return payload;
    };
    forge(world, pub.incarnation, sub.incarnation, (write) => {
      write(1, KIND.HEARTBEAT, new Uint8Array(0), 2 ** 60);
      write(1, KIND.DATA, new Uint8Array(1), 2 ** 60);
      for (const [total, offset, bytes] of [
        [64, 0, 0],
        [64, 8, 8],
        [64, 0, 72],
        [63, 0, 8],
        [2 ** 31, 0, 8],
        [64, 0, 64],
        [0, 0, 8],
        [8, 0, 8],
      ] as const)
        write(1, KIND.FRAGMENT, part(total, offset, bytes), 2);
      write(1, KIND.FRAGMENT, new Uint8Array(4), 2);
      write(1, KIND.GAP, pairs(2, 1, 0), 2);
    });
    await world.settle();
    out.next(2);
    await world.advance(100);
    expect(heard).toEqual([1, 2]);
    expect(sub.channel('m').stats()).toMatchObject({ missing: 0, decodeErrors: 0 });
  });

  test('a heartbeat that names what was never sent: given up after the bounded requests', async () => {
    const { pub, sub, out, heard } = await pair();
    forge(world, pub.incarnation, sub.incarnation, (write) => write(1, KIND.HEARTBEAT, new Uint8Array(0), 3));
    await world.advance(10_000);
    expect(heard).toEqual([1, '2-3 lost']);
    for (let n = 2; n <= 4; n++) out.next(n);
    await world.advance(100);
    expect(heard).toEqual([1, '2-3 lost', 4]);
  });
});
