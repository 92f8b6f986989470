import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { leaveAll, PubSub } from '../support/pubsub-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

test('ls: nobody is 3', async () => {
  const ls = place.millrace('ls');
  expect(await ls.finish()).toMatchObject({ code: 3 });
  expect({ out: ls.out, err: ls.err }).toEqual({
    out: '',
    err: 'millrace: no members in the domain "test"\n',
  });
  const json = place.millrace('ls', '--json', '--all');
  expect(await json.finish()).toMatchObject({ code: 3 });
  expect(JSON.parse(json.out)).toMatchObject({ domains: [], otherLayouts: [], otherFabrics: [] });
});

test('ls shows members, channels, subscribers, codec and drops, and takes no part', async () => {
  const sub = place.millrace('sub', 'ticks.*', '--overflow', 'drop-oldest', '--name', 'reader');
  const pub = place.millrace('pub', 'ticks.eurusd', '--codec', 'json', '--name', 'writer');
  pub.write('1\n2\n');
  await sub.until('two', () => sub.lines.length === 2);
  const members = await place.until(
    'both see each other',
    (found) => found.length === 2 && found.every((one) => one.report?.peers.length === 1),
  );
  expect(members.map((member) => member.name).sort()).toEqual(['reader', 'writer']);
  const ls = place.millrace('ls');
  expect(await ls.finish()).toMatchObject({ code: 0 });
  const rows = ls.lines.map((line) => line.split(/\s{2,}/));
  expect(ls.lines[0]).toBe('domain test');
  expect(rows.find((row) => row[0] === 'writer')).toMatchObject({ 1: String(pub.pid), 4: '1', 6: 'up' });
  const flow = rows.find((row) => row[0] === 'ticks.eurusd')!;
  expect(flow.slice(0, 6)).toEqual(['ticks.eurusd', 'writer', 'json', '2', 'reader', 'drop-oldest']);
  // What was delivered is reported now and then; queued and dropped are the publisher's own numbers.
  expect(flow.slice(6)).toEqual([expect.stringMatching(/^[0-2]$/), '0', '0', expect.stringMatching(/^\d+$/)]);
  expect(rows.find((row) => row[0] === 'ticks.*')).toEqual(['ticks.*', 'reader', '-', '-', '-']);
  for (const line of ls.lines) expect(line).toBe(line.trimEnd());
  for (const one of [sub, pub]) {
    one.kill('SIGINT');
    await one.finish();
  }
  expect(place.content).toEqual([]);
});

test('ls: a member that is stopped is listed, and not waited for', async () => {
  const sub = place.millrace('sub', 'a', '--name', 'sleeper');
  // One that is about to join is there too, but is not asked.
  await place.until('it answers', (members) => members[0]?.answer === 'answered');
  sub.kill('SIGSTOP');
  const ls = place.millrace('ls', '--timeout', '300ms');
  expect(await ls.finish()).toMatchObject({ code: 0 });
  expect(ls.out).toMatch(/sleeper .*no answer/);
  sub.kill('SIGCONT');
  await place.until('it answers again', (members) => members[0]?.answer === 'answered');
  sub.kill('SIGINT');
  await sub.finish();
});

test('clean removes what a killed member left, twice if need be, and never the living', async () => {
  const living = place.millrace('sub', 'a', '--domain', 'other');
  const there = (members: readonly unknown[]) => members.length === 1;
  await place.until('it is there', there, '--domain', 'other');
  const killed = place.millrace('sub', 'a');
  await place.until('it is there', there);
  killed.kill('SIGKILL');
  await killed.finish();
  const left = place.content.filter((path) => path.includes('/test/'));
  expect(left.length).toBeGreaterThan(0);
  const ls = place.millrace('ls');
  expect(await ls.finish()).toMatchObject({ code: 3 });
  expect(ls.out).toMatch(/a dead member left files behind/);
  const clean = place.millrace('clean');
  expect(await clean.finish()).toMatchObject({ code: 0 });
  expect(clean.out).toMatch(/domain test: removed \d+ files \(.*\) of 1 dead member; 0 members live/);
  const again = place.millrace('clean', '--all', '--json');
  expect(await again.finish()).toMatchObject({ code: 0 });
  expect(JSON.parse(again.out)).toMatchObject({ domains: [{ domain: 'other', files: 0, living: 1 }] });
  living.kill('SIGTERM');
  expect(await living.finish()).toMatchObject({ code: 143 });
  expect(place.content).toEqual([]);
});

test('the next member to join removes what a killed one left', async () => {
  const killed = place.millrace('sub', 'a');
  await place.until('it is there', (members) => members.length === 1);
  killed.kill('SIGKILL');
  await killed.finish();
  expect(place.content).not.toEqual([]);
  const next = place.millrace('sub', 'a', '--timeout', '50ms');
  expect(await next.finish()).toMatchObject({ code: 3 });
  expect(place.content).toEqual([]);
});

test('another layout beside ours is named, by ls and by doctor', async () => {
  const sub = place.millrace('sub', 'a');
  await place.until('it is there', (members) => members.length === 1);
  // A stand-in for another version: the same files under another number, with locks that are held.
  const uid = process.getuid!();
  const kinds = ['millrace', 'millrace-soft'].map((kind) => join(place.folder, `${kind}.`));
  for (const kind of kinds) fs.symlinkSync(`${kind}1.${uid}`, `${kind}7.${uid}`);
  const ls = place.millrace('ls');
  expect(await ls.finish()).toMatchObject({ code: 0 });
  expect(ls.err).toMatch(/1 members? in .*millrace\.7.*layout 7/);
  expect(ls.err).toMatch(/processes in .*millrace-soft\.7.*layout 7; here it is 1\.\d/);
  const doctor = place.millrace('doctor');
  expect(await doctor.finish()).toMatchObject({ code: 0 });
  for (const kind of kinds) expect(doctor.out).toContain(`Processes in ${kind}7.${uid}`);
  for (const kind of kinds) fs.unlinkSync(`${kind}7.${uid}`);
  sub.kill('SIGINT');
  await sub.finish();
});

test('ls: a member of more channels than it can tell at once tells the oldest, and how many there are', async () => {
  const many = await PubSub.start(place, 'many');
  for (let n = 0; n < 8000; n++) many.tell('subscribe', { channel: `channel.${n}` });
  await many.ask('heard', 'heard');
  const ls = place.millrace('ls', '--json', '--timeout', '30s');
  expect(await ls.finish(), ls.err).toEqual({ code: 0, signal: null });
  const [{ report, answer }] = JSON.parse(ls.out).domains[0].members;
  expect(answer).toBe('answered');
  expect(report.channels.length).toBeGreaterThan(1000);
  expect(report.channels.length + report.omitted).toBe(8000);
  expect(report.channels[0].name).toBe('channel.0');
  const table = place.millrace('ls', '--timeout', '30s');
  await table.finish();
  expect(table.out).toContain(`many has ${report.omitted} more channels and patterns than it tells at once`);
  await leaveAll(place, many);
});
