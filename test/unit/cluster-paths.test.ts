import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  baseFolder,
  decodeDomain,
  domainFolder,
  encodeDomain,
  LAYOUT,
  lockName,
  parseFileName,
  socketName,
  stagedName,
} from '../../src/cluster/paths.js';

const code = (run: () => unknown): unknown => {
  try {
    run();
  } catch (error) {
    return (error as { code?: unknown }).code;
  }
  return undefined;
};

describe('domain names as folder names', () => {
  test('plain names stay readable', () => {
    expect(encodeDomain('trading-2_a.b')).toBe('trading-2_a.b');
    expect(domainFolder('/dev/shm', 'trading', 7)).toBe(`/dev/shm/millrace.${LAYOUT}.7/trading`);
  });

  test('nothing leaves the folder', () => {
    expect(encodeDomain('..')).toBe('%2E.');
    expect(encodeDomain('.')).toBe('%2E');
    expect(encodeDomain('a/../b')).toBe('a%2F..%2Fb');
    expect(encodeDomain('%41')).toBe('%2541');
  });

  test.each(['', '\0', 'a\nb', '\u007f', '\ud800x'])('%j is refused with a typed error', (domain) => {
    expect(code(() => encodeDomain(domain))).toBe('ERR_DOMAIN_NAME');
    // As any argument that is wrong.
    expect(() => encodeDomain(domain)).toThrow(TypeError);
  });

  test('what is not a string is refused', () => {
    for (const value of [undefined, null, 7, {}]) {
      expect(code(() => encodeDomain(value as never))).toBe('ERR_DOMAIN_NAME');
    }
  });

  test('the limit is that of a file name, and the message states it', () => {
    expect(encodeDomain('x'.repeat(255))).toHaveLength(255);
    expect(() => encodeDomain('é'.repeat(43))).toThrow(/258 bytes.*limit is 255/);
  });

  test('every encoded name is a safe file name, different for different domains, and decodes to what it was', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', minLength: 1, maxLength: 12 }), (domain) => {
        if (code(() => encodeDomain(domain)) !== undefined) return;
        const name = encodeDomain(domain);
        expect(name).toMatch(/^[A-Za-z0-9_%-][A-Za-z0-9_.%-]*$/);
        expect(decodeDomain(name)).toBe(domain);
      }),
    );
  });

  test('names that are never made are not decoded', () => {
    expect(decodeDomain('%zz')).toBeUndefined();
    expect(decodeDomain('%61')).toBeUndefined();
    expect(decodeDomain('')).toBeUndefined();
  });
});

describe('file names', () => {
  test('those of the registry are read', () => {
    expect(parseFileName(lockName(12))).toEqual({ kind: 'lock', incarnation: 12 });
    expect(parseFileName(stagedName(12))).toEqual({ kind: 'staged', incarnation: 12 });
    expect(parseFileName(socketName(12))).toEqual({ kind: 'socket', incarnation: 12 });
    expect(parseFileName('i-12.3')).toEqual({ kind: 'inbox', incarnation: 12 });
    expect(parseFileName(lockName(2 ** 53 - 1))).toEqual({ kind: 'lock', incarnation: 2 ** 53 - 1 });
  });

  test.each([
    'm-0.lock',
    'm-01.lock',
    'm--1.lock',
    'm-1.locked',
    'xm-1.lock',
    'i-1',
    'm-9007199254740992.lock',
    'm-1.lock\n',
    '',
  ])('%j is not one', (name) => {
    expect(parseFileName(name)).toBeUndefined();
  });
});

test('MILLRACE_SHM_DIR is made absolute', () => {
  expect(baseFolder({})).toBe('/dev/shm');
  expect(baseFolder({ MILLRACE_SHM_DIR: '' })).toBe('/dev/shm');
  expect(baseFolder({ MILLRACE_SHM_DIR: '/tmp/x/' })).toBe('/tmp/x');
  expect(baseFolder({ MILLRACE_SHM_DIR: 'x' })).toBe(`${process.cwd()}/x`);
});
