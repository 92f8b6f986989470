/** The quick way of msgpackr's codec: what it writes is what msgpackr writes, and what it reads msgpackr reads the same. */
import fc from 'fast-check';
import { Packr, Unpackr } from 'msgpackr';
import { describe, expect, it } from 'vitest';
import { DEFAULT_LIMITS } from '../../src/channels/codec/codec.js';
import { parseDefinitions, SHARED_RECORDS } from '../../src/channels/codec/definitions.js';
import { msgpackr } from '../../src/channels/codec/index.js';
import { NOT_READ, PlainReader } from '../../src/channels/codec/plain-read.js';
import { NOT_PLAIN, PlainWriter } from '../../src/channels/codec/plain-write.js';
import { Scanner } from '../../src/channels/codec/scan.js';
import { anyNumber, anyText, anyValue, encodeInto, Pair, same, withoutMinusZero } from './codec-support.js';

const key = fc.constantFrom('a', 'b', 'bid', 'ask', 'constructor', '0', 'longer_key', 'ü', '');
const plain = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    anyNumber,
    anyText,
    fc.boolean(),
    fc.constant(null),
    fc.constant(undefined),
    fc.array(tie('value'), { maxLength: 20 }),
    fc.dictionary(key, tie('value'), { maxKeys: 8, noNullPrototype: true }),
  ),
})).value;

/** Both halves, which know the shapes of `values`, and msgpackr's own with the same table. */
function known(values: unknown[]) {
  const encoder = msgpackr.encoder();
  const [writer, reader, scanner] = [new PlainWriter(), new PlainReader(32), new Scanner(DEFAULT_LIMITS)];
  for (const value of values) encodeInto(encoder, value, 1 << 18);
  const structures: string[][] = [];
  for (const payload of encoder.allDefinitions()) {
    for (const [number, keys] of parseDefinitions(payload, DEFAULT_LIMITS)) {
      writer.learn(number, keys);
      reader.learn(number, keys);
      scanner.fields[number] = keys.length;
      structures[number] = [...keys];
    }
  }
  const options = { moreTypes: true, maxSharedStructures: SHARED_RECORDS };
  const copy = structures.map((keys) => Object.assign([...keys], { isShared: true }));
  Object.assign(copy, { sharedLength: copy.length });
  return {
    writer,
    reader,
    scanner,
    packr: new Packr({ ...options, structures: copy as never }),
    unpackr: new Unpackr({ ...options, structures: structures as never }),
  };
}

const write = (writer: PlainWriter, value: unknown, room: number) =>
  encodeInto(
    {
      encode: (...args) => writer.write(...args),
      takeDefinitions: () => null,
      allDefinitions: () => [],
    },
    value,
    room,
    11,
  );

