/** A file of its own: every member of the process leaves. */
import { expect, test } from 'vitest';
import { leaveBeforeExit } from '../../src/channels/exit.js';
import { collect } from '../support/collect.js';
import { World } from '../support/world.js';

test('on beforeExit of the process unsent data is drained and the member left', async () => {
  const world = new World();
  const [a, b] = [await world.join(), await world.join()];
  const got = collect(b.channel('x'));
  await world.settle();
  a.channel('x').next(1);
  process.emit('beforeExit', 0);
  await world.settle();
  await world.settle();
  expect([...got]).toEqual([1]);
  expect(a.closed && b.closed).toBe(true);
  const listeners = process.listenerCount('beforeExit');
  const forget = leaveBeforeExit({ drain: async () => {}, leave: async () => {} });
  expect(process.listenerCount('beforeExit')).toBe(listeners + 1);
  forget();
  expect(process.listenerCount('beforeExit')).toBe(listeners);
});
