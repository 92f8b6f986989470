/** member.steering: what comes to the loopback interface lands in streams and channels; what is refused changes nothing. */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place, type Running } from '../support/cli-process.js';

const program = 'test/integration/programs/steering-member.mjs';
const root = process.geteuid?.() === 0;

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

interface Answer {
  readonly ok?: unknown;
  readonly error?: { readonly code: string; readonly errnoName: string; readonly message: string };
}

class Member {
  readonly #running: Running;
  #answers = 0;

  constructor(...words: string[]) {
    // Ordinary users get there, too.
    fs.chmodSync(place.folder, 0o777);
    this.#running = place.node(program, ...words);
  }
  async call(...call: unknown[]): Promise<Answer> {
    this.#running.write(`${JSON.stringify(call)}\n`);
    const at = this.#answers++;
    const answered = () => this.#running.lines.filter((line) => !line.startsWith('{"event"'));
    await this.#running.until(`an answer to ${call[0]}`, () => answered().length > at);
    return JSON.parse(answered()[at]!);
  }
  /** Asks until the answer is as wished; the test's own time limit ends it. */
  async ask<T>(what: string, done: (answer: T) => boolean): Promise<T> {
    for (;;) {
      const { ok } = await this.call(what);
      if (done(ok as T)) return ok as T;
    }
  }
  async end(): Promise<void> {
    this.#running.process.stdin!.end();
    expect(await this.#running.finish(), this.#running.err).toEqual({ code: 0, signal: null });
  }
  get warnings(): string {
    return this.#running.err;
  }
  async event(number: number): Promise<string> {
    const events = () => this.#running.lines.filter((line) => line.startsWith('{"event"'));
    await this.#running.until(`event ${number}`, () => events().length >= number);
    return JSON.parse(events()[number - 1]!).event;
  }
}

interface Seen {
  readonly datagrams: readonly {
    text: string;
    source: string;
    destination: string;
    port: number;
    rule: string;
  }[];
  readonly published: readonly string[];
}
const rule = (name: string, port: number, to: string) => ({
  name,
  match: { dst: '127.0.0.1', protocol: 'udp', port, interface: 'lo' },
  to,
});
/** Ports that nothing else listens on. */
const [A, B, C] = [46_101, 46_102, 46_103];

describe.each(root ? [[], ['--plain']] : [['--plain']])('%s', (...words) => {
  test('datagrams land in streams, their bytes in channels; rules that stay keep their counters', async () => {
    const member = new Member(...words);
    expect(await member.call('add', [rule('a', A, 'feed'), rule('b', B, 'channel')])).toEqual({
      ok: ['a', 'b'],
    });
    await member.call('send', 'one', A);
    await member.call('send', 'two', B);
    const first = await member.ask<Seen>(
      'seen',
      ({ datagrams, published }) => datagrams.length > 0 && published.length > 0,
    );
    expect(first).toEqual({
      datagrams: [{ text: 'one', source: '127.0.0.1', destination: '127.0.0.1', port: A, rule: 'a' }],
      published: ['two'],
    });
    expect(await member.call('replace', [rule('a', A, 'feed'), rule('b', C, 'channel')])).toEqual({
      ok: ['a', 'b'],
    });
    for (const port of [A, B, C]) await member.call('send', `again ${port}`, port);
    const then = await member.ask<Seen>(
      'seen',
      ({ datagrams, published }) => datagrams.length > 1 && published.length > 1,
    );
    expect(then.datagrams.map(({ text }) => text)).toEqual(['one', `again ${A}`]);
    expect(then.published).toEqual(['two', `again ${C}`]);
    const stats = (await member.call('stats')).ok as {
      rule: string;
      to: string;
      packets: number;
      drops: number;
    }[];
    expect(stats.map(({ rule, to, packets, drops }) => [rule, to, packets, drops])).toEqual([
      ['a', 'feed', 2, 0],
      ['b', 'published', 1, 0],
    ]);
    await member.call('remove', ['a']);
    expect(await member.call('remove', ['a'])).toMatchObject({ error: { code: 'ERR_STEERING_UNKNOWN' } });
    await member.end();
    expect(place.content).toEqual([]);
  });
});

test('a device that refuses says why, and nothing is changed', async () => {
  place.env.MILLRACE_SOFT_STEERING = '0';
  const member = new Member();
  const { error } = await member.call('add', [rule('a', A, 'feed')]);
  expect(error).toMatchObject({ code: 'ERR_STEERING_REFUSED', errnoName: 'ENXIO' });
  expect(error!.message).toMatch(/rule a: .*steering is off.*\(ENXIO\)\. Nothing was changed\. Turn it on/);
  expect((await member.call('stats')).ok).toEqual([]);
  await member.end();
  expect(place.content).toEqual([]);
});

test.skipIf(!root)('a full flow table: ENOMEM, and what was begun is undone', async () => {
  const member = new Member();
  expect(await member.call('add', [rule('a', A, 'feed')])).toEqual({ ok: ['a'] });
  const { error } = await member.call('many', 16_384);
  expect(error).toMatchObject({ code: 'ERR_STEERING_REFUSED', errnoName: 'ENOMEM' });
  expect(error!.message).toMatch(
    /rule #16385: all 16384 rules of the fabric are in use \(ENOMEM\)\. Nothing was changed\. Remove rules/,
  );
  expect((await member.call('stats')).ok).toMatchObject([{ rule: 'a' }]);
  await member.call('send', 'still there', A);
  const { datagrams } = await member.ask<Seen>('seen', ({ datagrams }) => datagrams.length > 0);
  expect(datagrams).toMatchObject([{ text: 'still there', rule: 'a' }]);
  // Exactly the others are free.
  expect(await member.call('many', 16_383)).toEqual({ ok: 16_383 });
  await member.end();
  expect(place.content).toEqual([]);
});

test('without CAP_NET_RAW, what UDP sockets cannot serve: EPERM, and how to grant it', async () => {
  const member = new Member(...(root ? ['--plain'] : []));
  const { error } = await member.call('add', [
    rule('a', A, 'feed'),
    { name: 'tag', match: { vlan: 7 }, to: 'feed' },
  ]);
  expect(error).toMatchObject({ code: 'ERR_STEERING_REFUSED', errnoName: 'EPERM' });
  expect(error!.message).toMatch(
    /rule tag: .*CAP_NET_RAW.*\(EPERM\)\. Nothing was changed\. Grant it: setcap cap_net_raw/,
  );
  expect((await member.call('stats')).ok).toEqual([]);
  expect(member.warnings).toContain('MILLRACE_NO_CAP_NET_RAW');
  await member.end();
  expect(place.content).toEqual([]);
});

test('a watched file', async () => {
  const member = new Member();
  const file = join(place.folder, 'rules.json');
  const put = (content: string) => {
    fs.writeFileSync(`${file}.new`, content);
    fs.renameSync(`${file}.new`, file);
  };
  put(JSON.stringify({ rules: [rule('a', A, 'feed')] }));
  expect(await member.call('watch', file)).toEqual({ ok: file });
  put(JSON.stringify({ rules: [rule('a', A, 'feed'), rule('b', B, 'feed')] }));
  expect(await member.event(2)).toBe('loaded');
  put('{"rules": [');
  expect(await member.event(3)).toBe('rejected');
  await member.call('send', 'to b', B);
  const { datagrams } = await member.ask<Seen>('seen', ({ datagrams }) => datagrams.length > 0);
  expect(datagrams[0]).toMatchObject({ text: 'to b', rule: 'b' });
  await member.end();
});

test('streams after the member has left, and without a name, are errors', async () => {
  const member = new Member();
  expect(await member.call('stream', 'feed')).toEqual({ ok: 'feed' });
  for (const name of ['', 5, null])
    expect(await member.call('stream', name)).toMatchObject({ error: { code: 'ERR_INVALID_ARGUMENT' } });
  await member.call('leave');
  for (const call of [
    ['stream', 'feed'],
    ['add', [rule('a', A, 'feed')]],
  ])
    expect(await member.call(...call)).toMatchObject({ error: { code: 'ERR_MEMBER_CLOSED' } });
  await member.end();
  expect(place.content).toEqual([]);
});
