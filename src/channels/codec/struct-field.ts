import { endianness } from 'node:os';
import { CodecError } from './codec.js';
import type { Field, ScalarType } from './struct-layout.js';
import { RANGES, refuse, refuseArray } from './struct-range.js';

/** Writes one field of a value at an absolute position of the target's memory. */
export type FieldWriter = (view: DataView, bytes: Uint8Array, at: number, value: never) => void;
/** Reads one field; `at` is absolute in the memory of `view`. */
export type FieldReader = (view: DataView, at: number) => unknown;

const LITTLE = endianness() === 'LE';
const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

type Primitive = number | bigint | boolean;

const put: Readonly<Record<ScalarType, (view: DataView, at: number, value: never) => void>> = {
  i8: (view, at, value) => view.setInt8(at, value),
  u8: (view, at, value) => view.setUint8(at, value),
  i16: (view, at, value) => view.setInt16(at, value, true),
  u16: (view, at, value) => view.setUint16(at, value, true),
  i32: (view, at, value) => view.setInt32(at, value, true),
  u32: (view, at, value) => view.setUint32(at, value, true),
  i64: (view, at, value) => view.setBigInt64(at, value, true),
  u64: (view, at, value) => view.setBigUint64(at, value, true),
  f32: (view, at, value) => view.setFloat32(at, value, true),
  f64: (view, at, value) => view.setFloat64(at, value, true),
  bool: (view, at, value) => view.setUint8(at, value ? 1 : 0),
};

const get: Readonly<Record<ScalarType, (view: DataView, at: number) => Primitive>> = {
  i8: (view, at) => view.getInt8(at),
  u8: (view, at) => view.getUint8(at),
  i16: (view, at) => view.getInt16(at, true),
  u16: (view, at) => view.getUint16(at, true),
  i32: (view, at) => view.getInt32(at, true),
  u32: (view, at) => view.getUint32(at, true),
  i64: (view, at) => view.getBigInt64(at, true),
  u64: (view, at) => view.getBigUint64(at, true),
  f32: (view, at) => view.getFloat32(at, true),
  f64: (view, at) => view.getFloat64(at, true),
  bool: (view, at) => view.getUint8(at) !== 0,
};

const ARRAYS = {
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

/** Whether a value fits a field of this kind exactly. */
export function fits(kind: ScalarType, value: unknown): boolean {
  const range = RANGES[kind];
  if (range !== undefined) {
    if (typeof value !== typeof range[0]) return false;
    if (typeof value === 'number' && !Number.isInteger(value)) return false;
    return (value as number) >= range[0] && (value as number) <= range[1];
  }
  if (kind === 'bool') return typeof value === 'boolean';
  if (typeof value !== 'number') return false;
  return kind === 'f64' || !Number.isFinite(value) || Number.isFinite(Math.fround(value));
}

/** A writer without generated code. */
export function writerOf(field: Field): FieldWriter {
  const { kind, count, size } = field;
  if (kind === 'char') return (_view, bytes, at, value) => writeText(field, bytes, at, value);
  if (kind === 'bytes') {
    return (_view, bytes, at, value: unknown) => {
      if (!(value instanceof Uint8Array)) refuse(field, value);
      if (value.length !== count) refuseArray(field, value);
      bytes.set(value, at - bytes.byteOffset);
    };
  }
  const write = put[kind];
  if (!field.array) {
    return (view, _bytes, at, value) => {
      if (!fits(kind, value)) refuse(field, value);
      write(view, at, value);
    };
  }
  return (view, _bytes, at, value: unknown) => {
    if (!Array.isArray(value) && !(ArrayBuffer.isView(value) && !(value instanceof DataView)))
      refuseArray(field, value);
    const values = value as ArrayLike<unknown>;
    if (values.length !== count) refuseArray(field, value);
    for (let i = 0; i < count; i++) {
      const element = values[i];
      if (!fits(kind, element)) refuse(field, element, i);
      write(view, at + i * size, element as never);
    }
  };
}

/** A reader without generated code. */
export function readerOf(field: Field): FieldReader {
  const { kind, count, size } = field;
  if (kind === 'char') return (view, at) => readText(field, view, at);
  if (kind === 'bytes') return (view, at) => new Uint8Array(view.buffer, at, count);
  const read = get[kind];
  if (!field.array) return read;
  if (kind === 'bool') return (view, at) => Array.from({ length: count }, (_, i) => read(view, at + i));
  const Typed = ARRAYS[kind];
  return (view, at) => {
    if (LITTLE) {
      // A view if the place allows it, else a copy: both are owned by whoever holds them.
      if (at % size === 0) return new Typed(view.buffer as ArrayBuffer, at, count);
      return new Typed(view.buffer.slice(at, at + count * size) as ArrayBuffer);
    }
    const made = new Typed(count);
    for (let i = 0; i < count; i++) made[i] = read(view, at + i * size) as never;
    return made;
  };
}

function writeText(field: Field, bytes: Uint8Array, at: number, value: unknown): void {
  if (typeof value !== 'string') refuse(field, value);
  const { count } = field;
  const from = at - bytes.byteOffset;
  const { length } = value;
  const details = { field: field.name, type: field.label };
  let i = 0;
  if (length <= count) {
    for (; i < length; i++) {
      const unit = value.charCodeAt(i);
      if (unit === 0 || unit > 0x7f) break;
      bytes[from + i] = unit;
    }
  }
  if (i < length) {
    const size = Buffer.byteLength(value);
    if (size > count) {
      throw new CodecError(
        'ERR_CODEC_RANGE',
        `struct: field '${field.name}' (${field.label}): a text of ${size} bytes does not fit`,
        { details },
      );
    }
    if (value.includes('\0')) {
      throw new CodecError(
        'ERR_CODEC_VALUE',
        `struct: field '${field.name}' (${field.label}): a text with a NUL character cannot be told from padding`,
        { details },
      );
    }
    if (!isWellFormed(value)) {
      throw new CodecError(
        'ERR_CODEC_VALUE',
        `struct: field '${field.name}' (${field.label}): the text has half of a surrogate pair`,
        { details },
      );
    }
    bytes.set(Buffer.from(value, 'utf8'), from);
    i = size;
  }
  if (i < count) bytes.fill(0, from + i, from + count);
}

function readText(field: Field, view: DataView, at: number): string {
  const bytes = new Uint8Array(view.buffer, at, field.count);
  let end = field.count;
  while (end > 0 && bytes[end - 1] === 0) end--;
  if (end <= 16) {
    let made = '';
    let i = 0;
    for (; i < end; i++) {
      const byte = bytes[i]!;
      if (byte > 0x7f) break;
      made += String.fromCharCode(byte);
    }
    if (i === end) return made;
  }
  try {
    return text.decode(bytes.subarray(0, end));
  } catch (cause) {
    throw new CodecError(
      'ERR_CODEC_MALFORMED',
      `struct: field '${field.name}' (${field.label}): the text is not UTF-8`,
      { cause },
    );
  }
}

const isWellFormed = (value: string): boolean => !/\p{Surrogate}/u.test(value);
