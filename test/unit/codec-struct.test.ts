import fc from 'fast-check';
import { describe, expect, expectTypeOf, it } from 'vitest';
import { type Codec, CodecError, struct } from '../../src/channels/codec/index.js';
import { structCodec } from '../../src/channels/codec/struct.js';
import { layoutOf, type StructSpec } from '../../src/channels/codec/struct-layout.js';
import { encodeInto, Pair, same } from './codec-support.js';

type Any = Codec<Record<string, unknown>>;
const modes = ['generated', 'closures'] as const;

const refusal = (run: () => unknown): CodecError => {
  try {
    run();
  } catch (error) {
    return error as CodecError;
  }
  throw new Error('nothing was thrown');
};

const text = (bytes: number) =>
  fc
    .string({ unit: 'binary', maxLength: bytes })
    .filter((s) => Buffer.byteLength(s) <= bytes && !s.includes('\0'));
const scalars = {
  i8: fc.integer({ min: -128, max: 127 }),
  u8: fc.nat(255),
  i16: fc.integer({ min: -32768, max: 32767 }),
  u16: fc.nat(65535),
  i32: fc.integer(),
  u32: fc.nat(0xffffffff),
  i64: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
  u64: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  f32: fc.float(),
  f64: fc.double(),
  bool: fc.boolean(),
} as const;
type Scalar = keyof typeof scalars;
const typed = {
  i8: Int8Array,
  u8: Uint8Array,
  i16: Int16Array,
  u16: Uint16Array,
  i32: Int32Array,
  u32: Uint32Array,
  i64: BigInt64Array,
  u64: BigUint64Array,
  f32: Float32Array,
  f64: Float64Array,
} as const;

/** A field's type together with values of it, as they are read. */
const anyField: fc.Arbitrary<[unknown, fc.Arbitrary<unknown>]> = fc.oneof(
  fc
    .constantFrom(...(Object.keys(scalars) as Scalar[]))
    .map((kind): [unknown, fc.Arbitrary<unknown>] => [kind, scalars[kind]]),
  fc.integer({ min: 1, max: 40 }).map((n): [unknown, fc.Arbitrary<unknown>] => [`char:${n}`, text(n)]),
  fc
    .integer({ min: 1, max: 40 })
    .map((n): [unknown, fc.Arbitrary<unknown>] => [
      `bytes:${n}`,
      fc.uint8Array({ minLength: n, maxLength: n }),
    ]),
  fc
    .tuple(fc.constantFrom(...(Object.keys(scalars) as Scalar[])), fc.integer({ min: 1, max: 9 }))
    .map(([kind, n]): [unknown, fc.Arbitrary<unknown>] => {
      const items = fc.array(scalars[kind] as fc.Arbitrary<number>, { minLength: n, maxLength: n });
      return [
        [kind, n],
        kind === 'bool' ? items : items.map((list) => (typed[kind] as typeof Float64Array).from(list)),
      ];
    }),
);
const anyName = fc.oneof(
  fc.constantFrom(
    'a',
    'b',
    'bid',
    'constructor',
    'class',
    "it's",
    '"]:x,y',
    'ä',
    '0',
    'o',
    'd',
    'v',
    'p',
    'refuse',
  ),
  fc.string({ unit: 'binary', maxLength: 10 }).filter((name) => name !== '__proto__'),
);
const anyStruct = fc
  .uniqueArray(fc.tuple(anyName, anyField), { minLength: 1, maxLength: 12, selector: ([name]) => name })
  .chain((fields) =>
    fc.record({
      spec: fc.constant(
        Object.fromEntries(fields.map(([name, [type]]) => [name, type])) as unknown as StructSpec,
      ),
      value: fc
        .tuple(...fields.map(([, [, value]]) => value))
        .map((values) => Object.fromEntries(fields.map(([name], i) => [name, values[i]]))),
    }),
  );

