/** DESIGN, Semantics: one object a name, the ends of channels and members, the event loop, and faults of peers. */
import { describe, expect, test, vi } from 'vitest';
import type { ClusterPort } from '../../src/channels/engine.js';
import { FLAG, KIND, writeHeader } from '../../src/channels/wire.js';
import { collect, numbers, outcome } from '../support/collect.js';
import { forge } from '../support/forge.js';
import { splitmix, World } from '../support/world.js';

describe('same name in a member = same object; other options = error showing both', () => {
  test('the same object, with the same options or none', async () => {
    const world = new World();
    const a = await world.join();
    const channel = a.channel('x', { codec: 'json', replay: 3 });
    expect(a.channel('x')).toBe(channel);
    expect(a.channel('x', { replay: 3, codec: 'json' })).toBe(channel);
    expect(a.pattern('x.*')).toBe(a.pattern('x.*', {}));
    const other = await world.join();
    expect(other.channel('x')).not.toBe(channel);
  });

  test('other options', async () => {
    const world = new World();
    const a = await world.join();
    a.channel('x', { codec: 'json', replay: 3 });
    expect(() => a.channel('x', { codec: 'bytes' })).toThrow(
      expect.objectContaining({
        code: 'ERR_CHANNEL_OPTIONS',
        message: expect.stringMatching(
          /\(replay, codec\).*codec: json.*replay.*codec: bytes|codec: json.*replay: 3.*codec: bytes/s,
        ),
      }),
    );
    a.pattern('x.*', { overflow: 'latest' });
    expect(() => a.pattern('x.*', { overflow: { latestBy: 'a' } })).toThrow(
      /overflow: latest.*overflow: \{"latestBy":"a"\}/s,
    );
  });

  test('close() frees the name', async () => {
    const world = new World();
    const a = await world.join();
    const channel = a.channel('x', { codec: 'json' });
    channel.close();
    channel.close();
    expect(channel.closed).toBe(true);
    expect(a.channel('x', { codec: 'bytes' })).not.toBe(channel);
  });
});

