import { CodecError, kindOf } from './codec.js';
import type { Field, ScalarType } from './struct-layout.js';

/** The ranges of integers, for checks and messages. */
export const RANGES: Readonly<Partial<Record<ScalarType, readonly [number | bigint, number | bigint]>>> = {
  i8: [-0x80, 0x7f],
  u8: [0, 0xff],
  i16: [-0x8000, 0x7fff],
  u16: [0, 0xffff],
  i32: [-0x80000000, 0x7fffffff],
  u32: [0, 0xffffffff],
  i64: [-(2n ** 63n), 2n ** 63n - 1n],
  u64: [0n, 2n ** 64n - 1n],
};

const WANTED: Readonly<Record<Field['kind'], string>> = {
  i8: 'an integer',
  u8: 'an integer',
  i16: 'an integer',
  u16: 'an integer',
  i32: 'an integer',
  u32: 'an integer',
  i64: 'a bigint',
  u64: 'a bigint',
  f32: 'a number',
  f64: 'a number',
  bool: 'a boolean',
  char: 'a string',
  bytes: 'a Uint8Array',
};

const show = (value: unknown): string =>
  typeof value === 'bigint' ? `${value}n` : Object.is(value, -0) ? '-0' : String(value);

/** Says why a value does not go into a field. Only called once that is known. */
export function refuse(field: Field, value: unknown, index?: number): never {
  const where = `struct: field '${field.name}'${index === undefined ? '' : `[${index}]`} (${field.label})`;
  const details = { field: field.name, type: field.label };
  const wanted = WANTED[field.kind];
  const numeric = typeof value === 'number' || typeof value === 'bigint';
  const wantsBig = field.kind === 'i64' || field.kind === 'u64';
  const range = RANGES[field.kind as ScalarType];
  if (range !== undefined && numeric && (typeof value === 'bigint') === wantsBig) {
    if (wantsBig || Number.isInteger(value)) {
      throw new CodecError(
        'ERR_CODEC_RANGE',
        `${where}: ${show(value)} is not within ${show(range[0])} to ${show(range[1])}`,
        { details },
      );
    }
    throw new CodecError('ERR_CODEC_RANGE', `${where}: ${show(value)} is not an integer`, { details });
  }
  if (field.kind === 'f32' && typeof value === 'number') {
    throw new CodecError('ERR_CODEC_RANGE', `${where}: ${value} is beyond what 32 bits hold; use 'f64'`, {
      details,
    });
  }
  const hint =
    wantsBig && typeof value === 'number'
      ? '; write 5n or BigInt(x)'
      : value === undefined
        ? '; every field must be given'
        : '';
  throw new CodecError('ERR_CODEC_VALUE', `${where}: takes ${wanted}, not ${kindOf(value)}${hint}`, {
    details,
  });
}

/** Refuses an array of another kind or length. */
export function refuseArray(field: Field, value: unknown): never {
  const details = { field: field.name, type: field.label };
  const length = (value as { length?: unknown } | null | undefined)?.length;
  if (typeof value === 'object' && typeof length === 'number') {
    throw new CodecError(
      'ERR_CODEC_RANGE',
      `struct: field '${field.name}' (${field.label}): has ${length} elements, not ${field.count}`,
      { details },
    );
  }
  throw new CodecError(
    'ERR_CODEC_VALUE',
    `struct: field '${field.name}' (${field.label}): takes an array, not ${kindOf(value)}`,
    { details },
  );
}
