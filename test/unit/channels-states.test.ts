/** The life of a channel and its member as a state machine, under random commands. */
import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Channel } from '../../src/channels/channel.js';
import type { Member } from '../../src/channels/member.js';
import { collect } from '../support/collect.js';
import { World } from '../support/world.js';

interface Model {
  member: 'in' | 'left';
  channel: 'none' | 'open' | 'ended' | 'closed';
  /** Values that the peer must have heard. */
  heard: number[];
  next: number;
  /** Streams that were subscribed and have not ended. */
  streams: number;
}

interface Real {
  world: World;
  member: Member;
  channel: Channel<number> | null;
  heard: number[];
  streams: ReturnType<typeof collect<number>>[];
}

type Command = fc.AsyncCommand<Model, Real>;
const command = (
  name: string,
  check: (m: Model) => boolean,
  run: (m: Model, r: Real) => Promise<void> | void,
): Command => ({
  check,
  async run(m, r) {
    await run(m, r);
    await r.world.settle();
    expect(r.heard).toEqual(m.heard);
    expect(r.streams.filter((one) => one.ended === undefined)).toHaveLength(m.streams);
    expect(r.streams.every((one) => one.ended === undefined || one.ended === 'complete')).toBe(true);
    if (r.channel !== null) expect(r.channel.closed).toBe(m.channel === 'closed' || m.member === 'left');
  },
  toString: () => name,
});

const publishes = (m: Model) => m.member === 'in' && m.channel === 'open';
const take = (m: Model): number => {
  m.heard.push(m.next);
  return m.next++;
};

const commands = [
  command(
    'open',
    (m) => m.member === 'in',
    (m, r) => {
      const channel = r.member.channel<number>('x');
      if (m.channel === 'open' || m.channel === 'ended') expect(channel).toBe(r.channel);
      else {
        expect(channel).not.toBe(r.channel);
        m.channel = 'open';
      }
      r.channel = channel;
    },
  ),
  command(
    'open after leaving',
    (m) => m.member === 'left',
    (_m, r) => {
      expect(() => r.member.channel('x')).toThrow(expect.objectContaining({ code: 'ERR_MEMBER_CLOSED' }));
    },
  ),
  command(
    'next',
    (m) => m.channel !== 'none',
    (m, r) => {
      r.channel!.next(publishes(m) ? take(m) : -1);
    },
  ),
  command(
    'offer',
    (m) => m.channel !== 'none',
    (m, r) => {
      const open = publishes(m);
      expect(r.channel!.offer(open ? take(m) : -1)).toBe(open);
    },
  ),
  command(
    'publish',
    (m) => m.channel !== 'none',
    async (m, r) => {
      const open = publishes(m);
      const promise = r.channel!.publish(open ? take(m) : -1);
      if (open) expect(await promise).toMatchObject({ received: 1, dropped: 0 });
      else
        await expect(promise).rejects.toMatchObject({
          code: expect.stringMatching(/^ERR_(MEMBER_CLOSED|CHANNEL_CLOSED|PUBLISHING_ENDED)$/),
        });
    },
  ),
  command(
    'complete',
    (m) => m.channel !== 'none',
    (m, r) => {
      r.channel!.complete();
      if (publishes(m)) m.channel = 'ended';
    },
  ),
  command(
    'error',
    (m) => m.channel !== 'none',
    (m, r) => {
      r.channel!.error(new Error('on purpose'));
      if (publishes(m)) m.channel = 'ended';
    },
  ),
  command(
    'close',
    (m) => m.channel !== 'none',
    (m, r) => {
      r.channel!.close();
      if (m.member === 'in') m.channel = 'closed';
      m.streams = 0;
    },
  ),
  command(
    'subscribe',
    (m) => m.channel !== 'none',
    (m, r) => {
      r.streams.push(collect(r.channel!));
      if (m.member === 'in' && m.channel !== 'closed') m.streams++;
    },
  ),
  command(
    'drain',
    (m) => m.channel !== 'none',
    async (_m, r) => {
      const drained = r.channel!.drain();
      await r.world.settle();
      expect(await drained).toEqual({ complete: true, undelivered: [] });
    },
  ),
  command(
    'leave',
    () => true,
    async (m, r) => {
      await Promise.resolve(); // the end of the turn: what was published is sent
      await r.member.leave();
      m.member = 'left';
      m.streams = 0;
    },
  ),
];

test('a channel and its member under random commands', { timeout: 60_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.commands(
        commands.map((one) => fc.constant(one)),
        { maxCommands: 40 },
      ),
      async (script) => {
        const world = new World();
        const [member, peer] = [await world.join(), await world.join()];
        const heard = collect(peer.channel<number>('x'));
        await world.settle();
        await fc.asyncModelRun(
          () => ({
            model: { member: 'in', channel: 'none', heard: [], next: 1, streams: 0 } as Model,
            real: { world, member, channel: null, heard, streams: [] } as Real,
          }),
          script,
        );
      },
    ),
    { numRuns: 150 },
  );
});
