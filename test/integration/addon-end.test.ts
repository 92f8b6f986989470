import { spawnSync } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, expect, test } from 'vitest';
import { Endpoint, native, ownFabric } from '../support/addon.mjs';
import { pumpUntil, RemotePeer } from '../support/addon-process.js';
import { queuePairs } from '../support/queue-pairs.js';

/**
 * Members that end in the middle of traffic, in every way: the others go on, nothing crashes, nothing stays behind.
 */
const fabric = ownFabric();
const open: Endpoint[] = [];
const remotes: RemotePeer[] = [];
afterEach(async () => {
  for (const each of remotes.splice(0)) {
    each.kill();
    await each.exited;
    removeInbox(each);
  }
  for (const each of open.splice(0)) each.close();
  native.cleanFabric();
});
afterAll(() => fabric.remove());

const count = (at: Endpoint, peer: number) => at.received.get(peer)?.count ?? 0;

/** What whoever notices a death does with the inbox files of the dead. */
function removeInbox({ incarnation }: RemotePeer) {
  for (const name of readdirSync(fabric.folder)) {
    if (name.startsWith(`i-${incarnation}.`)) rmSync(join(fabric.folder, name));
  }
}

/** Sends to every peer that lives, as fast as there is room, until it holds. */
function busyUntil(a: Endpoint, peers: () => number[], holds: () => boolean, what: string) {
  return pumpUntil(
    [a],
    () => {
      for (let i = 0; i < 50; i++) if (peers().length > 0 && !a.send(peers(), 200)) break;
      return holds();
    },
    what,
  );
}

/** One of two remotes ends in the middle of traffic both ways; the other must notice nothing. */
async function endInTraffic(start: () => RemotePeer, a: Endpoint, how: string) {
  const healthy = start();
  const victim = start();
  remotes.push(healthy, victim);
  await Promise.all([healthy.connected, victim.connected]);
  for (const each of [healthy, victim]) each.send(1_000_000, 200);
  await busyUntil(
    a,
    () => [healthy.peer, victim.peer],
    () => count(a, victim.peer) > 500 && count(a, healthy.peer) > 500 && victim.received > 500,
    'traffic flows',
  );
  if (how === 'SIGKILL' || how === 'terminate') victim.kill();
  else victim.end(how);
  await busyUntil(
    a,
    () => [healthy.peer, victim.peer],
    () => victim.ended,
    `it ended (${how})`,
  );
  while (a.poll() > 0);
  a.native.disconnect(a.handle, victim.peer);
  const before = { from: count(a, healthy.peer), to: healthy.received };
  await busyUntil(
    a,
    () => [healthy.peer],
    () => count(a, healthy.peer) > before.from + 1000 && healthy.received > before.to + 1000,
    'traffic with the other goes on',
  );
  expect([a.disorder, healthy.disorder]).toEqual([0, 0]);
  healthy.end('close');
  await pumpUntil([a], () => healthy.ended, 'the healthy one closes');
  a.native.disconnect(a.handle, healthy.peer);
  expect(native.resources(a.handle).peers).toBe(0);
  return { end: await victim.exited, victim };
}

function endpoint() {
  const a = new Endpoint(fabric.folder, { arenaBytes: 1 << 20 });
  open.push(a);
  return a;
}

const endings: [how: string, code: number | null, signal: string | null, words: string][] = [
  ['close', 0, null, ''],
  ['leave', 0, null, ''],
  ['exit', 7, null, ''],
  ['throw', 1, null, 'on purpose'],
  ['reject', 1, null, 'on purpose'],
  ['record', 1, null, 'on purpose'],
  ['SIGKILL', null, 'SIGKILL', ''],
];
test.each(endings)('a process that ends by %s', async (how, code, signal, words) => {
  const a = endpoint();
  const { end, victim } = await endInTraffic(() => RemotePeer.process(a, fabric.folder), a, how);
  expect(end).toEqual({ code, signal });
  expect(victim.words()).toContain(words);
  expect(victim.words()).not.toMatch(/FATAL|assert|Assert|core dumped/);
  a.close();
  if (how === 'SIGKILL') {
    // The inbox files of the dead are for whoever notices its death, the device's for whoever joins or cleans.
    removeInbox(victim);
    expect(readdirSync(fabric.folder)).toEqual([]);
    native.cleanFabric();
  }
  expect(fabric.leftovers()).toEqual([]);
});

test.each(['exit', 'record', 'leave'])(
  'with a helper thread for libuv, a process that ends by %s',
  async (how) => {
    const a = endpoint();
    const start = () => RemotePeer.process(a, fabric.folder, {}, { MILLRACE_WATCHER: 'thread' });
    const { end, victim } = await endInTraffic(start, a, how);
    expect(end).toEqual({ code: { exit: 7, record: 1, leave: 0 }[how], signal: null });
    expect(victim.words()).not.toMatch(/FATAL|assert|Assert|core dumped/);
    a.close();
    expect(fabric.leftovers()).toEqual([]);
  },
);

