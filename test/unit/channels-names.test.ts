import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { checkChannelName, MAX_NAME_BYTES, parsePattern } from '../../src/channels/names.js';

const code = (run: () => unknown): unknown => {
  try {
    run();
    return 'ok';
  } catch (error) {
    expect(error).toBeInstanceOf(TypeError);
    return (error as { code: unknown }).code;
  }
};

describe('channel names', () => {
  test.each([
    ['', 'it is empty'],
    ['x'.repeat(MAX_NAME_BYTES + 1), `256 bytes of UTF-8, the limit is ${MAX_NAME_BYTES}`],
    ['é'.repeat(128), '256 bytes'],
    ['a\u0000b', 'control character'],
    ['a\nb', 'control character'],
    ['a\u0085', 'control character'],
    ['a.*', 'wildcard'],
    ['a>', 'wildcard'],
    ['.a', 'starts with a dot'],
    ['a.', 'ends with a dot'],
    ['a..b', 'empty token'],
    [' a', 'white space'],
    ['a ', 'white space'],
    ['a\ud800', 'not well-formed'],
    [5, 'it is 5'],
    [null, 'it is null'],
    [undefined, 'it is undefined'],
  ])('%j is refused: %s', (name, why) => {
    expect(() => checkChannelName(name)).toThrow(
      expect.objectContaining({ code: 'ERR_CHANNEL_NAME', message: expect.stringContaining(why) }),
    );
  });

  test.each([
    'a',
    'ticks.eurusd',
    'ünï.cödé.🎉',
    'with space.in it',
    'x'.repeat(MAX_NAME_BYTES),
    '-',
    'a.b.c.d.e.f',
  ])('%j is fine', (name) => {
    expect(code(() => checkChannelName(name))).toBe('ok');
  });
});

describe('patterns: * one token, > tail', () => {
  test.each([
    ['a*', 'mixes a wildcard'],
    ['a.>.b', '> is not its last token'],
    ['>.a', '> is not its last token'],
    ['', 'empty'],
    ['a.', 'ends with a dot'],
    ['**', 'mixes'],
  ])('%j is refused: %s', (pattern, why) => {
    expect(() => parsePattern(pattern)).toThrow(
      expect.objectContaining({ code: 'ERR_PATTERN', message: expect.stringContaining(why) }),
    );
  });

  test.each([
    ['a.*', 'a.b', true],
    ['a.*', 'a', false],
    ['a.*', 'a.b.c', false],
    ['*', 'a', true],
    ['*', 'a.b', false],
    ['a.>', 'a.b', true],
    ['a.>', 'a.b.c', true],
    ['a.>', 'a', false],
    ['>', 'a', true],
    ['>', 'a.b.c', true],
    ['*.b.*', 'a.b.c', true],
    ['*.b.*', 'a.c.c', false],
    ['a.b', 'a.b', true],
    ['a.b', 'a.c', false],
    ['*.>', 'a', false],
  ])('%j on %j: %s', (pattern, name, matches) => {
    expect(parsePattern(pattern).matches(name)).toBe(matches);
  });

  test('agree with a regular expression', () => {
    const token = fc.constantFrom('a', 'b', 'cc');
    const name = fc.array(token, { minLength: 1, maxLength: 4 }).map((tokens) => tokens.join('.'));
    const pattern = fc
      .tuple(fc.array(fc.oneof(token, fc.constant('*')), { minLength: 0, maxLength: 3 }), fc.boolean())
      .filter(([tokens, tail]) => tail || tokens.length > 0)
      .map(([tokens, tail]) => [...tokens, ...(tail ? ['>'] : [])].join('.'));
    fc.assert(
      fc.property(pattern, name, (text, given) => {
        const source = text.split('.').map((one) => (one === '*' ? '[^.]+' : one === '>' ? '.+' : one));
        expect(parsePattern(text).matches(given)).toBe(new RegExp(`^${source.join('\\.')}$`).test(given));
      }),
    );
  });

  test('whatever text: a typed error or a name', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        expect(['ok', 'ERR_CHANNEL_NAME']).toContain(code(() => checkChannelName(text)));
        expect(['ok', 'ERR_PATTERN']).toContain(code(() => parsePattern(text)));
      }),
    );
  });
});
