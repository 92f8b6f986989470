/**
 * docs/guarantees.md: whoever receives a message of a member knows every subscription which that member had made before it
 * sent it, although subscriptions travel on the control connection and messages in lanes. The control connections are
 * delayed by the test; nothing sleeps.
 */
import * as fc from 'fast-check';
import { afterEach, describe, expect, test, vi } from 'vitest';
import type { Member } from '../../src/channels/member.js';
import type { StatusEvent } from '../../src/channels/types.js';
import { collect, numbers, outcome } from '../support/collect.js';
import { World } from '../support/world.js';

afterEach(() => vi.restoreAllMocks());

/** `a` asks, `b` answers whatever it is asked on the channel that the question names. */
async function asking(lane: 'shared' | 'own' = 'shared') {
  const world = new World();
  const a = await world.join('test', { name: 'a' });
  const b = await world.join('test', { name: 'b' });
  const asked: string[] = [];
  b.channel<string>('ask').subscribe((name) => {
    asked.push(name);
    b.channel<string>(name).next(`answer to ${name}`);
  });
  const ask = a.channel<string>('ask', { lane });
  await world.settle();
  return { world, a, b, ask, asked };
}

describe('a subscription is known to whoever receives what is sent after it', () => {
  for (const lane of ['shared', 'own'] as const) {
    test(`an answer reaches a subscription that was made just before the question (${lane} lane)`, async () => {
      const { world, a, b, ask, asked } = await asking(lane);
      ask.next('warm');
      await world.settle();
      world.delayControl(a);
      const first = collect(a.channel('reply.first'));
      ask.next('reply.first');
      const second = collect(a.pattern<string>('reply.*'));
      ask.next('reply.second');
      await world.settle();
      expect(asked, 'held back behind the subscriptions').toEqual(['warm']);
      world.hastenControl(a, 1);
      await world.settle();
      expect(asked, 'as far as they have arrived').toEqual(['warm', 'reply.first']);
      world.hastenControl(a);
      await world.settle();
      expect(asked).toEqual(['warm', 'reply.first', 'reply.second']);
      expect(first).toEqual(['answer to reply.first']);
      expect(second.map(({ value }) => value)).toContain('answer to reply.second');
      expect(b.inspect().faults).toBe(0);
    });
  }

  test('also when the one who answers has a queue, and for messages that were queued', async () => {
    const { world, a, b } = await asking();
    const bulk = a.channel<Uint8Array>('bulk', { codec: 'bytes' });
    const taken: number[] = [];
    b.channel('bulk', { codec: 'bytes', windowBytes: 4096 }).subscribe((bytes) => {
      taken.push(bytes[0]!);
      b.channel<number>('reply').next(bytes[0]!);
    });
    await world.settle();
    world.delayControl(a);
    for (const n of numbers(1, 20)) bulk.next(new Uint8Array(1000).fill(n));
    const answers = collect(a.channel<number>('reply'));
    for (const n of numbers(21, 40)) bulk.next(new Uint8Array(1000).fill(n));
    await world.settle();
    world.hastenControl(a);
    await world.settle();
    expect(taken).toEqual(numbers(1, 40));
    expect(answers.filter((n) => n > 20)).toEqual(numbers(21, 40));
  });

  test('a member that has just come is answered on what it subscribed to at once', async () => {
    const { world, b, asked } = await asking();
    const late = await world.join('test', { name: 'late' });
    world.delayControl(late);
    const answers = collect(late.channel('reply'));
    const question = late.channel<string>('ask');
    const ready = outcome(question.ready());
    await world.settle();
    expect(ready.done, 'it knows of a subscriber').toBe(true);
    question.next('reply');
    await world.settle();
    world.hastenControl(late);
    await world.settle();
    expect(asked).toEqual(['reply']);
    expect(answers).toEqual(['answer to reply']);
    expect(b.closed).toBe(false);
  });

  test('nobody else waits meanwhile, and what the held peer takes is still accounted for', async () => {
    const { world, a, b, ask, asked } = await asking();
    const c = await world.join('test', { name: 'c' });
    const flood = b.channel<Uint8Array>('flood', { codec: 'bytes', maxQueueBytes: 4096 });
    const got = collect(a.channel('flood', { codec: 'bytes', windowBytes: 4096 }));
    await world.settle();
    world.delayControl(a);
    a.channel('reply').subscribe();
    ask.next('reply');
    c.channel<string>('ask').next('from.c');
    // Far more than the window: it comes back in frames that are held back behind the question.
    for (let n = 0; n < 50; n++) {
      flood.next(new Uint8Array(1000).fill(n));
      await world.settle();
    }
    expect(asked).toEqual(['from.c']);
    expect(got.length).toBe(50);
    world.hastenControl(a);
    await world.settle();
    expect(asked).toEqual(['from.c', 'reply']);
  });

  test('the peer dies or leaves: what it sent is delivered, then its end is told', async () => {
    for (const how of ['dies', 'leaves'] as const) {
      const { world, a, b, ask, asked } = await asking();
      const events = collect(b.channel('ask').messages$);
      ask.next('warm');
      await world.settle();
      world.delayControl(a);
      a.channel('reply').subscribe();
      for (const n of numbers(1, 3)) ask.next(`reply.${n}`);
      await world.settle();
      expect(asked).toEqual(['warm']);
      if (how === 'dies') world.kill(a);
      else void a.leave();
      await world.settle();
      expect(asked, how).toEqual(['warm', 'reply.1', 'reply.2', 'reply.3']);
      expect(events.at(-1)).toMatchObject({ type: 'publisher-left', sequence: 4 });
      expect(world.pendingTimers).toBe(0);
    }
  });

  test('the wait is bounded: after 5 s they are delivered and it is a fault of that peer', async () => {
    const { world, a, b, ask, asked } = await asking();
    const status = collect(b.status$) as StatusEvent[];
    world.delayControl(a);
    a.channel('reply').subscribe();
    ask.next('reply');
    await world.advance(4999);
    expect(asked).toEqual([]);
    await world.advance(1);
    expect(asked).toEqual(['reply']);
    const faults = status.filter(({ type }) => type === 'fault');
    expect(faults).toMatchObject([{ peer: { name: 'a' }, error: { code: 'ERR_SUBSCRIPTION_LATE' } }]);
    ask.next('again');
    await world.settle();
    expect(asked, 'given up once for each').toEqual(['reply', 'again']);
    // The promise holds again for the next subscription.
    world.hastenControl(a);
    world.delayControl(a);
    const answers = collect(a.channel('next.reply'));
    ask.next('next.reply');
    await world.settle();
    expect(asked.length).toBe(2);
    world.hastenControl(a);
    await world.settle();
    expect(answers).toEqual(['answer to next.reply']);
    expect(b.inspect().faults).toBe(1);
  });

  test('the wait is bounded in bytes, too', async () => {
    const { world, a, b } = await asking();
    const status = collect(b.status$) as StatusEvent[];
    const out = a.channel('wide', { codec: 'bytes', maxQueueBytes: 64 * 2 ** 20 });
    let bytes = 0;
    b.channel('wide', { codec: 'bytes', windowBytes: 64 * 2 ** 20 }).subscribe((value) => {
      bytes += value.length;
    });
    await world.settle();
    world.delayControl(a);
    a.channel('reply').subscribe();
    for (let sent = 0; sent < 40 * 2 ** 20; sent += 6000) {
      out.next(new Uint8Array(6000));
      if (sent % 600_000 === 0) await world.settle();
    }
    await world.settle();
    expect(bytes).toBeGreaterThanOrEqual(40 * 2 ** 20);
    expect(status).toContainEqual(
      expect.objectContaining({
        type: 'fault',
        error: expect.objectContaining({ code: 'ERR_SUBSCRIPTION_LATE' }),
      }),
    );
  });

  test('leaving in the middle lets go of what is held', async () => {
    const { world, a, b, ask, asked } = await asking();
    world.delayControl(a);
    a.channel('reply').subscribe();
    ask.next('reply');
    await world.settle();
    void b.leave();
    await world.settle();
    expect(asked).toEqual([]);
    expect(world.pendingTimers).toBe(0);
  });
});

