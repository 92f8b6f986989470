import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { putBack, takeApart, writeFields } from '../../src/channels/lending/fields.js';
import { MillraceError } from '../../src/errors.js';

const text = (rows: unknown): Uint8Array =>
  Buffer.from(typeof rows === 'string' ? rows : JSON.stringify(rows));

/** Sends a value as a publisher does: the fields at their places in a block. */
function sent(value: unknown): unknown {
  const { rest, fields, bytes } = takeApart(value);
  const block = new ArrayBuffer(bytes);
  for (const { view, offset } of fields)
    new Uint8Array(block, offset, view.byteLength).set(
      new Uint8Array(view.buffer as ArrayBuffer, view.byteOffset, view.byteLength),
    );
  return putBack(structuredClone(rest), writeFields(fields), block);
}

describe('large fields beside a value', () => {
  test('come back at their places, of their classes', () => {
    const value = {
      a: [1, { b: new Float64Array(600).fill(0.5), c: 'x' }],
      d: new Uint16Array(4000).fill(7),
      e: new DataView(new ArrayBuffer(4096)),
      small: new Uint8Array(10),
    };
    expect(sent(value)).toEqual(value);
    expect(sent(Buffer.alloc(5000, 3))).toEqual(Buffer.alloc(5000, 3));
  });
});

describe('what a peer says of fields is checked (I9)', () => {
  const value = () => ({ hole: null, list: [null, 1], deep: { hole: null }, taken: 5 });
  const block = new ArrayBuffer(8192);
  const bad = (rows: unknown) => () => putBack(value(), text(rows), block);

  test.each<[string, unknown]>([
    ['no JSON', '[['],
    ['no list', { length: 1 }],
    ['no list', Array.from({ length: 65 }, () => [['hole'], 0, 0, 1])],
    ['a row', [5]],
    ['a row', [['hole', 0, 0, 1]]],
    ['a row', [[['hole'], 99, 0, 1]]],
    ['a row', [[Array(34).fill('deep'), 0, 0, 1]]],
    ['a place', [[['hole'], 0, 8192, 1]]],
    ['a place', [[['hole'], 0, 0, 8193]]],
    ['a place', [[['hole'], 0, -64, 1]]],
    ['a place', [[['hole'], 0, 1, 1]]],
    ['a place', [[['hole'], 9, 0, 7]]],
    ['a place', [[['hole'], 0, 0, 2 ** 53]]],
    ['a place', [[['hole'], 'map', 0, 1]]],
    ['a path', [[['taken'], 0, 0, 1]]],
    ['a path', [[['none'], 0, 0, 1]]],
    ['a path', [[['__proto__'], 0, 0, 1]]],
    ['a path', [[['deep', '__proto__', 'x'], 0, 0, 1]]],
    ['a path', [[['list', 'length'], 0, 0, 1]]],
    ['a path', [[[{}], 0, 0, 1]]],
  ])('%s: %j', (what, rows) => {
    expect(bad(rows)).toThrow(
      expect.objectContaining({
        code: 'ERR_DECODE',
        message: `The fields beside a large message are not valid: ${what}.`,
      }),
    );
  });

  test('whatever it says: a typed error, or views within the block', () => {
    const part = fc.oneof(fc.constantFrom('hole', 'list', 'deep', 0, 'taken', '__proto__'), fc.jsonValue());
    const row = fc.tuple(fc.array(part, { maxLength: 3 }), fc.nat(14), fc.integer(), fc.integer());
    const near = fc.tuple(
      fc.constant(['hole']),
      fc.nat(12),
      fc.nat(130).map((n) => n * 64),
      fc.nat(9000),
    );
    fc.assert(
      fc.property(fc.array(fc.oneof(row, near, fc.jsonValue()), { maxLength: 4 }), (rows) => {
        const given = value();
        try {
          putBack(given, text(rows), block);
        } catch (error) {
          expect(error).toBeInstanceOf(MillraceError);
        }
        const { hole } = given as { hole: ArrayBufferView | null };
        if (hole !== null) expect(hole.byteOffset + hole.byteLength).toBeLessThanOrEqual(block.byteLength);
        expect(Object.getPrototypeOf(given)).toBe(Object.prototype);
      }),
    );
  });
});
