import { invalidArgument } from '../suggest.js';
import { ipText, macText } from './addresses.js';
import { addLayers, FIELDS, HEADER_BYTES, LAYER, layersOf, readNumber } from './fields.js';

/** A packet as rules see it. */
export interface Packet {
  /** Its headers, in the layout of fields.ts. */
  readonly headers: Uint8Array;
  /** A part of an IP packet: it has no UDP or TCP header that could be matched (VERBS 3). */
  readonly fragment: boolean;
  /** Bit 0 of the destination's first byte. */
  readonly multicast: boolean;
  /** Where it came in, if that is known. */
  readonly interface: string | undefined;
}

const TYPE = { IPV4: 0x0800, IPV6: 0x86dd, VLAN: 0x8100, SERVICE_VLAN: 0x88a8 } as const;
const NEXT = { HOP_BY_HOP: 0, TCP: 6, UDP: 17, ROUTING: 43, FRAGMENT: 44, DESTINATION: 60 } as const;
const MAX_TAGS = 2;
const MAX_EXTENSIONS = 8;

/**
 * Reads the headers of an Ethernet frame, never beyond its end: the counterpart of parse_frame() in native/soft/packet.cc,
 * and as lenient. Reading ends where a header is cut off or contradicts itself; what was read before stays. Tunnels are not
 * looked into.
 * @returns undefined when there is not even an Ethernet header
 * @throws MillraceTypeError ERR_INVALID_ARGUMENT for what are no bytes
 */
export function decodePacket(frame: Uint8Array, port?: string): Packet | undefined {
  if (!(frame instanceof Uint8Array)) invalidArgument('decodePacket()', 'the frame', frame, 'a Uint8Array');
  if (frame.length < 14) return undefined;
  const headers = new Uint8Array(HEADER_BYTES);
  headers.set(frame.subarray(0, 14));
  addLayers(headers, LAYER.ETH);
  const reader = new Decoder(frame, headers);
  reader.ethernet();
  return { headers, fragment: reader.fragment, multicast: (frame[0]! & 1) !== 0, interface: port };
}

class Decoder {
  fragment = false;
  private at = 14;
  private end: number;

  constructor(
    private readonly frame: Uint8Array,
    private readonly headers: Uint8Array,
  ) {
    this.end = frame.length;
  }

  ethernet(): void {
    let type = this.number16(12);
    for (let tag = 0; tag < MAX_TAGS && (type === TYPE.VLAN || type === TYPE.SERVICE_VLAN); tag++) {
      if (this.left < 4) return;
      if (tag === 0) this.copy(this.at, 2, FIELDS.vlan.at);
      this.copy(this.at + 2, 2, FIELDS.etherType.at);
      addLayers(this.headers, LAYER.VLAN);
      type = this.number16(this.at + 2);
      this.at += 4;
    }
    if (type === TYPE.IPV4) this.ipv4();
    else if (type === TYPE.IPV6) this.ipv6();
  }

  private get left(): number {
    return this.end - this.at;
  }
  private number16(offset: number): number {
    return this.frame[offset]! * 256 + this.frame[offset + 1]!;
  }
  private copy(from: number, bytes: number, to: number): void {
    this.headers.set(this.frame.subarray(from, from + bytes), to);
  }
  /** What follows so many bytes is padding. */
  private cut(bytes: number): void {
    this.end = Math.min(this.end, this.at + bytes);
  }

  private ipv4(): void {
    const { at, frame, headers } = this;
    if (this.left < 20 || frame[at]! >> 4 !== 4) return;
    const bytes = (frame[at]! & 15) * 4;
    const total = this.number16(at + 2);
    if (bytes < 20 || total < bytes || bytes > this.left) return;
    this.cut(total);
    this.at += bytes;
    this.copy(at + 12, 4, FIELDS.source.at);
    this.copy(at + 16, 4, FIELDS.dst.at);
    headers[FIELDS.protocol.at] = frame[at + 9]!;
    headers[FIELDS.trafficClass.at] = frame[at + 1]!;
    headers[FIELDS.hopLimit.at] = frame[at + 8]!;
    // Don't fragment is 2 and more fragments 4 in a rule; in the header they are 0x40 and 0x20.
    const flags = frame[at + 6]!;
    headers[FIELDS.ipFlags.at] = ((flags & 0x40) >> 5) | ((flags & 0x20) >> 3);
    addLayers(headers, LAYER.IPV4);
    this.fragment = (this.number16(at + 6) & 0x3fff) !== 0;
    if (!this.fragment) this.transport();
  }

