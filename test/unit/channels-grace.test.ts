import { expect, test } from 'vitest';
import { GRACE_MS, Grace } from '../../src/channels/grace.js';

/** A message at `at`, dealt with at once. @returns turns that it then goes on polling if nothing comes, 10 us a turn */
function message(grace: Grace, at: number): number {
  grace.came(at);
  grace.done(at);
  let n = 0;
  while (grace.goesOn(at + n * 0.01)) n++;
  return n;
}

test('goes on polling for 100 us after the last activity', () => {
  expect(message(new Grace(), 5)).toBeGreaterThanOrEqual(9);
  expect(message(new Grace(), 5)).toBeLessThanOrEqual(11);
  expect(new Grace().goesOn(5)).toBe(false);
});

test('with messages far apart polling is left out altogether', () => {
  const grace = new Grace();
  const lengths = Array.from({ length: 100 }, (_, i) => message(grace, i * 10));
  expect(lengths.slice(0, 7).every((n) => n > 0)).toBe(true);
  expect(lengths.slice(8).every((n) => n === 0)).toBe(true);
});

test('one that comes soon brings it back, also to who slept', () => {
  const grace = new Grace();
  for (let i = 0; i < 100; i++) message(grace, i * 10);
  expect(message(grace, 2000)).toBe(0);
  expect(message(grace, 2000 + GRACE_MS)).toBeGreaterThan(8);
});

test('bursts keep it: a long gap now and then is no reason', () => {
  const grace = new Grace();
  for (let burst = 0; burst < 50; burst++) {
    for (let i = 0; i < 5; i++) expect(message(grace, burst * 10 + i * 0.05)).toBeGreaterThan(8);
  }
});

/** Other work has had the CPU until `at`: what is put up with is used up. */
const worn = (grace: Grace, at: number) => grace.disturbed(at, 64);

test('puts up with losing the CPU for a while, since its peer may be moved to another one', () => {
  const grace = new Grace();
  let lost = 0;
  for (let at = 0; ; at += 2) {
    grace.disturbed(at, 2);
    message(grace, at);
    if (message(grace, at + 0.1) === 0) break;
    lost += 2;
  }
  expect(lost).toBeGreaterThanOrEqual(64);
  expect(lost).toBeLessThan(80);
});

test.each([
  [2, 30],
  [30, 400],
])('losing %d ms every %d ms is put up with for ever', (lost, every) => {
  const grace = new Grace();
  for (let at = 0; at < 100_000; at += every) {
    grace.disturbed(at, lost);
    message(grace, at + 0.1);
    expect(message(grace, at + 0.2)).toBeGreaterThan(8);
  }
});

test('losing half of the time is not', () => {
  const grace = new Grace();
  let polled = 0;
  for (let at = 0; at < 10_000; at += 4) {
    if (message(grace, at) === 0) continue;
    polled++;
    grace.disturbed(at + 2, 2);
    message(grace, at + 2.1);
  }
  expect(polled).toBeLessThan(100);
});

test('rests when other work had the CPU meanwhile, longer each time, and forgets that', () => {
  const grace = new Grace();
  let at = 0;
  worn(grace, at);
  const rest = () => {
    grace.disturbed(at, 2);
    const from = at;
    for (;;) {
      at += 0.05;
      if (message(grace, at) > 0) return at - from;
    }
  };
  const rests = Array.from({ length: 9 }, rest);
  expect(rests[0]).toBeLessThan(11);
  for (let i = 1; i < 7; i++) expect(rests[i]! / rests[i - 1]!).toBeCloseTo(2, 1);
  expect(rests[8]).toBeLessThan(650);
  at += 5000;
  worn(grace, at);
  expect(rest()).toBeLessThan(11);
});

test('rests only for a moment where that happens now and then', () => {
  const grace = new Grace();
  worn(grace, 0);
  for (let at = 1; at < 10_000; at += 200) {
    grace.disturbed(at, 30);
    message(grace, at + 9);
    expect(message(grace, at + 9.1)).toBe(0);
    message(grace, at + 11);
    expect(message(grace, at + 11.1)).toBeGreaterThan(8);
  }
});