const workerEndings: [how: string, code: number, words: string][] = [
  ['close', 0, ''],
  ['leave', 0, ''],
  ['exit', 7, ''],
  ['throw', 1, 'on purpose'],
  ['record', 1, 'on purpose'],
  ['terminate', 1, ''],
];
test.each(workerEndings)('a worker that ends by %s', async (how, code, words) => {
  const a = endpoint();
  const { end, victim } = await endInTraffic(() => RemotePeer.worker(a, fabric.folder), a, how);
  expect(end.code).toBe(code);
  expect(victim.words()).toContain(words);
  a.close();
  expect(fabric.leftovers()).toEqual([]);
});

const crowdEndings: [how: string, code: number][] = [
  ['exit', 7],
  ['throw', 1],
  ['dry', 0],
  ['terminate', 0],
];
test.each(crowdEndings)('a process with busy workers that ends by %s', (how, code) => {
  const program = join('test', 'integration', 'programs', 'addon-crowd.mjs');
  const result = spawnSync(process.execPath, [program, fabric.folder, how], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  expect({ status: result.status, signal: result.signal }).toEqual({ status: code, signal: null });
  if (how === 'throw') expect(result.stderr).toContain('on purpose');
  else expect(result.stderr).toBe('');
  expect(fabric.leftovers()).toEqual([]);
});

test('a process that is stopped for a while loses nothing', async () => {
  const a = endpoint();
  const stopped = RemotePeer.process(a, fabric.folder);
  const healthy = RemotePeer.process(a, fabric.folder);
  remotes.push(stopped, healthy);
  await Promise.all([stopped.connected, healthy.connected]);
  let sent = 0;
  const send = (peers: number[]) => {
    for (let i = 0; i < 20 && a.send(peers, 200); i++) sent += 1;
    return true;
  };
  const both = [stopped.peer, healthy.peer];
  await pumpUntil([a], () => send(both) && stopped.received > 500, 'traffic flows');
  stopped.kill('SIGSTOP');
  const before = healthy.received;
  const sentBefore = sent;
  await pumpUntil(
    [a],
    () => (sent > sentBefore + 5000 || send(both)) && healthy.received > before + 5000,
    'the healthy one goes on',
  );
  stopped.kill('SIGCONT');
  await pumpUntil([a], () => stopped.received === sent && healthy.received === sent, 'both got all');
  expect([stopped.disorder, healthy.disorder]).toEqual([0, 0]);
});

test('200 workers that join, talk and end, each in another way', async () => {
  const a = endpoint();
  const ways = ['terminate', 'exit', 'close', 'leave', 'throw', 'now'];
  for (let i = 0; i < 200; i++) {
    const how = ways[i % ways.length]!;
    const remote = RemotePeer.worker(a, fabric.folder, { slots: 16 });
    if (how === 'now') {
      // Anywhere in its start, also before the addon is loaded.
      remote.connected.catch(() => {});
      if (i % 4 === 1) await new Promise((resolve) => setImmediate(resolve));
      if (i % 4 === 3) await remote.connected;
      remote.kill();
    } else {
      await remote.connected;
      remote.send(1_000_000, 100);
      await busyUntil(
        a,
        () => [remote.peer],
        () => count(a, remote.peer) > 20,
        `traffic with worker ${i} flows`,
      );
      if (how === 'terminate') remote.kill();
      else remote.end(how);
    }
    await pumpUntil([a], () => remote.ended, `worker ${i} ends (${how})`);
    // An error of another kind would be an end in another way.
    if (how === 'throw') expect(remote.words()).toContain('on purpose');
    else expect([how, remote.words()]).toEqual([how, '']);
    a.native.disconnect(a.handle, remote.peer);
    a.received.delete(remote.peer);
  }
  expect(a.disorder).toBe(0);
  expect(native.resources(a.handle)).toMatchObject({ peers: 0, qps: queuePairs(0) });
  expect(readdirSync(fabric.folder).filter((name) => !name.startsWith(`i-${a.incarnation}.`))).toEqual([]);
  a.close();
  expect(fabric.leftovers()).toEqual([]);
});

test.each(['load', 'calls'])('workers that are terminated in the middle of the addon: %s', (what) => {
  const program = 'test/integration/programs/addon-interrupted.mjs';
  const { status, signal, stdout, stderr } = spawnSync(
    process.execPath,
    [program, fabric.folder, what, '30'],
    { encoding: 'utf8', timeout: 60_000 },
  );
  expect({ status, signal, stdout, stderr }).toEqual({
    ...{ status: 0, signal: null },
    ...{ stdout: '30 ended\n', stderr: '' },
  });
});
