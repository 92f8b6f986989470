/** The next turn of the event loop, without holding it. */
import { expect, test } from 'vitest';
import { Turn } from '../../src/turn.js';

test('unreferenced turns come one after the other, though nothing else happens in the loop', async () => {
  const seen: string[] = [];
  await new Promise<void>((resolve) => {
    // Holds the loop, and is all that would wake it.
    const late = setTimeout(() => {
      seen.push('late');
      resolve();
    }, 10_000);
    const next = (left: number): void => {
      if (left > 0) new Turn(() => next(left - 1)).unref();
      else {
        clearTimeout(late);
        resolve();
      }
    };
    next(10);
  });
  expect(seen).toEqual([]);
});

test('it runs once, referenced again or not, and not after it was cancelled', async () => {
  const ran: string[] = [];
  new Turn(() => ran.push('plain'));
  new Turn(() => ran.push('unref')).unref();
  new Turn(() => ran.push('ref')).unref().ref();
  new Turn(() => ran.push('cancelled')).unref().cancel();
  new Turn(() => ran.push('cancelled')).cancel();
  // What was cancelled would be due before this timer, and this immediate.
  await new Promise((resolve) => setTimeout(resolve, 20));
  await new Promise((resolve) => setImmediate(resolve));
  // One that is unreferenced overtakes when the loop is late.
  expect(ran.sort()).toEqual(['plain', 'ref', 'unref']);
});