describe('writing', () => {
  it('gives the bytes that msgpackr gives', () => {
    let quick = 0;
    fc.assert(
      fc.property(plain, (value) => {
        const { writer, packr } = known([value]);
        const { size, bytes } = write(writer, value, 1 << 18);
        if (size === NOT_PLAIN) return;
        quick++;
        expect(Buffer.from(bytes).toString('hex')).toBe(Buffer.from(packr.pack(value)).toString('hex'));
      }),
      { numRuns: 500 },
    );
    // Texts with characters beyond the first plane and very deep values are left to msgpackr.
    expect(quick).toBeGreaterThan(250);
  });

  it('stays in its room, and says so when that may not do', () => {
    fc.assert(
      fc.property(plain, fc.double({ min: 0, max: 1.3, noNaN: true }), (value, share) => {
        const { writer } = known([value]);
        const exact = write(writer, value, 1 << 18).size;
        const { size } = write(writer, value, Math.floor(Math.max(0, exact) * share));
        expect([NOT_PLAIN, exact]).toContain(size);
      }),
      { numRuns: 300 },
    );
  });

  it('takes only what is plain and known', () => {
    const { writer } = known([{ a: 1 }, { a: 1, b: 2 }]);
    class Tick {
      a = 1;
    }
    const others = [
      new Tick(),
      new Date(),
      new Map(),
      new Set(),
      1n,
      /a/,
      { a: 1n },
      new Uint8Array(2),
      { c: 1 },
      { b: 1, a: 2 },
    ];
    for (const value of [...others, Object.create(null), { a: { toJSON: () => 5 } }, () => 1, Symbol('s')])
      expect(write(writer, value, 1000).size).toBe(NOT_PLAIN);
    expect([...write(writer, [{ a: 1 }, { a: 1, b: 2 }], 1000).bytes]).toEqual([0x92, 0x40, 1, 0x41, 1, 2]);
  });

  it('notices a getter that takes a field of its object away', () => {
    const pair = new Pair(msgpackr);
    pair.trip({ a: 1, b: 2 });
    const value: Record<string, unknown> = {};
    const get = () => Number(delete value.b);
    Object.defineProperty(value, 'a', { enumerable: true, configurable: true, get });
    value.b = 2;
    expect(write(known([{ a: 1, b: 2 }]).writer, value, 100).size).toBe(NOT_PLAIN);
    expect(pair.trip(value)).toEqual({ a: 1 });
  });

  it('refuses a value that encodes with the same encoder meanwhile', () => {
    const encoder = msgpackr.encoder();
    encodeInto(encoder, { a: 1 }, 100);
    encoder.takeDefinitions();
    const value = Object.defineProperty({}, 'a', { enumerable: true, get: () => encodeInto(encoder, 1, 10) });
    expect(() => encodeInto(encoder, value, 100)).toThrow(
      expect.objectContaining({ code: 'ERR_CODEC_REENTRANT' }),
    );
    expect(encodeInto(encoder, { a: 2 }, 100).size).toBe(2);
  });
});

describe('reading', () => {
  it('gives the values that msgpackr gives, whatever else is in the conversation', () => {
    fc.assert(
      fc.property(fc.array(anyValue, { minLength: 1, maxLength: 8 }), (values) => {
        const pair = new Pair(msgpackr);
        for (const value of [...values, ...values, ...values])
          same(pair.trip(value), withoutMinusZero(value));
      }),
      { numRuns: 200 },
    );
  });

  it('takes nothing that the scanner would not, and reads it as msgpackr does', () => {
    let taken = 0;
    fc.assert(
      fc.property(
        plain,
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 3 }),
        fc.integer({ min: -2, max: 2 }),
        (value, changes, cut) => {
          const { packr, reader, scanner, unpackr } = known([value]);
          const bytes = new Uint8Array(packr.pack(value));
          // A text whose bytes are no UTF-8 is read by several decoders that differ in how they mend it.
          for (const [at, byte] of changes) bytes[at % bytes.length] = byte & (byte < 0xc0 ? 0x7f : 0xff);
          const source = new Uint8Array(bytes.length + 40).fill(0xc0);
          source.set(bytes, 16);
          const end = Math.max(16, 16 + bytes.length + cut);
          const got = reader.read(source, 16, end);
          if (got === NOT_READ) return;
          taken++;
          scanner.scan(source, 16, end);
          if (/\ufffd/.test(JSON.stringify(got) ?? '')) return;
          same(got, unpackr.unpack(Buffer.from(source.slice(16, end))));
        },
      ),
      { numRuns: 2000 },
    );
    expect(taken).toBeGreaterThan(150);
  });

  it('makes objects with the keys in their order, a prototype of their own kind and nothing shared', () => {
    const pair = new Pair(msgpackr);
    const value = () => ({ b: 1.5, a: 'x', constructor: null, toString: [1], 'odd key"\u2028': true });
    const seen = new Set<unknown>();
    for (let i = 0; i < 40; i++) {
      const back = pair.trip(value());
      expect(Object.getPrototypeOf(back)).toBe(Object.prototype);
      expect(Object.keys(back as object)).toEqual(Object.keys(value()));
      seen.add(back);
    }
    expect(seen.size).toBe(40);
  });

  it('keeps texts apart that meet in its table of late ones', () => {
    const pair = new Pair(msgpackr);
    for (let i = 0; i < 5000; i++) {
      const text = `${'k'.repeat(i % 26)}${i}`;
      expect(pair.trip([text, text])).toEqual([text, text]);
    }
  });
});
