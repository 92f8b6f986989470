/** What the environment lacks is said with its code, the measured limit and a remedy; the process lives on, and nothing is left. */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { Victim } from '../support/kill-member.js';
import { leaveAll, PubSub, whole } from '../support/pubsub-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

const root = process.geteuid?.() === 0;
const tries = 'test/integration/programs/exit-tries.mjs';

/** Runs a program that joins and says what became of it, in which place there may be too little of something. */
async function outcome(shell = '', env: NodeJS.ProcessEnv = {}) {
  Object.assign(place.env, env);
  const one = place.shell(`${shell} exec ${process.execPath} ${tries}`);
  expect(await one.finish(), one.err).toEqual({ code: 0, signal: null });
  return JSON.parse(one.lines.at(-1)!) as {
    joined: boolean;
    code: string;
    scope: string;
    message: string;
    alive: boolean;
  };
}

/** Mounts a filesystem of this size at the place for as long as the test runs. */
async function withSize(size: string, context: { skip: (why: string) => void }, run: () => Promise<void>) {
  const mount = place.shell(`mount -t tmpfs -o size=${size} tmpfs ${place.folder}`);
  if ((await mount.finish()).code !== 0) context.skip('this user may not mount');
  try {
    await run();
  } finally {
    await place.shell(`umount ${place.folder}`).finish();
  }
}

test.for(['64k', '256k', '1m', '2m', '3m'])('shared memory of %s', async (size, context) => {
  await withSize(size, context, async () => {
    const what = await outcome();
    expect(what).toMatchObject({ joined: false, code: 'ERR_SHM_FULL', alive: true });
    expect(what.message).toMatch(/free/);
    expect(what.message).toMatch(/--shm-size/);
    expect(place.content).toEqual([]);
  });
});

test.for([3, 6])('a filesystem with bytes, and room for %i files', async (files, context) => {
  await withSize(`64m,nr_inodes=${files}`, context, async () => {
    const what = await outcome();
    expect(what).toMatchObject({ joined: false, code: 'ERR_SHM_FULL', alive: true });
    expect(what.message).toContain(`has room for ${files} files, and none is left`);
    expect(place.content).toEqual([]);
  });
});

test.each([
  ['MILLRACE_SOFT_DEVICES', 'many', /"many" must be a number from 1 to 8/],
  ['MILLRACE_SOFT_LINK', 'token-ring', /"token-ring" must be `infiniband` or `ethernet`/],
  ['MILLRACE_FABRIC', '../x', /"..\/x" must be a file name of at most 64 bytes/],
  ['MILLRACE_GID_INDEX', '99', /is "99", and the port has: 0/],
])('%s=%s', async (name, value, message) => {
  const what = await outcome('', { [name]: value });
  expect(what).toMatchObject({ joined: false, code: 'ERR_DEVICE', alive: true });
  expect(what.message).toMatch(new RegExp(`${name}.*${message.source}`));
  expect(place.content).toEqual([]);
});

test('whatever lies in the registry folder under a name of ours is not waited for', async () => {
  const domain = join(place.folder, `millrace.1.${process.geteuid!()}`, 'default');
  fs.mkdirSync(domain, { recursive: true, mode: 0o700 });
  const fifo = (name: string) => place.shell(`mkfifo ${join(domain, name)}`).finish();
  await Promise.all(['m-5.lock', 't-6.lock', 'm-7.sock', 'b-8.0', 'b-8.1', 'i-9.0'].map(fifo));
  const ls = place.millrace('ls', '--domain', 'default');
  expect(await ls.finish(), ls.err).toMatchObject({ code: 3 });
  expect(await outcome('', { MILLRACE_DOMAIN: 'default' })).toMatchObject({ joined: true });
  expect(place.content).toEqual([]);
});

test('a folder that is removed under members: they go on with each other, and an end of one is none of another', async () => {
  const [a, b] = [await PubSub.start(place, 'a'), await PubSub.start(place, 'b')];
  a.tell('subscribe', { channel: 'x' });
  await b.ask('ready', 'ready', { channel: 'x', subscribers: 1 });
  await b.publish({ channel: 'x', count: 10 });
  // What is used for the first time later on cannot be found any more.
  expect(await b.drain()).toMatchObject({ complete: true });
  for (const name of fs.readdirSync(place.folder)) fs.rmSync(join(place.folder, name), { recursive: true });
  await b.publish({ channel: 'x', count: 1000 });
  expect(await b.drain()).toMatchObject({ complete: true });
  await b.leave();
  await a.until('b has left', () => a.of('left').length === 1);
  expect(await a.heard()).toEqual({ 'x b': { ...whole(1010), left: 'left' } });
  await leaveAll(place, a);
});

