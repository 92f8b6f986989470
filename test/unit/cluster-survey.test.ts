import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Cluster } from '../../src/cluster/cluster.js';
import { stagedName } from '../../src/cluster/paths.js';
import { Registration } from '../../src/cluster/registry.js';
import { cleanDomain, survey } from '../../src/cluster/survey.js';
import { Recorder } from '../support/cluster-events.js';
import { ClusterNative } from '../support/cluster-native.js';
import { Puppet } from '../support/cluster-puppet.js';

const native = new ClusterNative();
let base: string;
beforeEach(() => {
  base = fs.mkdtempSync(join(tmpdir(), 'millrace-survey-'));
});
afterEach(() => fs.rmSync(base, { recursive: true, force: true }));

const member = async (name: string, inspection: unknown) => {
  const events = new Recorder();
  events.inspection = inspection;
  const handleOptions = { device: 'soft', slotBytes: 16384, slots: 128, maxSlots: 1024, arenaBytes: 65536 };
  return Cluster.join({ domain: 'd', name, native: new ClusterNative(), handleOptions, events, base });
};

test('a domain that does not exist is empty', async () => {
  expect(await survey(native, base, 'd', 1000)).toMatchObject({ members: [], dead: [] });
  expect(cleanDomain(native, base, 'd')).toEqual({ members: 0, files: 0, bytes: 0, living: 0 });
});

test('each member says what it does, the silent are named, the dead are counted', async () => {
  const one = await member('one', { channels: [] });
  const silent = await Puppet.join(native, base, 'd');
  const odd = await Puppet.join(native, base, 'd');
  odd.arrival().then((strings) => strings.send({ type: 'inspected', error: 'not today' }));
  const rude = await Puppet.join(native, base, 'd');
  rude.arrival().then((strings) => strings.socket.end(Buffer.alloc(4)));
  const starting = Registration.stage(native, base, 'd', { pid: 3, name: 'young', started: 1 });
  const dead = await Puppet.join(native, base, 'd');
  dead.kill();
  const found = await survey(native, base, 'd', 200);
  expect(found.dead).toEqual([dead.incarnation]);
  const by = (incarnation: number) => found.members.find((found) => found.incarnation === incarnation);
  expect(by(one.incarnation)).toMatchObject({
    name: 'one',
    pid: process.pid,
    answer: 'answered',
    report: { channels: [] },
  });
  expect(by(silent.incarnation)).toMatchObject({ answer: 'silent', report: null, name: 'puppet' });
  expect(by(odd.incarnation)).toMatchObject({ answer: 'failed', reason: 'not today' });
  expect(by(rude.incarnation)).toMatchObject({ answer: 'failed', reason: /0 bytes/ });
  expect(by(starting.incarnation)).toMatchObject({ answer: 'starting', name: 'young' });
  expect(found.members).toHaveLength(5);
  // Nothing of this made the member think that somebody joined.
  expect(one.peers.size).toBe(0);
  expect(cleanDomain(native, base, 'd')).toMatchObject({ members: 1, living: 5 });
  expect(fs.existsSync(join(starting.folder, stagedName(starting.incarnation)))).toBe(true);
  for (const puppet of [silent, odd, rude, dead]) puppet.close();
  starting.remove();
  await one.leave();
  expect(fs.readdirSync(base)).toEqual([]);
});

test('cleaning removes the folder when nobody lives in it', async () => {
  const dead = await Puppet.join(native, base, 'd');
  dead.kill();
  expect(cleanDomain(native, base, 'd')).toMatchObject({ members: 1, living: 0 });
  expect(fs.readdirSync(base)).toEqual([]);
  dead.close();
});
