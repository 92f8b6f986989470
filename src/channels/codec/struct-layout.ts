import { MillraceTypeError } from '../../errors.js';
import { kindOf } from './codec.js';

/** Numbers of fixed width. */
export type ScalarType = 'i8' | 'u8' | 'i16' | 'u16' | 'i32' | 'u32' | 'i64' | 'u64' | 'f32' | 'f64' | 'bool';

/** A field's type: a number, a text of at most N bytes of UTF-8, exactly N bytes, or a fixed count of numbers. */
export type FieldType =
  | ScalarType
  | `char:${number}`
  | `bytes:${number}`
  | readonly [type: ScalarType, count: number];

/** What struct() takes: field names and types, in the order of the layout. */
export type StructSpec = { readonly [field: string]: FieldType };

interface Scalars {
  i8: number;
  u8: number;
  i16: number;
  u16: number;
  i32: number;
  u32: number;
  i64: bigint;
  u64: bigint;
  f32: number;
  f64: number;
  bool: boolean;
}

interface Arrays {
  i8: Int8Array;
  u8: Uint8Array;
  i16: Int16Array;
  u16: Uint16Array;
  i32: Int32Array;
  u32: Uint32Array;
  i64: BigInt64Array;
  u64: BigUint64Array;
  f32: Float32Array;
  f64: Float64Array;
  bool: boolean[];
}

/** The value of a field as it is read. */
export type FieldValue<F> = F extends keyof Scalars
  ? Scalars[F]
  : F extends `char:${number}`
    ? string
    : F extends `bytes:${number}`
      ? Uint8Array
      : F extends readonly [infer S extends keyof Arrays, number]
        ? Arrays[S]
        : never;

/** The object that a struct codec reads and writes. */
export type StructValue<S extends StructSpec> = { -readonly [K in keyof S]: FieldValue<S[K]> };

/** One field with its place. */
export interface Field {
  readonly name: string;
  readonly kind: ScalarType | 'char' | 'bytes';
  /** Number of elements of an array; bytes of a char or bytes field; 1 for a number. */
  readonly count: number;
  readonly array: boolean;
  readonly offset: number;
  /** Bytes of one element. */
  readonly size: number;
  /** The type as it is named in messages and in the fingerprint: `f64`, `char:8`, `f64[3]`. */
  readonly label: string;
}

/** A layout: little endian, each field aligned to its size, in the order given, padded with zeros to its alignment. */
export interface Layout {
  readonly fields: readonly Field[];
  readonly size: number;
  /** Byte ranges that belong to no field, which are written as zeros. */
  readonly padding: readonly (readonly [from: number, to: number])[];
  /** Names the layout completely: equal fingerprints read each other's bytes. */
  readonly fingerprint: string;
}

const SIZES: Readonly<Record<ScalarType, number>> = {
  i8: 1,
  u8: 1,
  bool: 1,
  i16: 2,
  u16: 2,
  i32: 4,
  u32: 4,
  f32: 4,
  i64: 8,
  u64: 8,
  f64: 8,
};

/** A struct must fit into the largest slot. */
const LARGEST = 2 ** 20;
const FIELDS = 1024;

const bad = (what: string) => new MillraceTypeError('ERR_INVALID_OPTION', `struct(): ${what}`);

function countOf(field: string, count: unknown): number {
  if (!Number.isInteger(count) || (count as number) < 1 || (count as number) > LARGEST) {
    throw bad(`field '${field}' has a count of ${String(count)}; it must be an integer from 1 to ${LARGEST}`);
  }
  return count as number;
}

function typeOf(name: string, type: unknown): Omit<Field, 'offset'> {
  if (typeof type === 'string') {
    if (Object.hasOwn(SIZES, type)) {
      const kind = type as ScalarType;
      return { name, kind, count: 1, array: false, size: SIZES[kind], label: kind };
    }
    const sized = /^(char|bytes):(\d{1,9})$/.exec(type);
    if (sized !== null) {
      const count = countOf(name, Number(sized[2]));
      return {
        name,
        kind: sized[1] as 'char' | 'bytes',
        count,
        array: false,
        size: 1,
        label: `${sized[1]}:${count}`,
      };
    }
  }
  if (
    Array.isArray(type) &&
    type.length === 2 &&
    typeof type[0] === 'string' &&
    Object.hasOwn(SIZES, type[0])
  ) {
    const kind = type[0] as ScalarType;
    const count = countOf(name, type[1]);
    return { name, kind, count, array: true, size: SIZES[kind], label: `${kind}[${count}]` };
  }
  const shown =
    typeof type === 'string' ? `'${type}'` : Array.isArray(type) ? JSON.stringify(type) : kindOf(type);
  throw bad(
    `field '${name}' has the type ${shown}; types are ${Object.keys(SIZES).join(', ')}, 'char:N', 'bytes:N' and [type, count]`,
  );
}

/**
 * Lays fields out as a C compiler would.
 *
 * @throws MillraceTypeError (ERR_INVALID_OPTION) naming the field
 */
export function layoutOf(spec: StructSpec): Layout {
  if (typeof spec !== 'object' || spec === null || Array.isArray(spec)) {
    throw bad(`takes an object of field names and types, not ${kindOf(spec)}`);
  }
  const names = Object.keys(spec);
  if (names.length === 0) throw bad('needs at least one field');
  if (names.length > FIELDS) throw bad(`has ${names.length} fields; the limit is ${FIELDS}`);
  const fields: Field[] = [];
  const padding: [number, number][] = [];
  let at = 0;
  let widest = 1;
  const align = (to: number) => {
    const next = Math.ceil(at / to) * to;
    if (next > at) padding.push([at, next]);
    at = next;
  };
  for (const name of names) {
    if (name === '__proto__') throw bad("a field cannot be called '__proto__'");
    const type = typeOf(name, spec[name]);
    align(type.size);
    fields.push({ ...type, offset: at });
    at += type.size * type.count;
    widest = Math.max(widest, type.size);
    if (at > LARGEST) throw bad(`the layout exceeds ${LARGEST} bytes at field '${name}'`);
  }
  align(widest);
  const plain = /^[\w$]+$/;
  const text = fields
    .map((f) => `${plain.test(f.name) ? f.name : JSON.stringify(f.name)}:${f.label}`)
    .join(',');
  return { fields, size: at, padding, fingerprint: `struct:${text}` };
}
