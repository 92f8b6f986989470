import { type ErrorCode, type ErrorDetails, MillraceError, MillraceRangeError } from '../../errors.js';

/**
 * What a codec is to a channel: a name that both sides announce, and a pair of stateful halves.
 *
 * An encoder belongs to one (publisher incarnation, channel), a decoder to one (publisher incarnation, channel,
 * subscriber). Both are used on their environment's thread only (I6) and never keep the memory they are given.
 */
export interface Codec<T> {
  /** The fingerprint that is announced: 'msgpackr', 'bytes', 'json', `struct:<layout>`, or a custom codec's name. */
  readonly name: string;
  /** `selfContained`: what it writes needs no definitions (multicast, where a message may be the first to arrive). */
  encoder(options?: { readonly selfContained?: boolean }): Encoder<T>;
  decoder(limits?: Partial<DecodeLimits>): Decoder<T>;
}

/** Bounds on what one payload may make a decoder do (I9: input of another process is bad until checked). */
export interface DecodeLimits {
  /** Largest payload, in bytes. */
  readonly bytes: number;
  /** Deepest nesting of arrays, maps and records. */
  readonly depth: number;
  /** Most record definitions: those inside one payload, and those kept for one publisher. */
  readonly records: number;
}

/** The bounds that hold where none are given. They are far above a slot, so that only hostile input meets them. */
export const DEFAULT_LIMITS: DecodeLimits = Object.freeze({ bytes: 16 * 2 ** 20, depth: 128, records: 4096 });

/** The writing half of a codec. */
export interface Encoder<T> {
  /**
   * Writes `value` to `target[start..end)` and never outside of it.
   *
   * @returns the end position, or -1 if the value does not fit; the encoder's own state is then as before.
   *   Bytes between the returned position and `end` may have been scribbled on.
   * @throws what the value's own code (a getter, `toJSON`) or a custom codec threw; a CodecError if the codec cannot
   *   express the value; in each case the encoder's state is as before. A value's own code may run twice in one call.
   */
  encode(value: T, target: Uint8Array, start: number, end: number): number;
  /**
   * The definitions made since the last take as one DEFINE payload of at most MAX_DEFINITION_BYTES, or null. To be
   * called after each successful encode: the payload must reach every subscriber before the message does.
   */
  takeDefinitions(): Uint8Array | null;
  /** All definitions so far as DEFINE payloads, each of at most MAX_DEFINITION_BYTES, for a new subscriber. */
  allDefinitions(): Uint8Array[];
}

/** The reading half of a codec. */
export interface Decoder<T> {
  /** Learns a DEFINE payload. @throws CodecError on bad input, a different second definition of a number included. */
  define(payload: Uint8Array): void;
  /**
   * Reads one value from `source[start..end)`. Byte arrays in the value are views of `source`, which therefore must be
   * memory that is owned by the receiver and never reused.
   *
   * @throws CodecError and nothing else, on input that the codec never writes or that exceeds the limits.
   */
  decode(source: Uint8Array, start: number, end: number): T;
}

/** No DEFINE payload is larger, so that one always fits into a slot. */
export const MAX_DEFINITION_BYTES = 2048;

/** A codec by name, or one made with struct(), custom() or by hand. */
export type CodecOption<T> = 'msgpackr' | 'bytes' | 'json' | Codec<T>;

/** The codes that a codec raises. */
export type CodecErrorCode = Extract<ErrorCode, `ERR_CODEC_${string}`>;

/** A fault in a value that is to be encoded or in bytes that are to be decoded. */
export class CodecError extends MillraceError {
  constructor(code: CodecErrorCode, message: string, details?: ErrorDetails) {
    super(code, message, details);
    this.name = 'CodecError';
  }
}

/** Fills up limits, each a positive integer. */
export function limitsOf(given: Partial<DecodeLimits> | undefined): DecodeLimits {
  if (given === undefined) return DEFAULT_LIMITS;
  const limits = { ...DEFAULT_LIMITS, ...given };
  for (const key of ['bytes', 'depth', 'records'] as const) {
    if (!Number.isInteger(limits[key]) || limits[key] < 1) limits[key] = DEFAULT_LIMITS[key];
  }
  return limits;
}

/** Refuses room that does not lie in its target: a fault of the caller, which must not become a write elsewhere. */
export function checkTarget(name: string, target: Uint8Array, start: number, end: number): void {
  if (!(start >= 0 && end <= target.length)) {
    throw new MillraceRangeError(
      'ERR_INVALID_ARGUMENT',
      `${name}: the room [${start}, ${end}) does not lie in its target of ${target.length} bytes`,
    );
  }
}

/** Refuses a payload that is too large or does not lie in its source. */
export function checkPayload(
  name: string,
  source: Uint8Array,
  start: number,
  end: number,
  limits: DecodeLimits,
): void {
  if (!(start >= 0 && end >= start && end <= source.length)) {
    throw new CodecError(
      'ERR_CODEC_MALFORMED',
      `${name}: the payload [${start}, ${end}) does not lie in its source of ${source.length} bytes`,
    );
  }
  if (end - start > limits.bytes) {
    throw new CodecError(
      'ERR_CODEC_LIMIT',
      `${name}: a payload of ${end - start} bytes exceeds the limit of ${limits.bytes}`,
      { details: { bytes: end - start, limit: limits.bytes } },
    );
  }
}

/**
 * A codec whose payloads stand alone, without record definitions, so that its halves have no state.
 * @param kind what its messages call it
 */
export function standalone<T>(
  name: string,
  kind: string,
  encode: Encoder<T>['encode'],
  decode: (source: Uint8Array, start: number, end: number, limits: DecodeLimits) => T,
): Codec<T> {
  return Object.freeze({
    name,
    encoder: () => ({ encode, takeDefinitions: () => null, allDefinitions: () => [] }),
    decoder: (given?: Partial<DecodeLimits>) => {
      const limits = limitsOf(given);
      return {
        define: () => {
          throw new CodecError(
            'ERR_CODEC_DEFINITION',
            `${kind}: this codec has no record definitions, yet one arrived`,
          );
        },
        decode: (source: Uint8Array, start: number, end: number) => decode(source, start, end, limits),
      };
    },
  });
}

/** Names a value's kind for messages: `null`, `an array`, `a Map`, `a string`. */
export function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (value === undefined) return 'undefined';
  const article = (word: string) => `${/^[aeiou]/i.test(word) ? 'an' : 'a'} ${word}`;
  if (typeof value !== 'object') return article(typeof value);
  if (Array.isArray(value)) return 'an array';
  let name: unknown;
  try {
    name = (value as object).constructor?.name;
  } catch {
    name = undefined;
  }
  return typeof name === 'string' && name !== '' && name !== 'Object' ? article(name) : 'an object';
}
