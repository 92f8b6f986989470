/** The SIGSTOP twins of the kills: whoever is stopped is not dead. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { Victim } from '../support/kill-member.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

/** How long a member is stopped: longer than any grace that something might give before it takes it for dead. */
const STOP_MS = 10_000;

test('a publisher is stopped for 10 s in the middle of its traffic: the others exchange all the while, nobody takes it for dead', async () => {
  const [a, b, stopped] = await Promise.all(['a', 'b', 'stopped'].map((name) => Victim.start(place, name)));
  await Promise.all([a!.told('peer-joined', 'stopped'), b!.told('peer-joined', 'stopped')]);
  for (const one of [a!, b!, stopped!]) await one.progress();
  stopped!.running.kill('SIGSTOP');
  const until = Date.now() + STOP_MS;
  let rounds = 0;
  while (Date.now() < until) {
    await a!.heard();
    await b!.heard();
    rounds++;
    // Paced, so that asking does not keep the processors from what is tested. Nothing below depends on its length.
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  expect(rounds).toBeGreaterThan(3);
  for (const one of [a!, b!]) {
    expect(one.of('peer-lost')).toEqual([]);
    expect(one.of('left')).toEqual([]);
    expect(await one.resources()).toMatchObject({ peers: 2 });
  }
  stopped!.running.kill('SIGCONT');
  await stopped!.progress();
  await Promise.all([a!.progress(), b!.progress()]);
  const rests = await Promise.all([a!, b!, stopped!].map((one) => one.rest()));
  for (const rest of rests) expect(rest).toMatchObject({ complete: true, undelivered: [] });
  const published = Object.fromEntries(['a', 'b', 'stopped'].map((name, i) => [name, rests[i]!.published]));
  for (const one of [a!, b!, stopped!]) {
    for (const [name, what] of Object.entries(await one.heard())) {
      expect(what, `${one.name} of ${name}`).toMatchObject({ gaps: 0, disorder: 0, broken: 0, left: null });
      expect(what.from + what.count - 1, `${one.name} of ${name}`).toBe(published[name]);
    }
  }
  for (const one of [a!, b!, stopped!]) await one.leave();
  expect(place.content).toEqual([]);
});

test('a member is killed while it is stopped: it is dead at once', async () => {
  const [a, b] = await Promise.all(['a', 'b'].map((name) => Victim.start(place, name)));
  await Promise.all([a!.progress(), b!.progress()]);
  b!.running.kill('SIGSTOP');
  await a!.heard();
  b!.running.kill('SIGKILL');
  await a!.told('left', 'b');
  expect(await a!.rest()).toMatchObject({ complete: true });
  expect(await a!.resources()).toMatchObject({ peers: 0, backlogBytes: 0, queuedBytes: 0 });
  await a!.leave();
  expect(place.content).toEqual([]);
});

test('credits and slots of killed publishers come back: 25 of them leave no trace in the inbox', async () => {
  const hub = await Victim.start(place, 'hub', { publish: false, progress: 200 });
  const resources: { slots: number; inboxBytes: number; qps: number; mrs: number }[] = [];
  for (let round = 0; round < 25; round++) {
    const victim = new Victim(place, `v${round}`, { burst: 64 });
    await hub.progress();
    victim.running.kill('SIGKILL');
    await hub.told('left', victim.name);
    await victim.running.finish();
    const { slots, inboxBytes, qps, mrs, peers } = await hub.resources();
    expect(peers).toBe(0);
    resources.push({ slots, inboxBytes, qps, mrs });
  }
  expect(resources.at(-1)).toEqual(resources[0]);
  for (const what of Object.values(await hub.heard()))
    expect(what).toMatchObject({ gaps: 0, disorder: 0, broken: 0, left: 'died' });
  await hub.leave();
  expect(place.content).toEqual([]);
});
