import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { Member } from '../support/cluster-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

/** Members that all see each other, each with the others as subscribers. */
const together = async (...names: string[]): Promise<Member[]> => {
  const members = names.map((name) => new Member(place, name));
  for (const member of members) {
    await member.until('joined');
    member.tell(`ready ${names.length - 1}`);
  }
  for (const member of members) await member.until('ready');
  return members;
};

/** Ends a `send` without a number, whose receiver must have missed nothing. */
const heardAll = async (receiver: Member, sender: Member): Promise<void> => {
  sender.tell('stop');
  await sender.until('sent');
  const { count } = sender.of('sent')[0]!;
  const heard = await receiver.heard(`all of ${sender.name}`, (found) => found[sender.name]?.count === count);
  expect(heard[sender.name]).toEqual({ count, last: count, gaps: 0, disorder: 0 });
};

describe('SIGKILL', () => {
  test('at any moment of the traffic: the others go on, say so, and lose nothing of each other', async () => {
    const [a, b, c, victim] = (await together('a', 'b', 'c', 'victim')) as [Member, Member, Member, Member];
    for (const member of [a, b, c]) member.tell('send 20000');
    victim.tell('send');
    await a.heard('the victim', (heard) => (heard.victim?.count ?? 0) > 100);
    victim.running.kill('SIGKILL');
    for (const member of [a, b, c]) {
      await member.until('peer-lost', 'victim');
      await member.until('sent');
    }
    for (const [member, others] of [
      [a, ['b', 'c']],
      [b, ['a', 'c']],
      [c, ['a', 'b']],
    ] as const) {
      const heard = await member.heard('all of the others', (found) =>
        others.every((name) => found[name]?.count === 20000),
      );
      for (const name of others)
        expect(heard[name]).toEqual({ count: 20000, last: 20000, gaps: 0, disorder: 0 });
      expect(member.of('peer-left')).toEqual([]);
      expect(member.of('fault')).toEqual([]);
    }
    // Nothing of the victim is left while the others live.
    const incarnation = String(victim.of('joined')[0]!.incarnation);
    expect(place.content.filter((path) => path.includes(incarnation))).toEqual([]);
    for (const member of [a, b, c]) await member.leave();
    expect(place.content).toEqual([]);
  });

  test('of all of them: the next one to join finds a clean place', async () => {
    const members = await together('a', 'b', 'c');
    for (const member of members) member.tell('send');
    for (const member of members)
      await member.heard('the others', (heard) => Object.keys(heard).length === members.length - 1);
    for (const member of members) member.running.kill('SIGKILL');
    for (const member of members) await member.running.ended;
    expect(place.content.some((path) => path.includes('m-'))).toBe(true);
    const next = new Member(place, 'next');
    await next.until('joined');
    for (const member of members) {
      const incarnation = String(member.of('joined')[0]!.incarnation);
      expect(place.content.filter((path) => path.includes(incarnation))).toEqual([]);
    }
    await next.leave();
    expect(place.content).toEqual([]);
  });

  test('of one that joins, at random moments, again and again', async () => {
    const [a, b] = (await together('a', 'b')) as [Member, Member];
    a.tell('send');
    for (let i = 0; i < 12; i += 1) {
      const young = new Member(place, `young${i}`);
      // From before the first line of the program to after the join.
      const wait = young.running.until('something', () => young.running.out !== '');
      if (i % 3 === 0) await new Promise((resolve) => young.running.process.once('spawn', resolve));
      else if (i % 3 === 1) await a.heard('anything', () => true);
      else await wait;
      wait.catch(() => {});
      young.running.kill('SIGKILL');
      await young.running.ended;
    }
    await heardAll(b, a);
    for (const member of [a, b]) await member.leave();
    const clean = place.millrace('clean');
    await clean.finish();
    expect(place.content).toEqual([]);
  });
});

