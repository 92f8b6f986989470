/**
 * Values as text. JSON has no bytes, big integers, maps, sets, undefined and no NaN: they are written as `{"$bytes": base64}`,
 * a string of digits, an array of pairs, an array, null and a string.
 */
export function toJson(value: unknown): string {
  return JSON.stringify(plain(value, 0));
}

/** Levels that are shown; what is deeper is '…'. */
const MAX_DEPTH = 100;

function plain(value: unknown, depth: number): unknown {
  switch (typeof value) {
    case 'undefined':
    case 'function':
    case 'symbol':
      return null;
    case 'bigint':
      return value.toString();
    case 'number':
      return Number.isFinite(value) ? value : String(value);
    case 'object':
      break;
    default:
      return value;
  }
  if (value === null) return null;
  if (depth >= MAX_DEPTH) return '…';
  const inner = (one: unknown) => plain(one, depth + 1);
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString();
  if (value instanceof RegExp) return String(value);
  if (value instanceof Error) return { name: value.name, message: value.message };
  if (ArrayBuffer.isView(value)) {
    if (value instanceof Uint8Array || value instanceof DataView) return { $bytes: base64(value) };
    return Array.from(value as unknown as ArrayLike<unknown>, inner);
  }
  if (value instanceof ArrayBuffer) return { $bytes: base64(new Uint8Array(value)) };
  if (Array.isArray(value)) return value.map(inner);
  if (value instanceof Set) return [...value].map(inner);
  if (value instanceof Map) return [...value].map(([key, one]) => [inner(key), inner(one)]);
  // A null prototype, so that a property named __proto__ is one.
  const copy: Record<string, unknown> = Object.create(null);
  for (const [key, one] of Object.entries(value)) copy[key] = inner(one);
  return copy;
}

function base64({ buffer, byteOffset, byteLength }: ArrayBufferView): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('base64');
}

/** A value for people and pipes: text and bytes as they are, the rest as JSON. */
export function toText(value: unknown): string | Uint8Array {
  return typeof value === 'string' || value instanceof Uint8Array ? value : toJson(value);
}

/** Bytes in words. */
export function toSize(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(Math.floor(Math.log2(bytes) / 10), units.length);
  return `${(bytes / 1024 ** power).toFixed(1)} ${units[power - 1]}`;
}
