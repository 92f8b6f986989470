import type { Block, Pool } from '../lending/pool.js';
import { RecordQueue } from '../record-queue.js';
import { FLAG, type RecordSource, sequenceAt, WORD } from '../wire.js';
import type { Pending } from './queue.js';

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
   * Copies of the newest messages, at most so many and so many bytes, marked as a replay for one subscription, go behind
   * those that are on their way.
   */
  copy(to: Replay, subscription: number, messages: number, bytes: number): void {
    let skip = this.#queue.count - messages;
    let excess = this.bytes - bytes;
    this.#queue.forEach((source, start, size, sequence) => {
      const block = this.#blocks.get(sequence) ?? null;
      if (skip-- > 0 || excess > 0) {
        excess -= size + (block?.bytes ?? 0);
        return;
      }
      const buffer = new ArrayBuffer(size);
      const copy = { bytes: new Uint8Array(buffer), u32: new Uint32Array(buffer) };
      copy.bytes.set(source.bytes.subarray(start, start + size));
      copy.u32[WORD.BITS]! |= FLAG.REPLAY << 8;
      copy.u32[WORD.CORRELATION] = subscription;
      to.push(copy, size, block);
    });
  }
}

/** Kept messages on their way to one subscriber. Each block is referred to from here. */
export class Replay implements Pending {
  readonly #records = new RecordQueue();
  /** The block of each record, oldest first; null for what lies in the record itself. */
  #blocks: (Block | null)[] = [];
  #large = 0;

  get count(): number {
    return this.#records.count;
  }
  /** Bytes of the records. */
  get bytes(): number {
    return this.#records.bytes;
  }
  get mixed(): boolean {
    return this.#large > 0;
  }
  get lastTaken(): number {
    return this.#records.lastTaken;
  }

  /** Adds a copy of a record. */
  push(record: RecordSource, size: number, block: Block | null): void {
    if (block !== null) {
      block.refs++;
      this.#large++;
    }
    this.#blocks.push(block);
    this.#records.push(record, 0, size);
  }

  headSize(): number {
    return this.#records.headSize();
  }
  headSequence(): number {
    return this.#records.headSequence();
  }
  headBlock(): Block | null {
    return this.#blocks[0] ?? null;
  }
  take(target: Uint8Array, at: number, limit: number): number {
    const { count } = this;
    const bytes = this.#records.take(target, at, limit);
    for (const block of this.#blocks.splice(0, count - this.count)) if (block !== null) this.#large--;
    return bytes;
  }

  /** Forgets everything. */
  clear(pool: Pool): void {
    for (const block of this.#blocks) if (block !== null) pool.unref(block);
    this.#blocks = [];
    this.#large = 0;
    this.#records.clear();
  }
}
