/**
 * What rules match on, as bytes: the headers of a packet in one array, each field at its place, in network order. A rule's
 * value and mask have the same form. It is the first part of HeaderFields in native/soft/packet.h, byte for byte, so that
 * what is compared here is what the software device compares.
 */

/** Bytes of the array. */
export const HEADER_BYTES = 64;

/** Headers that were found in a packet, or that a rule asks for; a little-endian u32 at {@link LAYERS_AT}. */
export const LAYER = { ETH: 1, VLAN: 2, IPV4: 4, IPV6: 8, TCP: 16, UDP: 32 } as const;
/** Where the layers are. */
export const LAYERS_AT = 60;

/** How a field's value is written by people. */
export type FieldKind = 'mac' | 'ip' | 'number';

/** Where a field is. */
export interface Field {
  readonly at: number;
  readonly bytes: number;
  readonly kind: FieldKind;
  /** Bits of a number; the others of its bytes belong to other fields. */
  readonly bits: number;
  /** Position of a number's lowest bit. */
  readonly shift: number;
}

const whole = (at: number, bytes: number, kind: FieldKind = 'number'): Field => ({
  at,
  bytes,
  kind,
  bits: bytes * 8,
  shift: 0,
});

/** The fields by the names that rules use. Ports and addresses are the destination's unless the name says source. */
export const FIELDS = {
  ethernetDst: whole(0, 6, 'mac'),
  ethernetSource: whole(6, 6, 'mac'),
  etherType: whole(12, 2),
  vlan: { ...whole(14, 2), bits: 12 },
  vlanPriority: { ...whole(14, 2), bits: 3, shift: 13 },
  source: whole(16, 16, 'ip'),
  dst: whole(32, 16, 'ip'),
  flowLabel: { ...whole(48, 4), bits: 20 },
  protocol: whole(52, 1),
  trafficClass: whole(53, 1),
  hopLimit: whole(54, 1),
  ipFlags: { ...whole(55, 1), bits: 3 },
  port: whole(56, 2),
  sourcePort: whole(58, 2),
} as const satisfies Record<string, Field>;

/** A field's name. */
export type FieldName = keyof typeof FIELDS;
/** All of them, in the order of the headers. */
export const FIELD_NAMES = Object.keys(FIELDS) as readonly FieldName[];

/** What stands behind an Ethernet header. */
export const ETHER_TYPE = { ipv4: 0x0800, ipv6: 0x86dd, arp: 0x0806 } as const;
/** What stands behind an IP header, by the names that rules may use. */
export const PROTOCOL = {
  icmp: 1,
  igmp: 2,
  tcp: 6,
  udp: 17,
  gre: 47,
  esp: 50,
  icmpv6: 58,
  ospf: 89,
  sctp: 132,
} as const;

/** Bits of `ipFlags`, as ibv_flow_ipv4_ext_filter has them. */
export const IP_FLAG = { DONT_FRAGMENT: 2, MORE_FRAGMENTS: 4 } as const;

/** Layers of headers. */
export const layersOf = (headers: Uint8Array): number => headers[LAYERS_AT]! | (headers[LAYERS_AT + 1]! << 8);
/** Adds layers to headers. */
export function addLayers(headers: Uint8Array, layers: number): void {
  headers[LAYERS_AT]! |= layers & 0xff;
  headers[LAYERS_AT + 1]! |= layers >> 8;
}

/** A number field of headers. */
export function readNumber(headers: Uint8Array, { at, bytes, bits, shift }: Field): number {
  let value = 0;
  for (let i = 0; i < bytes; i++) value = value * 256 + headers[at + i]!;
  return Math.floor(value / 2 ** shift) % 2 ** bits;
}

/** Sets bits of a number field; those that are set already stay. */
export function writeNumber(headers: Uint8Array, { at, bytes, shift }: Field, value: number): void {
  let left = value * 2 ** shift;
  for (let i = bytes - 1; i >= 0; i--) {
    headers[at + i]! |= left % 256;
    left = Math.floor(left / 256);
  }
}

/** Whether a field's bits in `mask` are the same in both. */
export function sameUnder(
  mask: Uint8Array,
  a: Uint8Array,
  b: Uint8Array,
  from = 0,
  to = HEADER_BYTES,
): boolean {
  for (let i = from; i < to; i++) if (((a[i]! ^ b[i]!) & mask[i]!) !== 0) return false;
  return true;
}

/** The mask of a field's own bits. */
export function fieldMask(field: Field): Uint8Array {
  const mask = new Uint8Array(HEADER_BYTES);
  if (field.kind === 'number') writeNumber(mask, field, 2 ** field.bits - 1);
  else mask.fill(0xff, field.at, field.at + field.bytes);
  return mask;
}
