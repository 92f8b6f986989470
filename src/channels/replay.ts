import type { Block } from './lending/pool.js';
import { RecordQueue } from './record-queue.js';
import { FLAG, type RecordSource, sequenceAt, WORD } from './wire.js';

/** The last messages of a channel, kept by its publisher for subscribers that come later: bounded in number and bytes. */
export class ReplayStore {
  readonly #queue = new RecordQueue();
  /** The blocks of large messages, by sequence; each is referred to from here. */
  readonly #blocks = new Map<number, Block>();
  #blockBytes = 0;

  constructor(
    private readonly messages: number,
    private readonly maxBytes: number,
    /** One reference to a block less. */
    private readonly unref: (block: Block) => void,
  ) {}

  get bytes(): number {
    return this.#queue.bytes + this.#blockBytes;
  }

  /**
   * Keeps a copy of the record, and the block of a large one. What is larger than the bound is not kept, and nothing before
   * it either.
   */
  keep(source: RecordSource, start: number, size: number, block: Block | null): void {
    const queue = this.#queue;
    queue.push(source, start, size);
    if (block !== null) {
      block.refs++;
      this.#blockBytes += block.bytes;
      this.#blocks.set(sequenceAt(source.u32, start >>> 2), block);
    }
    while (queue.count > this.messages || this.bytes > this.maxBytes) {
      this.#forget(queue.headSequence());
      queue.shift();
    }
  }

  /** Keeps nothing more. */
  clear(): void {
    for (const sequence of [...this.#blocks.keys()]) this.#forget(sequence);
    this.#queue.clear();
  }

  #forget(sequence: number): void {
    const block = this.#blocks.get(sequence);
    if (block === undefined) return;
    this.#blocks.delete(sequence);
    this.#blockBytes -= block.bytes;
    this.unref(block);
  }

  /**
   * Copies of the newest messages, at most so many and so many bytes, marked as a replay for one subscription; and the
   * blocks of the large ones, each with a reference for the caller.
   */
  copy(subscription: number, messages: number, bytes: number): Replay {
    let skip = this.#queue.count - messages;
    let excess = this.bytes - bytes;
    const copies = new RecordQueue();
    const blocks: (Block | null)[] = [];
    this.#queue.forEach((source, start, size, sequence) => {
      const block = this.#blocks.get(sequence) ?? null;
      if (skip-- > 0 || excess > 0) {
        excess -= size + (block?.bytes ?? 0);
        return;
      }
      if (block !== null) block.refs++;
      blocks.push(block);
      const buffer = new ArrayBuffer(size);
      const copy = { bytes: new Uint8Array(buffer), u32: new Uint32Array(buffer) };
      copy.bytes.set(source.bytes.subarray(start, start + size));
      copy.u32[WORD.BITS]! |= FLAG.REPLAY << 8;
      copy.u32[WORD.CORRELATION] = subscription;
      copies.push(copy, 0, size);
    });
    return { records: copies, blocks };
  }
}

/** Kept messages on their way to one subscription. */
export interface Replay {
  readonly records: RecordQueue;
  /** The block of each record, oldest first; null for what lies in the record itself. */
  readonly blocks: (Block | null)[];
}
