import { readFileSync, writeFileSync } from 'node:fs';
import { inspect, isDeepStrictEqual } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  bytes,
  type Codec,
  CodecError,
  json,
  msgpackr,
  type StructSpec,
  struct,
} from '../../src/channels/codec/index.js';
import { Pair } from './codec-support.js';

/**
 * The tables of docs/codecs.md are what these trips gave. `node scripts/gen-codecs.mjs` writes them (it runs this file
 * with MILLRACE_WRITE_DOCS=1); without that, the file must already say so.
 */
class Point {
  constructor(
    public x: number,
    public y: number,
  ) {}
}

class Money {
  constructor(readonly cents: number) {}
  toJSON() {
    return { cents: this.cents };
  }
}

const cycle: { self?: unknown } = {};
cycle.self = cycle;
const shared = { n: 1 };
// biome-ignore lint/suspicious/noSparseArray: what becomes of one is the question
const sparse = [1, , 3];
const cause = new Error('outer', { cause: new TypeError('inner') });

const values: [what: string, value: unknown][] = [
  ['`null`, booleans', [null, true, false]],
  ['`undefined`', undefined],
  ['`undefined` in an object', { a: undefined }],
  ['numbers', [0, 1.5, -7, 2 ** 53, 1e308]],
  ['`NaN`, `Infinity`', [Number.NaN, Infinity, -Infinity]],
  ['`-0`', -0],
  ['bigints of up to 64 bits', [1n, -(2n ** 63n), 2n ** 64n - 1n]],
  ['larger bigints', 2n ** 200n],
  ['strings', ['', 'ä€😀', 'x'.repeat(1000)]],
  ['half a surrogate pair', '\ud800'],
  ['plain objects, nested', { a: { b: [1, { c: 'd' }] } }],
  ['an object without a prototype', Object.assign(Object.create(null), { a: 1 })],
  ["a key `'__proto__'`", JSON.parse('{"__proto__":1}')],
  ['a symbol as a key', { [Symbol('s')]: 1, a: 1 }],
  ['a getter', Object.defineProperty({}, 'a', { get: () => 1, enumerable: true })],
  ['arrays', [[1, 'a'], []]],
  ['a sparse array', sparse],
  ['`Date`', new Date(1_700_000_000_123)],
  ['an invalid `Date`', new Date(Number.NaN)],
  [
    '`Map`',
    new Map<unknown, unknown>([
      [1, 'a'],
      [{ k: 1 }, 'b'],
    ]),
  ],
  ['`Set`', new Set([1, 'a'])],
  ['`Uint8Array`', Uint8Array.of(1, 2)],
  ['`Buffer`', Buffer.from([1, 2])],
  ['other typed arrays', [Float64Array.of(1.5), BigInt64Array.of(1n), Uint16Array.of(7)]],
  ['`ArrayBuffer`', new ArrayBuffer(2)],
  ['`SharedArrayBuffer`: send a view of it', new SharedArrayBuffer(2)],
  ['a view of a `SharedArrayBuffer`', new Uint8Array(new SharedArrayBuffer(2))],
  ['`DataView`', new DataView(new ArrayBuffer(2))],
  ['`RegExp`', /a+/gi],
  ['`Error`: name, message, cause (not the stack)', cause],
  ['an instance of a class', new Point(1, 2)],
  ['an instance with `toJSON`', new Money(5)],
  ['a boxed primitive', Object(5)],
  ['a function', () => 1],
  ['a function in an object', { f: () => 1 }],
  ['a symbol', Symbol('s')],
  ['the same object twice', [shared, shared]],
  ['a cycle', cycle],
  ['`Promise`, `WeakMap` and the like', Promise.resolve(1)],
];

/** Equality of what matters: an Error's stack and the identity of its class's realm are not sent. */
function equal(a: unknown, b: unknown): boolean {
  if (a instanceof Error && b instanceof Error) {
    return (
      a.name === b.name &&
      a.message === b.message &&
      a.constructor === b.constructor &&
      equal(a.cause, b.cause)
    );
  }
  if (a instanceof Date && b instanceof Date) return Object.is(a.getTime(), b.getTime());
  return isDeepStrictEqual(a, b);
}

const show = (value: unknown) =>
  inspect(value, { compact: true, breakLength: Infinity })
    .replaceAll('|', '\\|')
    .replace(/^\[Object: null prototype\] /, '');

