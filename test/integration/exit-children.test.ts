/** Programs that a member starts: they are not members, and they do not keep one alive that has died. */
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

const program = 'test/integration/programs/exit-children.mjs';

test.each(['spawn', 'fork'])(
  'a member that has started a child by %s is killed: it is dead at once, the child lives',
  async (how) => {
    const a = await Victim.start(place, 'a', { publish: false, progress: 100 });
    const parent = place.node(program, how);
    await a.progress();
    await parent.until('the child', () => parent.lines.length > 0);
    const child = Number(parent.lines[0]);
    parent.kill('SIGKILL');
    await a.told('left', 'parent');
    try {
      // Neither had ended by itself before.
      expect(await parent.finish()).toEqual({ code: null, signal: 'SIGKILL' });
      expect(parent.lines).toEqual([String(child)]);
      process.kill(child, 0); // it is there
      expect((await a.heard()).parent).toMatchObject({ gaps: 0, disorder: 0, left: 'died' });
      expect(await a.resources()).toMatchObject({ peers: 0 });
      await a.leave();
      expect(place.content).toEqual([]);
    } finally {
      process.kill(child, 'SIGKILL');
    }
  },
);

test('a forked program joins by itself', async () => {
  const a = await Victim.start(place, 'a', { publish: false, progress: 100 });
  const parent = place.node(program, 'member');
  await Promise.all([a.told('peer-joined', 'parent'), a.told('peer-joined', 'child')]);
  await a.told('left', 'child');
  expect((await a.heard()).child).toMatchObject({ count: 1000, gaps: 0, disorder: 0, left: 'left' });
  expect(a.of('left').filter(({ peer }) => peer === 'parent')).toEqual([]);
  // It is heard to leave before it has removed its files.
  await parent.until('the end of the child', () => parent.lines.at(-1) === 'ended');
  parent.kill('SIGKILL');
  await a.told('left', 'parent');
  await a.leave();
  expect(place.content).toEqual([]);
});