describe('the Observable completes on close() and leave(), and errors only on a fatal local fault', () => {
  test('close()', async () => {
    const world = new World();
    const a = await world.join();
    const channel = a.channel('x');
    const all = [
      collect(channel),
      collect(channel.messages$),
      collect(channel.batches()),
      collect(channel.status$),
    ];
    channel.close();
    expect(all.map((one) => one.ended)).toEqual(Array(4).fill('complete'));
    expect(collect(channel).ended).toBe('complete');
    expect(await channel.values().next()).toEqual({ done: true, value: undefined });
    channel.next(1);
    expect(channel.offer(1)).toBe(false);
    await expect(channel.publish(1)).rejects.toMatchObject({ code: 'ERR_CHANNEL_CLOSED' });
    await expect(channel.ready({ publishers: 1 })).rejects.toMatchObject({ code: 'ERR_CHANNEL_CLOSED' });
    await expect(channel.whenWritable()).rejects.toMatchObject({ code: 'ERR_CHANNEL_CLOSED' });
    await expect(channel.drain()).resolves.toMatchObject({ complete: true });
    expect(channel.stats().refused).toBe(2);
  });

  test('leave(): streams complete, promises settle, further calls say so', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const streams = [collect(a.channel('x')), collect(a.pattern('>')), collect(a.status$)];
    collect(b.channel('x', { codec: 'bytes' }));
    collect(b.channel('y', { codec: 'bytes' }));
    await world.settle();
    world.stop(b);
    world.fabric.block(a.incarnation, b.incarnation, true);
    const y = a.channel('y', { codec: 'bytes', maxQueueBytes: 4096 });
    const pending: ReturnType<typeof outcome<unknown>>[] = [
      outcome<unknown>(a.channel('z').ready()),
      outcome<unknown>(y.publish(new Uint8Array(10))),
      outcome<unknown>(y.flush()),
      outcome<unknown>(a.drain()),
    ];
    while (y.offer(new Uint8Array(1000)));
    pending.push(outcome<unknown>(y.whenWritable()));
    // What waits for a credit gets a moment, no more.
    const left = outcome(a.leave());
    await world.advance(249);
    expect([left.done, a.closed]).toEqual([false, true]);
    await world.advance(1);
    expect(left.done).toBe(true);
    expect(streams.map((one) => one.ended)).toEqual(['complete', 'complete', 'complete']);
    expect(
      pending.map((one) => one.error?.code ?? (one.value as { complete?: boolean } | undefined)?.complete),
    ).toEqual(['ERR_MEMBER_CLOSED', 'ERR_MEMBER_CLOSED', false, false, 'ERR_MEMBER_CLOSED']);
    expect(() => a.channel('w')).toThrow(expect.objectContaining({ code: 'ERR_MEMBER_CLOSED' }));
    expect(() => a.pattern('w')).toThrow(expect.objectContaining({ code: 'ERR_MEMBER_CLOSED' }));
    // Also of a channel that has published.
    const closed = expect.objectContaining({ code: 'ERR_MEMBER_CLOSED' });
    for (const call of [() => y.publish(new Uint8Array(1)), () => y.ready(), () => y.whenWritable()])
      await expect(call()).rejects.toEqual(closed);
    expect(() => y.loan(1)).toThrow(closed);
    expect(y.offer(new Uint8Array(1))).toBe(false);
    expect(a.leave()).toBe(a.leave());
    await expect(a.drain()).resolves.toEqual({ complete: true, undelivered: [] });
    expect(a.resources()).toMatchObject({ qps: 0, channels: 0 });
    expect(a.closed).toBe(true);
  });

  test('a fatal fault of the transport errors the streams and is on status$', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const [stream, status] = [collect(a.channel('x')), collect(a.status$)];
    collect(b.channel('y'));
    await world.settle();
    world.fabric.handleOf(a.incarnation).closed = true; // every native call throws from now on
    a.channel('y').next(1);
    await world.settle();
    expect(stream.ended).toMatchObject({ code: 'ERR_NATIVE' });
    expect(status).toContainEqual({ type: 'fault', error: expect.objectContaining({ code: 'ERR_NATIVE' }) });
    expect(() => a.channel('x')).toThrow(/because of a fault/);
  });

  test('asyncDispose drains and leaves', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const got = collect(b.channel('x'));
    await world.settle();
    a.channel('x').next('last words');
    const disposed = outcome(a[Symbol.asyncDispose]());
    await world.settle();
    expect(disposed.done).toBe(true);
    expect(got).toEqual(['last words']);
    const channel = b.channel('y');
    await channel[Symbol.asyncDispose]();
    expect(channel.closed).toBe(true);
  });
});

describe('what is queued when a channel closes', () => {
  test('is still sent, then subscribers are told', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const events = collect(b.channel('x', { codec: 'bytes', windowBytes: 4096 }).messages$);
    await world.settle();
    world.stop(b);
    const out = a.channel('x', { codec: 'bytes' });
    for (const n of numbers(1, 20)) out.next(new Uint8Array(1000).fill(n));
    out.close();
    world.continue(b);
    await world.settle();
    expect(events.map((event) => (event.type === 'message' ? event.value[0] : event.type))).toEqual([
      'publisher-joined',
      ...numbers(1, 20),
      'publisher-left',
    ]);
    expect(a.resources().queuedBytes).toBe(0);
  });
});

