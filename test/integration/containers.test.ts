/** Members that do not see each other's processes, as those of containers that share a folder and a user. */
import { spawnSync } from 'node:child_process';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { leaveAll, PubSub, whole } from '../support/pubsub-process.js';

/** A process namespace of its own, which ends with this command. */
const ELSEWHERE = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc'];

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

test('two process namespaces: small and large messages, and the end of one', async (context) => {
  if (spawnSync(ELSEWHERE[0]!, [...ELSEWHERE.slice(1), 'true']).status !== 0)
    context.skip('this user may make no process namespace');
  const outside = await PubSub.start(place, 'outside');
  place.runner = ELSEWHERE;
  const inside = await PubSub.start(place, 'inside');
  expect(inside.of('up')[0]!.pid, 'in its namespace it is the first').toBe(1);
  const both = [outside, inside];
  const channels = [
    { channel: 'small', options: { codec: 'json' }, size: 100, count: 2000 },
    { channel: 'large', options: { codec: 'bytes' }, size: 300_000, count: 20 },
  ];
  for (const one of both) for (const each of channels) one.tell('subscribe', each);
  for (const one of both) for (const each of channels) await one.ask('ready', 'ready', each);
  for (const one of both) for (const each of channels) await one.publish(each);
  for (const one of both) expect(await one.drain()).toMatchObject({ complete: true });
  for (const [one, other] of [both, [inside, outside]] as const) {
    expect(await one!.heard()).toEqual(
      Object.fromEntries(
        channels.map(({ channel, count }) => [`${channel} ${other!.name}`, { ...whole(count), left: null }]),
      ),
    );
  }
  inside.running.kill('SIGKILL');
  await outside.until('its end is noticed', () => outside.of('left').length === channels.length);
  expect(outside.of('left').map(({ reason }) => reason)).toEqual(['died', 'died']);
  await leaveAll(place, outside);
});
