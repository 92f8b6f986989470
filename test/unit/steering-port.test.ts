/** Which rule a frame is said to be of, and what is counted: a port over an addon in memory. */
import { beforeEach, expect, test } from 'vitest';
import type { Native } from '../../src/native/binding.js';
import { PORT_ROW, PORT_STRIDE } from '../../src/native/port-calls.js';
import { compile } from '../../src/steering/compile.js';
import { Datagrams } from '../../src/steering/datagrams.js';
import { parseRule } from '../../src/steering/parse.js';
import { Port, type PortFlow } from '../../src/steering/port.js';
import type { RuleInput } from '../../src/steering/rule.js';
import { frame } from '../support/frames.js';

const unicast = frame({ dst: '10.0.0.1' });
const group = frame({ dst: '239.1.1.7' });
unicast[0] = 2;

/** Frames that wait: the queue's number, the tag, and the bytes. */
let waiting: [number, number, Uint8Array][];
let queues: number;
let wake: () => void;
const native = {
  openPort: () => 1,
  portCounters: () => ({ unprivileged: false }),
  watch: (_handle: number, call: () => void) => {
    wake = call;
  },
  openQueue: () => queues++,
  closeQueue: () => {},
  createFlow: () => 1,
  destroyFlow: () => {},
  readFlow: () => ({ packets: 10, bytes: 1000 }),
  armPort: () => true,
  sleep: () => {},
  close: () => {},
  pollPort: (_handle: number, target: Uint8Array, offset: number, rows: Int32Array) => {
    let at = offset;
    const taken = waiting.splice(0);
    for (const [i, [queue, tag, bytes]] of taken.entries()) {
      target.set(bytes, at);
      const row = rows.subarray(i * PORT_STRIDE);
      row.fill(0, 0, PORT_STRIDE);
      row[PORT_ROW.QUEUE] = queue;
      row[PORT_ROW.TAG] = tag;
      row[PORT_ROW.OFFSET] = row[PORT_ROW.FRAME] = at;
      row[PORT_ROW.LENGTH] = row[PORT_ROW.FRAME_LENGTH] = bytes.length;
      at += (bytes.length + 7) & ~7;
    }
    return taken.length;
  },
} as unknown as Native;

let port: Port;
let stream: Datagrams;
let seen: string[];
beforeEach(() => {
  waiting = [];
  queues = 0;
  seen = [];
  port = new Port(native, 'soft', 'eth0');
  stream = new Datagrams('s', () => {});
  stream.subscribe(({ rule }) => seen.push(rule));
});

const create = (input: RuleInput): PortFlow => {
  const rule = parseRule({ to: 's', ...input }, '#1').rule!;
  return port.create(rule, compile(rule), stream);
};
const come = ({ queue, tag }: PortFlow, ...frames: Uint8Array[]) => {
  for (const one of frames) waiting.push([queue.number, tag, one]);
};

test('of defaults with one stream, the strongest that is for such frames', () => {
  const all = create({ name: 'all', type: 'all-default', priority: 2 });
  const multicast = create({ name: 'multicast', type: 'multicast-default', priority: 1 });
  come(all, unicast, group);
  wake();
  expect(seen).toEqual(['all', 'multicast']);
  // Ten were counted by the device, one of each came.
  expect([port.read(all).drops, port.read(multicast).drops]).toEqual([9, 9]);
});

test('sniffers, which the device does not count', () => {
  const [one, two] = [create({ name: 'one', type: 'sniffer' }), create({ name: 'two', type: 'sniffer' })];
  come(one, unicast, group);
  come(two, unicast);
  wake();
  expect(seen).toEqual(['one', 'one', 'two']);
  expect(port.read(one)).toEqual({ packets: 2, bytes: unicast.length + group.length, drops: 0 });
  expect(port.read(two)).toEqual({ packets: 1, bytes: unicast.length, drops: 0 });
});

test('what is under way for a rule that is made anew comes; of one that has gone it does not', () => {
  const old = create({ name: 'a', tag: 1 });
  const other = create({ name: 'b', match: { vlan: 1 } });
  come(old, group, group);
  come(other, group);
  // In the middle of what one look has found.
  const once = stream.subscribe(() => {
    once.unsubscribe();
    create({ name: 'a', tag: 2 });
    port.destroy(old);
    port.destroy(other);
  });
  wake();
  expect(seen).toEqual(['a', 'a']);
  // Later nothing is left of it.
  wake();
  come(old, group);
  wake();
  expect(seen).toEqual(['a', 'a']);
});
