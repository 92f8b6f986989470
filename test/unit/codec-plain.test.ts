import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  bytes,
  type Codec,
  type CodecError,
  custom,
  json,
  msgpackr,
  resolveCodec,
  struct,
} from '../../src/channels/codec/index.js';
import { anyJson, encodeInto, Pair, same } from './codec-support.js';

const thrown = (run: () => unknown): CodecError => {
  try {
    run();
  } catch (error) {
    return error as CodecError;
  }
  throw new Error('nothing was thrown');
};

describe('bytes', () => {
  it('come back as they were', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), fc.nat(9), (value, offset) => {
        const back = new Pair(bytes).trip(value, 512, offset);
        expect(back).toEqual(value);
        expect(Object.getPrototypeOf(back)).toBe(Uint8Array.prototype);
      }),
    );
  });

  it('may be any view, and are what the view spans', () => {
    const floats = Float64Array.of(1, 2, 3).subarray(1);
    const expected = new Uint8Array(floats.buffer, 8, 16);
    for (const value of [
      floats,
      new DataView(floats.buffer, 8, 16),
      Buffer.from(floats.buffer, 8, 16),
      expected.slice().buffer,
    ]) {
      expect(new Pair(bytes).trip(value as Uint8Array)).toEqual(expected);
    }
    const shared = new SharedArrayBuffer(3);
    new Uint8Array(shared).set([1, 2, 3]);
    expect(new Pair(bytes).trip(shared as unknown as Uint8Array)).toEqual(Uint8Array.of(1, 2, 3));
  });

  it('are a view of the source', () => {
    const source = new Uint8Array(100);
    const back = bytes.decoder().decode(source, 10, 20);
    expect(back.buffer).toBe(source.buffer);
    expect([back.byteOffset, back.length]).toEqual([10, 10]);
  });

  it('use their room to the last byte', () => {
    for (const length of [0, 1, 47, 48, 49, 200]) {
      for (let room = 0; room <= length + 2; room++) {
        expect(encodeInto(bytes.encoder(), new Uint8Array(length).fill(7), room).size).toBe(
          room < length ? -1 : length,
        );
      }
    }
  });

  it('are nothing else, with help', () => {
    const refusal = (value: unknown) => thrown(() => encodeInto(bytes.encoder(), value as Uint8Array, 100));
    expect(refusal('text')).toMatchObject({
      code: 'ERR_CODEC_VALUE',
      message: expect.stringContaining('new TextEncoder().encode'),
    });
    expect(refusal({ a: 1 })).toMatchObject({
      code: 'ERR_CODEC_VALUE',
      message: expect.stringContaining('an object'),
    });
    expect(refusal([1, 2])).toMatchObject({ message: expect.stringContaining('an array') });
    expect(refusal(null)).toMatchObject({ message: expect.stringContaining('null') });
    expect(refusal(undefined)).toMatchObject({ message: expect.stringContaining('undefined') });
    expect(refusal(new Map())).toMatchObject({ message: expect.stringContaining('a Map') });
  });

  it('have no definitions', () => {
    expect(bytes.encoder().takeDefinitions()).toBeNull();
    expect(bytes.encoder().allDefinitions()).toEqual([]);
    expect(thrown(() => bytes.decoder().define(new Uint8Array(1))).code).toBe('ERR_CODEC_DEFINITION');
  });
});

describe('json', () => {
  it('comes back as it was', () => {
    fc.assert(
      fc.property(anyJson, fc.nat(9), (value, offset) => {
        same(new Pair(json).trip(value, 1 << 16, offset), JSON.parse(JSON.stringify(value)));
      }),
    );
  });

  it('uses its room to the last byte', () => {
    for (const value of [null, 'ab', 'ä€😀', { a: ['ü'.repeat(30)] }, 'x'.repeat(200)]) {
      const exact = Buffer.byteLength(JSON.stringify(value));
      for (let room = 0; room <= exact + 3; room++) {
        expect(encodeInto(json.encoder(), value, room).size).toBe(room < exact ? -1 : exact);
      }
    }
  });

  it('refuses what JSON has no form for, and lets user code throw', () => {
    const refusal = (value: unknown) => thrown(() => encodeInto(json.encoder(), value, 1000));
    const cycle: Record<string, unknown> = {};
    cycle.self = cycle;
    expect(refusal(cycle).code).toBe('ERR_CODEC_VALUE');
    expect(refusal(1n).code).toBe('ERR_CODEC_VALUE');
    expect(refusal(undefined).code).toBe('ERR_CODEC_VALUE');
    expect(refusal(() => 1).code).toBe('ERR_CODEC_VALUE');
    let deep: unknown = 1;
    for (let i = 0; i < 100_000; i++) deep = [deep];
    expect(refusal(deep).code).toBe('ERR_CODEC_LIMIT');
    const fault = new TypeError('mine');
    const throwing = {
      toJSON() {
        throw fault;
      },
    };
    expect(refusal(throwing)).toBe(fault);
  });
});

