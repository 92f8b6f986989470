import type { Encoder } from '../codec/codec.js';
import { type Apart, takeApart, writeFields } from './fields.js';
import type { Block, Body, Pool } from './pool.js';

/** Room for what is encoded, to begin with; four times as much when that was not enough. */
const FIRST_GUESS = 64 * 1024;

/** A value in a block of the pool. */
export interface Packed extends Body {
  readonly block: Block;
}

const viewOf = ({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array =>
  new Uint8Array(buffer, byteOffset, byteLength);

/**
 * Copies a value that is larger than a slot into the pool, once, for all of its receivers.
 * @param lend gives a block or null; throws when there never will be one of that size
 * @returns null when the pool has no room
 * @throws what the encoder throws; ERR_MESSAGE_TOO_LARGE; nothing is lent then
 */
export function pack<T>(
  codec: string,
  encoder: Encoder<T>,
  value: T,
  pool: Pool,
  lend: (bytes: number) => Block | null,
): Packed | null {
  const exact = codec === 'bytes' ? lengthOf(value) : 0;
  const apart: Apart = codec === 'msgpackr' ? takeApart(value) : { rest: value, fields: [], bytes: 0 };
  for (let guess = exact || FIRST_GUESS; ; guess *= 4) {
    const block = lend(apart.bytes + guess);
    if (block === null) return null;
    const target = pool.open(block);
    let end = -1;
    try {
      end = encoder.encode(apart.rest as T, target, apart.bytes, target.length);
      if (end >= 0) for (const { view, offset } of apart.fields) target.set(viewOf(view), offset);
    } catch (error) {
      pool.seal(block);
      pool.unref(block);
      throw error;
    }
    pool.seal(block);
    if (end >= 0) {
      pool.copies.add(end);
      return { block, start: apart.bytes, end, fields: writeFields(apart.fields) };
    }
    pool.unref(block);
  }
}

function lengthOf(value: unknown): number {
  return (value as { byteLength?: number } | null)?.byteLength ?? 0;
}
