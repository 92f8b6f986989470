import { type Explanation, explain } from './explain.js';
import { decodePacket, type Packet } from './packet.js';
import type { Captured } from './pcap.js';
import type { Rule } from './rule.js';
import { RuleTable } from './table.js';

/** Packets of a capture that look the same to all rules. */
export interface FlowReport {
  /** Of the first of them. */
  readonly explanation: Explanation;
  /** Number of the first and the last in the capture. */
  readonly first: number;
  readonly last: number;
  readonly packets: number;
  /** On the wire. */
  readonly bytes: number;
}

/** What a rule did in a capture. */
export interface RuleTotal {
  readonly rule: Rule;
  /** Packets that it took, dropped or counted. */
  packets: number;
  bytes: number;
}

/** What the rules do with a whole capture. */
export interface CaptureReport {
  readonly packets: number;
  readonly bytes: number;
  /** No Ethernet frames, or shorter than their header: rules don't see those. */
  readonly unreadable: number;
  /** Packets that no rule took or dropped. */
  readonly untouched: number;
  /** In the order of their first packets. */
  readonly flows: readonly FlowReport[];
  /** Every rule once, in the order of the set. */
  readonly totals: readonly RuleTotal[];
}

/**
 * Steers the packets of a capture, without a device.
 * @param port the interface that they came in through, where the capture does not say
 */
export function replay(rules: readonly Rule[], packets: Iterable<Captured>, port?: string): CaptureReport {
  const table = new RuleTable(rules);
  const totals = new Map(rules.map((rule): [Rule, RuleTotal] => [rule, { rule, packets: 0, bytes: 0 }]));
  const flows = new Map<string, { -readonly [K in keyof FlowReport]: FlowReport[K] }>();
  const sum = { packets: 0, bytes: 0, unreadable: 0, untouched: 0 };
  for (const captured of packets) {
    const { frame, wireBytes, number } = captured;
    sum.packets += 1;
    sum.bytes += wireBytes;
    const packet = captured.ethernet ? decodePacket(frame, captured.interface ?? port) : undefined;
    if (packet === undefined) {
      sum.unreadable += 1;
      continue;
    }
    const { takers, sniffers, droppedBy } = table.steer(packet);
    const acted = droppedBy === undefined ? takers : [...takers, droppedBy];
    if (acted.every(({ action }) => action === 'count')) sum.untouched += 1;
    for (const rule of [...acted, ...sniffers]) {
      const total = totals.get(rule)!;
      total.packets += 1;
      total.bytes += wireBytes;
    }
    const key = looks(packet);
    const flow = flows.get(key);
    if (flow === undefined) {
      flows.set(key, {
        explanation: explain(rules, packet),
        first: number,
        last: number,
        packets: 1,
        bytes: wireBytes,
      });
    } else {
      flow.last = number;
      flow.packets += 1;
      flow.bytes += wireBytes;
    }
  }
  return { ...sum, flows: [...flows.values()], totals: [...totals.values()] };
}

/** All that rules can see of a packet. */
const looks = ({ headers, interface: port, fragment }: Packet): string =>
  `${Buffer.from(headers).toString('latin1')}${fragment} ${port}`;
