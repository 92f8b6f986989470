/** Loans and leases between two ports of one fabric: as between hosts, nothing is mapped, and payloads are read by RDMA READ. */
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Channel, JoinOptions, Lease, Member, StatusEvent } from '../../src/index.js';
import { Place, root } from '../support/cli-process.js';
import { collected, Domain, until } from '../support/lending.js';
import { MemberProcess } from '../support/member-process.js';

const MIB = 1 << 20;

let domain: Domain;
beforeEach(() => {
  domain = new Domain({ MILLRACE_SOFT_DEVICES: '2' });
});
afterEach(async () => {
  expect(await domain.end()).toEqual([]);
});

interface Apart {
  readonly pub: Member;
  readonly sub: Member;
  readonly out: Channel<Uint8Array>;
  readonly back: Channel<Uint8Array>;
  /** What status$ of the subscriber's channel said. */
  readonly told: StatusEvent[];
}

/** A publisher and a subscriber of bytes, on two ports. */
async function apart(
  publisher: JoinOptions = {},
  subscriber: JoinOptions = {},
  channel = {},
): Promise<Apart> {
  const pub = await domain.member('pub', { device: 'soft0', ...publisher });
  const sub = await domain.member('sub', { device: 'soft1', ...subscriber });
  const out = pub.channel('x', { codec: 'bytes' });
  const back = sub.channel('x', { codec: 'bytes', ...channel });
  const told: StatusEvent[] = [];
  back.status$.subscribe((event) => told.push(event));
  return { pub, sub, out, back, told };
}

const free = (member: Member): boolean => {
  const { blocksInUse, holds, leases } = member.resources();
  return blocksInUse === 0 && holds === 0 && leases === 0;
};

/** A payload whose bytes can be told from their neighbours. */
function payload(bytes: number, seed: number): Uint8Array {
  const words = new Uint32Array(bytes / 4);
  for (let i = 0; i < words.length; i++) words[i] = Math.imul(i + seed, 2_654_435_761);
  return new Uint8Array(words.buffer);
}
const same = (a: Uint8Array, b: Uint8Array): boolean => Buffer.compare(a, b) === 0;

/** Publishes a loan whose bytes are all `fill`. */
function send(out: Channel<Uint8Array>, bytes: number, fill: number) {
  const loan = out.loan(bytes);
  loan.bytes.fill(fill);
  return out.publish(loan);
}

