import { createRequire } from 'node:module';
import { join } from 'node:path';
import { afterAll, afterEach, expect, test } from 'vitest';
import type { NativeError } from '../../src/native/binding.js';
import type { OpenOptions } from '../../src/native/open-options.js';
import { EVENT, FAULT } from '../../src/native/tables.js';
import { addonPath, Endpoint, link, native, ownFabric } from '../support/addon.mjs';
import { OVER_RC, queuePairs } from '../support/queue-pairs.js';

const fabric = ownFabric();
const open: Endpoint[] = [];
const endpoint = (options?: Partial<OpenOptions>) => {
  const made = new Endpoint(fabric.folder, options);
  open.push(made);
  return made;
};
afterEach(() => {
  for (const each of open.splice(0)) each.close();
  expect(fabric.leftovers()).toEqual([]);
});
afterAll(() => fabric.remove());

function thrown(run: () => unknown): NativeError {
  try {
    run();
  } catch (error) {
    return error as NativeError;
  }
  throw new Error('it did not throw');
}
const options: OpenOptions = {
  device: 'soft',
  folder: fabric.folder,
  incarnation: 42,
  slotBytes: 4096,
  slots: 64,
  maxSlots: 256,
  arenaBytes: 1 << 16,
};
/** Every call that takes a handle, with arguments that are otherwise right. */
const calls: [string, (handle: number) => unknown][] = [
  ['buffers', (h) => native.buffers(h)],
  ['offer', (h) => native.offer(h)],
  ['connect', (h) => native.connect(h, 0, 1, new Uint8Array(64))],
  ['disconnect', (h) => native.disconnect(h, 0)],
  ['openLane', (h) => native.openLane(h)],
  ['closeLane', (h) => native.closeLane(h, 1)],
  ['flush', (h) => native.flush(h, 0)],
  ['poll', (h) => native.poll(h, new Uint8Array(8), 0, 1)],
  ['linger', (h) => native.linger(h, 10)],
  ['arm', (h) => native.arm(h)],
  ['watch', (h) => native.watch(h, () => {})],
  ['sleep', (h) => native.sleep(h, true)],
  ['ref', (h) => native.ref(h, true)],
  ['tunnel', (h) => native.tunnel(h, 0, new Uint8Array(8))],
  ['resources', (h) => native.resources(h)],
];

test('a closed handle, and one that never was, say ECLOSED in every call', () => {
  const { handle } = endpoint();
  native.close(handle);
  native.close(handle);
  for (const number of [handle, 0, -1, handle + 1, 2 ** 31 - 1]) {
    for (const [name, call] of calls) {
      const error = thrown(() => call(number));
      expect(error, name).toMatchObject({ name: 'Error', code: 'ECLOSED', what: name });
    }
    expect(() => native.close(number)).not.toThrow();
  }
});

test('a handle is not used again', () => {
  const seen = new Set<number>();
  for (let i = 0; i < 50; i++) {
    const { handle } = endpoint({ slots: 16 });
    expect(seen.has(handle)).toBe(false);
    seen.add(handle);
    native.close(handle);
  }
  expect(Math.max(...seen)).toBeLessThan(2 ** 31);
});

test('arguments of a wrong type are TypeErrors, also when they are missing', () => {
  const { handle } = endpoint();
  const wrong: [string, unknown[]][] = [
    ...calls.map(([name]): [string, unknown[]] => [name, []]),
    ...calls.map(([name]): [string, unknown[]] => [name, ['1']]),
    ['close', [undefined]],
    ['close', [1.5]],
    ['open', []],
    ['open', [null]],
    ['open', [{}]],
    ['flush', [handle]],
    ['flush', [handle, '1']],
    ['flush', [handle, 1n]],
    ['poll', [handle, null, 0, 1]],
    ['poll', [handle, new Int8Array(8), 0, 1]],
    ['poll', [handle, new ArrayBuffer(8), 0, 1]],
    ['poll', [handle, new DataView(new ArrayBuffer(8)), 0, 1]],
    ['poll', [handle, new Uint8Array(8), '0', 1]],
    ['poll', [handle, new Uint8Array(8), 0]],
    ['linger', [handle]],
    ['linger', [handle, '1']],
    ['connect', [handle, 0, 1, 'offer']],
    ['connect', [handle, 0.5, 1, new Uint8Array(64)]],
    ['connect', [handle, 0, Number.NaN, new Uint8Array(64)]],
    ['disconnect', [handle, {}]],
    ['closeLane', [handle, null]],
    ['watch', [handle, {}]],
    ['sleep', [handle, 1]],
    ['ref', [handle]],
    ['tunnel', [handle, 0, [1]]],
    ['lockPresence', []],
    ['isPresent', [Buffer.from('/tmp')]],
    ['unlockPresence', ['1']],
  ];
  for (const [name, values] of wrong) {
    const call = native[name as 'flush'] as (...a: unknown[]) => unknown;
    const error = thrown(() => call(...values));
    expect(error, `${name}(${values})`).toBeInstanceOf(TypeError);
    expect(error, name).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    expect(error.message).toMatch(new RegExp(`^${name}: .* must be `));
  }
  // Nothing of this has hurt it.
  expect(native.flush(handle, 0) & 1).toBe(0);
});

