/** Shared regions between processes and users: the same pages, the kernel's rights, and names that live as long as a hold. */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { root as folder, Place } from '../support/cli-process.js';
import { Domain, until } from '../support/lending.js';
import { type Line, MemberProcess } from '../support/member-process.js';

const MIB = 2 ** 20;
const program = join(folder, 'test', 'integration', 'programs', 'region-member.mjs');
const root = process.geteuid?.() === 0;
/** Users and groups that need not exist. */
const [NOBODY, SOMEBODY, TEAM] = [65_534, 54_321, 54_322];

let place: Place;
beforeEach(() => {
  place = new Place();
  fs.chmodSync(place.folder, 0o1777); // as /dev/shm is
});
afterEach(async () => {
  await place.dispose();
});

class Sharer extends MemberProcess {
  static start(name: string, options: object = {}): Promise<Sharer> {
    return new Sharer(place, program, name, options).up();
  }
  make(as: string, options: object): Promise<Line> {
    return this.ask('make', 'make', { as, options });
  }
  open(as: string, handle: string, rest: object = {}): Promise<Line> {
    return this.ask('open', 'open', { as, handle, ...rest });
  }
  fill(as: string, value: number, from: number, to: number): Promise<Line> {
    return this.ask('fill', 'fill', { as, value, from, to });
  }
  async count(as: string, value: number, from: number, to: number): Promise<number> {
    return (await this.ask('count', 'count', { as, value, from, to })).count;
  }
  close(as: string): Promise<Line> {
    return this.ask('close', 'close', { as });
  }
  async die(): Promise<void> {
    this.running.kill('SIGKILL');
    await this.running.finish();
  }
}

/** What is left of regions in shared memory. */
const left = (): string[] => place.content.filter((name) => name.startsWith('millrace-regions')).sort();

test('what one process writes another one reads, in both directions', async () => {
  const [a, b] = [await Sharer.start('a'), await Sharer.start('b')];
  const made = await a.make('r', { bytes: 3 * MIB + 5 });
  expect(made).toMatchObject({ ok: true, bytes: 3 * MIB + 5 });
  expect(await b.open('r', made.handle, { access: 'write' })).toMatchObject({ ok: true, bytes: 3 * MIB + 5 });
  await a.fill('r', 0x7b, 1000, 2 * MIB);
  expect(await b.count('r', 0x7b, 0, 3 * MIB + 5)).toBe(2 * MIB - 1000);
  await b.fill('r', 0x7c, 3 * MIB, 3 * MIB + 5);
  expect(await a.count('r', 0x7c, 0, 3 * MIB + 5)).toBe(5);
  // As often as one likes, also twice in one process.
  expect(await b.open('again', made.handle)).toMatchObject({ ok: true });
  expect(await b.count('again', 0x7c, 0, 3 * MIB + 5)).toBe(5);
  expect(await b.close('again')).toMatchObject({ left: 0 });
  for (const one of [a, b]) await one.leave();
  expect(place.content).toEqual([]);
});

test('ten sharers use the memory of one', async () => {
  const bytes = 8 * MIB;
  const maker = await Sharer.start('maker');
  const { handle } = await maker.make('r', { bytes });
  await maker.fill('r', 1, 0, bytes);
  const others = await Promise.all(Array.from({ length: 9 }, (_, i) => Sharer.start(`s${i}`)));
  for (const one of others) {
    await one.open('r', handle);
    expect(await one.count('r', 1, 0, bytes)).toBe(bytes);
  }
  let pss = 0;
  for (const one of [maker, ...others]) {
    const memory = await one.ask('memory', 'memory', { as: 'r' });
    expect(memory.rss).toBe(bytes / 1024);
    pss += memory.pss;
  }
  // Each is charged its share, rounded down.
  expect(pss).toBeLessThanOrEqual(bytes / 1024);
  expect(pss).toBeGreaterThan(bytes / 1024 - 10);
  for (const one of [maker, ...others]) await one.leave();
  expect(place.content).toEqual([]);
});

