/**
 * Random scripts of joins, kills, stops and ends over members that all publish to each other. Whatever happens to one of
 * them, the others go on: in order, without a gap among themselves; they say who is gone, get everything back that they had
 * lent, and nothing is left when they have left.
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

const STEPS = 8;
const MEMBERS = 4;

test.each(seeds(2))('script %i', async (seed) => {
  const dice = new Dice(seed);
  let living: Victim[] = [];
  const dead: { name: string; how: string }[] = [];
  let names = 0;

  const spawn = async () => {
    const one = await Victim.start(place, `m${names++}`);
    // Everybody has heard of everybody before the script goes on.
    await Promise.all([one.progress(), ...living.map((other) => other.told('joined', one.name))]);
    living.push(one);
  };
  const gone = async (one: Victim, how: string) => {
    living = living.filter((other) => other !== one);
    dead.push({ name: one.name, how });
    await one.ends(how);
    await Promise.all(living.map((other) => other.told('left', one.name)));
  };

  living.push(
    ...(await Promise.all([Victim.start(place, `m${names++}`), Victim.start(place, `m${names++}`)])),
  );
  while (living.length < MEMBERS) await spawn();

  for (let step = 0; step < STEPS; step++) {
    const victim = dice.pick(living);
    const other = dice.pick(living.filter((one) => one !== victim));
    const how = dice.pick(['kill', 'outside', 'outside', 'stop', 'exit', 'throw', 'reject', 'leave']);
    if (how === 'outside') {
      // At no particular point of its program: when another one says that it has heard enough.
      await other.progress(1 + dice.below(3));
      victim.running.kill('SIGKILL');
      await gone(victim, how);
    } else if (how === 'stop') {
      victim.running.kill('SIGSTOP');
      await other.ask('heard', 'heard'); // a while
      victim.running.kill('SIGCONT');
      await victim.progress();
    } else {
      victim.tell('end', { how, after: 1 + dice.below(2000) });
      await gone(victim, how);
    }
    // The others go on.
    await Promise.all(living.map((one) => one.progress()));
    if (living.length < MEMBERS) await spawn();
  }

  const published = new Map<string, number>();
  for (const rests of await Promise.all(living.map(async (one) => ({ one, line: await one.rest() })))) {
    expect(rests.line).toMatchObject({ complete: true, undelivered: [] });
    published.set(rests.one.name, rests.line.published);
  }
  for (const one of living) {
    const heard = await one.heard();
    for (const [name, what] of Object.entries(heard)) {
      const end = dead.find((each) => each.name === name);
      // leave() without drain() waits for a short while only: a slow one may miss the last of it, and is told.
      const gaps = end?.how === 'leave' ? what.gaps : 0;
      expect(what, `${one.name} of ${name}`).toMatchObject({ gaps, resumed: 0, disorder: 0, broken: 0 });
      if (what.count > 0)
        expect(what, `${one.name} of ${name}`).toMatchObject({
          first: what.from,
          count: what.last - what.from + 1 - gaps,
        });
      if (end !== undefined)
        expect(what.left, `${one.name} of ${name}`).toBe(end.how === 'leave' ? 'left' : 'died');
      else expect(what.from + what.count - 1, `${one.name} of ${name}`).toBe(published.get(name));
    }
    expect(Object.keys(heard)).toEqual(
      expect.arrayContaining([...published.keys()].filter((name) => name !== one.name)),
    );
    // What was lent to the dead has come back.
    expect(await one.resources()).toMatchObject({
      qps: queuePairs(living.length - 1),
      srqs: 1,
      peers: living.length - 1,
      backlogBytes: 0,
      queuedBytes: 0,
    });
    expect(one.running.err).toBe('');
  }
  for (const one of living) await one.leave();
  expect(place.content).toEqual([]);
});