test('numbers out of range are RangeErrors', () => {
  const { handle } = endpoint();
  const wrong: (() => unknown)[] = [
    () => native.flush(handle, -1),
    () => native.flush(handle, 4097),
    () => native.poll(handle, new Uint8Array(8), 9, 1),
    () => native.poll(handle, new Uint8Array(8), -1, 1),
    () => native.poll(handle, new Uint8Array(8), 0, -1),
    () => native.linger(handle, -1),
    () => native.connect(handle, -1, 1, new Uint8Array(64)),
    () => native.connect(handle, 0, 0, new Uint8Array(64)),
    () => native.open({ ...options, incarnation: 2 ** 53 }),
    () => native.open({ ...options, arenaBytes: 2 ** 31 }),
    () => native.open({ ...options, faults: { seed: 1, error: 2 } }),
  ];
  for (const run of wrong) expect(thrown(run), String(run)).toBeInstanceOf(RangeError);
});

test('what open refuses has the errno, what failed, and the cause', () => {
  const no = thrown(() => native.open({ ...options, folder: join(fabric.base, 'not', 'there') }));
  expect(no).toMatchObject({ code: 'ENOENT', errno: -2 });
  expect(no.what).not.toBe('');
  expect(no.message).toContain(no.detail);
  expect(thrown(() => native.open({ ...options, device: 'mlx5_99' })).code).toBe('ENODEV');
  expect(thrown(() => native.open({ ...options, slotBytes: 100 })).code).toBe('EINVAL');
  expect(thrown(() => native.open({ ...options, arenaBytes: 1000 })).code).toBe('EINVAL');
  // What a getter throws comes out as it is.
  const getter = {
    ...options,
    get slots(): number {
      throw new Error('from the getter');
    },
  };
  expect(thrown(() => native.open(getter)).message).toBe('from the getter');
  expect(fabric.leftovers()).toEqual([]);
});

test('the tables are the same objects at every call, and empty after close', () => {
  const { handle, buffers } = endpoint({ arenaBytes: 1 << 16 });
  expect(native.buffers(handle)).toBe(buffers);
  expect(buffers.arena).toBeInstanceOf(ArrayBuffer);
  expect(buffers.arena.byteLength).toBe(1 << 16);
  expect(buffers.sends).toBeInstanceOf(Int32Array);
  expect(buffers.sends.length).toBe(4096 * 4);
  expect(buffers.events.length).toBe(1024 * 8);
  expect(buffers.counters).toBeInstanceOf(Float64Array);
  expect(buffers.counters.length).toBe(32);
  expect(buffers.peers.length).toBe(1024 * 8);
  const view = new Uint8Array(buffers.arena, 8, 8);
  native.close(handle);
  expect(buffers.arena.byteLength).toBe(0);
  expect(view.length).toBe(0);
  for (const table of [buffers.sends, buffers.events, buffers.counters, buffers.peers])
    expect(table.length).toBe(0);
  view[0] = 1; // without effect
});

test('views can not be moved away from under the addon', () => {
  const { buffers } = endpoint();
  try {
    structuredClone(buffers.arena, { transfer: [buffers.arena] });
  } catch {
    // Newer releases of Node.js refuse; others copy.
  }
  expect(buffers.arena.byteLength).toBeGreaterThan(0);
});