test('what cannot be opened, shared, shown or used says why', async () => {
  const b = await Sharer.start('b');
  place.env.MILLRACE_EXTERNAL_BUFFERS = '0';
  const a = await Sharer.start('a');
  await b.ask('peers', 'peers', { count: 1 });
  const { handle } = await a.make('r', { bytes: MIB });
  for (const text of ['', 'x', '../../etc/passwd', `${handle}0`.replace('r1', 'r9'), 'r1-x-1', `${handle}\0`])
    expect(await b.open('x', text), text).toMatchObject({ code: 'ERR_REGION_HANDLE' });
  expect(await b.open('r', handle)).toMatchObject({ ok: true });
  expect(await b.open('x', handle, { access: { other: 'read' } })).toMatchObject({
    code: 'ERR_REGION_RESHARE',
  });
  expect(await b.open('x', handle, { access: null })).toMatchObject({ code: 'ERR_INVALID_OPTION' });
  expect(await b.ask('handle', 'handle', { as: 'r' })).toMatchObject({ code: 'ERR_REGION_RESHARE' });
  expect(await a.ask('look', 'look', { as: 'r' })).toMatchObject({ code: 'ERR_REGION_BUFFER' });
  const { offer } = await a.ask('offer', 'offer', { as: 'r' });
  const fetch = (rest: object) => b.ask('fetch', 'fetch', { as: 'r', offer, ...rest });
  expect(await fetch({})).toMatchObject({
    code: 'ERR_REGION_ACCESS',
    message: expect.stringContaining('open for reading only'),
  });
  await b.make('small', { bytes: MIB / 2 });
  expect(await fetch({ as: 'small' })).toMatchObject({
    code: 'ERR_INVALID_OPTION',
    message: `fetch(): the offer is of ${MIB} bytes, and the region has ${MIB / 2}.`,
  });
  expect(await b.ask('closed', 'closed', { as: 'small' })).toMatchObject({ code: 'ERR_REGION_CLOSED' });
  for (const one of [a, b]) await one.leave();
  expect(place.content).toEqual([]);
});

test('a region is mapped at the hint if nothing is there', async () => {
  const a = await Sharer.start('a');
  const { handle } = await a.make('r', { bytes: MIB });
  const hint = 0x2000_0000_0000n;
  expect(await a.open('there', handle, { address: String(hint) })).toMatchObject({ address: String(hint) });
  const elsewhere = await a.open('elsewhere', handle, { address: String(hint) });
  expect(BigInt(elsewhere.address) % BigInt(4 * MIB)).toBe(0n);
  expect(elsewhere.address).not.toBe(String(hint));
  expect(await a.open('x', handle, { address: String(hint + 4096n) })).toMatchObject({
    code: 'ERR_INVALID_OPTION',
  });
  await a.leave();
});

test('it works after the original was closed, and its name goes with the last hold', async () => {
  const [a, b, c] = [await Sharer.start('a'), await Sharer.start('b'), await Sharer.start('c')];
  const { handle } = await a.make('r', { bytes: MIB });
  await a.fill('r', 5, 0, MIB);
  await b.open('r', handle);
  await a.close('r');
  expect(await c.open('r', handle), 'opened from the name, which b keeps').toMatchObject({ ok: true });
  expect(await c.count('r', 5, 0, MIB)).toBe(MIB);
  await b.leave();
  expect(left()).toHaveLength(3);
  await c.close('r');
  expect(left()).toEqual([]);
  expect(await c.open('r', handle)).toMatchObject({ code: 'ERR_REGION_GONE' });
  for (const one of [a, c]) await one.leave();
  expect(place.content).toEqual([]);
});

test('it works after its owner was killed; what nobody holds goes at the next join', async () => {
  const [a, b] = [await Sharer.start('a'), await Sharer.start('b')];
  const held = await a.make('held', { bytes: MIB });
  const alone = await a.make('alone', { bytes: MIB });
  await a.fill('held', 6, 0, MIB);
  await b.open('held', held.handle, { access: 'write' });
  await a.die();
  expect(await b.count('held', 6, 0, MIB)).toBe(MIB);
  const c = await Sharer.start('c');
  expect(await c.open('alone', alone.handle), 'swept by c').toMatchObject({ code: 'ERR_REGION_GONE' });
  expect(await c.open('held', held.handle)).toMatchObject({ ok: true });
  expect(left()).toHaveLength(3);
  await Promise.all([b.die(), c.die()]);
  const cleaning = place.millrace('clean', '--json');
  expect(await cleaning.finish()).toMatchObject({ code: 0 });
  expect(JSON.parse(cleaning.out).regions).toEqual({ regions: 1, bytes: MIB });
  expect(left()).toEqual([]);
});

