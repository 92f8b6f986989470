import fc from 'fast-check';
import { Packr, pack, unpack } from 'msgpackr';
import { afterEach, describe, expect, it } from 'vitest';
import { SHARED_RECORDS } from '../../src/channels/codec/definitions.js';
import { CodecError, MAX_DEFINITION_BYTES, msgpackr } from '../../src/channels/codec/index.js';
import { anyValue, encodeInto, Pair, same, withoutMinusZero } from './codec-support.js';

const text = (payload: Uint8Array | null) => (payload === null ? null : new TextDecoder().decode(payload));
const code = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    expect(error).toBeInstanceOf(CodecError);
    return (error as CodecError).code;
  }
  return 'nothing was thrown';
};

describe('round trips', () => {
  it('keeps every supported value', () => {
    fc.assert(
      fc.property(anyValue, fc.integer({ min: 0, max: 17 }), (value, offset) => {
        const pair = new Pair(msgpackr);
        same(pair.trip(value, 1 << 16, offset), withoutMinusZero(value));
      }),
      { numRuns: 500 },
    );
  });

  it('keeps values in a long conversation of one encoder and one decoder', () => {
    fc.assert(
      fc.property(fc.array(anyValue, { minLength: 5, maxLength: 60 }), (values) => {
        const pair = new Pair(msgpackr);
        for (const value of [...values, ...values]) {
          same(pair.trip(value), withoutMinusZero(value));
        }
      }),
      { numRuns: 60 },
    );
  });

  it('sends the keys of a shape once', () => {
    const { encoder } = new Pair(msgpackr);
    encodeInto(encoder, { bid: 1, ask: 2 }, 100);
    expect(text(encoder.takeDefinitions())).toBe('[[0,["bid","ask"]]]');
    const second = encodeInto(encoder, { bid: 3, ask: 4 }, 100);
    expect(encoder.takeDefinitions()).toBeNull();
    expect([...second.bytes]).toEqual([0x40, 3, 4]);
  });

  it('gives byte arrays as views of the source', () => {
    const pair = new Pair(msgpackr);
    const { bytes } = encodeInto(pair.encoder, Buffer.from('abc'), 100);
    const source = new Uint8Array(bytes);
    const value = pair.decoder.decode(source, 0, source.length) as Buffer;
    expect(value.buffer).toBe(source.buffer);
  });
});

describe('room', () => {
  const samples: unknown[] = [
    { bid: 1.5, ask: 2.5, symbol: 'EURUSD', sequence: 70_000 },
    'x'.repeat(5000),
    'ä'.repeat(3000),
    Array.from({ length: 300 }, (_, i) => ({ i, name: `n${i}` })),
    new Uint8Array(9000),
    new Map([[1, new Set(['a', { b: 2 }])]]),
    Object.fromEntries(Array.from({ length: 400 }, (_, i) => [`wide${i}`, i])),
    [1n, 2n ** 100n, new Date(5), /a/g, new Error('e')],
    null,
  ];

  it('is used to the last byte and never beyond', () => {
    for (const sample of samples) {
      const exact = encodeInto(msgpackr.encoder(), sample, 1 << 16).size;
      expect(exact).toBeGreaterThan(0);
      const step = exact > 600 ? Math.ceil(exact / 150) : 1;
      for (let room = 0; room < exact; room += step)
        expect(encodeInto(msgpackr.encoder(), sample, room).size).toBe(-1);
      for (const room of [exact - 1]) expect(encodeInto(msgpackr.encoder(), sample, room).size).toBe(-1);
      for (const more of [0, 1, 7, 9, 10, 11, 2047, 2048, 2049, 4096]) {
        const { size, bytes } = encodeInto(msgpackr.encoder(), sample, exact + more);
        expect(size).toBe(exact);
        const pair = new Pair(msgpackr);
        const whole = encodeInto(pair.encoder, sample, 1 << 16);
        expect(bytes).toEqual(whole.bytes);
      }
    }
  });

  it('holds for random values, rooms and alignments', () => {
    fc.assert(
      fc.property(
        anyValue,
        fc.double({ min: 0, max: 1.2, noNaN: true }),
        fc.nat(16),
        (value, share, offset) => {
          const exact = encodeInto(msgpackr.encoder(), value, 1 << 16).size;
          const room = Math.floor(exact * share);
          const pair = new Pair(msgpackr);
          expect(encodeInto(pair.encoder, value, room, offset).size).toBe(room >= exact ? exact : -1);
          // Whatever happened, the encoder still works.
          same(pair.trip(value), withoutMinusZero(value));
        },
      ),
      { numRuns: 300 },
    );
  });

  it('bounds the cost of a value that is far too large', () => {
    const block = new Uint8Array(1 << 20);
    const cyclic: unknown[] = [block];
    cyclic.push(cyclic);
    const before = process.memoryUsage().arrayBuffers;
    expect(encodeInto(msgpackr.encoder(), cyclic, 16_000).size).toBe(-1);
    expect(encodeInto(msgpackr.encoder(), Array(5000).fill(block), 16_000).size).toBe(-1);
    // A thousand levels of the megabyte would be more than a gigabyte.
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(64 << 20);
  });

  it('refuses room outside of the target', () => {
    const encoder = msgpackr.encoder();
    expect(() => encoder.encode(1, new Uint8Array(8), 0, 9)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARGUMENT' }),
    );
    expect(() => encoder.encode(1, new Uint8Array(8), -1, 8)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARGUMENT' }),
    );
    expect(encoder.encode(1, new Uint8Array(8), 5, 4)).toBe(-1);
  });
});