describe('a member holds the event loop only while it has a subscriber, a pending promise or unsent data', () => {
  async function held() {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    await world.settle();
    return { world, a, b, holds: () => world.fabric.handleOf(a.incarnation).refs };
  }

  test('idle: not held; a subscriber holds, status$ does not', async () => {
    const { world, a, holds } = await held();
    expect(holds()).toBe(false);
    const status = a.status$.subscribe();
    expect(holds()).toBe(false);
    const subscription = a.channel('x').subscribe();
    expect(holds()).toBe(true);
    subscription.unsubscribe();
    expect(holds()).toBe(false);
    status.unsubscribe();
    const loop = a.channel('x').values();
    expect(holds()).toBe(true);
    await loop.return?.();
    expect(holds()).toBe(false);
    await world.advance(1000);
  });

  test('a pending promise holds', async () => {
    const { world, a, b, holds } = await held();
    const stop = new AbortController();
    const ready = outcome(a.channel('x').ready({ signal: stop.signal }));
    expect(holds()).toBe(true);
    stop.abort();
    await world.settle();
    expect(ready.done).toBe(true);
    expect(holds()).toBe(false);
    collect(b.channel('x'));
    await world.settle();
    world.stop(b);
    const drained = outcome(
      a
        .channel('x')
        .publish(1)
        .then(() => a.drain()),
    );
    await world.settle();
    expect(holds()).toBe(true);
    world.continue(b);
    await world.settle();
    expect(drained.done).toBe(true);
    expect(holds()).toBe(false);
  });

  test('unsent data holds: queued for a slow subscriber, or without a credit', async () => {
    const { world, a, b, holds } = await held();
    collect(b.channel('x', { codec: 'bytes', windowBytes: 4096 }));
    await world.settle();
    world.stop(b);
    for (const n of numbers(1, 9)) a.channel('x', { codec: 'bytes' }).next(new Uint8Array(1000).fill(n));
    await world.settle();
    expect(holds()).toBe(true);
    world.continue(b);
    await world.settle();
    expect(holds()).toBe(false);
    world.fabric.block(a.incarnation, b.incarnation, true);
    a.channel('x').next(new Uint8Array(1));
    await world.settle();
    expect(holds()).toBe(true);
    world.fabric.block(a.incarnation, b.incarnation, false);
    await world.advance(10);
    expect(holds()).toBe(false);
  });

  test('unref(): never; ref(): the default again', async () => {
    const { a, holds } = await held();
    a.channel('x').subscribe();
    expect(holds()).toBe(true);
    expect(a.unref()).toBe(a);
    expect(holds()).toBe(false);
    a.ref();
    expect(holds()).toBe(true);
  });
});

describe('members and peers', () => {
  test('peers, names and incarnations; they come and go on status$', async () => {
    const world = new World();
    const a = await world.join('test', { name: 'a' });
    const status = collect(a.status$);
    const b = await world.join('test', { name: 'b' });
    await world.join('elsewhere');
    await world.settle();
    expect(a.peers).toEqual([{ incarnation: b.incarnation, name: 'b', pid: expect.any(Number) }]);
    expect(a.incarnation).not.toBe(b.incarnation);
    expect([a.name, a.domain]).toEqual(['a', 'test']);
    const c = await world.join('test', { name: 'c' });
    await world.settle();
    await b.leave();
    world.kill(c);
    await world.settle();
    expect(a.peers).toEqual([]);
    expect(
      status.map((event) => `${event.type} ${(event as { peer?: { name: string } }).peer?.name}`),
    ).toEqual(['peer-joined b', 'peer-joined c', 'peer-left b', 'peer-lost c']);
  });

  test('resources() counts', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    a.channel('x').subscribe();
    a.pattern('>').subscribe();
    b.channel('x').next(1);
    await world.settle();
    expect(a.resources()).toMatchObject({
      qps: 2,
      srqs: 1,
      channels: 1,
      patterns: 1,
      subscriptions: 2,
      peers: 1,
      framesReceived: expect.any(Number),
    });
  });

  test('inspect() is plain data', async () => {
    const world = new World();
    const [a, b] = [await world.join('test', { name: 'a' }), await world.join('test', { name: 'b' })];
    b.channel('x', { overflow: 'latest' }).subscribe();
    b.pattern('y.*').subscribe();
    await world.settle();
    a.channel('x').next(1);
    await world.settle();
    const report = a.inspect();
    expect(JSON.parse(JSON.stringify(report))).toEqual(report);
    expect(report.channels).toEqual([
      expect.objectContaining({
        name: 'x',
        codec: 'msgpackr',
        publishing: expect.objectContaining({
          sequence: 1,
          subscribers: [
            expect.objectContaining({ overflow: 'latest', dropped: 0, credits: expect.any(Number) }),
          ],
        }),
      }),
    ]);
    expect(b.inspect()).toMatchObject({
      patterns: [{ pattern: 'y.*', listeners: 1 }],
      channels: [{ listeners: 1, received: 1, publishing: null }],
    });
  });

  test('members of other domains do not hear', async () => {
    const world = new World();
    const [a, b] = [await world.join('one'), await world.join('two')];
    const got = collect(b.channel('x'));
    await world.settle();
    a.channel('x').next(1);
    await world.settle();
    expect(got).toEqual([]);
  });

  test('a member that comes later hears what is published from then on', async () => {
    const world = new World();
    const a = await world.join();
    a.channel('x').next(0);
    const b = await world.join();
    const got = collect(b.channel('x'));
    await world.settle();
    a.channel('x').next(1);
    await world.settle();
    expect(got).toEqual([1]);
  });
});

