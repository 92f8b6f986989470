import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place, type Running } from '../support/cli-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

const numbers = (count: number) => Array.from({ length: count }, (_, i) => String(i + 1));
/** Waits for the end of all, and for nothing to be left in shared memory. */
const allGone = async (...running: Running[]) => {
  for (const one of running) await one.finish();
  expect(place.content).toEqual([]);
};

describe('pub and sub', () => {
  test('every line arrives once and in order, at every subscriber', async () => {
    const subs = [
      place.millrace('sub', 'logs', '--count', '20000'),
      place.millrace('sub', 'logs', '--count', '20000'),
    ];
    const pub = place.shell('seq 20000 | millrace pub logs --wait-subscribers 2 --timeout 60s');
    for (const sub of subs) {
      expect(await sub.finish()).toEqual({ code: 0, signal: null });
      expect(sub.lines).toEqual(numbers(20000));
      expect(sub.err).toBe('');
    }
    await pub.finish();
    expect(pub.err).toBe('');
    expect(pub.end).toMatchObject({ code: 0 });
    await allGone(pub, ...subs);
  });

  test('a file that grows: each line arrives at once; Ctrl-C leaves nothing behind', async () => {
    const log = join(place.folder, '..', `${place.folder.split('/').pop()}.log`);
    fs.writeFileSync(log, 'first\n');
    try {
      const pub = place.shell(`tail -n +1 -f ${log} | millrace pub logs --wait-subscribers 2`);
      const subs = [place.millrace('sub', 'logs'), place.millrace('sub', '>')];
      const [one, all] = subs as [Running, Running];
      await one.until('the first line', () => one.lines.length === 1);
      for (const text of ['second', 'third ä€😀']) {
        const before = one.lines.length;
        fs.appendFileSync(log, `${text}\n`);
        await one.until(text, () => one.lines.length === before + 1);
      }
      await all.until('all', () => all.lines.length === 3);
      expect(one.lines).toEqual(['first', 'second', 'third ä€😀']);
      expect(all.lines).toEqual(['logs\tfirst', 'logs\tsecond', 'logs\tthird ä€😀']);
      const members = await place.until('three members', (found) => found.length === 3);
      for (const { pid } of members) process.kill(pid, 'SIGINT');
      expect(await one.finish()).toEqual({ code: 130, signal: null });
      expect(await all.finish()).toEqual({ code: 130, signal: null });
      // The publisher is gone too, though its input stays open: nothing is left.
      await place.until('nobody', (found) => found.length === 0);
      expect(place.content).toEqual([]);
      pub.kill('SIGKILL');
      fs.appendFileSync(log, 'for tail to notice\n');
    } finally {
      fs.rmSync(log);
    }
  });

  test('JSON values come out as they went in', async () => {
    const sub = place.millrace('sub', 'ticks.*', '--jsonl', '--count', '3');
    const rich = place.millrace('sub', 'ticks.eurusd', '--json', '--count', '3');
    const pub = place.millrace('pub', 'ticks.eurusd', '--jsonl', '--wait-subscribers', '2');
    pub.process.stdin!.end('{"bid":1.0841,"ask":[1,null,true]}\n"text"\n17\n');
    await sub.finish();
    expect(sub.lines).toEqual(['{"bid":1.0841,"ask":[1,null,true]}', '"text"', '17']);
    await rich.finish();
    expect(rich.lines.map((line) => JSON.parse(line))).toMatchObject([
      { channel: 'ticks.eurusd', sequence: 1, publisher: { pid: pub.pid }, value: { bid: 1.0841 } },
      { sequence: 2, value: 'text' },
      { sequence: 3, value: 17 },
    ]);
    expect(await pub.finish()).toMatchObject({ code: 0 });
    await allGone(pub, sub, rich);
  });

  test('bytes are not touched', async () => {
    const sub = place.shell('millrace sub raw --count 1 | od -An -tx1');
    const pub = place.shell(`printf '\\xff\\x00\\xfe' | millrace pub raw --codec bytes`);
    await sub.finish();
    expect(sub.out.trim()).toBe('ff 00 fe 0a');
    await allGone(pub, sub);
  });

  test('what cannot be published is said, with its line, and the rest goes on', async () => {
    const sub = place.millrace('sub', 'j', '--jsonl', '--count', '3');
    const pub = place.millrace('pub', 'j', '--jsonl');
    const large = JSON.stringify('x'.repeat(40_000));
    pub.process.stdin!.end(`1\n{"a":\n${large}\n"${'y'.repeat(2 << 20)}"\n2\n`);
    await sub.finish();
    expect(sub.lines).toEqual(['1', large, '2']);
    expect(await pub.finish()).toMatchObject({ code: 1 });
    expect(pub.err).toMatch(/line 2 was not published: it is not JSON/);
    expect(pub.err).toMatch(/line 4 was not published: it has 2097154 bytes, and at most 1048576 are read/);
    await allGone(pub, sub);
  });

  test('a summary as JSON', async () => {
    const sub = place.millrace('sub', 'a', '--count', '2');
    const pub = place.millrace('pub', 'a', '--json');
    pub.process.stdin!.end('x\ny\n');
    await pub.finish();
    expect(JSON.parse(pub.out)).toEqual({
      channel: 'a',
      published: 2,
      unheard: 0,
      failed: 0,
      undelivered: [],
    });
    await allGone(sub, pub);
  });

  test('kept lines reach a subscriber that comes later', async () => {
    const pub = place.millrace('pub', 'a', '--replay', '10', '--wait-subscribers', '0');
    pub.write('old\n');
    const sub = place.millrace('sub', 'a', '--replay', '10', '--count', '2');
    await sub.until('the old line', () => sub.lines.length === 1);
    pub.process.stdin!.end('new\n');
    await sub.finish();
    expect(sub.lines).toEqual(['old', 'new']);
    expect(await pub.finish()).toMatchObject({ code: 0 });
    await allGone(pub, sub);
  });
});

