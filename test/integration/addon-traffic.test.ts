import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { COUNTER, EVENT, LANE_STATE } from '../../src/native/tables.js';
import { Endpoint, link, native, ownFabric } from '../support/addon.mjs';
import { pumpUntil, RemotePeer, sendAll } from '../support/addon-process.js';

const fabric = ownFabric();
const open: Endpoint[] = [];
const children: RemotePeer[] = [];
const endpoint = (
  ...args: ConstructorParameters<typeof Endpoint> extends [string, ...infer R] ? R : never
) => {
  const made = new Endpoint(fabric.folder, ...args);
  open.push(made);
  return made;
};
const remote = (...args: Parameters<typeof RemotePeer.process>) => {
  const made = RemotePeer.process(...args);
  children.push(made);
  return made;
};
const count = (at: Endpoint, peer: number) => at.received.get(peer)?.count ?? 0;

afterEach(async () => {
  for (const each of children.splice(0)) {
    each.kill();
    await each.exited;
  }
  for (const each of open.splice(0)) each.close();
});
afterAll(() => fabric.remove());

test('two members in one process', async () => {
  const a = endpoint();
  const b = endpoint();
  const [toB, toA] = link(a, b);
  const pump = pumpUntil([a, b], () => count(b, toA) === 5000 && count(a, toB) === 5000, 'both got all');
  await Promise.all([sendAll(a, [toB], 5000, 100), sendAll(b, [toA], 5000, 100), pump]);
  expect([a.disorder, b.disorder]).toEqual([0, 0]);
  expect(a.buffers.counters[2]).toBeGreaterThan(0);
  expect(a.buffers.counters[3]).toBe(5000);
  expect(a.buffers.peers[toB * 8]).toBe(5000);
  expect(a.buffers.counters[0]).toBe(a.head);
});

test('one record to many', async () => {
  const a = endpoint({ arenaBytes: 1 << 20 });
  const others = Array.from({ length: 8 }, () => endpoint());
  const links = others.map((each) => link(a, each));
  const peers = links.map(([to]) => to);
  await sendAll(a, peers, 500, 200, others);
  await pumpUntil(
    [a, ...others],
    () => others.every((o, i) => count(o, links[i]![1]) === 500),
    'all got all',
  );
  expect(others.map((each) => each.disorder)).toEqual(others.map(() => 0));
});

test('a receiver that does not poll holds only itself up', async () => {
  const a = endpoint();
  const slow = endpoint();
  const quick = endpoint();
  const [toSlow, atSlow] = link(a, slow);
  const [toQuick, atQuick] = link(a, quick);
  for (let i = 0; i < 2000; i++) {
    while (!a.send([toSlow, toQuick], 500)) await pumpUntil([a, quick], () => true, 'room');
  }
  await pumpUntil([a, quick], () => count(quick, atQuick) === 2000, 'the quick one got all');
  expect(count(slow, atSlow)).toBe(0);
  expect(native.resources(a.handle).backlogBytes).toBeGreaterThan(0);
  // The arena never waits for a slow peer.
  expect(a.buffers.counters[0]).toBe(a.head);
  await pumpUntil([a, slow], () => count(slow, atSlow) === 2000, 'the slow one got all');
  expect(native.resources(a.handle).backlogBytes).toBe(0);
  expect([slow.disorder, quick.disorder]).toEqual([0, 0]);
  expect(a.events.some(([kind, peer]) => kind === 6 && peer === toSlow)).toBe(true);
});

test('a target without room consumes nothing', () => {
  const a = endpoint();
  const b = endpoint();
  const [toB, toA] = link(a, b);
  a.send([toB], 1000);
  a.flush();
  b.target = new Uint8Array(64);
  expect(b.poll()).toBe(1);
  expect(b.refused).toBe(1);
  expect(b.target.length).toBeGreaterThanOrEqual(1032);
  expect(count(b, toA)).toBe(0);
  b.poll();
  expect(count(b, toA)).toBe(1);
  expect(b.disorder).toBe(0);
});