describe('a large message for another port', () => {
  test('a loan and a plain payload of 4 MiB are read into blocks of the subscriber', async () => {
    const { pub, sub, out, back } = await apart();
    const leases: Lease[] = [];
    const values: Uint8Array[] = [];
    back.leases().subscribe((lease) => leases.push(lease));
    await out.ready();
    const loan = out.loan(4 * MIB);
    loan.bytes.set(payload(4 * MIB, 1));
    expect(await out.publish(loan)).toEqual({ sequence: 1, received: 1, dropped: 0 });
    await until(() => leases.length === 1);
    expect(same(leases[0]!.bytes, payload(4 * MIB, 1))).toBe(true);
    // The publisher was told: what the lease shows is a block of the subscriber's own, and nothing of another is mapped.
    await until(() => free(pub));
    expect(sub.resources()).toMatchObject({ blocksInUse: 1, leases: 1, leasedBytes: 4 * MIB });
    // The device's copy is the only one.
    expect(sub.resources()).toMatchObject({ copies: 1, copiedBytes: 4 * MIB });
    expect(pub.resources()).toMatchObject({ copies: 0, copiedBytes: 0 });
    leases[0]!.release();
    await until(() => free(sub));

    back.subscribe((value) => values.push(value));
    out.next(payload(4 * MIB, 2));
    await until(() => values.length === 1 && leases.length === 2);
    expect(same(values[0]!, payload(4 * MIB, 2))).toBe(true);
    expect(same(leases[1]!.bytes, payload(4 * MIB, 2))).toBe(true);
    await until(() => free(pub));
    leases[1]!.release();
    // drain() waits for what is being read.
    out.next(payload(4 * MIB, 3));
    await out.drain();
    expect([values.length, leases.length]).toEqual([2, 3]);
    leases[2]!.release();
  });

  test('what follows on the channel waits behind it, in order; another channel does not', async () => {
    const { pub, sub, out, back } = await apart();
    const seen: unknown[] = [];
    const other: number[] = [];
    back.messages$.subscribe((event) => {
      if (event.type === 'message') seen.push([event.sequence, event.headers.n, event.value.length]);
      else if (event.type === 'publisher-left') seen.push([event.type, event.reason, event.sequence]);
    });
    sub.channel<number>('y').subscribe((value) => {
      if (seen.length === 0) other.push(value);
    });
    const fast = pub.channel<number>('y');
    await Promise.all([out.ready(), fast.ready()]);
    const sizes = [32 * MIB, 10, 50_000, 20, 3 * MIB, 30];
    for (const [i, bytes] of sizes.entries()) {
      void out.publish(new Uint8Array(bytes), { headers: { n: `${i}` } });
      fast.next(i);
    }
    out.close();
    await until(() => seen.length === 7);
    expect(seen).toEqual([
      ...sizes.map((bytes, i) => [i + 1, `${i}`, bytes]),
      ['publisher-left', 'closed', 6],
    ]);
    expect(other).toEqual([0, 1, 2, 3, 4, 5]);
    seen.length = 0;
    await collected(() => free(sub) && free(pub));
  });

  test('subscribers on both ports, late ones, and fields of objects', async () => {
    const pub = await domain.member('pub', { device: 'soft0' });
    const out = pub.channel('objects', { replay: 2 });
    const value = (n: number) => ({ n, pixels: new Float32Array(30_000).fill(n), names: ['a', 'b'] });
    const members = await Promise.all(
      ['soft0', 'soft1', 'soft1'].map((device, i) => domain.member(`m${i}`, { device })),
    );
    const heard: unknown[][] = [];
    const hear = (member: Member, replay = 0) => {
      const values: unknown[] = [];
      heard.push(values);
      member.channel('objects', { replay }).subscribe((got) => values.push(got));
    };
    hear(members[0]!);
    hear(members[1]!);
    await out.ready({ subscribers: 2 });
    await out.publish(value(1));
    await out.publish(value(2));
    expect(pub.resources()).toMatchObject({ blocksInUse: 2, copies: 2 });
    hear(members[2]!, 2);
    await out.ready({ subscribers: 3 });
    await out.publish(value(3));
    await until(() => heard.every((values) => values.length === 3));
    for (const values of heard) expect(values).toEqual([value(1), value(2), value(3)]);
    for (const values of heard) values.length = 0;
    await collected(() => members.every(free));
  });

  test('over a faulty device: each once, in order, as it was', async () => {
    const faults = { seed: 5, error: 0.06, ambiguous: 0.06, delay: 0.1 };
    const { pub, sub, out, back } = await apart({ faults }, { faults });
    const lanes: string[] = [];
    for (const one of [pub, sub])
      one.status$.subscribe((event) => event.type === 'lane' && lanes.push(event.state));
    const seen: boolean[] = [];
    const size = (n: number) => 4 * (5000 + ((n * 123_457) % 600_000));
    back.leases().subscribe((lease) => {
      seen.push(
        lease.sequence === seen.length + 1 &&
          same(lease.bytes, payload(size(lease.sequence), lease.sequence)),
      );
      lease.release();
    });
    await out.ready();
    for (let n = 1; n <= 40; n++) await out.publish(payload(size(n), n));
    await until(() => seen.length === 40);
    expect(lanes, 'the device has failed').toContain('rearmed');
    expect(seen).toEqual(new Array(40).fill(true));
    await until(() => free(pub) && free(sub));
  });

  test('tells how far it is, every 64 MiB', async () => {
    const { out, back, told } = await apart();
    const lengths: number[] = [];
    back.leases().subscribe((lease) => lease.use((bytes) => lengths.push(bytes.length)));
    await out.ready();
    await out.publish(out.loan(65 * MIB));
    await until(() => lengths.length === 1);
    expect(lengths).toEqual([65 * MIB]);
    const progress = told.filter(({ type }) => type === 'payload-progress');
    expect(progress).toMatchObject([{ sequence: 1, bytes: 65 * MIB, done: 64 * MIB, channel: 'x' }]);
  });
});