describe('ends', () => {
  test('nobody subscribes within --timeout: 3', async () => {
    const pub = place.millrace('pub', 'a', '--timeout', '200ms');
    expect(await pub.finish()).toMatchObject({ code: 3 });
    expect(pub.err).toMatch(/0 of 1 subscribers.*\(ERR_TIMEOUT\)/);
    await allGone(pub);
  });

  test('nothing is published within --timeout: 3; fewer than --count: 1', async () => {
    const none = place.millrace('sub', 'a', '--timeout', '200ms');
    expect(await none.finish()).toMatchObject({ code: 3 });
    // It is there before the time begins.
    const pub = place.shell('echo x | millrace pub a --timeout 60s');
    await place.until('it is there', (members) => members[0]?.answer === 'answered');
    const some = place.millrace('sub', 'a', '--count', '2', '--timeout', '4s');
    expect(await some.finish()).toMatchObject({ code: 1 });
    expect(some.lines).toEqual(['x']);
    await allGone(pub, some);
  });

  test('a subscriber that does not take it: said at the end, 1', async () => {
    const sub = place.millrace('sub', 'a');
    const pub = place.millrace('pub', 'a', '--timeout', '10s');
    pub.write('one\n');
    await sub.until('the first line', () => sub.lines.length === 1);
    sub.kill('SIGSTOP');
    pub.process.stdin!.end('two\nthree\n');
    expect(await pub.finish()).toMatchObject({ code: 1 });
    expect(pub.err).toMatch(
      new RegExp(`messages [12] to 3 \\([23]\\) of "a" did not reach millrace-sub-${sub.pid} .*timeout`),
    );
    sub.kill('SIGCONT');
    // Stopped is not dead: what was on its way is still printed.
    await sub.until('the rest', () => sub.lines.length === 3);
    sub.kill('SIGTERM');
    expect(await sub.finish()).toEqual({ code: 143, signal: null });
    await allGone(sub, pub);
  });

  test('nobody reads the output: quiet, 0', async () => {
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the shell that fills it in
    const sub = place.shell('millrace sub a | head -n 1; echo "${PIPESTATUS[0]}"');
    const pub = place.millrace('pub', 'a');
    pub.write('1\n');
    await sub.until('the first', () => sub.lines[0] === '1');
    // The next writes find the pipe closed.
    const more = setInterval(() => pub.write('2\n'), 20);
    await sub.finish();
    clearInterval(more);
    expect(sub.lines).toEqual(['1', '0']);
    expect(sub.err).toBe('');
    pub.kill('SIGINT');
    expect(await pub.finish()).toMatchObject({ code: 130 });
    await allGone(pub, sub);
  });

  test('a second signal ends it at once', async () => {
    const sub = place.millrace('sub', 'a');
    // Nobody reads what it prints, and so it waits there whatever happens.
    sub.process.stdout!.pause();
    const pub = place.millrace('pub', 'a');
    pub.process.stdin!.end(`${'x'.repeat(1_000_000)}\n`);
    expect(await pub.finish()).toEqual({ code: 0, signal: null });
    await place.until('it is alone', ([one, other]) => !other && one?.report?.peers.length === 0);
    sub.kill('SIGINT');
    await place.until('it has heard the first', ([one]) => one?.report?.patterns[0]?.listeners === 0);
    expect(sub.end).toBeUndefined();
    sub.kill('SIGINT');
    sub.process.stdout!.resume();
    expect(await sub.finish()).toEqual({ code: 130, signal: null });
    expect(place.content).toEqual([]);
  });

  test('a signal while it waits for subscribers', async () => {
    const pub = place.millrace('pub', 'a');
    await place.until('it is there', (members) => members.length === 1);
    pub.kill('SIGTERM');
    expect(await pub.finish()).toEqual({ code: 143, signal: null });
    expect(pub.err).not.toContain('ERR_');
    await allGone(pub);
  });

  test.each([
    [['sub', 'a..b'], 'ERR_PATTERN'],
    [['sub', 'a*'], 'ERR_PATTERN'],
    [['pub', 'a.*'], 'ERR_CHANNEL_NAME'],
    [['pub', ''], 'ERR_CHANNEL_NAME'],
    [['sub', 'a', '--domain', 'a\nb'], 'ERR_DOMAIN_NAME'],
  ])('%j is wrong usage: %s', async (words, code) => {
    const one = place.millrace(...words);
    expect(await one.finish()).toMatchObject({ code: 2 });
    expect(one.err).toContain(`(${code})`);
    await allGone(one);
  });

  test('a folder that does not exist, or belongs to somebody else, is explained', async () => {
    place.env.MILLRACE_SHM_DIR = join(place.folder, 'nowhere');
    const one = place.millrace('sub', 'a');
    expect(await one.finish()).toMatchObject({ code: 1 });
    expect(one.err).toMatch(/nowhere.*\(ERR_FOLDER_ACCESS\)\n {2}Set MILLRACE_SHM_DIR/s);
    place.env.MILLRACE_SHM_DIR = place.folder;
    fs.mkdirSync(join(place.folder, `millrace.1.${process.getuid!()}`), { mode: 0o777 });
    fs.chmodSync(join(place.folder, `millrace.1.${process.getuid!()}`), 0o777);
    const two = place.millrace('sub', 'a');
    expect(await two.finish()).toMatchObject({ code: 1 });
    expect(two.err).toMatch(/mode 0777.*\(ERR_FOLDER_OWNER\)/);
  });
});
