/** Multicast channels between real processes on the software device: one send, whoever listens; what is lost is repaired. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { leaveAll, PubSub, whole } from '../support/pubsub-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

/** At a pace that leaves a slow machine's subscribers their time, and room for what they miss all the same. */
const multicast = { delivery: 'multicast', pace: 1024 * 1024, repairBytes: 16 * 1024 * 1024 };

/** A publisher and two subscribers, all of them ready. */
async function three(size = 0, options: object = {}): Promise<PubSub[]> {
  const [pub, ...subs] = await Promise.all([
    PubSub.start(place, 'pub', options),
    PubSub.start(place, 'one'),
    PubSub.start(place, 'two'),
  ]);
  for (const sub of subs) sub.tell('subscribe', { channel: 'm', options: multicast, size });
  await pub!.ask('ready', 'ready', { channel: 'm', options: multicast, subscribers: 2 });
  return [pub!, ...subs];
}

describe('one publisher, two subscribers', () => {
  test.each([
    ['one datagram each', 20, 2000],
    ['several datagrams each', 9000, 100],
  ])('%s: sent once, heard by all', async (_name, size, count) => {
    const [pub, ...subs] = await three(size);
    await pub!.publish({ channel: 'm', options: multicast, count, size });
    expect(await pub!.drain()).toMatchObject({ complete: true });
    for (const sub of subs) expect(await sub.heard()).toEqual({ 'm pub': { ...whole(count), left: null } });
    const resources = await pub!.ask('resources', 'resources');
    expect(resources).toMatchObject({ groups: 1, groupSlots: 0, datagramsLost: 0 });
    // As many datagrams as it takes for one subscriber, and a few heartbeats.
    expect(Number(resources.datagramsSent)).toBeLessThan(size > 4096 ? count * 3 + 100 : count + 100);
    await leaveAll(place, pub!, ...subs);
  });
});

test('datagrams that get lost on the way are repaired', async () => {
  const [pub, ...subs] = await three(0, { faults: { seed: 11, drop: 0.1 } });
  // A turn for each, so that each is a datagram.
  await pub!.publish({ channel: 'm', options: multicast, count: 1500, pace: 1 });
  expect(await pub!.drain()).toMatchObject({ complete: true });
  for (const sub of subs) {
    expect(await sub.heard()).toMatchObject({ 'm pub': whole(1500) });
    const { requests, repaired, givenUp, held } = (await sub.ask('inspect', 'inspect')).channels[0].multicast;
    expect({ givenUp, held }).toEqual({ givenUp: 0, held: 0 });
    expect(requests).toBeGreaterThan(0);
    expect(repaired).toBeGreaterThan(10);
  }
  await leaveAll(place, pub!, ...subs);
});

describe('ends', () => {
  /** Without end. */
  const slowly = { channel: 'm', options: { ...multicast, pace: 20_000 }, pace: 1 };

  async function flowing(): Promise<PubSub[]> {
    const [pub, ...subs] = await Promise.all(['pub', 'one', 'two'].map((name) => PubSub.start(place, name)));
    for (const sub of subs) sub.tell('subscribe', { channel: 'm', options: slowly.options });
    await pub!.ask('ready', 'ready', { channel: 'm', options: slowly.options, subscribers: 2 });
    pub!.tell('publish', slowly);
    for (const sub of subs) await sub.hears('m pub', 20);
    return [pub!, ...subs];
  }

  test('a publisher is killed: in order to its last, and nothing is left of it', async () => {
    const [pub, ...subs] = await flowing();
    pub!.running.kill('SIGKILL');
    await pub!.running.finish();
    for (const sub of subs) {
      await sub.until('left', () => sub.of('left').length > 0);
      expect((await sub.heard())['m pub']).toMatchObject({
        disorder: 0,
        broken: 0,
        left: 'died',
      });
    }
    await leaveAll(place, ...subs);
  });

  test('a publisher is stopped: nobody takes it for dead, and it goes on', async () => {
    const [pub, ...subs] = await flowing();
    pub!.running.kill('SIGSTOP');
    for (const sub of subs)
      expect(await sub.ask('resources', 'resources')).toMatchObject({ groups: 1, peers: 2 });
    pub!.running.kill('SIGCONT');
    for (const sub of subs) {
      await sub.hears('m pub', 20);
      expect((await sub.heard())['m pub']).toMatchObject({ disorder: 0, broken: 0, missing: 0, left: null });
    }
    await leaveAll(place, pub!, ...subs);
  });

  test.each(['SIGKILL', 'SIGSTOP'] as const)(
    'a subscriber gets %s: the other one misses nothing',
    async (signal) => {
      const [pub, other, victim] = await flowing();
      victim!.running.kill(signal);
      await other!.hears('m pub', 100);
      if (signal === 'SIGSTOP') {
        victim!.running.kill('SIGCONT');
        await victim!.hears('m pub', 20);
        expect((await victim!.heard())['m pub']).toMatchObject({ disorder: 0, broken: 0, left: null });
        await victim!.leave();
      } else await victim!.running.finish();
      await pub!.until('left', () => pub!.status('subscriber-left').length > 0);
      await other!.hears('m pub', 20);
      expect((await other!.heard())['m pub']).toMatchObject({
        disorder: 0,
        broken: 0,
        missing: 0,
        left: null,
      });
      expect(await pub!.ask('resources', 'resources')).toMatchObject({ groups: 1, backlogBytes: 0 });
      await leaveAll(place, pub!, other!);
    },
  );
});
