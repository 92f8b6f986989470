import { type RecordSource, sizeAt } from '../wire.js';

/**
 * The last records of one publisher, by sequence: those that wait for their turn and those that may have to be sent again.
 * A ring of bytes and one of positions, so that keeping a record costs a copy and nothing else.
 */
export class History implements RecordSource {
  readonly bytes: Uint8Array;
  readonly u32: Uint32Array;
  /** What is kept: `first` to `last`; nothing while `first` is beyond. */
  first = 1;
  last = 0;
  /** Cumulative; a record is contiguous, so that its end may be skipped to the ring's start. */
  #head = 0;
  readonly #positions: Float64Array;

  /** @param maxBytes a multiple of 8, at least twice the largest record */
  constructor(
    private readonly messages: number,
    private readonly maxBytes: number,
  ) {
    // Memory of its own that nobody zeroes first: pages are touched when they are written.
    const { buffer } = Buffer.allocUnsafeSlow(maxBytes);
    this.bytes = new Uint8Array(buffer);
    this.u32 = new Uint32Array(buffer);
    this.#positions = new Float64Array(messages);
  }

  /** Keeps a copy of a record in place of the oldest ones. After a sequence that was left out nothing older is kept. */
  keep(source: RecordSource, start: number, size: number, sequence: number): void {
    if (sequence !== this.last + 1) this.first = sequence;
    const at = this.#head % this.maxBytes;
    if (at + size > this.maxBytes) this.#head += this.maxBytes - at;
    const end = this.#head + size;
    while (
      this.first < sequence &&
      (sequence - this.first >= this.messages || end - this.#position(this.first) > this.maxBytes)
    )
      this.first++;
    this.#positions[sequence % this.messages] = this.#head;
    this.bytes.set(source.bytes.subarray(start, start + size), this.#head % this.maxBytes);
    this.#head = end;
    this.last = sequence;
  }

  /** Where a record lies; -1 if it is not kept (any more). */
  offset(sequence: number): number {
    if (sequence < this.first || sequence > this.last) return -1;
    return this.#position(sequence) % this.maxBytes;
  }

  /** Size of the record at an offset. */
  size(offset: number): number {
    return sizeAt(this.u32, offset >>> 2);
  }

  #position(sequence: number): number {
    return this.#positions[sequence % this.messages]!;
  }
}