// ---- any order of subscribing, asking and answering ----------------------------------------------------------------

const microtasks = () => new Promise<void>((resolve) => setImmediate(resolve));

const who = fc.nat(2);
const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('subscribe' as const), who, name: fc.nat(4) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('unsubscribe' as const), who }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('ask' as const), who, own: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('delay' as const), who }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('hasten' as const), who, count: fc.nat(3) }) },
  {
    weight: 6,
    arbitrary: fc.record({ do: fc.constant('run' as const), steps: fc.integer({ min: 1, max: 20 }) }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('turn' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('stop' as const), who }) },
);

interface Question {
  id: number;
  /** Where its asker listens. */
  open: string[];
}

interface Asker {
  readonly member: Member;
  readonly open: Map<string, { unsubscribe(): void }>;
  /** Answers by "channel: who answered". */
  readonly answers: Map<string, number[]>;
  /** Answers that must have come in the end. */
  readonly expected: { at: string; id: number }[];
  stopped: boolean;
}

async function play(
  seed: number,
  slotsPerPeer: number,
  script: (typeof step extends fc.Arbitrary<infer S> ? S : never)[],
) {
  const world = new World({ seed, slotsPerPeer });
  const askers: Asker[] = [];
  for (const name of ['a', 'b', 'c']) {
    const member = await world.join('test', { name });
    askers.push({ member, open: new Map(), answers: new Map(), expected: [], stopped: false });
  }
  let id = 0;
  for (const { member } of askers) {
    for (const lane of ['shared', 'own'] as const) {
      member.channel<Question>(`ask.${lane}`, { lane }).subscribe((question) => {
        for (const name of question.open) member.channel<number>(name).next(question.id);
      });
    }
  }
  await world.settle();
  for (const { member } of askers)
    for (const lane of ['shared', 'own']) member.channel<Question>(`ask.${lane}`).next({ id: 0, open: [] });
  await world.settle();
  const subscribe = ({ member, open, answers }: Asker, name: string) => {
    const subscription = member.channel<number>(name).messages$.subscribe((event) => {
      if (event.type !== 'message') return;
      const at = `${name}: ${event.publisher.name}`;
      answers.set(at, [...(answers.get(at) ?? []), event.value]);
    });
    open.set(name, subscription);
  };
  for (const one of script) {
    const asker = 'who' in one ? askers[one.who]! : askers[0]!;
    if (asker.stopped && 'who' in one && one.do !== 'hasten') continue;
    switch (one.do) {
      case 'subscribe': {
        // A name of its own, never used before: whoever listened to it earlier would hide what is looked for.
        const name = `reply.${asker.member.name}.${one.name}.${id}`;
        if (!asker.open.has(name)) subscribe(asker, name);
        break;
      }
      case 'unsubscribe': {
        const [oldest] = asker.open;
        if (oldest === undefined) break;
        oldest[1].unsubscribe();
        asker.open.delete(oldest[0]);
        break;
      }
      case 'ask': {
        const open = [...asker.open.keys()];
        const channel = asker.member.channel<Question>(one.own ? 'ask.own' : 'ask.shared');
        channel.next({ id: ++id, open });
        for (const name of open)
          for (const other of askers)
            if (other !== asker) asker.expected.push({ at: `${name}: ${other.member.name}`, id });
        break;
      }
      case 'delay':
        world.delayControl(asker.member);
        break;
      case 'hasten':
        world.hastenControl(asker.member, one.count === 0 ? undefined : one.count);
        break;
      case 'run':
        for (let i = 0; i < one.steps; i++) {
          world.runOne();
          if (i % 2 === 0) await microtasks();
        }
        break;
      case 'stop':
        world.stop(asker.member);
        asker.stopped = true;
        break;
      case 'turn':
        await microtasks();
    }
  }
  for (const { member } of askers) {
    world.continue(member);
    world.hastenControl(member);
  }
  await world.settle();
  for (const { member, open, answers, expected } of askers) {
    for (const { at, id: wanted } of expected) {
      if (!open.has(at.slice(0, at.indexOf(':')))) continue;
      expect(answers.get(at) ?? [], `${at} has the answer to ${wanted}`).toContain(wanted);
    }
    for (const ids of answers.values()) expect(new Set(ids).size, 'once').toBe(ids.length);
    expect(member.inspect().faults).toBe(0);
  }
}

const RUNS = Number(process.env.MILLRACE_RUNS ?? 150);

test('every answer reaches whoever listened when it asked', { timeout: 60_000 + 100 * RUNS }, async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer(),
      fc.constantFrom(1, 2, 8),
      fc.array(step, { minLength: 5, maxLength: 50 }),
      play,
    ),
    {
      numRuns: RUNS,
      ...(process.env.MILLRACE_SEED ? { seed: Number(process.env.MILLRACE_SEED) } : {}),
    },
  );
});
