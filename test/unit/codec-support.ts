import { inspect, isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import type { Codec, Decoder, Encoder } from '../../src/channels/codec/index.js';

/** Guard bytes on both sides of the room; anything else there afterwards is a write outside of it. */
const GUARD = 0xa5;

/** What one encode did. */
export interface Encoded {
  /** The end position that was returned, relative to the start; -1: did not fit. */
  readonly size: number;
  readonly bytes: Uint8Array;
}

/** Encodes into a room of `room` bytes at `offset`, and throws if a byte outside of it changed. */
export function encodeInto<T>(encoder: Encoder<T>, value: T, room: number, offset = 8): Encoded {
  const target = new Uint8Array(offset + room + 4096).fill(GUARD);
  const end = offset + room;
  const check = () => {
    for (let i = 0; i < target.length; i++) {
      if ((i < offset || i >= end) && target[i] !== GUARD)
        throw new Error(`byte ${i} lies outside of [${offset}, ${end}) and was written`);
    }
  };
  let finish: number;
  try {
    finish = encoder.encode(value, target, offset, end);
  } finally {
    check();
  }
  if (finish > end) throw new Error(`returned ${finish}, beyond ${end}`);
  return { size: finish < 0 ? -1 : finish - offset, bytes: target.slice(offset, Math.max(offset, finish)) };
}

/** An encoder and a decoder of one publisher, with the definitions carried over as a channel does. */
export class Pair<T> {
  readonly encoder: Encoder<T>;
  readonly decoder: Decoder<T>;

  constructor(readonly codec: Codec<T>) {
    this.encoder = codec.encoder();
    this.decoder = codec.decoder();
  }

  /** Encodes, carries definitions, decodes from the middle of a larger buffer. */
  trip(value: T, room = 1 << 16, offset = 8): T {
    const { size, bytes } = encodeInto(this.encoder, value, room, offset);
    if (size < 0) throw new Error('does not fit');
    this.carry();
    return this.read(bytes);
  }

  carry(): void {
    const payload = this.encoder.takeDefinitions();
    if (payload !== null) this.decoder.define(payload);
  }

  read(bytes: Uint8Array, offset = 24): T {
    const source = new Uint8Array(offset + bytes.length + 40).fill(GUARD);
    source.set(bytes, offset);
    return this.decoder.decode(source, offset, offset + bytes.length);
  }
}

/** Numbers, with the awkward ones often. */
export const anyNumber = fc.oneof(
  fc.double(),
  fc.integer(),
  fc.constantFrom(
    0,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2 ** 31,
    2 ** 32,
    2 ** 53,
    -1,
    -32,
    -33,
    -128,
    -129,
    -32768,
    -32769,
    -(2 ** 31),
    Number.NaN,
    Infinity,
    -Infinity,
  ),
);

/** Text of every plane, without halves of surrogate pairs. */
export const anyText = fc.oneof(fc.string({ unit: 'binary', maxLength: 40 }), fc.string({ maxLength: 400 }));

/** Keys, with those that objects are born with. */
const anyKey = fc.oneof(
  fc.constantFrom('a', 'b', 'bid', 'ask', 'constructor', 'toString', 'hasOwnProperty', '0', '1', ''),
  fc.string({ unit: 'binary', maxLength: 12 }).filter((key) => key !== '__proto__'),
);

const leaf = fc.oneof(
  anyNumber,
  anyText,
  fc.boolean(),
  fc.constant(null),
  fc.constant(undefined),
  fc.bigInt(),
  fc.bigInt({ min: -(2n ** 200n), max: 2n ** 200n }),
  fc.date({ noInvalidDate: true }),
  fc.uint8Array({ maxLength: 300 }),
  fc.float64Array({ maxLength: 20 }),
  fc.int32Array({ maxLength: 20 }),
);

/** What msgpackr keeps exactly, apart from -0. */
export const anyValue = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    leaf,
    fc.array(tie('value'), { maxLength: 20 }),
    fc.dictionary(anyKey, tie('value'), { maxKeys: 20, noNullPrototype: true }),
    fc.array(fc.tuple(tie('value'), tie('value')), { maxLength: 8 }).map((entries) => new Map(entries)),
    fc.array(tie('value'), { maxLength: 8 }).map((items) => new Set(items)),
  ),
})).value;

/** JSON values. */
export const anyJson = fc.jsonValue();

/** -0 becomes 0 in numbers and, where `deep`, nothing else changes. */
export function withoutMinusZero(value: unknown): unknown {
  if (Object.is(value, -0)) return 0;
  if (Array.isArray(value)) return Array.from(value, withoutMinusZero);
  if (value instanceof Map)
    return new Map([...value].map(([k, v]) => [withoutMinusZero(k), withoutMinusZero(v)]));
  if (value instanceof Set) return new Set([...value].map(withoutMinusZero));
  if (typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype) {
    const made: Record<string, unknown> = {};
    for (const [key, item] of Object.entries(value)) made[key] = withoutMinusZero(item);
    return made;
  }
  return value;
}

/**
 * Throws unless both are equal in every respect but identity: prototypes, -0, order of keys aside. (The matchers of the
 * test runner take an own property called `constructor` for the class.)
 */
export function same(actual: unknown, expected: unknown): void {
  if (!isDeepStrictEqual(actual, expected)) {
    throw new Error(`got ${inspect(actual, { depth: 8 })}\nnot ${inspect(expected, { depth: 8 })}`);
  }
}
