import { expect, test } from 'vitest';
import { collect } from '../support/collect.js';
import { World } from '../support/world.js';

test('a tunnel message wakes a member that sleeps: what the transport answers is an event of the next poll', async () => {
  const world = new World();
  const [a, b] = [await world.join(), await world.join()];
  collect(b.channel('x'));
  await world.settle();
  const handle = world.fabric.handleOf(b.incarnation);
  expect(handle.sleeping).toBe(true);
  const polls = handle.counters[13]!;
  world.tunnelTo(b, new Uint8Array([1]));
  await world.settle();
  expect(handle.counters[13]!).toBeGreaterThan(polls);
  expect(a.closed).toBe(false);
});