describe('SIGSTOP', () => {
  test('is not death: the others go on, one joins and one leaves meanwhile, and it catches up', async () => {
    const [a, b, stopped] = (await together('a', 'b', 'stopped')) as [Member, Member, Member];
    stopped.running.kill('SIGSTOP');
    // Little enough for its window, so that nobody has to wait for it.
    a.tell('send 500');
    await a.until('sent');
    await b.heard('a', (heard) => heard.a?.count === 500);
    const young = new Member(place, 'young');
    await young.until('joined');
    await young.until('peer-joined', 'a');
    await b.leave();
    await a.until('peer-left', 'b');
    expect(a.of('peer-lost')).toEqual([]);
    expect(a.of('peer-left').map((line) => line.peer)).toEqual(['b']);
    stopped.running.kill('SIGCONT');
    const heard = await stopped.heard('what was sent meanwhile', (found) => found.a?.count === 500);
    expect(heard.a).toEqual({ count: 500, last: 500, gaps: 0, disorder: 0 });
    await stopped.until('peer-joined', 'young');
    await young.until('peer-joined', 'stopped');
    for (const member of [a, stopped, young]) await member.leave();
    expect(place.content).toEqual([]);
  });

  test('then SIGKILL: death, at once', async () => {
    const [a, stopped] = (await together('a', 'stopped')) as [Member, Member];
    stopped.running.kill('SIGSTOP');
    a.tell('send 100');
    await a.until('sent');
    stopped.running.kill('SIGKILL');
    await a.until('peer-lost', 'stopped');
    await a.leave();
    expect(place.content).toEqual([]);
  });

  test('of the one that leaves last does not keep the folder for ever', async () => {
    const [a, stopped] = (await together('a', 'stopped')) as [Member, Member];
    stopped.running.kill('SIGSTOP');
    await a.leave();
    stopped.running.kill('SIGCONT');
    await stopped.until('peer-left', 'a');
    await stopped.leave();
    expect(place.content).toEqual([]);
  });
});

describe('joins and leaves', () => {
  test('of many processes in loops leave the others alone, and nothing behind', async () => {
    const [a, b] = (await together('a', 'b')) as [Member, Member];
    const loops = ['p', 'q', 'r'].map((name) => new Member(place, name, 'loop', '20'));
    a.tell('send');
    for (const one of loops) {
      await one.until('looped');
      expect((await one.running.finish()).code).toBe(0);
      expect(one.running.err).toBe('');
    }
    await heardAll(b, a);
    for (const member of [a, b]) {
      expect(member.of('fault')).toEqual([]);
      expect(member.of('peer-lost')).toEqual([]);
      expect(member.of('peer-joined').length).toBe(member.of('peer-left').length + 1);
    }
    for (const member of [a, b]) await member.leave();
    expect(place.content).toEqual([]);
  });

  test('of processes alone: the folder comes and goes', async () => {
    const loops = ['p', 'q', 'r', 's'].map((name) => new Member(place, name, 'loop', '25'));
    for (const one of loops) {
      await one.until('looped');
      expect((await one.running.finish()).code).toBe(0);
      expect(one.running.err).toBe('');
    }
    expect(place.content).toEqual([]);
  });
});