test('who is killed while it makes or opens regions leaves nothing for long, and keeps nobody from his', async () => {
  const witness = await Sharer.start('witness');
  const { handle } = await witness.make('mine', { bytes: MIB });
  for (let round = 0; round < 8; round += 1) {
    const victim = await Sharer.start(`victim${round}`);
    victim.tell('churn', { handle });
    await victim.until('has begun', () => victim.of('churns').length > round * 8);
    await victim.die();
    expect(victim.running.end).toEqual({ code: null, signal: 'SIGKILL' });
    expect(await witness.open('again', handle)).toMatchObject({ ok: true });
    await witness.close('again');
  }
  await place.millrace('clean').finish();
  expect(left()).toHaveLength(3);
  await witness.leave();
  expect(left()).toEqual([]);
});

test.runIf(root)(
  'the kernel checks the rights of user, group and other, and the error names both',
  async () => {
    const owner = await Sharer.start('owner', { uid: SOMEBODY, gid: TEAM });
    const mate = await Sharer.start('mate', { uid: NOBODY, gid: TEAM });
    const stranger = await Sharer.start('stranger', { uid: NOBODY, gid: NOBODY });
    const grants = { user: 'write', group: 'read', other: 'none' };
    const { handle } = await owner.make('r', { bytes: MIB, access: grants });
    await owner.fill('r', 9, 0, MIB);

    expect(await owner.open('r2', handle, { access: 'write' })).toMatchObject({ ok: true });
    expect(await mate.open('r', handle, { access: 'read' })).toMatchObject({ ok: true });
    expect(await mate.count('r', 9, 0, MIB)).toBe(MIB);
    const refused = await mate.open('w', handle, { access: 'write' });
    expect(refused).toMatchObject({ ok: false, code: 'ERR_REGION_ACCESS', errnoName: 'EACCES' });
    expect(refused.message).toMatch(
      /asked for read and write; granted: user read and write, group read, other nothing.*counts as group/,
    );
    expect(refused.details).toMatchObject({
      asked: 'write',
      granted: 'user read and write, group read, other nothing',
      mode: 0o640,
      user: SOMEBODY,
      group: TEAM,
    });
    const other = await stranger.open('r', handle);
    expect(other).toMatchObject({ code: 'ERR_REGION_ACCESS', details: { asked: 'read', mode: 0o640 } });
    expect(other.message).toMatch(/asked for read; .*counts as other/);

    const open = await owner.make('open', { bytes: MIB, access: { other: 'write' } });
    expect(await stranger.open('o', open.handle, { access: 'write' })).toMatchObject({ ok: true });
    expect(await mate.open('o', open.handle), 'group comes before other').toMatchObject({
      code: 'ERR_REGION_ACCESS',
    });
    await stranger.fill('o', 3, 0, MIB);
    expect(await owner.count('open', 3, 0, MIB)).toBe(MIB);
    for (const one of [owner, mate, stranger]) await one.leave();
  },
);

test.runIf(root)('the last holder may be another user, after the owner was killed', async () => {
  const owner = await Sharer.start('owner', { uid: SOMEBODY, gid: SOMEBODY });
  const stranger = await Sharer.start('stranger', { uid: NOBODY, gid: NOBODY });
  const { handle } = await owner.make('r', { bytes: MIB, access: { other: 'read' } });
  await owner.fill('r', 4, 0, MIB);
  await stranger.open('r', handle);
  await owner.die();
  expect(await stranger.count('r', 4, 0, MIB)).toBe(MIB);
  const cleaning = place.millrace('clean');
  await cleaning.finish();
  expect(await stranger.open('again', handle), 'a hold of another user counts').toMatchObject({ ok: true });
  await stranger.leave();
  expect(left().filter((name) => name.endsWith('pages'))).toEqual([]);
  // Of the other user's region an empty folder may be left, until that user's, or root's, next sweep.
  await place.millrace('clean').finish();
  expect(left()).toEqual([]);
});

