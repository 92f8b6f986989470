import { FIELDS, type FieldName, HEADER_BYTES, LAYER, layersOf, readNumber } from './fields.js';
import type { Rule, RuleType } from './rule.js';

/**
 * Rules as bytes of `struct ibv_flow_attr` with its specs behind it (infiniband/verbs.h). Attributes and headers of specs are
 * in host order, which is little endian wherever this library runs; values and masks are in network order.
 */

/** sizeof(struct ibv_flow_attr), and where its members are. */
export const ATTR = { BYTES: 20, TYPE: 4, SIZE: 8, PRIORITY: 10, SPECS: 12, PORT: 13, FLAGS: 16 } as const;
/** enum ibv_flow_attr_type */
const TYPES: Readonly<Record<RuleType, number>> = {
  normal: 0,
  'all-default': 1,
  'multicast-default': 2,
  sniffer: 3,
};
/** IBV_FLOW_ATTR_FLAGS_DONT_TRAP */
export const DONT_TRAP = 2;

/** The specs of actions: type and bytes. */
export const ACTION = { TAG: [0x1000, 12], DROP: [0x1001, 8], COUNT: [0x1003, 16] } as const;

/** A spec of headers: value and mask lie one behind the other, `bytes` each, the value at `at`. */
export interface Spec {
  readonly type: number;
  readonly size: number;
  readonly at: number;
  readonly bytes: number;
  /** The header that the spec asks for. */
  readonly layer: number;
  /** [offset in value and mask, offset in headers, bytes] of each field. */
  readonly parts: readonly (readonly [number, number, number])[];
}

const part = (offset: number, name: FieldName, bytes: number = FIELDS[name].bytes) =>
  [offset, FIELDS[name].at, bytes] as const;
const ADDRESSES = [part(0, 'source', 4), part(4, 'dst', 4)] as const;
const PORTS = [part(0, 'port'), part(2, 'sourcePort')] as const;

export const SPECS = {
  ETH: {
    type: 0x20,
    size: 40,
    at: 6,
    bytes: 16,
    layer: LAYER.ETH,
    parts: [part(0, 'ethernetDst'), part(6, 'ethernetSource'), part(12, 'etherType'), part(14, 'vlan')],
  },
  IPV4: { type: 0x30, size: 24, at: 8, bytes: 8, layer: LAYER.IPV4, parts: ADDRESSES },
  IPV4_EXT: {
    type: 0x32,
    size: 32,
    at: 8,
    bytes: 12,
    layer: LAYER.IPV4,
    parts: [
      ...ADDRESSES,
      part(8, 'protocol'),
      part(9, 'trafficClass'),
      part(10, 'hopLimit'),
      part(11, 'ipFlags'),
    ],
  },
  IPV6: {
    type: 0x31,
    size: 88,
    at: 8,
    bytes: 40,
    layer: LAYER.IPV6,
    parts: [
      part(0, 'source'),
      part(16, 'dst'),
      part(32, 'flowLabel'),
      part(36, 'protocol'),
      part(37, 'trafficClass'),
      part(38, 'hopLimit'),
    ],
  },
  TCP: { type: 0x40, size: 16, at: 6, bytes: 4, layer: LAYER.TCP, parts: PORTS },
  UDP: { type: 0x41, size: 16, at: 6, bytes: 4, layer: LAYER.UDP, parts: PORTS },
} as const satisfies Record<string, Spec>;

/** What a rule's match takes, from the outside in. */
function specsOf(mask: Uint8Array): Spec[] {
  const layers = layersOf(mask);
  const specs: Spec[] = [];
  if ((layers & LAYER.ETH) !== 0) specs.push(SPECS.ETH);
  if ((layers & LAYER.IPV4) !== 0) {
    // The plain spec where it will do: more adapters have it.
    const extended = (['protocol', 'trafficClass', 'hopLimit', 'ipFlags'] as const).some(
      (name) => readNumber(mask, FIELDS[name]) !== 0,
    );
    specs.push(extended ? SPECS.IPV4_EXT : SPECS.IPV4);
  }
  if ((layers & LAYER.IPV6) !== 0) specs.push(SPECS.IPV6);
  if ((layers & LAYER.TCP) !== 0) specs.push(SPECS.TCP);
  if ((layers & LAYER.UDP) !== 0) specs.push(SPECS.UDP);
  return specs;
}