describe('other ends', () => {
  test.each([
    ['leave', { code: 0, words: '' }],
    ['exit', { code: 3, words: '' }],
    ['throw', { code: 1, words: 'on purpose' }],
    ['terminate', { code: 1, words: '' }],
  ])('workers: %s', async (how, end) => {
    const witness = new Member(place, 'witness');
    await witness.until('joined');
    const one = new Member(place, 'w', 'workers', '6', how);
    await one.until('worked');
    expect(await one.running.finish()).toEqual({ code: 0, signal: null });
    expect(one.of('worker-ended')).toEqual(
      Array.from({ length: 6 }, () => ({ type: 'worker-ended', ...end })),
    );
    for (let i = 0; i < 6; i += 1) await witness.until(how === 'leave' ? 'peer-left' : 'peer-lost', `w.${i}`);
    expect(witness.of('fault')).toEqual([]);
    await witness.leave();
    expect(place.content).toEqual([]);
  });

  test('process.exit() in the middle of traffic: the files go with it, the others see a death', async () => {
    const [a, b] = (await together('a', 'b')) as [Member, Member];
    b.tell('send');
    await a.heard('b', (heard) => (heard.b?.count ?? 0) > 0);
    b.tell('exit 7');
    expect(await b.running.finish()).toEqual({ code: 7, signal: null });
    await a.until('peer-lost', 'b');
    const incarnation = String(b.of('joined')[0]!.incarnation);
    expect(place.content.filter((path) => path.includes(incarnation))).toEqual([]);
    await a.leave();
    expect(place.content).toEqual([]);
  });

  test('an uncaught exception alone in a domain leaves nothing', async () => {
    const a = new Member(place, 'a');
    await a.until('joined');
    a.tell('send 1000');
    a.tell('throw');
    expect((await a.running.finish()).code).toBe(1);
    expect(a.running.err).toContain('on purpose');
    expect(place.content).toEqual([]);
  });
});

describe('what is in the way', () => {
  test('a path that is too long for a socket', async () => {
    const deep = join(place.folder, 'deep'.repeat(30));
    fs.mkdirSync(deep);
    place.env.MILLRACE_SHM_DIR = deep;
    const [a, b] = (await together('a', 'b')) as [Member, Member];
    a.tell('send 10');
    await b.heard('a', (heard) => heard.a?.count === 10);
    for (const member of [a, b]) await member.leave();
    expect(fs.readdirSync(deep)).toEqual([]);
  });

  test.runIf(process.geteuid?.() === 0)('the folder of another user', async () => {
    const theirs = join(place.folder, `millrace.1.${process.getuid!()}`);
    fs.mkdirSync(theirs, { mode: 0o700 });
    fs.chownSync(theirs, 65534, 65534);
    const a = new Member(place, 'a');
    expect((await a.running.finish()).code).toBe(1);
    expect(a.running.err).toMatch(/ERR_FOLDER_OWNER/);
    expect(a.running.err).toMatch(/belongs to user 65534/);
  });

  test('too few file descriptors', async () => {
    const a = place.shell(
      `ulimit -n 22; exec ${process.execPath} test/integration/programs/cluster-member.mjs a`,
    );
    expect((await a.finish()).code).toBe(1);
    expect(a.err).toMatch(/limit of open files is 22/);
    expect(a.err).toMatch(/ERR_OUT_OF_FILES/);
    expect(place.content.filter((path) => !path.startsWith('millrace-soft.'))).toEqual([]);
  });

  test.runIf(process.geteuid?.() === 0)('a folder that this user may not write to', async () => {
    fs.chmodSync(place.folder, 0o755);
    const a = place.shell(
      `exec setpriv --reuid 65534 --regid 65534 --clear-groups ${process.execPath} test/integration/programs/cluster-member.mjs a`,
    );
    expect((await a.finish()).code).toBe(1);
    expect(a.err).toMatch(/user 65534 may not write there \(EACCES\)/);
    expect(a.err).toMatch(/ERR_FOLDER_ACCESS/);
  });

  test('a shared memory that is too small', async (context) => {
    const mount = place.shell(`mount -t tmpfs -o size=64k tmpfs ${place.folder}`);
    if ((await mount.finish()).code !== 0) context.skip('this user may not mount');
    try {
      const a = new Member(place, 'a');
      expect((await a.running.finish()).code).toBe(1);
      expect(a.running.err).toMatch(/ERR_SHM_FULL/);
      expect(a.running.err).toMatch(/needs \d+ bytes.* has \d+ bytes free.*--shm-size/);
      expect(place.content).toEqual([]);
    } finally {
      await place.shell(`umount ${place.folder}`).finish();
    }
  });
});
