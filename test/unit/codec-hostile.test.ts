import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  bytes,
  type Codec,
  CodecError,
  custom,
  json,
  msgpackr,
  struct,
} from '../../src/channels/codec/index.js';
import { anyValue, encodeInto, Pair } from './codec-support.js';

const layout = struct({ a: 'f64', b: 'u8', c: 'char:8', d: 'bytes:3', e: ['i64', 2], f: 'bool' });
const upper = custom({
  name: 'upper',
  encode: (value: string) => new TextEncoder().encode(value.toUpperCase()),
  decode: (from) => {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(from);
    if (text !== text.toUpperCase()) throw new Error('not upper case');
    return text;
  },
});
const codecs: Codec<never>[] = [msgpackr, bytes, json, layout, upper] as unknown as Codec<never>[];

/** Runs something that may throw a CodecError and nothing else. @returns the error's code */
function attempt(run: () => unknown): string {
  try {
    run();
    return 'ok';
  } catch (error) {
    if (!(error instanceof CodecError)) throw error;
    return error.code;
  }
}

const bad = (...payload: number[]) =>
  attempt(() => msgpackr.decoder().decode(Uint8Array.from(payload), 0, payload.length));

describe('random bytes', () => {
  for (const codec of codecs) {
    it(`give a value or a CodecError: ${codec.name}`, () => {
      fc.assert(
        fc.property(fc.uint8Array({ maxLength: 200 }), fc.nat(20), fc.nat(20), (payload, before, after) => {
          const source = new Uint8Array(before + payload.length + after).fill(0x91);
          source.set(payload, before);
          const decoder = codec.decoder();
          attempt(() => decoder.decode(source, before, before + payload.length));
          attempt(() => decoder.define(payload));
        }),
        { numRuns: 2000 },
      );
    });
  }

  it('made of MessagePack tokens do so too', () => {
    const token = fc.oneof(
      fc.constantFrom(
        0x40,
        0x41,
        0x5f,
        0x60,
        0x7f,
        0x80,
        0x81,
        0x90,
        0x92,
        0xa1,
        0xc0,
        0xc1,
        0xc4,
        0xc7,
        0xc8,
        0xc9,
      ),
      fc.constantFrom(
        0xca,
        0xcb,
        0xcf,
        0xd4,
        0xd5,
        0xd6,
        0xd7,
        0xd8,
        0xd9,
        0xda,
        0xdb,
        0xdc,
        0xdd,
        0xde,
        0xdf,
        0xff,
      ),
      fc.constantFrom(0x00, 0x01, 0x02, 0x08, 0x42, 0x62, 0x65, 0x69, 0x70, 0x72, 0x73, 0x74, 0x78),
    );
    fc.assert(
      fc.property(fc.array(token, { maxLength: 60 }), (payload) => {
        const pair = new Pair(msgpackr);
        encodeInto(pair.encoder, [{ a: 1, b: 2 }, {}], 100);
        pair.carry();
        attempt(() => pair.read(Uint8Array.from(payload)));
      }),
      { numRuns: 5000 },
    );
  });

  it('in a valid payload do so too, and the decoder goes on working', () => {
    fc.assert(
      fc.property(
        anyValue,
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 4 }),
        fc.nat(),
        (value, changes, cut) => {
          const pair = new Pair(msgpackr);
          const { bytes: good } = encodeInto(pair.encoder, value, 1 << 16);
          pair.carry();
          const changed = good.slice();
          for (const [at, byte] of changes) changed[at % changed.length] = byte;
          attempt(() => pair.read(changed));
          expect(attempt(() => pair.read(good.subarray(0, cut % good.length)))).not.toBe('ok');
          expect(attempt(() => pair.read(good))).toBe('ok');
        },
      ),
      { numRuns: 1500 },
    );
  });
});

