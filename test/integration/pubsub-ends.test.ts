/** How members end: by themselves, with an error, by a signal. The others go on, and nothing is left. */
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place, root } from '../support/cli-process.js';
import { leaveAll, PubSub, whole } from '../support/pubsub-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});
const program = (name: string) => join(root, 'test', 'integration', 'programs', name);

describe('a script that publishes and ends loses nothing (beforeExit)', () => {
  test.each([1, 100_000])('%i messages', async (count) => {
    const sub = await PubSub.start(place, 'sub');
    sub.tell('subscribe', { channel: 'x', options: { codec: 'json', windowBytes: 65_536 } });
    const once = place.node(program('pubsub-once.mjs'), String(count));
    expect(await once.finish()).toEqual({ code: 0, signal: null });
    expect(once.err).toBe('');
    await sub.until('publisher-left', () => sub.of('left').length === 1);
    expect(await sub.heard()).toEqual({ 'x once': { ...whole(count), left: 'left' } });
    await sub.leave();
    expect(place.content).toEqual([]);
  });

  test('nobody listens: it ends at once', async () => {
    const once = place.node(program('pubsub-once.mjs'), '1000', '0');
    expect(await once.finish()).toEqual({ code: 0, signal: null });
    expect(place.content).toEqual([]);
  });
});

describe('what holds the event loop', () => {
  test.each([
    ['nothing', ['up', 'end 0']],
    ['unref', ['up', 'end 0']],
    ['promise', ['up', 'ERR_TIMEOUT', 'end 0']],
    ['two', ['up', 'last 1000', 'end 0']],
    ['served', ['up', 'served', 'end 0']],
  ])('%s', async (how, lines) => {
    const one = place.node(program('pubsub-idle.mjs'), how);
    expect(await one.finish()).toEqual({ code: 0, signal: null });
    expect([one.err, one.lines]).toEqual(['', lines]);
    expect(place.content).toEqual([]);
  });

  test('a subscriber, until it unsubscribes', async () => {
    const one = place.node(program('pubsub-idle.mjs'), 'subscriber');
    await one.until('up', () => one.lines.includes('up'));
    const other = place.node(program('pubsub-idle.mjs'), 'nothing'); // takes its time, and a bit of ours
    await other.finish();
    expect(one.end).toBeUndefined();
    one.write('go\n');
    expect(await one.finish()).toEqual({ code: 0, signal: null });
    expect(place.content).toEqual([]);
  });
});

test('while nothing comes a subscriber takes about no CPU', async () => {
  const [pub, sub] = [await PubSub.start(place, 'pub'), await PubSub.start(place, 'sub')];
  sub.tell('subscribe', { channel: 'x' });
  await pub.ask('ready', 'ready', { channel: 'x' });
  await pub.publish({ channel: 'x', count: 10_000 });
  expect(await pub.drain()).toMatchObject({ complete: true });
  // CPU, not time: the load of the machine does not matter. Polling would take all of the second.
  for (const one of [pub, sub]) expect((await one.ask('cpu', 'cpu', { ms: 1000 })).ms).toBeLessThan(100);
  await leaveAll(place, pub, sub);
});

describe('process.exit(), an uncaught exception and a crash in the middle of traffic', () => {
  test.each([
    ['exit', { code: 7 }, { code: 7, signal: null }],
    ['throw', {}, { code: 1, signal: null }],
    ['crash', {}, { code: null, signal: 'SIGABRT' }],
  ])('%s', async (how, options, end) => {
    const [pub, victim, other] = await Promise.all(
      ['pub', 'victim', 'other'].map((name) => PubSub.start(place, name)),
    );
    for (const sub of [victim!, other!]) sub.tell('subscribe', { channel: 'x' });
    other!.tell('subscribe', { channel: 'y' });
    await pub!.ask('ready', 'ready', { channel: 'x', subscribers: 2 });
    await victim!.ask('ready', 'ready', { channel: 'y' });
    // Both without end, so that it is the middle whenever the victim comes to it.
    pub!.tell('publish', { channel: 'x', pace: 16 });
    victim!.tell('publish', { channel: 'y' });
    await Promise.all([victim!.hears('x pub'), other!.hears('y victim')]);
    victim!.tell(how, options);
    expect(await victim!.running.finish()).toEqual(end);
    await other!.hears('x pub');
    const published = await pub!.stop('x');
    expect(await pub!.drain()).toMatchObject({ complete: true });
    expect(await other!.heard()).toMatchObject({ 'x pub': whole(published) });
    await pub!.until(
      'victim gone',
      () => pub!.status('peer-lost').length + pub!.status('peer-left').length === 1,
    );
    for (const one of [pub!, other!]) await one.leave();
    expect(place.content).toEqual([]);
  });
});