describe('custom', () => {
  const point = custom<{ x: number }>({
    name: 'point/1',
    encode: ({ x }) => Uint8Array.of(x, x, x),
    decode: (from) => {
      if (from.length !== 3) throw new Error('three bytes');
      return { x: from[0]! };
    },
  });

  it('goes both ways', () => {
    expect(point.name).toBe('point/1');
    expect(new Pair(point).trip({ x: 7 })).toEqual({ x: 7 });
    for (let room = 0; room < 3; room++) expect(encodeInto(point.encoder(), { x: 1 }, room).size).toBe(-1);
    expect(encodeInto(point.encoder(), { x: 1 }, 3).size).toBe(3);
  });

  it('turns a throwing decode into a CodecError, and leaves a throwing encode', () => {
    expect(thrown(() => point.decoder().decode(new Uint8Array(2), 0, 2))).toMatchObject({
      code: 'ERR_CODEC_MALFORMED',
      message: expect.stringContaining('three bytes'),
    });
    const fault = new Error('mine');
    const bad = custom({
      name: 'bad',
      encode: () => {
        throw fault;
      },
      decode: () => 1,
    });
    expect(thrown(() => encodeInto(bad.encoder(), 1, 10))).toBe(fault);
  });

  it('must return bytes', () => {
    const made = (value: unknown) =>
      custom({ name: 'bad', encode: () => value as Uint8Array, decode: () => 1 });
    expect(thrown(() => encodeInto(made('text').encoder(), 1, 10)).code).toBe('ERR_CODEC_VALUE');
    expect(
      thrown(() => encodeInto(made(Promise.reject(new Error('late'))).encoder(), 1, 10)).message,
    ).toContain('synchronous');
  });

  it('is checked when it is made', () => {
    const ok = { name: 'n', encode: () => new Uint8Array(), decode: () => 1 };
    const refusal = (given: unknown) => thrown(() => custom(given as typeof ok));
    expect(refusal(null)).toMatchObject({ code: 'ERR_INVALID_OPTION' });
    expect(refusal({ ...ok, name: '' })).toMatchObject({ code: 'ERR_INVALID_OPTION' });
    expect(refusal({ ...ok, name: 'x'.repeat(256) })).toMatchObject({ code: 'ERR_INVALID_OPTION' });
    for (const name of ['msgpackr', 'bytes', 'json', 'struct:a:f64']) {
      expect(refusal({ ...ok, name })).toMatchObject({
        code: 'ERR_INVALID_OPTION',
        message: expect.stringContaining('built-in'),
      });
    }
    expect(refusal({ ...ok, decode: 1 })).toMatchObject({ code: 'ERR_INVALID_OPTION' });
    expect(refusal({ ...ok, encoder: 1 })).toMatchObject({ code: 'ERR_UNKNOWN_OPTION' });
  });
});

describe('resolveCodec', () => {
  it('knows names and objects', () => {
    expect(resolveCodec(undefined)).toBe(msgpackr);
    expect(resolveCodec('msgpackr')).toBe(msgpackr);
    expect(resolveCodec('bytes')).toBe(bytes);
    expect(resolveCodec('json')).toBe(json);
    const own = struct({ a: 'f64' });
    expect(resolveCodec(own)).toBe(own);
  });

  it('says what was meant', () => {
    const refusal = (given: unknown) => thrown(() => resolveCodec(given as Codec<unknown>));
    expect(refusal('msgpack')).toMatchObject({
      code: 'ERR_CODEC_UNKNOWN',
      message: expect.stringContaining("did you mean 'msgpackr'?"),
    });
    expect(refusal('JSON').message).toContain("did you mean 'json'?");
    expect(refusal('buffer').message).toContain("did you mean 'bytes'?");
    expect(refusal('struct').message).toContain('pass what struct({...}) returns');
    expect(refusal('protobuf').message).toBe(
      "There is no codec 'protobuf'. Codecs are 'msgpackr', 'bytes', 'json', struct({...}) and custom({...}).",
    );
    expect(refusal({ name: 'n', encode() {}, decode() {} }).message).toContain('must be wrapped');
    expect(refusal(null)).toMatchObject({
      code: 'ERR_CODEC_UNKNOWN',
      message: expect.stringContaining('not null'),
    });
    expect(refusal(42).message).toContain('not a number');
    expect(refusal({}).message).toContain('not an object');
  });
});