describe('MessagePack made to hurt', () => {
  it('nested without end', () => {
    for (const token of [0x91, 0x81]) {
      expect(bad(...Array(100_000).fill(token), 0)).toBe('ERR_CODEC_LIMIT');
    }
    expect(
      attempt(() => msgpackr.decoder({ depth: 3 }).decode(Uint8Array.of(0x91, 0x91, 0x91, 0x91, 0), 0, 5)),
    ).toBe('ERR_CODEC_LIMIT');
    expect(
      attempt(() => msgpackr.decoder({ depth: 4 }).decode(Uint8Array.of(0x91, 0x91, 0x91, 0x91, 0), 0, 5)),
    ).toBe('ok');
    const sets = Array.from({ length: 30_000 }, () => [0xd4, 0x73, 0x00, 0x91]).flat();
    expect(bad(...sets, 0)).toBe('ERR_CODEC_LIMIT');
    const alone = Array.from({ length: 30_000 }, () => [0xd4, 0x73, 0x00]).flat();
    expect(bad(...alone, 0x90)).toBe('ERR_CODEC_MALFORMED');
  });

  it('with headers that promise more than there is', () => {
    for (const token of [0xdd, 0xdf, 0xdb, 0xc6, 0xc9])
      expect(bad(token, 0xff, 0xff, 0xff, 0xff, 0)).toBe('ERR_CODEC_MALFORMED');
    // Many of them, each of which would be allocated before the next is looked at.
    const headers = Array.from({ length: 100 }, () => [0xdd, 0x00, 0x00, 0x01, 0xf0]).flat();
    expect(bad(...headers)).not.toBe('ok');
  });

  it('with what the codec never writes', () => {
    expect(bad()).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xc1)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(1, 2)).toBe('ERR_CODEC_MALFORMED');
    // Bundled strings may point outside of the payload; references and unknown extensions.
    expect(bad(0xd6, 0x62, 0xff, 0xff, 0xff, 0x00, 0xa1, 0x41, 0xa1, 0x42)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xd6, 0x69, 0, 0, 0, 1, 0x90)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xd6, 0x70, 0, 0, 0, 1)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xd4, 0x05, 0)).toBe('ERR_CODEC_MALFORMED');
    // Definitions inside a message that touch a shared number.
    expect(bad(0xd4, 0x72, 0x40, 0x91, 0xa1, 0x61, 1)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xd5, 0x72, 0x60, 0x00, 0x91, 0xa1, 0x61, 1)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xd5, 0x72, 0x40, 0x07, 0x91, 0xa1, 0x61, 1)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xd5, 0x72, 0x60, 0x07, 0x91, 0x01, 1)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xd5, 0x72, 0x60, 0x07, 0x91, 0xa1, 0x61, 1)).toBe('ok');
    // Typed arrays of no known kind or half an element.
    expect(bad(0xc7, 3, 0x74, 99, 0, 0)).toBe('ERR_CODEC_MALFORMED');
    expect(bad(0xc7, 4, 0x74, 8, 0, 0, 0)).toBe('ERR_CODEC_MALFORMED');
    // Errors whose name is a property of every object.
    for (const name of ['valueOf', 'constructor', '__proto__', '__defineGetter__']) {
      const text = [...Buffer.from(name)];
      expect(bad(0xd4, 0x65, 0, 0x92, 0xa0 + text.length, ...text, 0xa0)).toBe('ERR_CODEC_MALFORMED');
      expect(bad(0xd4, 0x65, 0, 0x92, 0xd9, text.length, ...text, 0xa0)).toBe('ERR_CODEC_MALFORMED');
      expect(bad(0xd4, 0x65, 0, 0x92, 0xdb, 0, 0, 0, text.length, ...text, 0xa0)).toBe('ERR_CODEC_MALFORMED');
    }
    expect(bad(0xd4, 0x65, 0, 0x90)).toBe('ERR_CODEC_MALFORMED');
    // A pattern that is none.
    expect(bad(0xd4, 0x78, 0, 0x92, 0xa1, 0x28, 0xa0)).toBe('ERR_CODEC_MALFORMED');
  });

  it('with definitions without end', () => {
    const many = Array.from({ length: 10_000 }, () => [0xd5, 0x72, 0x60, 0x07, 0x90]).flat();
    expect(bad(0xdc, 0x27, 0x10, ...many)).toBe('ERR_CODEC_LIMIT');
  });

  it('larger than the limit', () => {
    for (const codec of codecs) {
      const decoder = codec.decoder({ bytes: 10 });
      expect(attempt(() => decoder.decode(new Uint8Array(11), 0, 11))).toBe('ERR_CODEC_LIMIT');
    }
  });

  it('outside of its source', () => {
    for (const codec of codecs) {
      const decoder = codec.decoder();
      for (const [start, end] of [
        [0, 9],
        [-1, 4],
        [5, 4],
        [Number.NaN, 4],
        [0, Number.NaN],
      ] as const) {
        expect(attempt(() => decoder.decode(new Uint8Array(8), start, end))).toBe('ERR_CODEC_MALFORMED');
      }
    }
  });
});

describe('JSON made to hurt', () => {
  const decode = (text: string, limits = {}) =>
    attempt(() => {
      const payload = Buffer.from(text, 'latin1');
      return json.decoder(limits).decode(payload, 0, payload.length);
    });

  it('is refused', () => {
    expect(decode('['.repeat(200_000))).toBe('ERR_CODEC_LIMIT');
    expect(decode(`${'['.repeat(200)}${']'.repeat(200)}`)).toBe('ERR_CODEC_LIMIT');
    expect(decode(`${'{"a":'.repeat(200)}1${'}'.repeat(200)}`)).toBe('ERR_CODEC_LIMIT');
    expect(decode('[[[1]]]', { depth: 2 })).toBe('ERR_CODEC_LIMIT');
    expect(decode('[[1],[1]]', { depth: 2 })).toBe('ok');
    expect(decode(`"${'['.repeat(500)}\\"${'['.repeat(500)}"`)).toBe('ok');
    expect(decode('"\xff"')).toBe('ERR_CODEC_MALFORMED');
    expect(decode('"\xef\xbf\xbd"')).toBe('ok');
    expect(decode('')).toBe('ERR_CODEC_MALFORMED');
    expect(decode('{"a":1}x')).toBe('ERR_CODEC_MALFORMED');
  });

  it('does not reach a prototype', () => {
    const payload = Buffer.from('{"__proto__":{"polluted":1}}');
    const value = json.decoder().decode(payload, 0, payload.length) as object;
    expect(Object.getPrototypeOf(value)).toBe(Object.prototype);
    expect(({} as { polluted?: unknown }).polluted).toBeUndefined();
  });
});
