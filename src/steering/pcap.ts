import { MillraceError } from '../errors.js';

/** A packet of a capture. */
export interface Captured {
  /** Its position, from 1, as Wireshark shows it. */
  readonly number: number;
  /** ms since the epoch; NaN where the capture does not say. */
  readonly time: number;
  /** What was captured of it; shares memory with the file. */
  readonly frame: Uint8Array;
  /** Bytes that it had on the wire. */
  readonly wireBytes: number;
  /** Name of the interface, where the capture has it (pcapng). */
  readonly interface: string | undefined;
  /** Whether it is an Ethernet frame. */
  readonly ethernet: boolean;
}

const ETHERNET = 1;
/** The upper bits say whether frames have their checksum behind them. */
const LINK_BITS = 0x03ffffff;
/** The first two bytes of a compressed file. */
const GZIP = 0x8b1f;
const LINK_NAMES: Readonly<Record<number, string>> = {
  0: 'BSD loopback',
  101: 'raw IP',
  113: 'Linux "any"',
  276: 'Linux "any"',
};
/** A length beyond this is a broken file, not a packet. */
const MAX_BLOCK = 64 * 1024 * 1024;

/**
 * Reads a capture: classic pcap (micro- and nanoseconds, either byte order) or pcapng.
 * @param bytes the whole file
 * @param name the file's, for messages
 * @throws MillraceError ERR_STEERING_FILE while iterating: no capture, a link type other than Ethernet (pcap), a block that
 *   contradicts itself, or an end in the middle of a packet; the packets before it were given
 */
export function* readCapture(bytes: Uint8Array, name: string): Generator<Captured> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const magic = bytes.length < 24 ? 0 : view.getUint32(0, true);
  if (magic === NG.SECTION) yield* readNg(view, name);
  else yield* readClassic(view, magic, name);
}

function fail(name: string, cause: string, remedy: string): never {
  throw new MillraceError('ERR_STEERING_FILE', `${name}: ${cause}. ${remedy}`, { retryable: false });
}

const bytesOf = ({ buffer, byteOffset }: DataView, at: number, length: number) =>
  new Uint8Array(buffer, byteOffset + at, length);

function* readClassic(view: DataView, magic: number, name: string): Generator<Captured> {
  const kinds = new Map([
    [0xa1b2c3d4, [true, 1e3]],
    [0xd4c3b2a1, [false, 1e3]],
    [0xa1b23c4d, [true, 1e6]],
    [0x4d3cb2a1, [false, 1e6]],
  ] as const);
  const kind = kinds.get(magic as 0xa1b2c3d4);
  if ((magic & 0xffff) === GZIP) fail(name, 'it is compressed with gzip', `Unpack it: gunzip ${name}`);
  if (kind === undefined)
    fail(name, 'it is no pcap or pcapng file', 'Record one with tcpdump -i eth0 -w FILE.');
  const [little, perMs] = kind;
  const link = view.getUint32(20, little) & LINK_BITS;
  if (link !== ETHERNET)
    fail(name, `its link type is ${link}${linkName(link)}, not Ethernet`, ON_ONE_INTERFACE);
  let at = 24;
  for (let number = 1; at < view.byteLength; number++) {
    const left = view.byteLength - at - 16;
    const length = left < 0 ? 0 : view.getUint32(at + 8, little);
    if (length > MAX_BLOCK) fail(name, `packet ${number} (byte ${at}) has a length of ${length}`, BROKEN);
    if (left < length) fail(name, `packet ${number} (byte ${at}) is cut off`, CUT_OFF);
    yield {
      number,
      time: view.getUint32(at, little) * 1e3 + view.getUint32(at + 4, little) / perMs,
      frame: bytesOf(view, at + 16, length),
      wireBytes: view.getUint32(at + 12, little),
      interface: undefined,
      ethernet: true,
    };
    at += 16 + length;
  }
}

const linkName = (link: number) => (LINK_NAMES[link] === undefined ? '' : ` (${LINK_NAMES[link]})`);
const ON_ONE_INTERFACE = "Capture on one network interface, not on 'any': rules match Ethernet frames.";
const BROKEN = 'The file is broken.';
const CUT_OFF =
  'The file ends in the middle of it: was the capture stopped hard, or is it still being written?';

/** Types of blocks. The first reads the same in both byte orders. */
const NG = { SECTION: 0x0a0d0d0a, INTERFACE: 1, SIMPLE: 3, ENHANCED: 6 } as const;
const ORDER = 0x1a2b3c4d;
const OPTION = { END: 0, NAME: 2, RESOLUTION: 9, OFFSET: 14 } as const;