describe('the pool of the subscriber', () => {
  test('a message that is larger than all of it is a gap, and says why', async () => {
    const { pub, out, back, told } = await apart({}, { poolBytes: MIB });
    const lengths: number[] = [];
    back.subscribe((bytes) => lengths.push(bytes.length));
    await out.ready();
    for (const bytes of [4 * MIB, 10, 500_000]) await out.publish(new Uint8Array(bytes));
    await until(() => lengths.length === 2);
    expect(lengths).toEqual([10, 500_000]);
    const [gap, failed] = told.filter(({ type }) => type === 'gap' || type === 'payload-failed');
    expect(gap).toMatchObject({ from: 1, to: 1, reason: 'too-large' });
    expect(failed).toMatchObject({ sequence: 1, bytes: 4 * MIB, error: { code: 'ERR_MESSAGE_TOO_LARGE' } });
    await until(() => free(pub));
  });

  test('full of leases: a publisher that waits is refused, and all comes in the end', async () => {
    const { pub, out, back } = await apart(
      { poolBytes: 3 * MIB, heldBytes: 3 * MIB },
      { poolBytes: 2 * MIB },
    );
    const leases: Lease[] = [];
    const seen: number[] = [];
    back.leases().subscribe((lease) => {
      seen.push(lease.bytes[0]!);
      leases.push(lease);
    });
    await out.ready();
    let sent = 0;
    const fill = () => {
      for (; sent < 12; sent++) {
        let loan: ReturnType<typeof out.loan>;
        try {
          loan = out.loan(MIB);
        } catch (error) {
          expect(error).toMatchObject({ code: 'ERR_POOL_FULL' });
          return;
        }
        loan.bytes.fill(sent);
        if (!out.offer(loan)) return loan.discard();
      }
    };
    fill();
    await until(() => leases.length > 0);
    expect(sent, 'it was refused').toBeLessThan(12);
    await until(() => {
      leases.shift()?.release();
      fill();
      return seen.length === 12;
    });
    expect(seen).toEqual(Array.from({ length: 12 }, (_, i) => i));
    for (const lease of leases) lease.release();
    await until(() => free(pub));
  });

  test('full of leases: of a subscriber that wants the latest, older ones are dropped, and a gap says so', async () => {
    const small = { poolBytes: 3 * MIB, heldBytes: 2 * MIB };
    const { pub, out, back, told } = await apart(small, { poolBytes: MIB }, { overflow: 'drop-oldest' });
    const leases: Lease[] = [];
    back.leases().subscribe((lease) => leases.push(lease));
    await out.ready();
    for (let i = 1; i <= 20; i++) out.next(new Uint8Array(MIB).fill(i));
    await until(() => leases.length === 1);
    // One by one: what is there, then what was on its way, then the newest.
    const seen: number[] = [];
    await until(() => {
      for (const lease of leases.splice(0)) seen.push(lease.use((bytes) => bytes[0]!));
      return seen.at(-1) === 20;
    });
    expect(seen.length).toBeLessThan(20);
    expect(seen).toEqual([...seen].sort((a, b) => a - b));
    const missing = told.flatMap((one) => (one.type === 'gap' ? [one.count] : []));
    expect(missing.reduce((sum, count) => sum + count, seen.length)).toBe(20);
    await until(() => free(pub));
  });

  test('values that are kept for ever move to private memory when it is short of blocks', async () => {
    const { pub, sub, out, back } = await apart({}, { poolBytes: 2 * MIB });
    const kept: Uint8Array[] = [];
    back.subscribe((bytes) => kept.push(bytes));
    await out.ready();
    for (let i = 0; i < 10; i++) await out.publish(new Uint8Array(MIB).fill(i));
    await until(() => kept.length === 10);
    expect(kept.map((bytes) => [bytes[0], bytes.at(-1)])).toEqual(kept.map((_, i) => [i, i]));
    expect(sub.resources().poolBytes).toBeLessThanOrEqual(2 * MIB);
    await until(() => free(pub));
  });
});