describe('SIGKILL and its SIGSTOP twin', () => {
  test('a subscriber is killed: the publisher and the others go on undisturbed and say so', async () => {
    const [pub, victim, other] = await Promise.all(
      ['pub', 'victim', 'other'].map((name) => PubSub.start(place, name)),
    );
    for (const sub of [victim!, other!]) sub.tell('subscribe', { channel: 'x' });
    await pub!.ask('ready', 'ready', { channel: 'x', subscribers: 2 });
    pub!.tell('publish', { channel: 'x' });
    await victim!.hears('x pub');
    victim!.running.kill('SIGKILL');
    await pub!.until('peer-lost', () => pub!.status('peer-lost').length === 1);
    await other!.hears('x pub');
    const published = await pub!.stop('x');
    expect(await pub!.drain()).toMatchObject({ complete: true });
    expect(await other!.heard()).toMatchObject({ 'x pub': whole(published) });
    expect(pub!.status('subscriber-left')).toHaveLength(1);
    expect(await pub!.ask('resources', 'resources')).toMatchObject({
      peers: 1,
      backlogBytes: 0,
      queuedBytes: 0,
    });
    for (const one of [pub!, other!]) await one.leave();
    expect(place.content).toEqual([]);
  });

  test('a publisher is killed: what had arrived is delivered, then publisher-left, in order', async () => {
    const [victim, sub] = await Promise.all(['victim', 'sub'].map((name) => PubSub.start(place, name)));
    sub!.tell('subscribe', { channel: 'x' });
    await victim!.ask('ready', 'ready', { channel: 'x' });
    victim!.tell('publish', { channel: 'x' });
    await sub!.hears('x victim', 1000);
    victim!.running.kill('SIGKILL');
    await sub!.until('left', () => sub!.of('left').length === 1);
    const heard = (await sub!.heard())['x victim']!;
    expect(heard).toMatchObject({
      first: 1,
      last: heard.count,
      missing: 0,
      disorder: 0,
      broken: 0,
      left: 'died',
    });
    expect(sub!.of('left')[0]).toMatchObject({ reason: 'died', sequence: heard.last });
    await sub!.leave();
    expect(place.content).toEqual([]);
  });

  test('a `wait` subscriber is stopped and goes on: nothing is lost; a dropping one has gaps; the others are not held up', async () => {
    const [pub, waiting, dropping, other] = await Promise.all(
      ['pub', 'waiting', 'dropping', 'other'].map((name) => PubSub.start(place, name)),
    );
    const small = { windowBytes: 65_536 };
    const size = 100;
    waiting!.tell('subscribe', { channel: 'x', options: small, size });
    // On a channel of its own: on the other's it would miss nothing, as the publisher waits there.
    dropping!.tell('subscribe', { channel: 'z', options: { ...small, overflow: 'drop-oldest' }, size });
    other!.tell('subscribe', { channel: 'y' });
    const options = { maxQueueBytes: 65_536 };
    for (const channel of ['x', 'z']) await pub!.ask('ready', 'ready', { channel, options });
    await pub!.ask('ready', 'ready', { channel: 'y' });
    for (const one of [waiting!, dropping!]) one.running.kill('SIGSTOP');
    const count = 20_000;
    pub!.tell('publish', { channel: 'x', options, count, size });
    for (const rest of [{ channel: 'y' }, { channel: 'z', options, size }])
      expect(await pub!.publish({ ...rest, count })).toMatchObject({
        channel: rest.channel,
        published: count,
      });
    const { undelivered } = await pub!.drain(1000);
    expect(
      undelivered.map((one: { channel: string; reason: string }) => `${one.channel} ${one.reason}`).sort(),
    ).toEqual(['x timeout', 'z timeout']);
    expect(await other!.heard()).toMatchObject({ 'y pub': whole(20_000) });
    expect(pub!.of('published').filter((line) => line.channel === 'x')).toEqual([]);
    for (const one of [waiting!, dropping!]) one.running.kill('SIGCONT');
    await pub!.until('x published', () => pub!.of('published').some((line) => line.channel === 'x'));
    expect(await pub!.drain()).toMatchObject({ complete: true });
    expect(await waiting!.heard()).toMatchObject({ 'x pub': whole(count) });
    const dropped = (await dropping!.heard())['z pub']!;
    expect(dropped).toMatchObject({ last: count, disorder: 0, broken: 0 });
    expect(dropped.missing).toBeGreaterThan(0);
    expect(dropped.count + dropped.missing).toBe(count);
    expect(pub!.status('peer-lost')).toEqual([]);
    for (const one of [pub!, waiting!, dropping!, other!]) await one.leave();
    expect(place.content).toEqual([]);
  });
});

describe('workers are members: they join and end in loops', () => {
  test.each(['leave', 'exit', 'throw', 'terminate'])('%s', async (how) => {
    const one = place.node(program('pubsub-workers.mjs'), '3', '4', how);
    expect(await one.finish()).toEqual({ code: 0, signal: null });
    expect(one.err).toBe('');
    expect(one.lines).toHaveLength(4);
    expect(one.lines[3]).toMatch(/^round 3 publishers 12 disorder 0$/);
    expect(place.content).toEqual([]);
  });
});

describe('errors of the environment are typed', () => {
  const start = async (options: object) => {
    const one = place.node(program('pubsub-member.mjs'), 'x', JSON.stringify(options));
    const end = await one.finish();
    return { end, err: one.err };
  };

  test('an unknown device, an option out of range', async () => {
    const device = await start({ device: 'mlx5_77' });
    expect(device.end.code).toBe(1);
    expect(device.err).toMatch(/MillraceError.*mlx5_77/s);
    const option = await start({ slotBytes: 17 });
    expect(option.err).toMatch(/slotBytes must be from 4096/);
    expect(place.content).toEqual([]);
  });
});