describe.each(modes)('struct, %s', (mode) => {
  const make = (spec: unknown): Any => structCodec(layoutOf(spec as StructSpec), mode);

  it('keeps every value of every layout, at every alignment', () => {
    fc.assert(
      fc.property(anyStruct, fc.nat(17), fc.nat(17), ({ spec, value }, at, from) => {
        const codec = make(spec);
        const pair = new Pair(codec);
        const { size, bytes } = encodeInto(pair.encoder, value, 1 << 12, at);
        expect(size).toBe(layoutOf(spec).size);
        same(pair.read(bytes, from), value);
      }),
      { numRuns: 400 },
    );
  });

  it('needs exactly its size', () => {
    const codec = make({ a: 'u8', b: 'f64', c: 'char:3' });
    const value = { a: 1, b: 2, c: 'abc' };
    for (let room = 0; room < 24; room++) expect(encodeInto(codec.encoder(), value, room).size).toBe(-1);
    expect(encodeInto(codec.encoder(), value, 24).size).toBe(24);
    expect(refusal(() => codec.decoder().decode(new Uint8Array(40), 0, 23)).code).toBe('ERR_CODEC_MALFORMED');
    expect(refusal(() => codec.decoder().decode(new Uint8Array(40), 0, 25)).code).toBe('ERR_CODEC_MALFORMED');
    expect(refusal(() => codec.encoder().encode(value, new Uint8Array(8), 0, 24))).toMatchObject({
      code: 'ERR_INVALID_ARGUMENT',
    });
  });

  it('lays out as C does, little endian, and zeroes what lies between', () => {
    const codec = make({ a: 'u8', b: 'u32', c: 'u16', d: 'u64', e: 'bool', t: 'char:4' });
    const { bytes } = encodeInto(
      codec.encoder(),
      { a: 1, b: 0x01020304, c: 5, d: 6n, e: true, t: 'xy' },
      100,
    );
    expect([...bytes]).toEqual([
      1, 0, 0, 0, 4, 3, 2, 1, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0x78, 0x79, 0, 0, 0, 0, 0,
    ]);
  });

  it('refuses what is out of range, naming field, type and range', () => {
    const edges: [Scalar, unknown[], unknown[]][] = [
      ['i8', [-128, 127, -0], [-129, 128]],
      ['u8', [0, 255], [-1, 256]],
      ['i16', [-32768, 32767], [-32769, 32768]],
      ['u16', [0, 65535], [-1, 65536]],
      ['i32', [-(2 ** 31), 2 ** 31 - 1], [-(2 ** 31) - 1, 2 ** 31]],
      ['u32', [0, 2 ** 32 - 1], [-1, 2 ** 32]],
      ['i64', [-(2n ** 63n), 2n ** 63n - 1n], [-(2n ** 63n) - 1n, 2n ** 63n]],
      ['u64', [0n, 2n ** 64n - 1n], [-1n, 2n ** 64n]],
      ['f32', [3.4e38, Infinity, Number.NaN], [3.5e38, -1e39]],
    ];
    for (const [type, good, bad] of edges) {
      const codec = make({ 'the field': type });
      const list = make({ list: [type, 2] });
      for (const value of good) {
        expect(encodeInto(codec.encoder(), { 'the field': value }, 8).size).toBeGreaterThan(0);
        expect(encodeInto(list.encoder(), { list: [value, value] }, 16).size).toBeGreaterThan(0);
      }
      for (const value of bad) {
        const error = refusal(() => encodeInto(codec.encoder(), { 'the field': value }, 8));
        expect(error).toBeInstanceOf(CodecError);
        expect(error.code).toBe('ERR_CODEC_RANGE');
        expect(error.message).toContain(`'the field' (${type})`);
        expect(refusal(() => encodeInto(list.encoder(), { list: [good[0], value] }, 16)).message).toContain(
          "'list'[1]",
        );
      }
      if (type.startsWith('i') || type.startsWith('u')) {
        const big = type.endsWith('64');
        if (!big)
          for (const value of [0.5, Number.NaN, Infinity]) {
            expect(refusal(() => encodeInto(codec.encoder(), { 'the field': value }, 8)).code).toBe(
              'ERR_CODEC_RANGE',
            );
          }
        expect(refusal(() => encodeInto(codec.encoder(), { 'the field': big ? 1 : 1n }, 8)).code).toBe(
          'ERR_CODEC_VALUE',
        );
      }
      for (const value of [undefined, null, '1', {}, true, Symbol('s')]) {
        expect(refusal(() => encodeInto(codec.encoder(), { 'the field': value }, 8)).code).toBe(
          'ERR_CODEC_VALUE',
        );
      }
    }
  });

  it('refuses texts, bytes and arrays that do not fit', () => {
    const codec = make({ t: 'char:4', b: 'bytes:2', n: ['f64', 2], f: ['bool', 1] });
    const good = { t: 'abcd', b: Uint8Array.of(1, 2), n: [1, 2], f: [true] };
    same(new Pair(codec).trip(good), { ...good, n: Float64Array.of(1, 2) });
    const attempt = (change: object) =>
      refusal(() => encodeInto(codec.encoder(), { ...good, ...change }, 100)).code;
    expect(attempt({ t: 'abcde' })).toBe('ERR_CODEC_RANGE');
    expect(attempt({ t: 'äöü' })).toBe('ERR_CODEC_RANGE');
    expect(attempt({ t: 'a\0' })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ t: '\ud800' })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ t: 1 })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ b: Uint8Array.of(1) })).toBe('ERR_CODEC_RANGE');
    expect(attempt({ b: [1, 2] })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ n: [1] })).toBe('ERR_CODEC_RANGE');
    expect(attempt({ n: [1, '2'] })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ n: 'ab' })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ n: undefined })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ n: new DataView(new ArrayBuffer(2)) })).toBe('ERR_CODEC_VALUE');
    expect(attempt({ f: [1] })).toBe('ERR_CODEC_VALUE');
    for (const value of [null, undefined, 5, 'x']) {
      expect(refusal(() => encodeInto(codec.encoder(), value as never, 100)).code).toBe('ERR_CODEC_VALUE');
    }
  });

  it('refuses a text that is not UTF-8', () => {
    const codec = make({ t: 'char:20' });
    const payload = new Uint8Array(20).fill(0xff);
    expect(refusal(() => codec.decoder().decode(payload, 0, 20)).code).toBe('ERR_CODEC_MALFORMED');
  });

  it('gives arrays and bytes as views of the source where alignment allows', () => {
    const codec = make({ b: 'bytes:8', n: ['f64', 1] });
    const source = new Uint8Array(64);
    const aligned = codec.decoder().decode(source, 8, 24) as { b: Uint8Array; n: Float64Array };
    expect(aligned.b.buffer).toBe(source.buffer);
    expect(aligned.n.buffer).toBe(source.buffer);
    const odd = codec.decoder().decode(source, 9, 25) as { n: Float64Array };
    expect(odd.n.buffer).not.toBe(source.buffer);
  });
});