test('own lanes keep their own order', async () => {
  const a = endpoint();
  const b = endpoint();
  const [toB, toA] = link(a, b);
  const lane = native.openLane(a.handle);
  for (let i = 0; i < 300; i++) {
    while (!a.send([toB], 64, lane)) await pumpUntil([a, b], () => true, 'room');
  }
  await pumpUntil([a, b], () => count(b, toA) === 300, 'all arrived');
  expect(b.disorder).toBe(0);
  native.closeLane(a.handle, lane);
  await pumpUntil([a, b], () => native.resources(a.handle).lanes === 1, 'the lane is gone');
});

test('injected faults of the device heal without loss', async () => {
  const faults = { seed: 7, error: 0.02, ambiguous: 0.02, delay: 0.05, rnr: 0.05, deadSrq: 0.01 };
  const a = endpoint({ faults });
  const b = endpoint();
  const [toB, toA] = link(a, b);
  await sendAll(a, [toB], 3000, 300, [b]);
  await pumpUntil([a, b], () => count(b, toA) === 3000, 'all arrived');
  expect(b.disorder).toBe(0);
  const states = a.events.filter(([kind]) => kind === EVENT.LANE).map(([, , , state]) => state);
  expect(states).toContain(LANE_STATE.DOWN);
  expect(states).toContain(LANE_STATE.REARMED);
  expect(a.buffers.counters[COUNTER.ERROR_COMPLETIONS]).toBeGreaterThan(0);
});

test('an armed member is woken by a frame, and only then', async () => {
  const a = endpoint();
  const b = endpoint();
  const [toB, toA] = link(a, b);
  await pumpUntil([a, b], () => true, 'quiet');
  while (b.poll() + a.poll() > 0);
  let calls = 0;
  const woken = new Promise<void>((resolve) => {
    native.watch(b.handle, () => {
      calls += 1;
      native.sleep(b.handle, false);
      resolve();
    });
  });
  native.ref(b.handle, true);
  let armed = native.arm(b.handle);
  while (!armed) {
    b.poll();
    armed = native.arm(b.handle);
  }
  native.sleep(b.handle, true);
  for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve));
  expect(calls).toBe(0);
  a.send([toB], 10);
  a.flush();
  await woken;
  b.poll();
  expect(count(b, toA)).toBe(1);
  // With what is pending, arm says no.
  a.send([toB], 10);
  a.flush();
  expect(native.arm(b.handle)).toBe(false);
});

test('close from within the watcher’s function', async () => {
  const a = endpoint();
  const b = endpoint();
  const [toB] = link(a, b);
  while (b.poll() + a.poll() > 0);
  const closed = new Promise<void>((resolve) => {
    native.watch(b.handle, () => {
      b.close();
      resolve();
    });
  });
  while (!native.arm(b.handle)) b.poll();
  native.ref(b.handle, true);
  native.sleep(b.handle, true);
  a.send([toB], 10);
  a.flush();
  await closed;
  expect(() => native.sleep(b.handle, false)).toThrow(expect.objectContaining({ code: 'ECLOSED' }));
});

const modes: [string, NodeJS.ProcessEnv][] = [
  ['as usual', {}],
  ['with a helper thread for libuv', { MILLRACE_WATCHER: 'thread' }],
  ['with copies for external buffers', { MILLRACE_EXTERNAL_BUFFERS: '0' }],
];
describe.each(modes)('two processes, %s', (_title, env) => {
  test('messages both ways', async () => {
    const a = endpoint();
    const b = remote(a, fabric.folder, {}, env);
    await b.connected;
    b.send(3000, 300);
    await sendAll(a, [b.peer], 3000, 300);
    await pumpUntil([a], () => b.received === 3000 && count(a, b.peer) === 3000, 'both got all');
    // A backlog may have come and gone (DRAINED); faults and lanes that went down may not.
    expect([a.disorder, b.disorder, b.events.filter(([kind]) => kind !== 6)]).toEqual([0, 0, []]);
    b.end('close');
    expect(await b.exited).toEqual({ code: 0, signal: null });
    expect(b.words()).toBe('');
  });

  test('one message at a time wakes a sleeping receiver', async () => {
    const a = endpoint();
    const b = remote(a, fabric.folder, {}, env);
    await b.connected;
    for (let i = 1; i <= 30; i++) {
      a.send([b.peer], 64);
      a.flush();
      await pumpUntil([a], () => b.received === i, `message ${i} arrived`);
    }
    b.end('leave');
    expect(await b.exited).toEqual({ code: 0, signal: null });
    expect(b.words()).toBe('');
  });
});
