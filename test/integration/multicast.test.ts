/** Multicast channels between real processes on the software device: one send, whoever listens; what is lost is repaired. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { PubSub, whole } from '../support/pubsub-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

async function leaveAll(...members: PubSub[]): Promise<void> {
  for (const one of members) await one.leave();
  for (const one of members)
    expect([one.name, one.running.err, one.running.end]).toEqual([one.name, '', { code: 0, signal: null }]);
  expect(place.content).toEqual([]);
}

/** At a pace that leaves a slow machine's subscribers their time, and room for what they miss all the same. */
const multicast = { delivery: 'multicast', pace: 1024 * 1024, repairBytes: 16 * 1024 * 1024 };

/** A publisher and two subscribers, all of them ready. */
async function three(size: number, options: object = {}): Promise<PubSub[]> {
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
    await leaveAll(pub!, ...subs);
  });
});
