import { type RecordSource, sequenceAt, sizeAt } from './wire.js';

const CHUNK_BYTES = 64 * 1024;
/** Chunks that are kept for use again while the queue is not empty. One that fills and drains all the time makes no garbage. */
const SPARES = 16;

interface Chunk extends RecordSource {
  /** Bytes written. */
  end: number;
}

function newChunk(bytes: number): Chunk {
  // Memory of its own that nobody zeroes first: it is read only up to where it was written.
  const { buffer } = Buffer.allocUnsafeSlow(bytes);
  return { bytes: new Uint8Array(buffer), u32: new Uint32Array(buffer), end: 0 };
}

/**
 * A first-in first-out queue of whole records, copied into chunks. Adding and taking cost a copy and no allocation per
 * record; a run of neighbours is taken with one copy.
 */
export class RecordQueue {
  #chunks: Chunk[] = [];
  readonly #spares: Chunk[] = [];
  /** Read position in the first chunk. */
  #at = 0;
  /** Bytes and records in the queue. */
  bytes = 0;
  count = 0;

  /** Appends a copy of the record at byte `start`, a multiple of 8, of the source. */
  push(source: RecordSource, start: number, length: number): void {
    let chunk = this.#chunks[this.#chunks.length - 1];
    if (chunk === undefined || chunk.bytes.length - chunk.end < length) chunk = this.#grow(length);
    const { end } = chunk;
    // A short record is copied faster word by word than by a subarray and a call.
    if (length <= 256) {
      const { u32 } = source;
      for (let from = start >>> 2, to = end >>> 2, last = (start + length) >>> 2; from < last; ) {
        chunk.u32[to++] = u32[from++]!;
      }
    } else {
      chunk.bytes.set(source.bytes.subarray(start, start + length), end);
    }
    chunk.end = end + length;
    this.bytes += length;
    this.count++;
  }

  /** Size of the oldest record; 0 if there is none. */
  headSize(): number {
    return this.count === 0 ? 0 : sizeAt(this.#chunks[0]!.u32, this.#at >>> 2);
  }

  /** Sequence of the oldest record. The queue must not be empty. */
  headSequence(): number {
    return sequenceAt(this.#chunks[0]!.u32, this.#at >>> 2);
  }

  /** Forgets the oldest record and returns its size. The queue must not be empty. */
  shift(): number {
    const size = this.headSize();
    this.#advance(size, 1);
    return size;
  }

  /** Forgets the newest record and returns its sequence. The queue must not be empty. */
  pop(): number {
    const last = this.#chunks.length - 1;
    const chunk = this.#chunks[last]!;
    let at = last === 0 ? this.#at : 0;
    for (;;) {
      const size = sizeAt(chunk.u32, at >>> 2);
      if (at + size >= chunk.end) break;
      at += size;
    }
    const sequence = sequenceAt(chunk.u32, at >>> 2);
    const size = chunk.end - at;
    if (this.count === 1) {
      this.#advance(size, 1);
      return sequence;
    }
    chunk.end = at;
    if (at === 0) this.#chunks.pop();
    this.bytes -= size;
    this.count--;
    return sequence;
  }

  /**
   * Moves neighbouring records to `target[at..]`: at most `limit` bytes, at least one record if it fits, stopping before
   * one whose sequence does not follow on. `taken` has the number of records and the last sequence.
   * @returns the bytes moved
   */
  take(target: Uint8Array, at: number, limit: number): number {
    if (this.count === 0) return 0;
    const chunk = this.#chunks[0]!;
    const from = this.#at;
    let end = from;
    let records = 0;
    let sequence = 0;
    while (end < chunk.end) {
      const word = end >>> 2;
      const size = sizeAt(chunk.u32, word);
      if (end + size - from > limit) break;
      const next = sequenceAt(chunk.u32, word);
      if (records > 0 && next !== sequence + 1) break;
      sequence = next;
      end += size;
      records++;
    }
    if (records === 0) return 0;
    target.set(chunk.bytes.subarray(from, end), at);
    this.#advance(end - from, records);
    this.lastTaken = sequence;
    return end - from;
  }

  /** Sequence of the last record that `take` moved. */
  lastTaken = 0;

  /** Calls `visit` for each record, oldest first; it must not change the queue. */
  forEach(visit: (source: RecordSource, start: number, size: number, sequence: number) => void): void {
    for (let i = 0; i < this.#chunks.length; i++) {
      const chunk = this.#chunks[i]!;
      for (let at = i === 0 ? this.#at : 0; at < chunk.end; ) {
        const size = sizeAt(chunk.u32, at >>> 2);
        visit(chunk, at, size, sequenceAt(chunk.u32, at >>> 2));
        at += size;
      }
    }
  }

  clear(): void {
    this.#chunks = [];
    this.#spares.length = 0;
    this.#at = 0;
    this.bytes = 0;
    this.count = 0;
  }

  #grow(length: number): Chunk {
    const spare = length <= CHUNK_BYTES ? this.#spares.pop() : undefined;
    const chunk = spare ?? newChunk(Math.max(CHUNK_BYTES, length));
    this.#chunks.push(chunk);
    return chunk;
  }

  #advance(bytes: number, records: number): void {
    this.#at += bytes;
    this.bytes -= bytes;
    this.count -= records;
    const chunk = this.#chunks[0]!;
    if (this.#at < chunk.end) return;
    this.#chunks.shift();
    this.#at = 0;
    chunk.end = 0;
    if (chunk.bytes.length === CHUNK_BYTES && this.#spares.length < SPARES) this.#spares.push(chunk);
    // At rest it holds one.
    if (this.count === 0) this.#spares.length = Math.min(this.#spares.length, 1);
  }
}