function fate(codec: Codec<unknown>, value: unknown): string {
  let back: unknown;
  try {
    back = new Pair(codec).trip(value);
  } catch (error) {
    if (!(error instanceof CodecError)) throw error;
    return 'refused';
  }
  if (equal(back, value)) return 'kept';
  return `\`${show(back)}\``;
}

function mainTable(): string {
  const rows = values.map(([what, value]) => `| ${what} | ${fate(msgpackr, value)} | ${fate(json, value)} |`);
  return ['| value | msgpackr | json |', '|---|---|---|', ...rows].join('\n');
}

const fields: [type: string, field: unknown, give: unknown, largest: unknown, beyond: unknown][] = [
  ["`'i8'`, `'u8'`", 'u8', 7, 255, 256],
  ["`'i16'`, `'u16'`", 'u16', 7, 65_535, 65_536],
  ["`'i32'`, `'u32'`", 'u32', 7, 4_294_967_295, 4_294_967_296],
  ["`'i64'`, `'u64'`", 'u64', 7n, 2n ** 64n - 1n, 2n ** 64n],
  ["`'f32'`", 'f32', 1.5, 3.4028234663852886e38, 1e39],
  ["`'f64'`", 'f64', 0.1, Number.MAX_VALUE, '1'],
  ["`'bool'`", 'bool', true, true, 1],
  ["`'char:N'`", 'char:4', 'ab', 'abcd', 'abcde'],
  ["`'bytes:N'`", 'bytes:2', Uint8Array.of(1, 2), Uint8Array.of(1, 2), Uint8Array.of(1)],
  ["`['f64', n]` and the like", ['f64', 2], Float64Array.of(1, 2), [1, 2], [1]],
  ["`['bool', n]`", ['bool', 2], [true, false], [true, true], [true]],
];

function structTable(): string {
  const rows = fields.map(([type, field, give, largest, beyond]) => {
    const codec = struct({ f: field } as StructSpec) as Codec<unknown>;
    const pair = new Pair(codec);
    const back = (pair.trip({ f: give }) as { f: unknown }).f;
    expect(isDeepStrictEqual(back, give)).toBe(true);
    expect(fate(codec, { f: largest })).not.toBe('refused');
    const kind = typeof give === 'object' ? (give as object).constructor.name : typeof give;
    const size = pair.encoder.encode({ f: give }, new Uint8Array(64), 0, 64);
    const sized = typeof field === 'string' && field.includes(':') ? 'N' : size;
    const bytes = Array.isArray(field) ? `${size / (field[1] as number)} for each` : sized;
    return `| ${type} | \`${kind}\` | ${bytes} | \`${show(beyond)}\` ${fate(codec, { f: beyond })} |`;
  });
  return ['| type | in JavaScript | bytes | beyond |', '|---|---|---|---|', ...rows].join('\n');
}

function bytesTable(): string {
  const given: [string, unknown][] = [
    ['`Uint8Array`', Uint8Array.of(1, 2)],
    ['`Buffer`', Buffer.from([1, 2])],
    ['other typed arrays, `DataView`', Uint16Array.of(0x0201)],
    ['`ArrayBuffer`, `SharedArrayBuffer`', Uint8Array.of(1, 2).buffer],
    ['a string', 'text'],
    ['anything else', { a: 1 }],
  ];
  return [
    '| value | bytes |',
    '|---|---|',
    ...given.map(([what, value]) => `| ${what} | ${fate(bytes as Codec<unknown>, value)} |`),
  ].join('\n');
}

describe('docs/codecs.md', () => {
  it.each([
    ['values', mainTable],
    ['bytes', bytesTable],
    ['struct', structTable],
  ])('says what happens: %s', (name, table) => {
    const path = new URL('../../docs/codecs.md', import.meta.url);
    const page = readFileSync(path, 'utf8');
    const [before, rest] = page.split(`<!-- generated: ${name} -->\n`);
    const [old, after] = (rest ?? '').split(`<!-- end: ${name} -->`);
    expect(after, `docs/codecs.md has lost its marks for '${name}'`).toBeDefined();
    const wanted = `${table()}\n`;
    if (process.env.MILLRACE_WRITE_DOCS === '1') {
      writeFileSync(path, `${before}<!-- generated: ${name} -->\n${wanted}<!-- end: ${name} -->${after}`);
      return;
    }
    expect(old, 'run node scripts/gen-codecs.mjs').toBe(wanted);
  });
});