describe('rewinding', () => {
  it('forgets what an attempt that did not fit had learned', () => {
    const pair = new Pair(msgpackr);
    pair.trip({ a: 1 });
    expect(encodeInto(pair.encoder, { b: 1, big: 'x'.repeat(100) }, 50).size).toBe(-1);
    expect(pair.encoder.takeDefinitions()).toBeNull();
    expect(pair.encoder.allDefinitions().map(text)).toEqual(['[[0,["a"]]]']);
    // The number is free for another shape.
    expect(pair.trip({ c: 1 })).toEqual({ c: 1 });
    expect(pair.encoder.allDefinitions().map(text)).toEqual(['[[0,["a"]],[1,["c"]]]']);
    expect(pair.trip({ b: 1, big: 'x' })).toEqual({ b: 1, big: 'x' });
    expect(pair.trip({ a: 2 })).toEqual({ a: 2 });
  });

  it('forgets what an attempt that threw had learned, and throws what the value threw', () => {
    const pair = new Pair(msgpackr);
    const fault = new Error('mine');
    class Bad {
      toJSON() {
        throw fault;
      }
    }
    const value = { fresh: { deep: 1 }, bad: new Bad() };
    expect(() => encodeInto(pair.encoder, value, 1000)).toThrow(fault);
    expect(pair.encoder.allDefinitions()).toEqual([]);
    expect(pair.trip({ z: 1 })).toEqual({ z: 1 });
    expect(text(pair.encoder.allDefinitions()[0]!)).toBe('[[0,["z"]]]');
    const getter = {
      get bad() {
        throw fault;
      },
    };
    expect(() => encodeInto(pair.encoder, getter, 1000)).toThrow(fault);
    expect(pair.trip({ z: { y: 1 } })).toEqual({ z: { y: 1 } });
  });

  it('keeps numbers immutable through any mixture of successes and failures', () => {
    const shape = fc.dictionary(fc.constantFrom('a', 'b', 'c', 'd'), fc.nat(9), { noNullPrototype: true });
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.array(shape, { maxLength: 3 }), fc.constantFrom(0, 3, 12, 10_000))),
        (script) => {
          const pair = new Pair(msgpackr);
          for (const [value, room] of script) {
            const { size, bytes } = encodeInto(pair.encoder, value, room);
            // A decoder throws if a number got another meaning.
            pair.carry();
            if (size >= 0) same(pair.read(bytes), value);
          }
          const late = msgpackr.decoder();
          for (const payload of pair.encoder.allDefinitions()) {
            late.define(payload);
            pair.decoder.define(payload);
          }
          const last = encodeInto(pair.encoder, [{ a: 1 }], 1000);
          pair.carry();
          expect(pair.read(last.bytes)).toEqual([{ a: 1 }]);
        },
      ),
      { numRuns: 200 },
    );
  });
});

