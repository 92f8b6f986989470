/** The fan-out example: the demo to its end, and what its subscribers and rules do to each other. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import { heard } from '../../examples/fanout/children.mjs';
import type { resultOf } from '../../examples/fanout/totals.mjs';
import { Place } from '../support/cli-process.js';
import { Fanout } from '../support/fanout.js';
import { canMakeNetworks, NOBODY } from '../support/network.js';

type Result = ReturnType<typeof resultOf> & { readonly network: string };
const DEMO = 'examples/fanout/demo.mjs';
const root = process.getuid?.() === 0;

describe('the demo', () => {
  let place: Place;
  afterEach(() => place.dispose());

  test.each([
    ...(canMakeNetworks ? [['in a network namespace', '', 1500] as const] : []),
    // The kernel's buffers for UDP are small.
    ['on the loopback interface', root ? NOBODY.join(' ') : '', 600] as const,
  ])('%s', async (where, as, rate) => {
    place = new Place();
    chmodSync(place.folder, 0o777);
    const demo = place.shell(`exec ${as} '${process.execPath}' ${DEMO} --seconds 3 --rate ${rate} --json`);
    expect(await demo.finish(), demo.err).toEqual({ code: 0, signal: null });
    const { ok, rules, subscribers, network } = JSON.parse(demo.out) as Result;
    expect(network).toContain(where);
    expect(demo.err.includes('MILLRACE_NO_CAP_NET_RAW')).toBe(where === 'on the loopback interface');
    expect(ok).toBe(true);
    const sent = rules.reduce((sum, one) => sum + one.sent, 0);
    expect(sent).toBeGreaterThan(100);
    expect(rules.map(({ channel, lost, drops }) => [channel, lost, drops])).toEqual([
      ['feed.currencies', 0, 0],
      ['feed.metals', 0, 0],
      ['feed.energy', 0, 0],
    ]);
    expect(subscribers.map(({ subscriber }) => subscriber)).toEqual([
      ...['fast', 'fast-pattern', 'slow-conflating', 'slow-dropping'],
    ]);
    const [fast, pattern, conflating, dropping] = subscribers;
    for (const one of [fast!, pattern!]) expect([one.handled, one.dropped, one.left]).toEqual([sent, 0, 0]);
    for (const one of [conflating!, dropping!]) {
      expect(one.dropped).toBeGreaterThan(0);
      expect(one.handled).toBeGreaterThan(0);
      expect(one.handled + one.dropped).toBeLessThanOrEqual(sent);
    }
    expect(place.content).toEqual([]);
    expect(existsSync(`/sys/class/net/mrfan${demo.pid}`)).toBe(false);
  });

  test.each([['--seconds', '0'], ['--rate', 'many'], ['--http', '65536'], ['--secnods', '3'], ['file']])(
    'wrong arguments: %s %s',
    async (...args) => {
      place = new Place();
      const demo = place.node(DEMO, ...args);
      expect(await demo.finish()).toEqual({ code: 2, signal: null });
      expect(demo.err).toMatch(/usage: npm run fanout:demo/);
      expect(place.content).toEqual([]);
    },
  );
});

test("a process that comes up after its parent's death leaves, too", async () => {
  const child = fork('test/integration/programs/orphan.mjs', { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] });
  child.disconnect();
  let out = '';
  child.stdout!.on('data', (text) => {
    out += text;
  });
  // A child that was disconnected has no 'close'.
  const [[code]] = await Promise.all([once(child, 'exit'), once(child.stdout!, 'end')]);
  expect([code, out]).toEqual([1, 'left\n']);
});

describe('the service', () => {
  let fanout: Fanout;
  afterEach(async () => {
    expect(await fanout.end()).toEqual([]);
  });

  test('subscribers that are stopped take nothing from the one that is not', async () => {
    fanout = new Fanout();
    await fanout.service();
    const fast = fanout.subscriber('fast');
    const conflating = fanout.subscriber('conflating', '--policy', 'latest-by:symbol', '--window', '4096');
    const waiting = fanout.subscriber('waiting', '--policy', 'wait', '--window', '4096');
    const sender = await fanout.sender(2000);
    await fanout.state(
      ({ channels, subscribers }) =>
        subscribers.length === 3 && channels.length === 3 && channels.every((one) => one.subscribers === 3),
    );
    const stopped = [conflating, waiting];
    for (const child of stopped) child.kill('SIGSTOP');
    sender.send('begin');
    const COUNT = 3000;
    const { subscribers } = await fanout.state(({ subscribers }) => subscribers[1]!.handled >= COUNT);
    // By name: conflating, fast, waiting. What is dropped for it is known, although it says nothing.
    expect(subscribers.map(({ name }) => name)).toEqual(['conflating', 'fast', 'waiting']);
    expect(subscribers[0]!.drops).toBeGreaterThan(COUNT / 2);
    expect(subscribers[1]!.drops).toBe(0);
    const sending = heard(sender, 'sent');
    sender.send('stop');
    const sent: number[] = Object.values((await sending).sent);
    const count = sent.reduce((sum, one) => sum + one, 0);
    const { channels } = await fanout.state(
      ({ rules }) => rules.reduce((sum, { quotes }) => sum + quotes, 0) >= count,
    );
    const published = Object.fromEntries(channels.map((one) => [one.name, one.published]));
    for (const child of stopped) child.kill('SIGCONT');
    const totals = [fast, conflating, waiting].map(async (child) => {
      const answer = heard(child, 'totals');
      child.send({ published });
      const { handled, missing, skipped } = await answer;
      const all: number[] = Object.values(handled);
      return { handled: all.reduce((sum, one) => sum + one, 0), dropped: missing + skipped };
    });
    const [one, two, three] = await Promise.all(totals);
    expect(one).toEqual({ handled: count, dropped: 0 });
    expect(two!.handled + two!.dropped).toBe(count);
    expect(two!.dropped).toBeGreaterThan(COUNT / 2);
    // Its queue had room for all of them.
    expect(three).toEqual({ handled: count, dropped: 0 });
  });

  test('a bad edit of the rules is told and changes nothing; a good one is in force at once', async () => {
    fanout = new Fanout();
    await fanout.service();
    await fanout.state(({ rules, problem }) => rules.length === 3 && problem === null);
    fanout.edit(fanout.rulesText.replace('protocol: udp', 'protocol: carrier-pigeon'));
    const { rules, problem } = await fanout.state((state) => state.problem !== null);
    expect(problem).toMatch(/carrier-pigeon/);
    expect(rules.map(({ name }) => name)).toEqual(['currencies', 'metals', 'energy']);
    const more = fanout.rulesText.replace('to: feed.energy', 'to: other.power');
    fanout.edit(more);
    const { channels } = await fanout.state((state) => state.problem === null);
    expect(channels.map(({ name }) => name)).toEqual(['feed.currencies', 'feed.metals', 'other.power']);
    // A stream whose name is none of a channel is steered to, and not published.
    fanout.edit(fanout.rulesText.replace('to: feed.energy', "to: 'no..name'"));
    const wrong = await fanout.state((state) => state.problem !== null);
    expect(wrong.problem).toMatch(/not published: .*"no..name"/);
    expect(wrong.channels.map(({ name }) => name)).toEqual(['feed.currencies', 'feed.metals']);
  });
});
