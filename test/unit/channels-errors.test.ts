import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { CODES, MillraceError, MillraceRangeError, MillraceTypeError } from '../../src/errors.js';

test('docs/errors.md is current', async () => {
  const { page } = (await import(new URL('../../scripts/gen-errors.mjs', import.meta.url).href)) as {
    page(): Promise<string>;
  };
  expect(readFileSync(new URL('../../docs/errors.md', import.meta.url), 'utf8')).toBe(await page());
});

test('every row says what it must', () => {
  for (const [code, entry] of Object.entries(CODES)) {
    expect(code).toMatch(/^ERR_[A-Z0-9_]+$/);
    expect(['operation', 'channel', 'member']).toContain(entry.scope);
    for (const text of [entry.title, entry.cause, entry.remedy]) expect(text.length, code).toBeGreaterThan(5);
  }
});

test('every code is made somewhere in the library, and shown by a test', () => {
  const text = (folder: string, kind: RegExp): string =>
    readdirSync(new URL(`../../${folder}`, import.meta.url), { recursive: true, withFileTypes: true })
      .filter(({ name }) => kind.test(name) && name !== 'errors.ts' && name !== 'channels-errors.test.ts')
      .map(({ parentPath, name }) => readFileSync(join(parentPath, name), 'utf8'))
      .join('\n');
  const [made, shown] = [text('src', /\.ts$/), text('test', /\.(ts|mjs)$/)];
  const missing = (all: string) =>
    Object.keys(CODES).filter((code) => !new RegExp(`\\b${code}\\b`).test(all));
  expect({ made: missing(made), shown: missing(shown) }).toEqual({ made: [], shown: [] });
});

describe('errors', () => {
  test('MillraceError is the base of all, the variants are TypeError and RangeError too', () => {
    const plain = new MillraceError('ERR_TIMEOUT', 'late');
    const type = new MillraceTypeError('ERR_UNKNOWN_OPTION', 'what?');
    const range = new MillraceRangeError('ERR_INVALID_OPTION', 'too much');
    class Special extends MillraceError {}
    for (const error of [plain, type, range]) expect(error).toBeInstanceOf(MillraceError);
    expect(type).toBeInstanceOf(TypeError);
    expect(range).toBeInstanceOf(RangeError);
    expect(plain).not.toBeInstanceOf(Special);
    expect(new Special('ERR_TIMEOUT', 'x')).toBeInstanceOf(Special);
    for (const other of [new Error('x'), null, undefined, 5, {}])
      expect(other).not.toBeInstanceOf(MillraceError);
  });

  test('code, scope, retryable, errno, cause', () => {
    const cause = new Error('below');
    const error = new MillraceError('ERR_SHM_FULL', 'full', {
      cause,
      errno: 28,
      errnoName: 'ENOSPC',
      details: { free: 5 },
    });
    expect(error).toMatchObject({
      name: 'MillraceError',
      code: 'ERR_SHM_FULL',
      scope: 'member',
      retryable: true,
      errno: -28,
      errnoName: 'ENOSPC',
      cause,
      details: { free: 5 },
    });
    expect(new MillraceError('ERR_TIMEOUT', 'x', { retryable: false, ambiguous: true })).toMatchObject({
      retryable: false,
      ambiguous: true,
    });
    expect('cause' in new MillraceError('ERR_TIMEOUT', 'x')).toBe(false);
  });
});