describe('definitions', () => {
  it('stop at the size of the table, and objects stay objects', () => {
    const pair = new Pair(msgpackr);
    for (let i = 0; i < SHARED_RECORDS + 300; i++) {
      const value = { [`key${i}`]: i, map: new Map([['k', { [`in${i}`]: [i] }]]) };
      same(pair.trip(value), value);
    }
    const all = pair.encoder.allDefinitions();
    const count = all.flatMap((payload) => JSON.parse(text(payload)!) as unknown[]).length;
    expect(count).toBe(SHARED_RECORDS);
    for (const payload of all) expect(payload.length).toBeLessThanOrEqual(MAX_DEFINITION_BYTES);
    // Many new shapes in one message, more than there are numbers for them, each twice.
    const crowd = Array.from({ length: 500 }, (_, i) => ({ [`crowd${i}`]: i, x: { [`nested${i}`]: i } }));
    const twice = [...crowd, ...crowd];
    same(pair.trip(twice), twice);
    expect(pair.encoder.takeDefinitions()).toBeNull();
    // A late subscriber needs nothing but the definitions.
    const late = msgpackr.decoder();
    for (const payload of all) late.define(payload);
    const { bytes } = encodeInto(pair.encoder, { key7: 1, map: null }, 100);
    expect(late.decode(bytes, 0, bytes.length)).toEqual({ key7: 1, map: null });
  });

  it('fit into a payload, however many one message makes', () => {
    const pair = new Pair(msgpackr);
    const wide = (tag: string, n: number) =>
      Object.fromEntries(Array.from({ length: n }, (_, i) => [`${tag}${i}`, i]));
    const value = [
      ...Array.from({ length: 100 }, (_, i) => wide(`a${i}_`, 20)),
      wide('huge', 3000),
      { small: 1 },
      wide('huge', 3000),
      { small: 2 },
    ];
    for (let turn = 0; turn < 3; turn++) {
      const { size, bytes } = encodeInto(pair.encoder, value, 1 << 20);
      expect(size).toBeGreaterThan(0);
      const payload = pair.encoder.takeDefinitions();
      if (payload !== null) {
        expect(payload.length).toBeLessThanOrEqual(MAX_DEFINITION_BYTES);
        pair.decoder.define(payload);
      }
      same(pair.read(bytes), value);
    }
  });

  it('of more than 32 and 64 shapes work before the table is full', () => {
    const pair = new Pair(msgpackr);
    const wide = Object.fromEntries(Array.from({ length: 200 }, (_, i) => [`wide_key_${i}`, i]));
    for (let i = 0; i < 100; i++) {
      const value = [{ [`k${i}`]: i }, wide, wide, { [`k${i}`]: i + 1 }];
      same(pair.trip(value), value);
    }
  });

  it('are not made for keys that have no UTF-8, which become U+FFFD as in values', () => {
    const pair = new Pair(msgpackr);
    for (let i = 0; i < 3; i++) same(pair.trip([{ '\ud800': i }, { a: i }]), [{ '\ufffd': i }, { a: i }]);
    same(pair.trip({ 'x\ude00': '\ud83d' }), { 'x\ufffd': '\ufffd' });
    same(pair.trip({ 'x\ud83d\ude00': 1 }), { 'x\ud83d\ude00': 1 });
  });

  it('may come again, but not with another meaning', () => {
    const decoder = msgpackr.decoder();
    const define = (value: unknown) => decoder.define(new TextEncoder().encode(JSON.stringify(value)));
    define([[0, ['a']]]);
    define([[0, ['a']]]);
    expect(code(() => define([[0, ['b']]]))).toBe('ERR_CODEC_DEFINITION');
    // All or nothing.
    expect(
      code(() =>
        define([
          [5, ['x']],
          [0, ['b']],
        ]),
      ),
    ).toBe('ERR_CODEC_DEFINITION');
    expect(
      code(() =>
        define([
          [5, ['x']],
          [5, ['y']],
        ]),
      ),
    ).toBe('ERR_CODEC_DEFINITION');
    expect(code(() => decoder.decode(Uint8Array.of(0x45, 1), 0, 2))).toBe('ERR_CODEC_DEFINITION');
    expect(decoder.decode(Uint8Array.of(0x40, 1), 0, 2)).toEqual({ a: 1 });
  });

  it('that are missing are an error, not a number', () => {
    const decoder = msgpackr.decoder();
    expect(code(() => decoder.decode(Uint8Array.of(0x40), 0, 1))).toBe('ERR_CODEC_DEFINITION');
    expect(code(() => decoder.decode(Uint8Array.of(0x60, 0), 0, 2))).toBe('ERR_CODEC_DEFINITION');
    expect(code(() => decoder.decode(Uint8Array.of(0x60, 3), 0, 2))).toBe('ERR_CODEC_DEFINITION');
    expect(code(() => decoder.decode(Uint8Array.of(0x60, 200), 0, 2))).toBe('ERR_CODEC_DEFINITION');
  });

  it('are checked', () => {
    const define = (value: unknown) => () =>
      msgpackr
        .decoder({ records: 8 })
        .define(new TextEncoder().encode(typeof value === 'string' ? value : JSON.stringify(value)));
    expect(code(define('{'))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define({}))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define([1]))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define([[0]]))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define([[-1, []]]))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define([[1.5, []]]))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define([['0', []]]))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define([[SHARED_RECORDS, []]]))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define([[8, []]]))).toBe('ERR_CODEC_LIMIT');
    expect(code(define([[0, [1]]]))).toBe('ERR_CODEC_MALFORMED');
    expect(code(define(`[[0,["${'x'.repeat(70_000)}"]]]`))).toBe('ERR_CODEC_LIMIT');
    expect(code(() => msgpackr.decoder().define(Uint8Array.of(0xff)))).toBe('ERR_CODEC_MALFORMED');
  });
});

