import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { show, usage } from '../../src/cli/exit.js';
import { LineSplitter } from '../../src/cli/lines.js';
import { duration, whole } from '../../src/cli/options.js';
import { toJson, toSize, toText } from '../../src/cli/render.js';
import { readReport } from '../../src/cli/reports.js';
import { MillraceError } from '../../src/errors.js';

describe('lines', () => {
  const split = (limit: number, chunks: readonly Uint8Array[]) => {
    const splitter = new LineSplitter(limit);
    const lines = chunks.flatMap((chunk) => [...splitter.push(chunk)]);
    lines.push(...splitter.end());
    return lines.map((line) =>
      line instanceof Uint8Array ? Buffer.from(line).toString('latin1') : line.bytes,
    );
  };

  test('LF, CRLF, empty lines, and a last line without an end', () => {
    expect(split(100, [Buffer.from('a\r\n\n\r\nb\rc\nlast')])).toEqual(['a', '', '', 'b\rc', 'last']);
    expect(split(100, [Buffer.from('a\n')])).toEqual(['a']);
    expect(split(100, [])).toEqual([]);
    expect(split(100, [Buffer.from('a\r'), Buffer.from('\nb')])).toEqual(['a', 'b']);
  });

  test('a line of the limit passes, with or without CR, and a longer one is only counted', () => {
    expect(split(3, [Buffer.from('abc\nabc\r\nabcd\nabcd\r\nx\n')])).toEqual(['abc', 'abc', 4, 5, 'x']);
    expect(split(3, [Buffer.from('ab'), Buffer.from('cdef'), Buffer.from('gh')])).toEqual([8]);
  });

  test('are the same whatever pieces they come in', () => {
    fc.assert(
      fc.property(
        fc.array(fc.string({ unit: fc.constantFrom('a', 'b', '\n', '\r'), maxLength: 12 }), {
          maxLength: 12,
        }),
        fc.integer({ min: 0, max: 6 }),
        (pieces, limit) => {
          const whole = pieces.join('');
          const expected = whole.split('\n');
          if (expected.at(-1) === '') expected.pop();
          const lines = expected.map((line) => line.replace(/\r$/, ''));
          expect(
            split(
              limit,
              pieces.map((piece) => Buffer.from(piece)),
            ),
          ).toEqual(
            lines.map((line, i) =>
              line.length <= limit
                ? line
                : expected[i]!.length > limit + 1
                  ? expected[i]!.length
                  : line.length,
            ),
          );
        },
      ),
    );
  });

  test('a line without an end does not fill the memory', () => {
    const splitter = new LineSplitter(1000);
    const chunk = Buffer.alloc(1 << 20, 'x');
    const before = process.memoryUsage().arrayBuffers;
    for (let i = 0; i < 200; i += 1)
      for (const _ of splitter.push(Buffer.from(chunk))) throw new Error('no line');
    expect([...splitter.push(Buffer.from('\n'))]).toEqual([{ bytes: 200 << 20 }]);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(150 << 20);
  });
});

describe('values', () => {
  test('text and bytes are printed as they are, the rest as JSON', () => {
    expect(toText('a\tb')).toBe('a\tb');
    expect(toText(new Uint8Array([1]))).toEqual(new Uint8Array([1]));
    expect(toText({ a: 1 })).toBe('{"a":1}');
    expect(toText(undefined)).toBe('null');
  });

  test.each([
    [1n, '"1"'],
    [Number.NaN, '"NaN"'],
    [new Uint8Array([1, 2]), '{"$bytes":"AQI="}'],
    [new Float64Array([1.5]), '[1.5]'],
    [new Map([['a', 1n]]), '[["a","1"]]'],
    [new Set([1]), '[1]'],
    [new Date(0), '"1970-01-01T00:00:00.000Z"'],
    [new Date(Number.NaN), 'null'],
    [[undefined, null], '[null,null]'],
    [JSON.parse('{"__proto__":{"a":1}}'), '{"__proto__":{"a":1}}'],
    [new Error('x'), '{"name":"Error","message":"x"}'],
  ])('%o as JSON', (value, text) => {
    expect(toJson(value)).toBe(text);
  });

  test('JSON comes out as it went in, and depth is no danger', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        expect(JSON.parse(toJson(value))).toEqual(JSON.parse(JSON.stringify(value)));
      }),
    );
    let deep: unknown = 1;
    for (let i = 0; i < 100_000; i += 1) deep = [deep];
    expect(toJson(deep)).toContain('…');
  });

  test('sizes', () => {
    expect([0, 1023, 1024, 1536, 5 << 20, 2 ** 50].map(toSize)).toEqual([
      '0 B',
      '1023 B',
      '1.0 KiB',
      '1.5 KiB',
      '5.0 MiB',
      '1024.0 TiB',
    ]);
  });
});

describe('arguments', () => {
  test('times', () => {
    expect(['5', '5s', '.5', '500ms', '2m', '1h', ' 3s '].map(duration)).toEqual([
      5000, 5000, 500, 500, 120_000, 3_600_000, 3000,
    ]);
    for (const bad of ['', 's', '-1', '1d', '1e3', 'Infinity', '99999999h'])
      expect(() => duration(bad)).toThrow(/time such as/);
  });

  test('whole numbers', () => {
    expect(whole(0)('7')).toBe(7);
    for (const bad of ['', '-1', '1.5', 'x', '0x10', '99999999999999999999'])
      expect(() => whole(0)(bad)).toThrow(/whole number/);
    expect(() => whole(1, 3)('4')).toThrow(/from 1 to 3/);
  });
});

describe('errors', () => {
  test('have code, remedy and exit code', () => {
    expect(show(new MillraceError('ERR_SHM_FULL', 'full'))).toMatchObject({
      exit: 1,
      message: 'full',
      code: 'ERR_SHM_FULL',
      remedy: expect.stringContaining('--shm-size'),
    });
    expect(show(new MillraceError('ERR_PATTERN', 'bad'))).toMatchObject({ exit: 2 });
    expect(show(usage('bad'))).toMatchObject({ exit: 2, code: 'ERR_INVALID_ARGUMENT' });
    expect(show(Object.assign(new Error('x'), { code: 'ENOENT' }))).toMatchObject({
      exit: 1,
      code: 'ENOENT',
      remedy: undefined,
    });
    expect(show('thrown text')).toMatchObject({ exit: 1, message: 'thrown text', code: undefined });
    expect(show(Object.assign(new Error('x'), { code: 'toString' })).remedy).toBeUndefined();
  });
});

describe('what a member says of itself', () => {
  test('is shown as far as it can be read', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const report = readReport(value);
        if (report !== undefined) expect(Array.isArray(report.channels)).toBe(true);
      }),
    );
    expect(readReport(null)).toBeUndefined();
    expect(
      readReport({
        channels: [
          {
            name: 'a',
            publishing: { sequence: 3, subscribers: [{ peer: null, overflow: { latestBy: 'id' } }] },
          },
          7,
        ],
      }),
    ).toMatchObject({
      channels: [
        {
          name: 'a',
          codec: '?',
          publishing: {
            sequence: 3,
            subscribers: [{ peer: { name: '?', pid: 0 }, overflow: { latestBy: 'id' }, credits: null }],
          },
        },
      ],
      patterns: [],
      peers: [],
      faults: 0,
    });
  });
});
