import { expect, test } from 'vitest';
import { Grace } from '../../src/channels/grace.js';

/** Turns that a grace lasts when nothing comes, 10 us a turn. */
function turns(grace: Grace, from: number): number {
  grace.active(from);
  let n = 0;
  while (grace.goesOn(from + n * 0.01)) n++;
  return n;
}

test('goes on polling for 100 us after the last activity', () => {
  expect(turns(new Grace(), 5)).toBeGreaterThanOrEqual(10);
  expect(turns(new Grace(), 5)).toBeLessThanOrEqual(12);
});

test('polling that is in vain again and again is left out, but for a try now and then', () => {
  const grace = new Grace();
  const lengths = Array.from({ length: 8 + 64 }, (_, i) => turns(grace, i));
  expect(lengths.slice(0, 8).every((n) => n >= 10)).toBe(true);
  expect(lengths.slice(8).filter((n) => n > 0)).toHaveLength(2);
});

test('and comes back as soon as it pays off', () => {
  const grace = new Grace();
  for (let i = 0; i < 20; i++) turns(grace, i);
  let at = 100;
  // Something comes while it polls, in one of its tries.
  for (;;) {
    grace.active(at);
    if (grace.goesOn(at)) break;
    at++;
  }
  expect(turns(grace, at + 0.05)).toBeGreaterThanOrEqual(10);
  expect(turns(grace, at + 1)).toBeGreaterThanOrEqual(10);
});