test('what was lent before anybody was elsewhere, and can not be registered, is a gap, and both say why', async () => {
  const faults = { seed: 1, lockLimit: 4 * MIB };
  const pub = await domain.member('pub', { device: 'soft0', faults });
  const out = pub.channel('x', { codec: 'bytes', replay: 2, replayBytes: 16 * MIB });
  const errors: string[] = [];
  pub.status$.subscribe((event) => event.type === 'fault' && errors.push(event.error.message));
  out.next(new Uint8Array(8 * MIB));
  const sub = await domain.member('sub', { device: 'soft1' });
  const back = sub.channel('x', { codec: 'bytes', replay: 2, replayBytes: 16 * MIB });
  const told: StatusEvent[] = [];
  const lengths: number[] = [];
  back.status$.subscribe((event) => told.push(event));
  back.subscribe((bytes) => lengths.push(bytes.length));
  await out.ready();
  await out.publish(new Uint8Array(MIB));
  await until(() => lengths.length === 1);
  expect(errors).toEqual([
    expect.stringMatching(/^Could not offer 8388608 bytes to sub: ibv_reg_mr failed: a file of the pool/),
  ]);
  expect(told).toContainEqual(
    expect.objectContaining({
      type: 'payload-failed',
      sequence: 1,
      error: expect.objectContaining({ code: 'ERR_NATIVE' }),
    }),
  );
});

describe('an end in the middle', () => {
  test('of the subscription: the publisher gets its block back, the subscriber its own', async () => {
    const { pub, sub, out, back } = await apart();
    const seen: number[] = [];
    const subscription = back.subscribe((bytes) => seen.push(bytes.length));
    await out.ready();
    for (let i = 0; i < 3; i++) await out.publish(out.loan(8 * MIB));
    subscription.unsubscribe();
    await until(() => free(pub) && free(sub));
    expect(seen.length).toBeLessThan(3);
    // The lane goes on.
    back.leases().subscribe((lease) => lease.use((bytes) => seen.push(bytes.length)));
    await out.ready();
    await send(out, MIB, 1);
    await until(() => seen.at(-1) === MIB);
    await until(() => free(pub) && free(sub));
  });

  test('of the subscriber, of the publisher: typed, and nothing is left', async () => {
    const { pub, sub, out, back } = await apart();
    back.leases().subscribe((lease) => lease.release());
    await out.ready();
    await out.publish(out.loan(32 * MIB));
    await sub.leave();
    await until(() => free(pub));

    const other = await domain.member('other', { device: 'soft1' });
    const told: StatusEvent[] = [];
    const lengths: number[] = [];
    const channel = other.channel('x', { codec: 'bytes' });
    channel.status$.subscribe((event) => told.push(event));
    channel.leases().subscribe((lease) => lease.use((bytes) => lengths.push(bytes.length)));
    await out.ready();
    // leave() gives what is being read a moment; what is not here by then is told of as a gap.
    await out.publish(out.loan(32 * MIB));
    await pub.leave();
    await until(() => told.some(({ type }) => type === 'gap') || lengths.length === 1);
    if (lengths.length === 0)
      expect(told).toContainEqual(
        expect.objectContaining({
          type: 'payload-failed',
          error: expect.objectContaining({ code: 'ERR_PEER_LOST' }),
        }),
      );
    await until(() => free(other));
  });
});