describe('refusals', () => {
  it('are typed', () => {
    const attempt = (value: unknown) => code(() => encodeInto(msgpackr.encoder(), value, 10_000_000));
    expect(attempt(Symbol('s'))).toBe('ERR_CODEC_VALUE');
    expect(attempt({ a: [Symbol('s')] })).toBe('ERR_CODEC_VALUE');
    const cycle: Record<string, unknown> = {};
    cycle.self = cycle;
    expect(attempt(cycle)).toBe('ERR_CODEC_LIMIT');
    let deep: unknown = 1;
    for (let i = 0; i < 200; i++) deep = [deep];
    expect(attempt(deep)).toBe('ERR_CODEC_LIMIT');
    class Odd extends Float64Array {}
    expect(attempt(new Odd(2))).toBe('ERR_CODEC_VALUE');
  });

  it('notices an object that changes between its keys and its values', () => {
    const pair = new Pair(msgpackr);
    const shifty = {
      get a() {
        delete (this as { b?: number }).b;
        return 1;
      },
      b: 2,
    };
    expect(code(() => encodeInto(pair.encoder, shifty, 1000))).toBe('ERR_CODEC_VALUE');
    expect(pair.trip({ a: 1, b: 2 })).toEqual({ a: 1, b: 2 });
  });

  it('does not let a key reach a prototype', () => {
    const pair = new Pair(msgpackr);
    for (let i = 0; i < 5; i++) {
      const back = pair.trip(
        JSON.parse('{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}'),
      );
      expect(({} as { polluted?: unknown }).polluted).toBeUndefined();
      expect(Object.getPrototypeOf(back)).toBe(Object.prototype);
      expect((back as { polluted?: unknown }).polluted).toBeUndefined();
    }
    const back = pair.read(Uint8Array.of(0x81, 0xa9, ...Buffer.from('__proto__'), 0x90));
    expect(Object.getPrototypeOf(back)).toBe(Map.prototype);
  });
});