describe('bad input is a counted, named error on that peer alone (I9)', () => {
  test('control records that are short, absurd or for nobody', async () => {
    const world = new World();
    const [a, b] = [await world.join('test', { name: 'evil' }), await world.join()];
    const [got, faults] = [collect(b.channel('x')), collect(b.status$)];
    await world.settle();
    a.channel('x').next('good');
    await world.settle();
    const f64 = (...values: number[]) => new Uint8Array(Float64Array.from(values).buffer);
    forge(world, a.incarnation, b.incarnation, (write) => {
      write(1, KIND.SUBSCRIBED, new Uint8Array(3));
      write(
        9,
        KIND.SUBSCRIBED,
        new Uint8Array([1, 0, 0, 0, 1, 0, 0, 0, ...f64(1), ...Buffer.from('{"name":"..","codec":"json"}')]),
      );
      write(
        9,
        KIND.SUBSCRIBED,
        new Uint8Array([1, 0, 0, 0, 1, 0, 0, 0, ...f64(1), ...Buffer.from('not json')]),
      );
      write(1, KIND.GAP, new Uint8Array(8));
      write(1, KIND.GAP, f64(Number.NaN, 2, 0));
      write(1, KIND.GAP, f64(5, 2, 0));
      write(1, KIND.DEFINE, new Uint8Array([1, 2, 3]));
      write(1, KIND.DONE, Buffer.from('{"how":"explode"}'));
      write(1, KIND.CONSUMED, new Uint8Array(4));
      write(0, KIND.LANDED, new Uint8Array(4));
      write(0, KIND.LANDED, f64(0.5));
      write(0, KIND.LANDED, f64(7, Number.NaN));
      write(77, KIND.DATA, new Uint8Array(4));
      write(77, KIND.GAP, f64(1, 2, 0));
      write(1, 200, new Uint8Array(4));
    });
    await world.settle();
    a.channel('x').next('still good');
    await world.settle();
    expect(got).toEqual(['good', 'still good']);
    const named = faults.filter((event) => event.type === 'fault');
    expect(named.length).toBeGreaterThanOrEqual(11);
    expect(named.every((event) => event.type === 'fault' && event.peer?.name === 'evil')).toBe(true);
    expect(b.inspect().faults).toBe(named.length);
  });

  test('large messages from elsewhere that are none: each is a gap, and the channel goes on', async () => {
    const world = new World();
    const [a, b] = [await world.join('test', { name: 'evil' }), await world.join()];
    const got: number[] = [];
    b.channel<Uint8Array>('x', { codec: 'bytes' }).subscribe((bytes) => got.push(bytes.length));
    const faults = collect(b.status$);
    await world.settle();
    a.channel<Uint8Array>('x', { codec: 'bytes' }).next(new Uint8Array(1));
    await world.settle();
    const random = splitmix(7);
    const remote = KIND.DATA | ((FLAG.LARGE | FLAG.REMOTE) << 8);
    const RECORDS = 300;
    for (let sequence = 2; sequence < 2 + RECORDS; ) {
      forge(world, a.incarnation, b.incarnation, (write) => {
        for (let i = 0; i < 10; i++) {
          const payload = Uint8Array.from({ length: Math.floor(random() * 100) }, () => random() * 256);
          // Often something that begins as an offer does, with its form and a serial.
          if (payload.length >= 16 && random() < 0.5)
            payload.set([1, 0, 0, 0, 1, 0, 0, 0, sequence, 1, 0, 0, 0, 0, 0, 0]);
          write(1, remote, payload, sequence++);
        }
      });
      await world.settle();
    }
    forge(world, a.incarnation, b.incarnation, (write) =>
      write(1, KIND.DATA, new Uint8Array(5), 2 + RECORDS),
    );
    await world.settle();
    expect(got).toEqual([1, 5]);
    const count = (type: string) => faults.filter((event) => event.type === type).length;
    expect([count('gap'), count('payload-failed')]).toEqual([RECORDS, RECORDS]);
    expect(b.resources().leases).toBe(0);
  });

  test('a CONSUMED for more than was sent', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join('test', { name: 'evil' })];
    collect(b.channel('x'));
    await world.settle();
    a.channel('x').next(1);
    await world.settle();
    const faults = collect(a.status$);
    const generation = 1;
    const payload = new Uint8Array(Float64Array.from([1e9, 1e12]).buffer);
    const bytes = new Uint8Array(48);
    bytes.set(payload, 32);
    writeHeader(
      new Uint32Array(bytes.buffer),
      new Float64Array(bytes.buffer),
      0,
      1,
      16,
      0,
      KIND.CONSUMED,
      generation,
      0,
    );
    const handle = world.fabric.handleOf(a.incarnation);
    handle.inbox.push({ from: world.fabric.handleOf(b.incarnation), bytes, rows: 1, lane: 0 });
    world.fabric.schedule(handle.life, () => handle.readable?.());
    await world.settle();
    expect(faults).toContainEqual(
      expect.objectContaining({ type: 'fault', error: expect.objectContaining({ code: 'ERR_PEER_INPUT' }) }),
    );
  });

  test('subscriptions that are not valid', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join()];
    const faults = collect(a.status$);
    await world.settle();
    const port = (b as unknown as { inspect(): unknown }) && clusterOf(world, b.incarnation);
    const good = {
      id: 1,
      channel: 'x',
      overflow: 'wait',
      window: 4096,
      codec: null,
      schema: null,
      replay: 0,
      replayBytes: 0,
      maxRecord: 16320,
    };
    const bad = [
      null,
      5,
      {},
      { ...good, id: -1 },
      { ...good, id: 2 ** 40 },
      { ...good, channel: '' },
      { ...good, channel: 'a.*' },
      { ...good, channel: undefined, pattern: 'a*' },
      { ...good, overflow: 'explode' },
      { ...good, overflow: { latestBy: '' } },
      { ...good, window: 0 },
      { ...good, window: '4096' },
      { ...good, codec: 7 },
      { ...good, replay: -1 },
      { ...good, maxRecord: 1e99 },
    ];
    for (const body of bad) port.send(0, 'subscribe', body);
    port.send(0, 'subscribe', good);
    port.send(0, 'subscribe', good);
    port.send(0, 'unsubscribe', { id: 'x' });
    port.send(0, 'unsubscribe', null);
    port.send(0, 'whatever', { a: 1 });
    port.send(0, 'announce', null);
    await world.settle();
    expect(faults.filter((event) => event.type === 'fault')).toHaveLength(bad.length + 3);
    a.channel('x').next(1);
    expect(a.channel('x').stats().subscribers).toBe(1);
  });

  test('a PEER_FAULT row is named', async () => {
    const world = new World();
    const [a, b] = [await world.join(), await world.join('test', { name: 'b' })];
    const status = collect(a.status$);
    await world.settle();
    const handle = world.fabric.handleOf(a.incarnation);
    const [retries, rnr] = [12, 13];
    handle.faults.push(
      { peer: 0, status: 10, reason: 2 },
      { peer: -1, status: 0, reason: 1 },
      { peer: 0, status: retries, reason: 6 },
      { peer: 0, status: rnr, reason: 6 },
    );
    world.fabric.schedule(handle.life, () => handle.readable?.());
    await world.settle();
    const faults = status.filter((event) => event.type === 'fault');
    expect(faults).toHaveLength(4);
    expect(faults[0]).toMatchObject({
      peer: { name: 'b' },
      error: { message: expect.stringContaining('records do not add up') },
    });
    const said = faults.map(({ error }) => (error as Error).message);
    expect(said[0]).toMatch(/ \(completion status 10, IBV_WC_REM_ACCESS_ERR\)\.$/);
    expect(said[1]).toMatch(/ \(completion status 0\)\.$/);
    // What the network may be the cause of says what, and where to look.
    expect(said[2]).toMatch(
      /inbox failed again and again.*status 12, IBV_WC_RETRY_EXC_ERR\)\. Its device acknowledged nothing/,
    );
    for (const where of [
      'millrace ls',
      'millrace doctor',
      'MILLRACE_GID_INDEX',
      'ping',
      '4791',
      'hw_counters',
    ])
      expect(said[2]).toContain(where);
    expect(said[3]).toMatch(
      /status 13, IBV_WC_RNR_RETRY_EXC_ERR\)\. Its device is there.*rnr_nak_retry_err.*\.$/,
    );
    expect(b.closed).toBe(false);
  });
});

