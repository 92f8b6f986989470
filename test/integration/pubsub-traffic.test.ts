/** Real processes on the software device: nothing lost, nothing out of order, whatever the codec and the way of publishing. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { leaveAll, PubSub, whole } from '../support/pubsub-process.js';
import { OVER_RC, queuePairs } from '../support/queue-pairs.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

describe('one publisher, three subscribers, one of them by pattern', () => {
  test.each([
    ['msgpackr', 20],
    ['json', 200],
    ['bytes', 60],
    ['struct', 0],
    ['bytes', 16_000],
  ])('%s, payloads of %i bytes', async (codec, size) => {
    const count = size > 1000 ? 3000 : 50_000;
    const [pub, ...subs] = await Promise.all(
      ['pub', 'one', 'two', 'three'].map((name) => PubSub.start(place, name)),
    );
    subs[0]!.tell('subscribe', { channel: 'data.x', options: { codec }, size });
    subs[1]!.tell('subscribe', { channel: 'data.x', options: { codec }, size });
    subs[2]!.tell('subscribe', {
      pattern: 'data.*',
      options: codec === 'struct' ? { codec } : {},
      codec,
      size,
    });
    await pub!.ask('ready', 'ready', { channel: 'data.x', options: { codec }, subscribers: 3 });
    const { published, refused } = await pub!.publish({ channel: 'data.x', options: { codec }, count, size });
    expect(published).toBe(count);
    expect(await pub!.drain()).toMatchObject({ complete: true });
    for (const sub of subs)
      expect(await sub.heard()).toEqual({ 'data.x pub': { ...whole(count), left: null } });
    expect(refused).toBeGreaterThanOrEqual(0);
    await leaveAll(place, pub!, ...subs);
  });
});

test('a loop of next() that never yields', async () => {
  const [pub, sub] = [await PubSub.start(place, 'pub'), await PubSub.start(place, 'sub')];
  sub.tell('subscribe', { channel: 'x', options: { codec: 'struct' } });
  await pub.ask('ready', 'ready', { channel: 'x', options: { codec: 'struct' } });
  const { published, refused } = await pub.publish({
    channel: 'x',
    options: { codec: 'struct' },
    count: 300_000,
    how: 'next',
    pace: 0,
  });
  expect(published + refused).toBe(300_000);
  expect(published).toBeGreaterThan(60_000);
  await pub.drain();
  const heard = (await sub.heard())['x pub']!;
  expect(heard).toMatchObject({ count: published, missing: 0, disorder: 0 });
  await leaveAll(place, pub, sub);
});

test('publish() and its receipts', async () => {
  const [pub, ...subs] = await Promise.all(['pub', 'one', 'two'].map((name) => PubSub.start(place, name)));
  for (const sub of subs) sub.tell('subscribe', { channel: 'x' });
  await pub!.ask('ready', 'ready', { channel: 'x', subscribers: 2 });
  const registered = async () => (await pub!.ask('resources', 'resources')).mrs;
  const before = await registered();
  expect(await pub!.publish({ channel: 'x', count: 2000, how: 'publish' })).toMatchObject({
    published: 2000,
    received: 4000,
  });
  expect(await registered(), 'nothing is registered for a message').toBe(before);
  await pub!.drain();
  for (const sub of subs) expect(await sub.heard()).toMatchObject({ 'x pub': whole(2000) });
  await leaveAll(place, pub!, ...subs);
});

test('everybody to everybody: eight members with two queue pairs each', async () => {
  const names = Array.from({ length: 8 }, (_, i) => `m${i}`);
  const members = await Promise.all(names.map((name) => PubSub.start(place, name)));
  for (const one of members) one.tell('subscribe', { channel: 'all' });
  for (const one of members) await one.ask('ready', 'ready', { channel: 'all', subscribers: 7 });
  for (const one of members) one.tell('publish', { channel: 'all', count: 2000 });
  for (const one of members) await one.until('published', () => one.of('published').length === 1);
  for (const one of members) expect(await one.drain()).toMatchObject({ complete: true });
  for (const one of members) {
    const heard = await one.heard();
    expect(Object.keys(heard).sort()).toEqual(
      names.filter((name) => name !== one.name).map((name) => `all ${name}`),
    );
    for (const each of Object.values(heard)) expect(each).toMatchObject(whole(2000));
    expect(await one.ask('resources', 'resources')).toMatchObject({
      qps: queuePairs(7),
      srqs: 1,
      xrcds: OVER_RC ? 0 : 1,
      peers: 7,
    });
  }
  await leaveAll(place, ...members);
});

test('an own lane: two queue pairs more, and the same promises', async () => {
  const [pub, sub] = [await PubSub.start(place, 'pub'), await PubSub.start(place, 'sub')];
  sub.tell('subscribe', { channel: 'bulk' });
  sub.tell('subscribe', { channel: 'prompt' });
  await pub.ask('ready', 'ready', { channel: 'bulk' });
  await pub.ask('ready', 'ready', { channel: 'prompt', options: { lane: 'own' } });
  expect(await pub.ask('resources', 'resources')).toMatchObject({ qps: queuePairs(1, 2), lanes: 2 });
  pub.tell('publish', { channel: 'bulk', count: 5000, size: 2000 });
  pub.tell('publish', { channel: 'prompt', options: { lane: 'own' }, count: 5000 });
  await pub.until('both', () => pub.of('published').length === 2);
  expect(await pub.drain()).toMatchObject({ complete: true });
  const heard = await sub.heard();
  expect(heard['prompt pub']).toMatchObject(whole(5000));
  expect(heard['bulk pub']).toMatchObject({ count: 5000, missing: 0, disorder: 0 });
  await leaveAll(place, pub, sub);
});

test('replay for a member that comes later', async () => {
  const options = { replay: 50, replayBytes: 1_000_000 };
  const pub = await PubSub.start(place, 'pub');
  await pub.publish({ channel: 'x', options, count: 200 });
  const sub = await PubSub.start(place, 'sub');
  sub.tell('subscribe', { channel: 'x', options });
  await pub.ask('ready', 'ready', { channel: 'x', options });
  await pub.publish({ channel: 'x', options, count: 100 });
  await pub.drain();
  expect(await sub.heard()).toMatchObject({ 'x pub': whole(150, 151) });
  await leaveAll(place, pub, sub);
});

describe('a device that fails: the promises hold', () => {
  const faults = { error: 0.02, ambiguous: 0.02, delay: 0.1, rnr: 0.05, maxDelayPolls: 20 };
  test.each([1, 2, 3])('seed %i', async (seed) => {
    const [pub, ...subs] = await Promise.all(
      ['pub', 'one', 'two'].map((name, i) =>
        PubSub.start(place, name, { faults: { seed: seed * 10 + i, ...faults } }),
      ),
    );
    for (const sub of subs) sub.tell('subscribe', { channel: 'x', size: 500 });
    await pub!.ask('ready', 'ready', { channel: 'x', subscribers: 2 });
    await pub!.publish({ channel: 'x', count: 10_000, size: 500 });
    expect(await pub!.drain()).toMatchObject({ complete: true });
    for (const sub of subs) expect(await sub.heard()).toMatchObject({ 'x pub': whole(10_000) });
    expect(pub!.status('lane').map(({ event }) => event.state)).toContain('rearmed');
    await leaveAll(place, pub!, ...subs);
  });
});