/**
 * The attribute of a rule, ready for ibv_create_flow(). It counts (a COUNT spec) with a null pointer for the counters: who
 * makes the flow puts them in place. A rule that drops or only counts needs a queue pair as well, which gets nothing.
 * @param port of the device
 */
export function compile({ type, priority, match, action, tag, dontTrap }: Rule, port = 1): Uint8Array {
  const headers = specsOf(match.mask);
  const actions: (readonly [readonly [number, number], number])[] = [];
  if (tag !== undefined) actions.push([ACTION.TAG, tag]);
  if (action === 'drop') actions.push([ACTION.DROP, 0]);
  // A sniffer takes no specs at all (VERBS 3).
  if (type !== 'sniffer') actions.push([ACTION.COUNT, 0]);
  const size =
    ATTR.BYTES +
    headers.reduce((sum, spec) => sum + spec.size, 0) +
    actions.reduce((sum, [[, bytes]]) => sum + bytes, 0);
  const out = new Uint8Array(size);
  const view = new DataView(out.buffer);
  view.setUint32(ATTR.TYPE, TYPES[type], true);
  view.setUint16(ATTR.SIZE, size, true);
  view.setUint16(ATTR.PRIORITY, priority, true);
  view.setUint8(ATTR.SPECS, headers.length + actions.length);
  view.setUint8(ATTR.PORT, port);
  view.setUint32(ATTR.FLAGS, dontTrap ? DONT_TRAP : 0, true);
  let at: number = ATTR.BYTES;
  for (const spec of headers) {
    view.setUint32(at, spec.type, true);
    view.setUint16(at + 4, spec.size, true);
    for (const [offset, from, bytes] of spec.parts) {
      const start = at + spec.at + offset;
      out.set(match.value.subarray(from, from + bytes), start);
      out.set(match.mask.subarray(from, from + bytes), start + spec.bytes);
    }
    at += spec.size;
  }
  for (const [[number, bytes], operand] of actions) {
    view.setUint32(at, number, true);
    view.setUint16(at + 4, bytes, true);
    if (number === ACTION.TAG[0]) view.setUint32(at + 8, operand, true);
    at += bytes;
  }
  return out;
}

/** What a compiled rule matches, read back from its bytes. */
export function readMatch(attr: Uint8Array): { value: Uint8Array; mask: Uint8Array } {
  const value = new Uint8Array(HEADER_BYTES);
  const mask = new Uint8Array(HEADER_BYTES);
  const view = new DataView(attr.buffer, attr.byteOffset, attr.byteLength);
  const known: readonly Spec[] = Object.values(SPECS);
  let layers = 0;
  let at: number = ATTR.BYTES;
  for (let n = view.getUint8(ATTR.SPECS); n > 0; n--) {
    const type = view.getUint32(at, true);
    const spec = known.find((one) => one.type === type);
    if (spec !== undefined) {
      layers |= spec.layer;
      for (const [offset, to, bytes] of spec.parts) {
        const start = at + spec.at + offset;
        value.set(attr.subarray(start, start + bytes), to);
        mask.set(attr.subarray(start + spec.bytes, start + spec.bytes + bytes), to);
      }
    }
    at += view.getUint16(at + 4, true);
  }
  if (mask[FIELDS.vlan.at] !== 0 || mask[FIELDS.vlan.at + 1] !== 0) layers |= LAYER.VLAN;
  for (const headers of [value, mask]) headers[60] = layers;
  return { value, mask };
}