interface NgInterface {
  readonly link: number;
  readonly snapLength: number;
  readonly name: string | undefined;
  /** Ticks of a second, and the moment that they count from, in ms. */
  readonly perSecond: bigint;
  readonly start: number;
}

function* readNg(view: DataView, name: string): Generator<Captured> {
  let little = true;
  let interfaces: NgInterface[] = [];
  let number = 0;
  let at = 0;
  while (at < view.byteLength) {
    if (view.byteLength - at < 12) fail(name, `the block at byte ${at} is cut off`, CUT_OFF);
    const section = view.getUint32(at, true) === NG.SECTION;
    if (section) {
      little = view.getUint32(at + 8, true) === ORDER;
      if (!little && view.getUint32(at + 8, false) !== ORDER)
        fail(name, `the section at byte ${at} has no byte order`, BROKEN);
      interfaces = [];
    }
    const type = view.getUint32(at, little);
    const length = view.getUint32(at + 4, little);
    if (length < 12 || length % 4 !== 0 || length > MAX_BLOCK)
      fail(name, `the block at byte ${at} has a length of ${length}`, BROKEN);
    if (length > view.byteLength - at) fail(name, `the block at byte ${at} is cut off`, CUT_OFF);
    const block = new DataView(view.buffer, view.byteOffset + at + 8, length - 12);
    if (type === NG.INTERFACE) interfaces.push(readInterface(block, little, at, name));
    else if (type === NG.ENHANCED || type === NG.SIMPLE) {
      number += 1;
      yield readPacket(block, little, type === NG.SIMPLE, interfaces, number, at, name);
    }
    at += length;
  }
}

function readInterface(block: DataView, little: boolean, at: number, name: string): NgInterface {
  if (block.byteLength < 8) fail(name, `the interface at byte ${at} is too short`, BROKEN);
  let label: string | undefined;
  let perSecond = 1_000_000n;
  let start = 0;
  for (let next = 8; next + 4 <= block.byteLength; ) {
    const code = block.getUint16(next, little);
    const length = block.getUint16(next + 2, little);
    const value = next + 4;
    if (code === OPTION.END || value + length > block.byteLength) break;
    if (code === OPTION.NAME)
      label = Buffer.from(bytesOf(block, value, length))
        .toString('utf8')
        .replace(/\0+$/, '');
    if (code === OPTION.RESOLUTION && length >= 1) {
      const power = block.getUint8(value);
      perSecond = (power & 0x80) !== 0 ? 2n ** BigInt(power & 0x7f) : 10n ** BigInt(power);
    }
    if (code === OPTION.OFFSET && length >= 8) start = Number(block.getBigInt64(value, little)) * 1e3;
    next = value + Math.ceil(length / 4) * 4;
  }
  return {
    link: block.getUint16(0, little),
    snapLength: block.getUint32(4, little),
    name: label,
    perSecond,
    start,
  };
}

function readPacket(
  block: DataView,
  little: boolean,
  simple: boolean,
  interfaces: readonly NgInterface[],
  number: number,
  at: number,
  name: string,
): Captured {
  const header = simple ? 4 : 20;
  if (block.byteLength < header) fail(name, `packet ${number} (byte ${at}) is too short`, BROKEN);
  const from = interfaces[simple ? 0 : block.getUint32(0, little)];
  if (from === undefined)
    fail(name, `packet ${number} (byte ${at}) is of an interface that the file does not have`, BROKEN);
  const wireBytes = block.getUint32(header - 4, little);
  const limit = from.snapLength === 0 ? Number.POSITIVE_INFINITY : from.snapLength;
  const length = simple ? Math.min(wireBytes, limit) : block.getUint32(12, little);
  if (length > block.byteLength - header)
    fail(name, `packet ${number} (byte ${at}) is longer than its block`, BROKEN);
  return {
    number,
    time: simple ? Number.NaN : from.start + milliseconds(block, little, from.perSecond),
    frame: bytesOf(block, header, length),
    wireBytes,
    interface: from.name,
    ethernet: from.link === ETHERNET,
  };
}

/** The time of an enhanced block: 64 bits of ticks, the upper half first. */
function milliseconds(block: DataView, little: boolean, perSecond: bigint): number {
  const ticks = (BigInt(block.getUint32(4, little)) << 32n) | BigInt(block.getUint32(8, little));
  return Number(ticks / perSecond) * 1e3 + (Number(ticks % perSecond) / Number(perSecond)) * 1e3;
}