test('shared memory that others have filled: they go on, and whoever does not fit leaves nothing', async (context) => {
  // The device's tables take 5 MiB once, each member some 3 MiB more.
  await withSize('18m', context, async () => {
    const [a, b] = await Promise.all(['a', 'b'].map((name) => Victim.start(place, name)));
    await Promise.all([a!.progress(), b!.progress()]);
    const { bavail, bsize } = fs.statfsSync(place.folder);
    fs.writeFileSync(join(place.folder, 'ballast'), Buffer.alloc(bavail * bsize));
    const before = place.content.sort();
    expect(await outcome()).toMatchObject({ joined: false, code: 'ERR_SHM_FULL', alive: true });
    expect(place.content.sort()).toEqual(before);
    await Promise.all([a!.progress(), b!.progress()]);
    fs.rmSync(join(place.folder, 'ballast'));
    expect(await outcome()).toMatchObject({ joined: true });
    for (const one of [a!, b!]) expect(await one.rest()).toMatchObject({ complete: true });
    for (const one of [a!, b!]) await one.leave();
    expect(place.content).toEqual([]);
  });
});

test('a memlock limit of 64 KiB: the software device locks nothing', async () => {
  expect(await outcome('ulimit -l 64;')).toMatchObject({ joined: true });
  expect(place.content).toEqual([]);
});

test.runIf(root)('the fabric of another user', async () => {
  const theirs = join(place.folder, `millrace-soft.1.${process.getuid!()}`);
  fs.mkdirSync(theirs, { mode: 0o700 });
  fs.chownSync(theirs, 65_534, 65_534);
  const what = await outcome();
  expect(what).toMatchObject({ joined: false, code: 'ERR_FOLDER_OWNER', alive: true });
  expect(what.message).toMatch(/belongs to user 65534.*MILLRACE_SHM_DIR/);
  expect(place.content).toEqual([theirs.slice(place.folder.length + 1)]);
});

test('a fabric that others may enter', async () => {
  const ours = join(place.folder, `millrace-soft.1.${process.getuid!()}`);
  fs.mkdirSync(ours);
  fs.chmodSync(ours, 0o755);
  const what = await outcome();
  expect(what).toMatchObject({ joined: false, code: 'ERR_FOLDER_OWNER', alive: true });
  expect(what.message).toMatch(/has mode 755 and must be 700/);
});

test('a fabric folder that is a link', async () => {
  const ours = join(place.folder, `millrace-soft.1.${process.getuid!()}`);
  fs.symlinkSync(place.folder, ours);
  expect(await outcome()).toMatchObject({ joined: false, code: 'ERR_FOLDER_ACCESS', alive: true });
});

test('a fabric of another layout', async () => {
  const one = await Victim.start(place, 'one', { publish: false });
  const file = join(place.folder, `millrace-soft.1.${process.getuid!()}`, 'test', 'root');
  const fd = fs.openSync(file, 'r+');
  fs.writeSync(fd, Buffer.from([9, 0, 0, 0]), 0, 4, 8); // the layout's major number
  const what = await outcome();
  expect(what).toMatchObject({ joined: false, code: 'ERR_LAYOUT_VERSION', alive: true });
  expect(what.message).toMatch(/layout 9\.\d+ .*this build has 1\.\d+ .*processes use it.*MILLRACE_FABRIC/);
  const clean = place.millrace('clean');
  expect(await clean.finish()).toMatchObject({ code: 1 });
  expect(clean.err).toMatch(/^millrace: .*layout 9\.\d+ .*\(ERR_LAYOUT_VERSION\)$/m);
  fs.writeSync(fd, Buffer.from([1, 0, 0, 0]), 0, 4, 8);
  expect(await outcome()).toMatchObject({ joined: true });
  fs.writeSync(fd, Buffer.from([9, 0, 0, 0]), 0, 4, 8);
  fs.closeSync(fd);
  one.running.kill('SIGKILL');
  await one.running.finish();
  expect(await outcome(), 'nobody uses it any more').toMatchObject({ joined: true });
  expect(place.content).toEqual([]);
});
