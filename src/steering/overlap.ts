import {
  addLayers,
  ETHER_TYPE,
  FIELDS,
  HEADER_BYTES,
  LAYER,
  layersOf,
  PROTOCOL,
  sameUnder,
  writeNumber,
} from './fields.js';
import type { Match } from './rule.js';

/** What two rules have to do with each other. Pure functions over what they match. */

/**
 * Whether they match by the same bits, at the same network interface: such rules share a packet in place of competing for it.
 */
export function sameMatch(a: Match, b: Match): boolean {
  return (
    a.interface === b.interface &&
    Buffer.compare(a.mask, b.mask) === 0 &&
    Buffer.compare(a.value, b.value) === 0
  );
}

/** Headers that can't be in one packet with those of the key. */
const EXCLUDES: readonly (readonly [number, number])[] = [
  [LAYER.IPV4, LAYER.IPV6],
  [LAYER.IPV6, LAYER.IPV4],
  [LAYER.UDP, LAYER.TCP],
  [LAYER.TCP, LAYER.UDP],
];

/**
 * What is also true of every packet that matches: an IPv4 header means its ether type, a UDP header its protocol number, and
 * that neither IPv6 nor TCP is there. With it, whether two rules can match one packet is a question of bits only.
 */
export function implied({ value: given, mask: givenMask }: Match): { value: Uint8Array; mask: Uint8Array } {
  const value = given.slice();
  const mask = givenMask.slice();
  const layers = layersOf(mask);
  const is = (field: (typeof FIELDS)['etherType' | 'protocol'], number: number) => {
    value.fill(0, field.at, field.at + field.bytes);
    writeNumber(value, field, number);
    mask.fill(0xff, field.at, field.at + field.bytes);
  };
  if ((layers & LAYER.IPV4) !== 0) is(FIELDS.etherType, ETHER_TYPE.ipv4);
  if ((layers & LAYER.IPV6) !== 0) is(FIELDS.etherType, ETHER_TYPE.ipv6);
  if ((layers & LAYER.UDP) !== 0) is(FIELDS.protocol, PROTOCOL.udp);
  if ((layers & LAYER.TCP) !== 0) is(FIELDS.protocol, PROTOCOL.tcp);
  for (const [layer, other] of EXCLUDES) if ((layers & layer) !== 0) addLayers(mask, other);
  addLayers(value, LAYER.ETH);
  addLayers(mask, LAYER.ETH);
  return { value, mask };
}

/** Whether both can be of the same network interface. */
const samePort = (a: Match, b: Match): boolean =>
  a.interface === undefined || b.interface === undefined || a.interface === b.interface;

/** Whether a packet may match both. */
export function overlaps(a: Match, b: Match): boolean {
  const one = implied(a);
  const two = implied(b);
  const common = one.mask.map((bits, i) => bits & two.mask[i]!);
  return samePort(a, b) && sameUnder(common, one.value, two.value);
}

/** Whether every packet that matches `b` matches `a`. */
export function covers(a: Match, b: Match): boolean {
  const known = implied(b);
  if (a.interface !== undefined && a.interface !== b.interface) return false;
  for (let i = 0; i < HEADER_BYTES; i++) if ((a.mask[i]! & ~known.mask[i]!) !== 0) return false;
  return sameUnder(a.mask, a.value, known.value);
}
