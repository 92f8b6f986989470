import { sources } from './view.js';

/** Texts of up to so many bytes are looked for among those that were read lately. */
export const CACHED_BYTES = 24;
const ENTRIES = 1024;
const FEW = 16;

const texts: string[] = new Array(ENTRIES).fill('');

/**
 * A short ASCII text from bytes. Symbols, names and kinds come again and again; one that was read lately is found by its
 * hash and compared, at a few nanoseconds and without a new string, where a call into the engine costs a hundred.
 * @returns undefined if there is a byte that is not ASCII
 */
export function textAt(source: Uint8Array, from: number, bytes: number): string | undefined {
  if (bytes === 0) return '';
  let hash = bytes;
  let all = 0;
  const to = from + bytes;
  for (let i = from; i < to; i++) {
    const byte = source[i]!;
    all |= byte;
    hash = (Math.imul(hash, 31) + byte) | 0;
  }
  if (all > 0x7f) return undefined;
  const entry = (hash ^ (hash >>> 11)) & (ENTRIES - 1);
  const known = texts[entry]!;
  if (known.length === bytes) {
    let i = 0;
    while (i < bytes && known.charCodeAt(i) === source[from + i]) i++;
    if (i === bytes) return known;
  }
  // Up to here the engine's call for bytes costs more than one with each byte as an argument.
  const made =
    bytes <= FEW ? make(source, from, bytes) : (sources.buffer(source) as Latin1).latin1Slice(from, to);
  texts[entry] = made;
  return made;
}

type Latin1 = Buffer & { latin1Slice(from: number, to: number): string };

const codes: number[][] = Array.from({ length: FEW + 1 }, (_, length) => new Array(length).fill(0));

function make(source: Uint8Array, from: number, bytes: number): string {
  const list = codes[bytes]!;
  for (let i = 0; i < bytes; i++) list[i] = source[from + i]!;
  return String.fromCharCode.apply(null, list);
}