describe('re-entrancy', () => {
  it('on the same encoder is refused, and leaves it intact', () => {
    const pair = new Pair(msgpackr);
    let inner = '';
    class Entering {
      toJSON() {
        inner = code(() => pair.encoder.encode({ x: 1 }, new Uint8Array(100), 0, 100));
        return { y: 2 };
      }
    }
    expect(pair.trip({ e: new Entering() })).toEqual({ e: { y: 2 } });
    expect(inner).toBe('ERR_CODEC_REENTRANT');
    expect(pair.trip({ x: 1 })).toEqual({ x: 1 });
  });

  it('on another encoder works, to any depth, with failures', () => {
    const outer = new Pair(msgpackr);
    const inner = new Pair(msgpackr);
    const third = new Pair(msgpackr);
    const seen: unknown[] = [];
    class Entering {
      constructor(readonly level: number) {}
      toJSON() {
        if (this.level === 1) {
          seen.push(inner.trip({ in: new Entering(2), list: [{ p: 1 }] }));
          seen.push(encodeInto(inner.encoder, { toobig: 'x'.repeat(100) }, 20).size);
          return { level: 1 };
        }
        seen.push(third.trip([{ third: 'x'.repeat(20_000) }]));
        return { level: 2 };
      }
    }
    expect(outer.trip({ a: { b: 1 }, e: new Entering(1), c: { b: 2 } })).toEqual({
      a: { b: 1 },
      e: { level: 1 },
      c: { b: 2 },
    });
    expect(seen).toEqual([[{ third: 'x'.repeat(20_000) }], { in: { level: 2 }, list: [{ p: 1 }] }, -1]);
    expect(outer.trip({ a: { b: 3 } })).toEqual({ a: { b: 3 } });
    expect(inner.trip({ list: [{ p: 2 }] })).toEqual({ list: [{ p: 2 }] });
  });
});

describe("an application's own msgpackr", () => {
  const value = { a: [1, 2, { b: 'text' }], d: new Date(5), m: new Map([[1, 2]]) };
  const own = () => [
    Buffer.from(pack(value)).toString('hex'),
    Buffer.from(new Packr({ moreTypes: true, structuredClone: true }).pack(value)).toString('hex'),
    Buffer.from(new Packr({ structures: [] }).pack(value)).toString('hex'),
  ];

  it('is byte for byte the same with and without us', () => {
    const before = own();
    const pair = new Pair(msgpackr);
    for (let i = 0; i < 20; i++) {
      pair.trip({ ...value, i });
      expect(own()).toEqual(before);
      encodeInto(pair.encoder, { x: 'x'.repeat(100) }, 10);
      expect(own()).toEqual(before);
      expect(() => encodeInto(pair.encoder, Symbol('s'), 100)).toThrow();
      expect(own()).toEqual(before);
    }
    expect(unpack(pack(value))).toEqual({ a: [1, 2, { b: 'text' }], d: new Date(5), m: { 1: 2 } });
  });

  it('never writes where we encode, and its results stay what they are', () => {
    const target = new Uint8Array(1 << 16);
    const encoder = msgpackr.encoder();
    const kept: [Buffer, string][] = [];
    for (let i = 0; i < 400; i++) {
      const from = (i * 128) % 60_000;
      const end = encoder.encode({ i, text: 'abc' }, target, from, from + 5000);
      expect(end).toBeGreaterThan(0);
      const copy = target.slice();
      const packed = pack({ i, s: 'x'.repeat(i) });
      expect(packed.buffer).not.toBe(target.buffer);
      expect(Buffer.compare(target, copy)).toBe(0);
      kept.push([packed, packed.toString('hex')]);
    }
    for (const [packed, hex] of kept) expect(packed.toString('hex')).toBe(hex);
  });

  it('keeps a buffer that the application lent to msgpackr', () => {
    const packr = new Packr({ useRecords: false });
    const mine = Buffer.alloc(16_384);
    packr.useBuffer(mine);
    packr.pack('first');
    const encoder = msgpackr.encoder();
    encodeInto(encoder, { a: 1 }, 10_000);
    encodeInto(encoder, { a: 1 }, 10);
    expect(packr.pack('second').buffer).toBe(mine.buffer);
  });

  it('may publish from inside a pack of its own', () => {
    const pair = new Pair(msgpackr);
    const plain = Buffer.from(pack({ a: 1, e: { x: 1 }, b: 'after' })).toString('hex');
    class Entering {
      toJSON() {
        expect(pair.trip({ inside: [1, 2, 3] })).toEqual({ inside: [1, 2, 3] });
        return { x: 1 };
      }
    }
    expect(Buffer.from(pack({ a: 1, e: new Entering(), b: 'after' })).toString('hex')).toBe(plain);
  });

  afterEach(() => {
    // No extension was registered, by us or by a test: an unknown class is still a plain object.
    class Plain {
      x = 1;
    }
    expect(unpack(pack(new Plain()))).toEqual({ x: 1 });
  });
});
