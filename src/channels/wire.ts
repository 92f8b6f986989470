/**
 * The wire format, version 1, as JavaScript writes and reads it. `native/transport/frame.h` has the same numbers; a test
 * parses that header and asserts that the two agree.
 *
 * A frame is a native header of 64 bytes and a body of records. A record starts at a multiple of 8, so its header is read
 * and written through typed arrays over the arena or the batch: no DataView, no allocation. All numbers are little endian.
 */

/** Bytes of the frame header, which native code writes in front of the records. */
export const FRAME_BYTES = 64;
/** Bytes of a record's header. */
export const RECORD_BYTES = 32;
export const WIRE_VERSION = 1;
export const FRAME_MAGIC = 0x4d4c5231;

/** Kinds of records. */
export const KIND = {
  /** Already handled: the receiver overwrites the kind of a record that it took out of order. Never sent. */
  NONE: 0,
  DATA: 1,
  /** Codec record definitions; precede the messages that need them. */
  DEFINE: 2,
  /** Answer to a subscription: u32 id, u32 generation, f64 first live sequence, then JSON {@link SubscribedBody}. */
  SUBSCRIBED: 3,
  /** f64 from, f64 to, u32 count, u32 reason (index in {@link GAP_REASONS}). */
  GAP: 4,
  /** To the publisher: f64 delivered sequence, f64 consumed bytes; correlation = generation. */
  CONSUMED: 5,
  /** The publisher ended: JSON {@link DoneBody}. */
  DONE: 6,
  /** Asks for a CONSUMED now, and again until all that precedes it is delivered. */
  REPORT: 7,
  /** Everything up to `sequence` was sent; multicast only. */
  HEARTBEAT: 8,
  /**
   * What follows was sent after so many subscriptions (the count stands in `sequence`) were told to the receiver on the
   * control connection, and waits there until they have arrived.
   */
  AFTER: 9,
  /** To a publisher that is short of blocks (it asked natively): some were given back. */
  RELEASED: 10,
  /** From a publisher that is short of blocks: give back what is only kept. */
  VACATE: 11,
  /** To the publisher: f64 serials of offers to us that are over, see {@link FLAG.REMOTE}. */
  LANDED: 12,
  /** A part of a message that is larger than a datagram; multicast only. See multicast/fragments.ts. */
  FRAGMENT: 20,
  /** To the publisher: pairs of f64 from, to: send these again; correlation = generation. Multicast only. */
  REPAIR: 21,
  /** To the publisher: f64 from, to: these were given up; correlation = generation. Multicast only. */
  MISSED: 22,
} as const;

/** Flags of a record. */
export const FLAG = {
  /** A further fragment follows. Reserved. */
  MORE: 1,
  /** Headers stand in front of the payload. */
  HEADERS: 2,
  /** A replayed message: only for the subscription whose id is in `correlation`. */
  REPLAY: 4,
  /** A large message: the payload is a descriptor of a block in the publisher's pool (channels/lending). */
  LARGE: 8,
  /**
   * With LARGE: the descriptor is for a receiver on another port, which reads the block by RDMA READ and then sends LANDED
   * (native/transport/landing.h has its layout and version).
   */
  REMOTE: 16,
  /** A message of a multicast channel that is sent again for one subscriber. */
  REPAIR: 64,
} as const;

/** u32 words of a record's header, relative to its start. */
export const WORD = {
  CHANNEL: 0,
  /** Bytes of the payload, without headers and padding. */
  LENGTH: 1,
  SEQUENCE_LOW: 2,
  SEQUENCE_HIGH: 3,
  /** kind | flags << 8 | bytes of headers << 16 */
  BITS: 4,
  CORRELATION: 5,
} as const;
/** f64 word of the time, relative to the record's start in units of 8 bytes. */
export const TIME_WORD = 3;

/** Why messages are missing, by the number that travels. */
export const GAP_REASONS = [
  'lost',
  'overflow',
  'max-wait',
  'too-large',
  'decode',
  'schema',
  'unavailable',
  'left',
] as const;
export type GapReason = (typeof GAP_REASONS)[number];

/** How messages of a channel travel. */
export type Delivery = 'lane' | 'multicast';

/** The JSON part of SUBSCRIBED. */
export interface SubscribedBody {
  name: string;
  codec: string;
  schema: string | null;
  delivery: Delivery;
}

/** The JSON of DONE. */
export interface DoneBody {
  how: 'complete' | 'error' | 'closed';
  error?: { name: string; message: string; code?: string };
}

/** Memory that holds records, each at a multiple of 8: the arena, a queue's chunk, a batch. */
export interface RecordSource {
  readonly bytes: Uint8Array;
  readonly u32: Uint32Array;
}

const TWO32 = 0x1_0000_0000;

/** Bytes of a whole record, padding included. */
export function recordSize(headers: number, payload: number): number {
  return (RECORD_BYTES + headers + payload + 7) & ~7;
}

/** The largest payload in a slot of that size. */
export function payloadLimit(slotBytes: number): number {
  return (slotBytes - FRAME_BYTES - RECORD_BYTES) & ~7;
}

/** Reads a record's sequence number; `word` is the record's start in u32 units. */
export function sequenceAt(u32: Uint32Array, word: number): number {
  return u32[word + WORD.SEQUENCE_HIGH]! * TWO32 + u32[word + WORD.SEQUENCE_LOW]!;
}

/** Size of the record that starts at `word`, padding included. */
export function sizeAt(u32: Uint32Array, word: number): number {
  return (RECORD_BYTES + (u32[word + WORD.BITS]! >>> 16) + u32[word + WORD.LENGTH]! + 7) & ~7;
}

/** Writes a record's header at byte `start` (a multiple of 8). */
export function writeHeader(
  u32: Uint32Array,
  f64: Float64Array,
  start: number,
  channel: number,
  payload: number,
  sequence: number,
  bits: number,
  correlation: number,
  time: number,
): void {
  const word = start >>> 2;
  u32[word] = channel;
  u32[word + WORD.LENGTH] = payload;
  u32[word + WORD.SEQUENCE_LOW] = sequence;
  u32[word + WORD.SEQUENCE_HIGH] = sequence / TWO32;
  u32[word + WORD.BITS] = bits;
  u32[word + WORD.CORRELATION] = correlation;
  f64[(start >>> 3) + TIME_WORD] = time;
}