function clusterOf(world: World, incarnation: number): ClusterPort {
  return world.portOf(incarnation);
}

test('completions that come late: the arena is a ring, a full one refuses, and nothing is lost', async () => {
  const world = new World();
  const [a, b] = [await world.join('test', { arenaBytes: 65_536 }), await world.join()];
  const events = collect(b.channel('x', { codec: 'bytes', windowBytes: 2 ** 20 }).messages$);
  await world.settle();
  world.fabric.handleOf(a.incarnation).lateBy = 200;
  const out = a.channel('x', { codec: 'bytes' });
  let sent = 0;
  let refused = 0;
  for (let i = 0; i < 300; i++) {
    if (out.offer(new Uint8Array(1000).fill(sent))) sent++;
    else {
      refused++;
      const writable = outcome(out.whenWritable());
      for (let turn = 0; turn < 300 && !writable.done; turn++) await world.advance(5);
      expect(writable.done).toBe(true);
    }
  }
  await world.advance(5000);
  expect(refused).toBeGreaterThan(0);
  const values = events.flatMap((event) => (event.type === 'message' ? [event.value[0]] : []));
  expect(values).toEqual(numbers(0, sent - 1).map((n) => n % 256));
});

test('modes: adaptive polls for its grace and then sleeps; spin never does', async () => {
  const world = new World();
  const modes = ['adaptive', 'spin'] as const;
  const [a, s] = [await world.join('one', { mode: modes[0] }), await world.join('two', { mode: modes[1] })];
  const other = await world.join('one');
  const polls = (member: typeof a) => world.fabric.handleOf(member.incarnation).counters[13]!;
  const some = async (turns: number) => {
    for (let i = 0; i < turns; i++) {
      world.runOne();
      if (i % 10 === 0) await Promise.resolve();
    }
  };
  a.channel('x').subscribe();
  await some(200);
  const idle = polls(a);
  await some(20);
  expect(polls(a)).toBe(idle); // nothing has come yet
  other.channel('x').next(1);
  await some(200);
  expect(polls(a)).toBeGreaterThan(idle + 20); // the clock stands still, hence still in its grace
  world.now += 1;
  for (let i = 0; i < 10; i++) world.runOne();
  const asleep = polls(a);
  const spun = polls(s);
  for (let i = 0; i < 10; i++) world.runOne();
  expect(polls(a)).toBe(asleep);
  expect(polls(s)).toBeGreaterThan(spun);
  expect(vi.isFakeTimers()).toBe(false);
});
