import { COUNTER } from '../native/tables.js';

/**
 * The JavaScript side of the send arena: a ring that values are encoded into, once for all destinations.
 *
 * JavaScript owns the head, native code the tail (`counters[ARENA_FREED]`); both are positions that only grow, the offset
 * is the position modulo the size. A record is contiguous: at the ring's end the head skips to the start. What is encoded
 * but not committed does not exist: a codec that throws, overflows or re-enters leaves nothing behind.
 */
export class Arena {
  readonly bytes: Uint8Array;
  readonly u32: Uint32Array;
  readonly f64: Float64Array;
  readonly view: DataView;
  readonly size: number;
  readonly #counters: Float64Array;
  /** Cumulative position of the next record. */
  head = 0;
  /** `head` modulo the size. */
  offset = 0;
  /** Contiguous bytes at `offset` that are known to be free; may be fewer than there are. */
  #free = 0;
  /** While a record is being handed to several destinations: its position, which a flush in between must keep. */
  pinned = -1;
  /** A codec is running: whoever publishes now would write over its record. */
  encoding = false;

  constructor(buffer: ArrayBuffer, counters: Float64Array) {
    this.bytes = new Uint8Array(buffer);
    this.u32 = new Uint32Array(buffer);
    this.f64 = new Float64Array(buffer);
    this.view = new DataView(buffer);
    this.size = buffer.byteLength;
    this.#counters = counters;
  }

  /**
   * Finds `need` contiguous free bytes (at most half the arena's size).
   * @returns the offset, a multiple of 8; -1 if there is no room before something is sent.
   */
  reserve(need: number): number {
    return this.#free >= need ? this.offset : this.#look(need);
  }

  /** The record at `offset` is complete: the head moves behind it. `length` is a multiple of 8 that was reserved. */
  commit(length: number): void {
    this.head += length;
    this.offset += length;
    this.#free -= length;
    if (this.offset === this.size) {
      this.offset = 0;
      this.#free = 0;
    }
  }

  /** Bytes that nobody needs any more from the next flush on: everything before this position. */
  get release(): number {
    return this.pinned >= 0 ? this.pinned : this.head;
  }

  #look(need: number): number {
    const room = this.size - (this.head - this.#counters[COUNTER.ARENA_FREED]!);
    const toEnd = this.size - this.offset;
    if (toEnd >= need) {
      this.#free = Math.min(room, toEnd);
      return this.#free >= need ? this.offset : -1;
    }
    if (room < toEnd + need) return -1;
    this.head += toEnd;
    this.offset = 0;
    this.#free = room - toEnd;
    return 0;
  }
}
