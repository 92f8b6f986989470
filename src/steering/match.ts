import { FIELDS, type Field, type FieldName, fieldMask, LAYER, layersOf, sameUnder } from './fields.js';
import type { Packet } from './packet.js';
import type { Match, Rule } from './rule.js';
import { decide, type Verdict } from './winners.js';

/** The plain matcher: field by field, as rules read. table.ts does the same by tables; tests hold them together. */

/** Why a packet does not match: an interface, a header that is missing, or a field. */
export type Mismatch = 'interface' | 'multicast' | 'ipv4' | 'ipv6' | 'udp' | 'tcp' | 'vlan' | FieldName;

const HEADERS: readonly (readonly [number, Mismatch])[] = [
  [LAYER.VLAN, 'vlan'],
  [LAYER.IPV4, 'ipv4'],
  [LAYER.IPV6, 'ipv6'],
  [LAYER.UDP, 'udp'],
  [LAYER.TCP, 'tcp'],
];

/** Whether a field of the packet is what the match wants. */
export function fieldAgrees(name: FieldName, { value, mask }: Match, headers: Uint8Array): boolean {
  const { at, bytes }: Field = FIELDS[name];
  const own = fieldMask(FIELDS[name]).map((bits, i) => bits & mask[i]!);
  return sameUnder(own, value, headers, at, at + bytes);
}

/** All that keeps a packet from matching; nothing: it matches. A packet whose interface is not known may be of any. */
export function mismatches({ type, match }: Rule, packet: Packet): Mismatch[] {
  const found: Mismatch[] = [];
  if (
    match.interface !== undefined &&
    packet.interface !== undefined &&
    match.interface !== packet.interface
  ) {
    found.push('interface');
  }
  if (type === 'multicast-default' && !packet.multicast) found.push('multicast');
  const missing = layersOf(match.mask) & ~layersOf(packet.headers);
  for (const [layer, name] of HEADERS) if ((missing & layer) !== 0) found.push(name);
  for (const name of match.fields) if (!fieldAgrees(name, match, packet.headers)) found.push(name);
  return found;
}

/** Who gets the packet. Linear in the rules. */
export function steer(rules: readonly Rule[], packet: Packet): Verdict {
  return decide(rules.filter((rule) => mismatches(rule, packet).length === 0));
}