  private ipv6(): void {
    const { at, frame, headers } = this;
    if (this.left < 40 || frame[at]! >> 4 !== 6) return;
    this.at += 40;
    this.cut(this.number16(at + 4));
    this.copy(at + 8, 16, FIELDS.source.at);
    this.copy(at + 24, 16, FIELDS.dst.at);
    headers[FIELDS.flowLabel.at + 1] = frame[at + 1]! & 15;
    this.copy(at + 2, 2, FIELDS.flowLabel.at + 2);
    headers[FIELDS.trafficClass.at] = ((frame[at]! << 4) | (frame[at + 1]! >> 4)) & 0xff;
    headers[FIELDS.hopLimit.at] = frame[at + 7]!;
    headers[FIELDS.protocol.at] = frame[at + 6]!;
    addLayers(headers, LAYER.IPV6);
    if (this.extensions() && !this.fragment) this.transport();
  }

  /** False: cut off, or more of them than anybody sends. */
  private extensions(): boolean {
    const { headers, frame } = this;
    for (let n = 0; n <= MAX_EXTENSIONS; n++) {
      const kind = headers[FIELDS.protocol.at]!;
      const { at } = this;
      if (kind === NEXT.FRAGMENT) {
        if (this.left < 8) return false;
        headers[FIELDS.protocol.at] = frame[at]!;
        this.at += 8;
        this.fragment = (this.number16(at + 2) & 0xfff9) !== 0;
        if (this.fragment) return true;
      } else if (kind === NEXT.HOP_BY_HOP || kind === NEXT.ROUTING || kind === NEXT.DESTINATION) {
        const bytes = this.left < 8 ? Number.POSITIVE_INFINITY : (frame[at + 1]! + 1) * 8;
        if (bytes > this.left) return false;
        headers[FIELDS.protocol.at] = frame[at]!;
        this.at += bytes;
      } else {
        return true;
      }
    }
    return false;
  }

  private transport(): void {
    const { at, frame } = this;
    const protocol = this.headers[FIELDS.protocol.at]!;
    if (protocol === NEXT.UDP) {
      if (this.left >= 8 && this.number16(at + 4) >= 8) this.ports(LAYER.UDP);
    } else if (protocol === NEXT.TCP && this.left >= 20) {
      const bytes = (frame[at + 12]! >> 4) * 4;
      if (bytes >= 20 && bytes <= this.left) this.ports(LAYER.TCP);
    }
  }

  private ports(layer: number): void {
    this.copy(this.at, 2, FIELDS.sourcePort.at);
    this.copy(this.at + 2, 2, FIELDS.port.at);
    addLayers(this.headers, layer);
  }
}

/** An address of a packet as text; undefined without an IP header. */
export function packetAddress({ headers }: Packet, which: 'source' | 'dst'): string | undefined {
  const layers = layersOf(headers);
  if ((layers & (LAYER.IPV4 | LAYER.IPV6)) === 0) return undefined;
  const { at } = FIELDS[which];
  return ipText(headers.subarray(at, at + ((layers & LAYER.IPV4) !== 0 ? 4 : 16)));
}

/** A packet in one line. */
export function packetText(packet: Packet): string {
  const { headers } = packet;
  const layers = layersOf(headers);
  const vlan = (layers & LAYER.VLAN) !== 0 ? `VLAN ${readNumber(headers, FIELDS.vlan)} ` : '';
  const source = packetAddress(packet, 'source');
  const dst = packetAddress(packet, 'dst');
  if (source === undefined || dst === undefined) {
    const mac = ({ at }: { at: number }) => macText(headers.subarray(at, at + 6));
    const type = readNumber(headers, FIELDS.etherType).toString(16).padStart(4, '0');
    return `${vlan}Ethernet 0x${type} ${mac(FIELDS.ethernetSource)} > ${mac(FIELDS.ethernetDst)}`;
  }
  const transport = (layers & LAYER.UDP) !== 0 ? 'UDP' : (layers & LAYER.TCP) !== 0 ? 'TCP' : undefined;
  if (transport === undefined) {
    const protocol = readNumber(headers, FIELDS.protocol);
    return `${vlan}IP protocol ${protocol}${packet.fragment ? ' (fragment)' : ''} ${source} > ${dst}`;
  }
  const end = (address: string, port: number) =>
    address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`;
  return `${vlan}${transport} ${end(source, readNumber(headers, FIELDS.sourcePort))} > ${end(dst, readNumber(headers, FIELDS.port))}`;
}
