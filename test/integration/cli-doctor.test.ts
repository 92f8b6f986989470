import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { OVER_RC } from '../support/queue-pairs.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

test('it shows the software device, memory and limits, and leaves nothing behind', async () => {
  const doctor = place.millrace('doctor');
  expect(await doctor.finish()).toEqual({ code: 0, signal: null });
  expect(doctor.err).toBe('');
  expect(doctor.out).toMatch(/^soft0 {2}software device, the one in use: usable$/m);
  expect(doctor.out).toMatch(
    OVER_RC ? /^ {2}lanes {7}RC, one to a member$/m : /^ {2}lanes {7}XRC, one to a host$/m,
  );
  expect(doctor.out).toMatch(/^ {2}port 1 {6}active, InfiniBand, MTU \d+, LID 1, GID 0 fe80::/m);
  expect(doctor.out).toMatch(new RegExp(`^shared memory ${place.folder}, .* free$`, 'm'));
  expect(doctor.out).toMatch(/^memlock +\S/m);
  expect(doctor.out).toMatch(/Members can join\.\n$/);
  expect(place.content).toEqual([]);
});

test('the same as JSON', async () => {
  place.env.MILLRACE_SOFT_LINK = 'ethernet';
  const doctor = place.millrace('doctor', '--json');
  expect(await doctor.finish()).toEqual({ code: 0, signal: null });
  const found = JSON.parse(doctor.out);
  const [soft] = found.probe.devices;
  expect(soft).toMatchObject({
    name: 'soft0',
    provider: 'soft',
    missing: '',
    opened: true,
    lanes: OVER_RC ? 'rc' : 'xrc',
    can: { rc: true, xrc: !OVER_RC, basicSrq: true },
    ports: [{ number: 1, active: true, link: 'ethernet', lid: 0 }],
  });
  // The rule of choice: the IPv4-mapped GID of RoCE v2, whatever its index.
  const [{ gid, gids }] = soft.ports;
  expect(gids.find(({ index }: { index: number }) => index === gid)).toMatchObject({ kind: 'RoCE v2, IPv4' });
  expect(found.memory).toMatchObject({ folder: place.folder, problem: null });
  expect(found.findings.filter(({ level }: { level: string }) => level === 'problem')).toEqual([]);
});

test('what keeps members from joining is said, with the exit code', async () => {
  place.env.MILLRACE_DEVICE = 'mlx5_77';
  const doctor = place.millrace('doctor');
  expect(await doctor.finish()).toEqual({ code: 1, signal: null });
  expect(doctor.out).toMatch(/^problem {2}MILLRACE_DEVICE is "mlx5_77", and there is no such device/m);
  expect(doctor.out).toMatch(/1 to be solved\.\n$/);
});

test('a folder that is not there is named, and the device with it', async () => {
  const folder = join(place.folder, 'nowhere');
  place.env.MILLRACE_SHM_DIR = folder;
  const doctor = place.millrace('doctor', '--json');
  expect(await doctor.finish()).toEqual({ code: 1, signal: null });
  const { findings } = JSON.parse(doctor.out) as { findings: { about: string; text: string }[] };
  expect(findings.find(({ about }) => about === 'memory')?.text).toContain(folder);
  expect(findings.find(({ about }) => about === 'device')?.text).toContain('soft0');
});