test.runIf(root)('a full file system: said with what was measured, and nothing is left', async (context) => {
  const mount = place.shell(`mount -t tmpfs -o size=64m,mode=1777 tmpfs ${place.folder}`);
  if ((await mount.finish()).code !== 0) context.skip('this user may not mount');
  try {
    const a = await Sharer.start('a');
    const before = place.content.sort();
    const refused = await a.make('r', { bytes: 64 * MIB });
    expect(refused).toMatchObject({ code: 'ERR_SHM_FULL', errnoName: 'ENOSPC' });
    expect(refused.message).toMatch(/needs 67108864 bytes and the filesystem has \d+ bytes free/);
    expect(refused.message).toMatch(/--shm-size/);
    expect(place.content.sort()).toEqual(before);
    expect(await a.make('r', { bytes: 16 * MIB }), 'what fits is made').toMatchObject({ ok: true });
    await a.leave();
    expect(place.content).toEqual([]);
  } finally {
    await place.shell(`umount ${place.folder}`).finish();
  }
});

test('limits of the process are named', async () => {
  const one = await Sharer.start('limited');
  const limited = place.shell(`prlimit --pid ${one.running.pid} --fsize=${20 * MIB}`);
  expect(await limited.finish(), limited.err).toMatchObject({ code: 0 });
  const file = await one.make('r', { bytes: 64 * MIB });
  expect(file).toMatchObject({ code: 'ERR_REGION_LIMIT', errnoName: 'EFBIG' });
  expect(file.message).toMatch(/RLIMIT_FSIZE is 20971520 bytes/);
  await one.leave();
  expect(place.content).toEqual([]);
});

test('a write to a region that was opened for reading reaches nobody, and is told', async () => {
  const [a, b] = [await Sharer.start('a'), await Sharer.start('b')];
  const { handle } = await a.make('r', { bytes: MIB });
  await b.open('r', handle);
  await b.fill('r', 1, 0, 2 * 4096);
  expect(await b.count('r', 1, 0, MIB), 'the writer sees it').toBe(2 * 4096);
  expect(await a.count('r', 1, 0, MIB)).toBe(0);
  await a.fill('r', 2, 0, MIB);
  await b.close('r');
  const warning = /MillraceWarning.*wrote to 2 pages of a region of 1048576 bytes/;
  await b.until('the warning', () => warning.test(b.running.err));
  await b.open('r', handle);
  expect(await b.count('r', 2, 0, MIB)).toBe(MIB);
  for (const one of [a, b]) await one.leave();
});

/** Two members on two ports of one fabric: as on two hosts, what one has the other one reads by RDMA. */
async function apart(): Promise<[publisher: Sharer, subscriber: Sharer]> {
  place.env.MILLRACE_SOFT_DEVICES = '2';
  const publisher = await Sharer.start('publisher', { device: 'soft0' });
  const subscriber = await Sharer.start('subscriber', { device: 'soft1' });
  await subscriber.ask('peers', 'peers', { count: 1 });
  return [publisher, subscriber];
}

test('bytes of a region are fetched over the network, with progress', async () => {
  const [publisher, subscriber] = await apart();
  await publisher.make('r', { bytes: 130 * MIB });
  await publisher.fill('r', 7, MIB, 130 * MIB);
  await subscriber.make('r', { bytes: 131 * MIB });
  const { offer } = await publisher.ask('offer', 'offer', { as: 'r', start: MIB, bytes: 129 * MIB });
  expect(offer).toMatchObject({ bytes: 129 * MIB });
  const fetched = await subscriber.ask('fetch', 'fetch', { as: 'r', offer, at: 2 * MIB });
  expect(fetched).toMatchObject({ ok: true, progress: [64 * MIB, 128 * MIB] });
  expect(await subscriber.count('r', 7, 0, 131 * MIB)).toBe(129 * MIB);
  for (const one of [publisher, subscriber]) await one.leave();
  expect(place.content).toEqual([]);
});

