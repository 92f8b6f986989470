import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';

/** Which device a member is on, through the command, whose processes have an environment of their own. */

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

describe('a device that cannot be used is a typed error', () => {
  test.each([
    ['mlx5_77', /there is no RDMA device "mlx5_77"; there is: soft/],
    ['soft7', /there is no software device "soft7"; there is: soft0/],
  ])('%s', async (device, message) => {
    place.env.MILLRACE_DEVICE = device;
    const sub = place.millrace('sub', 'numbers', '--json');
    expect(await sub.finish()).toEqual({ code: 1, signal: null });
    const { error } = JSON.parse(sub.err.trim().split('\n').at(-1)!);
    expect(error).toMatchObject({ code: 'ERR_DEVICE', message: expect.stringMatching(message) });
    expect(error.remedy).toContain('millrace doctor');
    expect(place.content).toEqual([]);
  });
});

test("'auto' says what was missing where it takes the software device", async () => {
  place.env.MILLRACE_DEVICE = 'auto';
  const doctor = place.millrace('doctor', '--json');
  await doctor.finish();
  const { probe } = JSON.parse(doctor.out) as { probe: { devices: { provider: string; missing: string }[] } };
  const adapter = probe.devices.some(({ provider, missing }) => provider === 'system' && missing === '');
  const pub = place.shell('echo 1 | millrace pub numbers --wait-subscribers 0');
  expect(await pub.finish()).toMatchObject({ code: 0 });
  expect(pub.err.includes('The software device is used: ')).toBe(!adapter);
});

test('without XRC lanes are RC, and every line arrives once and in order', async () => {
  place.env.MILLRACE_SOFT_XRC = '0';
  const subs = [1, 2].map(() => place.millrace('sub', 'logs', '--count', '5000'));
  const pub = place.shell('seq 5000 | millrace pub logs --wait-subscribers 2 --timeout 60s');
  for (const sub of subs) {
    expect(await sub.finish()).toEqual({ code: 0, signal: null });
    expect(sub.lines).toEqual(Array.from({ length: 5000 }, (_, i) => String(i + 1)));
    expect(sub.err).toBe('');
  }
  expect(await pub.finish()).toMatchObject({ code: 0 });
  expect(place.content).toEqual([]);
});
