/** Ethernet frames for tests, header by header. */

export interface FrameParts {
  readonly dstMac?: string;
  readonly srcMac?: string;
  /** Outermost first. */
  readonly vlans?: readonly number[];
  /** Family by form; no IP header without. */
  readonly source?: string;
  readonly dst?: string;
  readonly protocol?: number;
  readonly etherType?: number;
  readonly sourcePort?: number;
  readonly port?: number;
  readonly trafficClass?: number;
  readonly hopLimit?: number;
  readonly flowLabel?: number;
  /** IPv4: the 16 bits of flags and offset. IPv6: the same bits of a fragment header, which is there if it is given. */
  readonly fragment?: number;
  /** Bytes of IPv4 options, or one IPv6 destination-options header of so many bytes. */
  readonly options?: number;
  readonly payload?: number;
}

const be16 = (value: number) => [(value >> 8) & 0xff, value & 0xff];
const mac = (text: string) => text.split(':').map((part) => Number.parseInt(part, 16));

/** Bytes of an address; IPv6 may have one `::`. */
export function address(text: string): number[] {
  if (text.includes('.')) return text.split('.').map(Number);
  const [head = '', tail] = text.split('::');
  const words = (part: string) =>
    part === '' ? [] : part.split(':').map((word) => Number.parseInt(word, 16));
  const [before, after] = [words(head), tail === undefined ? [] : words(tail)];
  const zeros = Array.from({ length: 8 - before.length - after.length }, () => 0);
  return [...before, ...zeros, ...after].flatMap(be16);
}

function transport(parts: FrameParts): number[] {
  const { protocol = 17, sourcePort = 4000, port = 5001, payload = 4 } = parts;
  const data = Array.from({ length: payload }, () => 0x61);
  if (protocol === 17) return [...be16(sourcePort), ...be16(port), ...be16(8 + payload), 0, 0, ...data];
  if (protocol === 6)
    return [
      ...be16(sourcePort),
      ...be16(port),
      ...Array.from({ length: 8 }, () => 0),
      0x50,
      0x10,
      0,
      0,
      0,
      0,
      0,
      0,
      ...data,
    ];
  return data;
}

/** A frame; UDP from 10.0.0.1:4000 to 239.1.1.7:5001 unless told otherwise. */
export function frame(parts: FrameParts = {}): Uint8Array {
  const { dst = '239.1.1.7', source = dst.includes(':') ? 'fd00::1' : '10.0.0.1', protocol = 17 } = parts;
  const { trafficClass = 0, hopLimit = 64, flowLabel = 0, fragment, options = 0 } = parts;
  const six = dst.includes(':');
  const body = transport(parts);
  let ip: number[];
  if (six) {
    const extensions = [
      ...(options > 0
        ? [
            fragment === undefined ? protocol : 44,
            options / 8 - 1,
            ...Array.from({ length: options - 2 }, () => 0),
          ]
        : []),
      ...(fragment === undefined ? [] : [protocol, 0, ...be16(fragment), 0, 0, 0, 1]),
    ];
    const next = options > 0 ? 60 : fragment === undefined ? protocol : 44;
    const first = [
      0x60 | (trafficClass >> 4),
      ((trafficClass & 15) << 4) | (flowLabel >> 16),
      ...be16(flowLabel & 0xffff),
    ];
    ip = [
      ...first,
      ...be16(extensions.length + body.length),
      next,
      hopLimit,
      ...address(source),
      ...address(dst),
      ...extensions,
    ];
  } else {
    const header = [
      0x45 + options / 4,
      trafficClass,
      ...be16(20 + options + body.length),
      0,
      1,
      ...be16(fragment ?? 0),
    ];
    ip = [
      ...header,
      hopLimit,
      protocol,
      0,
      0,
      ...address(source),
      ...address(dst),
      ...Array.from({ length: options }, () => 1),
    ];
  }
  const type = parts.etherType ?? (six ? 0x86dd : 0x0800);
  const group = six ? dst.startsWith('ff') : Number(dst.split('.')[0]) >= 224;
  return Uint8Array.from([
    ...mac(parts.dstMac ?? (group ? (six ? '33:33:00:00:00:01' : '01:00:5e:01:01:07') : '02:00:00:00:00:0b')),
    ...mac(parts.srcMac ?? '02:00:00:00:00:0a'),
    ...(parts.vlans ?? []).flatMap((tag) => [0x81, 0, ...be16(tag)]),
    ...be16(type),
    ...(parts.etherType === undefined || type === 0x0800 || type === 0x86dd ? [...ip, ...body] : body),
  ]);
}
