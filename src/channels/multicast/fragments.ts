import type { Arena } from '../arena.js';
import { Batch } from '../frames.js';
import { KIND, RECORD_BYTES, type RecordSource, sequenceAt, sizeAt, WORD, writeHeader } from '../wire.js';

/** In front of a fragment's part: u32 bytes of the whole record, u32 offset of the part. */
const PREFIX = 8;

/** Bytes of the whole record that one fragment carries where a datagram has so much room. */
export function partBytes(room: number): number {
  return (room - RECORD_BYTES - PREFIX) & ~7;
}

/** Bytes of a fragment's record with a part of so many bytes. */
export const fragmentBytes = (part: number): number => RECORD_BYTES + PREFIX + part;

/** Writes the fragment with the part of the record at `start` of the arena that begins at `offset`, at `to` of the arena. */
export function writeFragment(arena: Arena, start: number, offset: number, part: number, to: number): void {
  const { u32, f64, bytes } = arena;
  const word = start >>> 2;
  const prefix = (to + RECORD_BYTES) >>> 2;
  u32[prefix] = sizeAt(u32, word);
  u32[prefix + 1] = offset;
  bytes.copyWithin(to + fragmentBytes(0), start + offset, start + offset + part);
  writeHeader(u32, f64, to, u32[word]!, PREFIX + part, sequenceAt(u32, word), KIND.FRAGMENT, 0, 0);
}

/**
 * Joins fragments of one publisher again. One message at a time, its parts in order: whatever else comes means that a part
 * was lost, and then the message is repaired as a whole.
 */
export class Joiner {
  #record: Batch | null = null;
  #sequence = 0;
  #at = 0;

  /**
   * Takes the fragment at `pos`, whose lengths native code has checked; what it says is checked here (I9).
   * @returns the whole record once it is there
   */
  take(source: RecordSource, pos: number, maxRecord: number): Batch | null {
    const word = pos >>> 2;
    const part = source.u32[word + WORD.LENGTH]! - PREFIX;
    const start = pos + RECORD_BYTES + (source.u32[word + WORD.BITS]! >>> 16);
    if (part <= 0 || (start & 7) !== 0) return null;
    const total = source.u32[start >>> 2]!;
    const offset = source.u32[(start >>> 2) + 1]!;
    const sequence = sequenceAt(source.u32, word);
    if (total > maxRecord || (total & 7) !== 0 || offset + part > total) return null;
    if (offset === 0) {
      this.#record = new Batch(total);
      this.#sequence = sequence;
      this.#at = 0;
    }
    const record = this.#record;
    if (record === null) return null;
    if (sequence !== this.#sequence || offset !== this.#at || total !== record.bytes.length) {
      this.#record = null;
      return null;
    }
    record.bytes.set(source.bytes.subarray(start + PREFIX, start + PREFIX + part), offset);
    this.#at += part;
    if (this.#at < total) return null;
    this.#record = null;
    const { u32 } = record;
    const whole =
      total >= RECORD_BYTES &&
      sizeAt(u32, 0) === total &&
      (u32[WORD.BITS]! & 0xff) === KIND.DATA &&
      u32[WORD.CHANNEL] === source.u32[word] &&
      sequenceAt(u32, 0) === sequence;
    return whole ? record : null;
  }
}