test('resources are counted, and go with the peers', () => {
  const a = endpoint();
  const b = endpoint();
  const alone = native.resources(a.handle);
  expect(alone).toMatchObject({
    ...{ pds: 1, xrcds: OVER_RC ? 0 : 1, srqs: 1, qps: queuePairs(0) },
    ...{ lanes: 1, peers: 0, slotBytes: 4096 },
  });
  const [index] = link(a, b);
  expect(native.resources(a.handle)).toMatchObject({ qps: queuePairs(1), lanes: 1, peers: 1 });
  const lane = native.openLane(a.handle);
  expect(lane).toBeGreaterThanOrEqual(1);
  expect(native.resources(a.handle)).toMatchObject({ qps: queuePairs(1, 2), lanes: 2 });
  native.closeLane(a.handle, lane);
  native.disconnect(a.handle, index);
  native.disconnect(a.handle, index);
  expect(native.resources(a.handle)).toMatchObject({ qps: queuePairs(0), lanes: 1, peers: 0 });
});

test('a bad offer is EPROTO, and an index that was not reserved EINVAL', () => {
  const a = endpoint();
  const b = endpoint();
  const { peer } = a.card();
  const theirs = b.card();
  for (const bytes of [new Uint8Array(0), new Uint8Array(64), new Uint8Array(4096).fill(255)]) {
    expect(thrown(() => native.connect(a.handle, peer, theirs.incarnation, bytes)).code).toBe('EPROTO');
  }
  const offer = Buffer.from(theirs.offer, 'base64');
  expect(thrown(() => native.connect(a.handle, peer, theirs.incarnation + 1, offer)).code).toBe('EPROTO');
  expect(thrown(() => native.connect(a.handle, 900, theirs.incarnation, offer)).code).toBe('EINVAL');
  native.connect(a.handle, peer, theirs.incarnation, offer);
  expect(thrown(() => native.connect(a.handle, peer, theirs.incarnation, offer)).code).toBe('EEXIST');
});

test('rows that make no sense are faults of ours, not a crash', () => {
  const a = endpoint();
  const b = endpoint();
  const [peer] = link(a, b);
  const rows = [
    [-1, 0, 40, 0],
    [1023, 0, 40, 0],
    [5000, 0, 40, 0],
    [peer, -8, 40, 0],
    [peer, 0, -8, 0],
    [peer, 0, 0, 0],
    [peer, 4, 40, 0],
    [peer, 0, 41, 0],
    [peer, (1 << 18) - 8, 64, 0],
    [peer, 2 ** 31 - 8, 64, 0],
    [peer, 0, 2 ** 31 - 8, 0],
    [peer, 0, 40, 9],
    [peer, 0, 40, -1],
  ];
  for (const row of rows) {
    a.buffers.sends.set(row);
    expect(() => native.flush(a.handle, 1)).not.toThrow();
    a.poll();
    b.poll();
  }
  expect(b.received.size).toBe(0);
  expect(a.events.every(([kind, , , reason]) => kind === EVENT.PEER_FAULT && reason === FAULT.ROW)).toBe(
    true,
  );
  // The first three are for nobody, which is no fault: that peer may just have left.
  expect(a.events.length).toBe(rows.length - 3);
});

test('random bytes into tunnel are faults of that peer alone', () => {
  const a = endpoint();
  const b = endpoint();
  const [peer] = link(a, b);
  let seed = 12345;
  for (let i = 0; i < 500; i++) {
    const bytes = new Uint8Array(i % 100);
    for (let k = 0; k < bytes.length; k++) {
      seed = (seed * 1103515245 + 12345) & 0x7fffffff;
      bytes[k] = seed >> 16;
    }
    native.tunnel(a.handle, i % 3 === 0 ? peer : i, bytes);
    a.poll();
  }
  expect(native.resources(a.handle).qps).toEqual(queuePairs(1));
});

test('a second load of the module has handles of its own', () => {
  const require = createRequire(import.meta.url);
  require(addonPath);
  delete require.cache[require.resolve(addonPath)];
  const again = require(addonPath) as typeof native;
  expect(again).not.toBe(native);
  const other = new Endpoint(fabric.folder, {}, again);
  const mine = endpoint();
  link(mine, other);
  expect(mine.send([0], 100)).toBe(true);
  mine.flush();
  other.poll();
  expect(other.received.get(0)?.count).toBe(1);
  other.close();
  expect(thrown(() => again.resources(other.handle)).code).toBe('ECLOSED');
  expect(native.resources(mine.handle).qps).toEqual(queuePairs(1));
});

test('the memlock limit is a number of bytes', () => {
  const limit = native.memlockLimit();
  expect(limit === Number.POSITIVE_INFINITY || Number.isInteger(limit)).toBe(true);
});

test('cleaning an empty fabric finds nothing', () => {
  expect(native.cleanFabric()).toEqual({ reaped: 0, bytes: 0 });
});