test("a fetch goes into regions of its own member, and of two members' in one process no other is taken", async () => {
  const domain = new Domain();
  try {
    const a = await domain.member('a');
    const b = await domain.member('b');
    const [source, target] = [a.region({ bytes: 4096 }), b.region({ bytes: 4096 })];
    source.bytes.fill(7);
    await expect(b.fetch(source.offer(), source)).rejects.toMatchObject({ code: 'ERR_INVALID_ARGUMENT' });
    expect(target.bytes.every((byte) => byte === 0)).toBe(true);
    await until(() => b.peers.length === 1);
    await b.fetch(source.offer(), target);
    expect(target.bytes.every((byte) => byte === 7)).toBe(true);
    target.close();
    await expect(b.fetch(source.offer(), target)).rejects.toMatchObject({ code: 'ERR_REGION_CLOSED' });
  } finally {
    expect(await domain.end()).toEqual([]);
  }
});

test('a fetch of what is not there, or not any more, says so, and the next one works', async () => {
  const [publisher, subscriber] = await apart();
  await publisher.make('r', { bytes: MIB });
  await publisher.make('gone', { bytes: MIB });
  await subscriber.make('r', { bytes: MIB });
  const { offer } = await publisher.ask('offer', 'offer', { as: 'r' });
  const { offer: gone } = await publisher.ask('offer', 'offer', { as: 'gone' });
  await publisher.close('gone');
  const fetch = (rest: object) => subscriber.ask('fetch', 'fetch', { as: 'r', ...rest });
  expect(await fetch({ offer: gone })).toMatchObject({ code: 'ERR_REGION_GONE', details: { done: 0 } });
  expect(await fetch({ offer: { ...offer, incarnation: 5 } })).toMatchObject({ code: 'ERR_PEER_LOST' });
  expect(await fetch({ offer, at: 1 }), 'beyond the end').toMatchObject({ code: 'ERR_INVALID_OPTION' });
  expect(await fetch({ offer: {} })).toMatchObject({ code: 'ERR_INVALID_OPTION' });
  expect(await fetch({ offer })).toMatchObject({ ok: true });
  for (const one of [publisher, subscriber]) await one.leave();
});

test('a publisher that dies while it is read from: the error says so, and nothing is left', async () => {
  const [publisher, subscriber] = await apart();
  const bytes = 256 * MIB;
  await publisher.make('r', { bytes });
  await subscriber.make('r', { bytes });
  const { offer } = await publisher.ask('offer', 'offer', { as: 'r' });
  // Again and again, so that it dies within one of them whatever the machine's speed.
  subscriber.tell('fetches', { as: 'r', offer });
  await subscriber.until('under way', () => subscriber.of('under way').length > 0);
  await publisher.die();
  await subscriber.until('the end', () => subscriber.of('fetches').length > 0);
  const [end] = subscriber.of('fetches');
  expect(['ERR_PEER_LOST', 'ERR_REGION_GONE', 'ERR_NATIVE'], JSON.stringify(end)).toContain(end!.code);
  expect(end!.done).toBeLessThan(bytes);
  await subscriber.close('r');
  await subscriber.leave();
  await place.millrace('clean').finish();
  expect(left()).toEqual([]);
});

test('a fetch is aborted by its signal, and ends with its member', async () => {
  const [publisher, subscriber] = await apart();
  await publisher.make('r', { bytes: 256 * MIB });
  await subscriber.make('r', { bytes: 256 * MIB });
  const { offer } = await publisher.ask('offer', 'offer', { as: 'r' });
  const aborted = await subscriber.ask('fetch', 'fetch', { as: 'r', offer, abort: true });
  expect(aborted).toMatchObject({ code: 'ERR_ABORTED', progress: [] });
  const left = await subscriber.ask('fetch', 'fetch', { as: 'r', offer, leave: true });
  expect(left).toMatchObject({ code: 'ERR_MEMBER_CLOSED', progress: [] });
  for (const one of [publisher, subscriber]) await one.leave();
});