describe('struct', () => {
  it('names its layout completely', () => {
    expect(struct({ bid: 'f64', ask: 'f64' }).name).toBe('struct:bid:f64,ask:f64');
    expect(struct({ a: 'char:8', 'b c': ['i64', 3], ',': 'bool' }).name).toBe(
      'struct:a:char:8,"b c":i64[3],",":bool',
    );
    expect(struct({ a: 'f64', b: 'f64' }).name).not.toBe(struct({ b: 'f64', a: 'f64' }).name);
  });

  it('works where code generation is forbidden', () => {
    const original = globalThis.Function;
    globalThis.Function = class extends original {
      constructor(...args: string[]) {
        super();
        throw new EvalError(`forbidden: ${args.length}`);
      }
    } as FunctionConstructor;
    let codec: Any;
    try {
      expect(() => structCodec(layoutOf({ a: 'f64' }), 'generated')).toThrow(EvalError);
      codec = struct({ a: 'f64' }) as Any;
    } finally {
      globalThis.Function = original;
    }
    expect(new Pair(codec).trip({ a: 1.5 })).toEqual({ a: 1.5 });
  });

  it('gives both kinds of code the same bytes', () => {
    fc.assert(
      fc.property(anyStruct, ({ spec, value }) => {
        const [a, b] = modes.map(
          (mode) => encodeInto(structCodec(layoutOf(spec), mode).encoder(), value, 4096).bytes,
        );
        expect(a).toEqual(b);
      }),
    );
  });

  it('checks its specification', () => {
    const make = (spec: unknown) => refusal(() => struct(spec as StructSpec));
    for (const spec of [null, 5, [], {}]) expect(make(spec)).toMatchObject({ code: 'ERR_INVALID_OPTION' });
    expect(make({ a: 'float' })).toMatchObject({
      code: 'ERR_INVALID_OPTION',
      message: expect.stringContaining("field 'a' has the type 'float'"),
    });
    for (const type of [
      'char',
      'char:0',
      'char:-1',
      'char:1.5',
      'bytes:99999999',
      ['f64'],
      ['f64', 0],
      ['f64', 1.5],
      ['char:2', 2],
      ['f64', 2 ** 20],
      5,
      null,
    ]) {
      expect(make({ ok: 'u8', bad: type })).toMatchObject({
        code: 'ERR_INVALID_OPTION',
        message: expect.stringContaining("'bad'"),
      });
    }
    expect(make(JSON.parse('{"__proto__":"f64"}'))).toMatchObject({ code: 'ERR_INVALID_OPTION' });
    expect(make(Object.fromEntries(Array.from({ length: 1025 }, (_, i) => [`f${i}`, 'u8'])))).toMatchObject({
      code: 'ERR_INVALID_OPTION',
    });
  });

  it('infers the type of its values', () => {
    const codec = struct({
      a: 'f64',
      b: 'u64',
      c: 'char:4',
      d: 'bytes:2',
      e: ['i32', 3],
      f: 'bool',
      g: ['bool', 2],
    });
    type Value = typeof codec extends Codec<infer T> ? T : never;
    expectTypeOf<Value>().toEqualTypeOf<{
      a: number;
      b: bigint;
      c: string;
      d: Uint8Array;
      e: Int32Array;
      f: boolean;
      g: boolean[];
    }>();
  });
});