describe('processes that are killed and stopped in the middle', () => {
  const program = join(root, 'test', 'integration', 'programs', 'lending-member.mjs');
  const SETTLED = { broken: 0, holds: 0, leases: 0, blocksInUse: 0 };
  let place: Place;
  beforeEach(() => {
    place = new Place();
    place.env.MILLRACE_SOFT_DEVICES = '2';
  });
  afterEach(async () => {
    await place.dispose();
  });

  const start = (name: string, device: string, options = {}) =>
    new MemberProcess(place, program, name, { device, keeps: 0, poolBytes: 64 * MIB, ...options }).up();

  /** A publisher that streams, and a subscriber that reads; nearly always one is being read. */
  async function streaming() {
    const [pub, sub] = await Promise.all([start('pub', 'soft0'), start('sub', 'soft1')]);
    pub.tell('stream', { bytes: 8 * MIB });
    await heard(sub);
    return { pub, sub };
  }
  /** Waits until it has read three more. */
  async function heard(one: MemberProcess): Promise<void> {
    const { leases } = await one.ask('counts', 'counts');
    while ((await one.ask('counts', 'counts')).leases < leases + 3);
  }
  async function die(one: MemberProcess): Promise<void> {
    one.running.kill('SIGKILL');
    await one.running.finish();
  }
  /** Leaves when it has given back everything and got back everything. */
  async function end(one: MemberProcess): Promise<void> {
    expect(await one.ask('settle', 'settled')).toMatchObject(SETTLED);
    await one.leave();
  }
  async function nothingLeft(): Promise<void> {
    await place.millrace('clean').finish();
    expect(place.content).toEqual([]);
  }

  test('the publisher dies', async () => {
    const { pub, sub } = await streaming();
    await die(pub);
    await end(sub);
    for (const { code } of sub.of('failed')) expect(['ERR_PEER_LOST', 'ERR_NATIVE']).toContain(code);
    await nothingLeft();
  });

  test('the subscriber dies, and another one goes on', async () => {
    const { pub, sub } = await streaming();
    await die(sub);
    const other = await start('other', 'soft1');
    await heard(other);
    for (const one of [pub, other]) await end(one);
    await nothingLeft();
  });

  test('the subscriber is stopped, then both, and they go on', async () => {
    const { pub, sub } = await streaming();
    sub.running.kill('SIGSTOP');
    const { refused, full } = await pub.ask('counts', 'counts');
    for (let now = { refused, full }; now.refused + now.full === refused + full; )
      now = (await pub.ask('counts', 'counts')) as typeof now & { type: string };
    pub.running.kill('SIGSTOP');
    for (const one of [sub, pub]) one.running.kill('SIGCONT');
    await heard(sub);
    for (const one of [pub, sub]) await end(one);
    await nothingLeft();
  });

  test('a publisher that never yields gets its blocks back all the same', async () => {
    const { pub, sub } = await streaming();
    await pub.ask('settle', 'settled');
    const { leases } = await sub.ask('counts', 'counts');
    await pub.ask('burst', 'burst', { bytes: 8 * MIB, count: 20 });
    while ((await sub.ask('counts', 'counts')).leases < leases + 20);
    for (const one of [pub, sub]) await end(one);
    await nothingLeft();
  });

  test('a device that locks memory: what can not be registered is an error of loan(), with the limit', async () => {
    // Which of the two codes depends on whether this process has a limit, which is measured.
    const faults = { seed: 1, lockLimit: 4 * MIB };
    const pub = await start('pub', 'soft0', { faults });
    expect(await pub.ask('loan', 'loan', { bytes: 8 * MIB }), 'nobody is elsewhere').not.toHaveProperty(
      'code',
    );
    const sub = await start('sub', 'soft1', { faults });
    await pub.ask('peers', 'peers', { count: 1 });
    const refused = await pub.ask('loan', 'loan', { bytes: 16 * MIB });
    expect(['ERR_MEMLOCK', 'ERR_NATIVE']).toContain(refused.code);
    expect(refused.message).toMatch(/ibv_reg_mr failed: a file of the pool, 16777216 bytes/);
    if (refused.code === 'ERR_MEMLOCK') expect(refused.details.limit).toBeGreaterThan(0);
    expect(await pub.ask('loan', 'loan', { bytes: MIB }), 'smaller ones go on').not.toHaveProperty('code');
    for (const one of [pub, sub]) await end(one);
    await nothingLeft();
  });
});
