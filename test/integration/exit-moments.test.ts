/**
 * process.exit(), an uncaught exception, a rejection that nobody handles, and leave(), at random moments of traffic in both directions and
 * of joining. No crash: a process ends with its exit code and without a signal.
 */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { Dice, seeds, Victim } from '../support/kill-member.js';
import { queuePairs } from '../support/queue-pairs.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

test.each(seeds(1))('in the middle of traffic (seed %i)', async (seed) => {
  const dice = new Dice(seed);
  const [a, b] = await Promise.all(['a', 'b'].map((name) => Victim.start(place, name)));
  await Promise.all([a!.progress(), b!.progress()]);
  const leavers = new Set<string>();
  for (let round = 0; round < 12; round++) {
    const how = ['exit', 'throw', 'reject', 'leave'][round % 4]!;
    const victim = await Victim.start(place, `v${round}`);
    if (how === 'leave') leavers.add(victim.name);
    // It hears somebody, and both have heard of it: else there is nothing that they could say of its end.
    await Promise.all([victim.progress(), ...[a!, b!].map((one) => one.told('joined', victim.name))]);
    victim.tell('end', { how, after: 1 + dice.below(1000) });
    await victim.ends(how);
    await Promise.all([a!.told('left', victim.name), b!.told('left', victim.name)]);
    await Promise.all([a!.progress(), b!.progress()]);
  }
  const rests = await Promise.all([a!, b!].map((one) => one.rest()));
  for (const rest of rests) expect(rest).toMatchObject({ complete: true, undelivered: [] });
  for (const one of [a!, b!]) {
    for (const [name, what] of Object.entries(await one.heard())) {
      // leave() without drain() waits for a short while only: a slow one may miss the last of it, and is told.
      const gaps = leavers.has(name) ? what.gaps : 0;
      expect(what, `${one.name} of ${name}`).toMatchObject({ gaps, resumed: 0, disorder: 0, broken: 0 });
    }
    expect(await one.resources()).toMatchObject({
      ...{ qps: queuePairs(1), peers: 1 },
      ...{ backlogBytes: 0, queuedBytes: 0 },
    });
  }
  for (const one of [a!, b!]) await one.leave();
  expect(place.content).toEqual([]);
});

test('members that leave at the same moment leave nothing', async () => {
  for (let round = 0; round < 6; round++) {
    const all = await Promise.all([0, 1, 2, 3].map((i) => Victim.start(place, `r${round}m${i}`)));
    await Promise.all(all.map((one) => one.progress()));
    await Promise.all(all.map((one) => one.leave()));
    expect(place.content, `round ${round}`).toEqual([]);
  }
});

test.each(['terminate', 'exit'])('workers end while they join: %s', async (how) => {
  const one = place.node('test/integration/programs/exit-workers.mjs', how, '24');
  expect(await one.finish(), one.err).toEqual({ code: 0, signal: null });
  expect(one.err).toBe('');
  expect(one.lines.at(-1)).toBe('24 ended');
  expect(place.content).toEqual([]);
});
