import { MillraceError } from '../../errors.js';

/**
 * Large binary fields of a value travel beside its encoding, each at a place of its own in the block, and arrive as views of
 * the same class. This is a walk of ours over plain objects and arrays: nothing is registered with a codec.
 */

type View = ArrayBufferView & { readonly BYTES_PER_ELEMENT?: number };
type Maker = (buffer: ArrayBuffer, offset: number, bytes: number) => View;

const typed =
  (Type: new (buffer: ArrayBuffer, offset: number, length: number) => View, width: number): Maker =>
  (buffer, offset, bytes) =>
    new Type(buffer, offset, bytes / width);

/** Classes by the number that travels; only ever add to the end. */
const CLASSES: readonly { readonly name: string; readonly width: number; readonly make: Maker }[] = [
  { name: 'Uint8Array', width: 1, make: typed(Uint8Array, 1) },
  { name: 'Buffer', width: 1, make: (buffer, offset, bytes) => Buffer.from(buffer, offset, bytes) },
  { name: 'Uint8ClampedArray', width: 1, make: typed(Uint8ClampedArray, 1) },
  { name: 'Int8Array', width: 1, make: typed(Int8Array, 1) },
  { name: 'Uint16Array', width: 2, make: typed(Uint16Array, 2) },
  { name: 'Int16Array', width: 2, make: typed(Int16Array, 2) },
  { name: 'Uint32Array', width: 4, make: typed(Uint32Array, 4) },
  { name: 'Int32Array', width: 4, make: typed(Int32Array, 4) },
  { name: 'Float32Array', width: 4, make: typed(Float32Array, 4) },
  { name: 'Float64Array', width: 8, make: typed(Float64Array, 8) },
  { name: 'BigInt64Array', width: 8, make: typed(BigInt64Array, 8) },
  { name: 'BigUint64Array', width: 8, make: typed(BigUint64Array, 8) },
  { name: 'DataView', width: 1, make: typed(DataView as never, 1) },
];

/** Smaller fields are encoded with the rest. */
const LEAST_BYTES = 4096;
/** Fields begin at multiples of this: a cache line, and aligned for every class. */
const ALIGN = 64;
/** So many fields at most lie beside the encoding, and so deep. */
const MOST = 64;
const DEPTH = 32;

/** A field that lies beside the encoding. */
export interface Field {
  readonly path: readonly (string | number)[];
  readonly view: ArrayBufferView;
  readonly kind: number;
  readonly offset: number;
}

/** What a value was taken apart into. */
export interface Apart {
  /** The value with null in place of each field; the value itself if there are none. */
  readonly rest: unknown;
  readonly fields: readonly Field[];
  /** Where the fields end. */
  readonly bytes: number;
}

function kindOf(view: ArrayBufferView): number {
  // Symbol.toStringTag of typed arrays is an own getter of their common prototype, so no subclass can pretend.
  const name = Buffer.isBuffer(view) ? 'Buffer' : Object.prototype.toString.call(view).slice(8, -1);
  return CLASSES.findIndex((one) => one.name === name);
}

const plain = (value: object): boolean => {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
};

/** Takes the large binary fields out of a value, which stays as it is: objects on the way to a field are copied. */
export function takeApart(value: unknown): Apart {
  const fields: Field[] = [];
  let bytes = 0;
  const seen = new Set<object>();
  const walk = (at: unknown, path: (string | number)[]): unknown => {
    if (typeof at !== 'object' || at === null || path.length > DEPTH || fields.length >= MOST) return at;
    if (ArrayBuffer.isView(at)) {
      const kind = kindOf(at);
      if (at.byteLength < LEAST_BYTES || kind < 0) return at;
      fields.push({ path: [...path], view: at, kind, offset: bytes });
      bytes = Math.ceil((bytes + at.byteLength) / ALIGN) * ALIGN;
      return null;
    }
    // An object that is there twice, or within itself, stays one for the codec to deal with.
    if (seen.has(at) || !(Array.isArray(at) || plain(at))) return at;
    seen.add(at);
    let copy: unknown[] | Record<string, unknown> | null = null;
    const keys = Array.isArray(at) ? at.keys() : Object.keys(at);
    for (const key of keys) {
      if (key === '__proto__') continue;
      const getter = Array.isArray(at) ? undefined : Object.getOwnPropertyDescriptor(at, key)?.get;
      if (getter !== undefined) continue;
      const part = (at as Record<string | number, unknown>)[key];
      if (typeof part !== 'object' || part === null) continue;
      path.push(key);
      const rest = walk(part, path);
      path.pop();
      if (rest === part) continue;
      copy ??= Array.isArray(at) ? [...at] : { ...at };
      (copy as Record<string | number, unknown>)[key] = rest;
    }
    return copy ?? at;
  };
  const rest = walk(value, []);
  return { rest, fields, bytes };
}

const utf8 = new TextEncoder();

/** What travels of the fields: [path, class, offset, bytes] of each, as JSON. */
export function writeFields(fields: readonly Field[]): Uint8Array {
  if (fields.length === 0) return new Uint8Array(0);
  const rows = fields.map(({ path, kind, offset, view }) => [path, kind, offset, view.byteLength]);
  return utf8.encode(JSON.stringify(rows));
}

/**
 * Puts the fields back, as views of the block's memory. What a peer says is checked (I9).
 * @throws MillraceError ERR_DECODE
 */
export function putBack(value: unknown, text: Uint8Array, buffer: ArrayBuffer): unknown {
  if (text.length === 0) return value;
  const bad = (what: string): never => {
    throw new MillraceError('ERR_DECODE', `The fields beside a large message are not valid: ${what}.`);
  };
  let rows: unknown;
  try {
    rows = JSON.parse(Buffer.from(text.buffer, text.byteOffset, text.byteLength).toString('utf8'));
  } catch {
    return bad('no JSON');
  }
  if (!Array.isArray(rows) || rows.length > MOST) return bad('no list');
  let whole = value;
  for (const row of rows as unknown[]) {
    const [path, kind, offset, bytes] = Array.isArray(row) ? row : [];
    const found = CLASSES[kind as number];
    if (!Array.isArray(path) || path.length > DEPTH + 1 || found === undefined) return bad('a row');
    const inside = Number.isSafeInteger(offset) && Number.isSafeInteger(bytes) && offset >= 0 && bytes >= 0;
    if (!inside || offset + bytes > buffer.byteLength || offset % ALIGN !== 0 || bytes % found.width !== 0)
      return bad('a place');
    const view = found.make(buffer, offset, bytes);
    if (path.length === 0) {
      whole = view;
      continue;
    }
    let at: unknown = whole;
    for (const key of path.slice(0, -1)) at = own(at, key) ? (at as Record<string, unknown>)[key] : undefined;
    const last = path[path.length - 1];
    // Only a place that the decoder left empty: no setter and no prototype is reached.
    if (!own(at, last) || (at as Record<string, unknown>)[last] !== null) return bad('a path');
    (at as Record<string, unknown>)[last] = view;
  }
  return whole;
}

const own = (value: unknown, key: unknown): key is string =>
  typeof value === 'object' &&
  value !== null &&
  (typeof key === 'string' || typeof key === 'number') &&
  Object.hasOwn(value, key);
