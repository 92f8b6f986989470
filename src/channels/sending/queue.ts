import type { Block, Pool } from '../lending/pool.js';
import { type Backlog, makeBacklog, type Overflow } from '../overflow/index.js';
import type { RecordSource } from '../wire.js';

/** Records that wait to be sent, oldest first, each perhaps with a block of the pool. */
export interface Pending {
  readonly count: number;
  /** Size and sequence of the oldest record; its block, or null. There must be one. */
  headSize(): number;
  headSequence(): number;
  headBlock(): Block | null;
  /** Some have blocks: then `take` is to be given room for one at a time. */
  readonly mixed: boolean;
  /**
   * Moves a run of neighbours, at most `limit` bytes, to `target[at..]`; `lastTaken` is its last sequence. The reference to
   * the head's block goes to the caller.
   */
  take(target: Uint8Array, at: number, limit: number): number;
  readonly lastTaken: number;
}

/**
 * What a subscriber has not been sent for want of a window: records under its policy, with the blocks of large messages, each
 * of which is referred to from here.
 */
export class Queue implements Pending {
  /** Bytes of the blocks. */
  blockBytes = 0;
  #wanted: Overflow;
  /** The policy that the records follow; the wanted one takes over when none are left. */
  #inForce: Overflow;
  #records: Backlog;
  /** By sequence. */
  readonly #blocks = new Map<number, Block>();

  constructor(
    private readonly pool: Pool,
    private readonly maxBytes: number,
    overflow: Overflow,
    /** Told of each message that the policy drops. */
    private readonly dropped: (sequence: number) => void,
  ) {
    this.#wanted = overflow;
    this.#inForce = overflow;
    this.#records = this.#make();
  }

  get count(): number {
    return this.#records.count;
  }
  /** Bytes of the records. */
  get recordBytes(): number {
    return this.#records.bytes;
  }
  get bytes(): number {
    return this.#records.bytes + this.blockBytes;
  }
  get mixed(): boolean {
    return this.#blocks.size > 0;
  }
  get lastTaken(): number {
    return this.#records.lastTaken;
  }
  /** Whether it refuses the publisher when it is full. */
  get waits(): boolean {
    return this.#records.waits;
  }
  /** No record fits any more. */
  get full(): boolean {
    return !this.#records.accepts(1);
  }
  /** Path of the key that the policy wants, or null. */
  get keyPath(): readonly string[] | null {
    return this.#records.keyPath;
  }

  /** The policy that the subscriber asks for. What is queued under another one is first sent. */
  get overflow(): Overflow {
    return this.#wanted;
  }
  set overflow(overflow: Overflow) {
    this.#wanted = overflow;
  }

  /** Nothing is queued: the wanted policy takes over. */
  adopt(): void {
    if (this.#inForce === this.#wanted) return;
    this.#inForce = this.#wanted;
    this.#records = this.#make();
  }

  /** Whether a record of that size, with a block of so many bytes, can be queued without loss. */
  accepts(size: number, block: number): boolean {
    return this.#records.accepts(size) && this.#takesBlock(block);
  }

  /** Queues a record, or drops it or others as the policy says. @returns false if its block had no room, and it was dropped */
  push(
    source: RecordSource,
    start: number,
    size: number,
    sequence: number,
    key: unknown,
    block: Block | null,
  ): boolean {
    if (block !== null) {
      while (!this.#takesBlock(block.bytes) && this.#records.shed()) {}
      if (!this.#takesBlock(block.bytes)) {
        this.dropped(sequence);
        return false;
      }
      block.refs++;
      this.#blocks.set(sequence, block);
      this.blockBytes += block.bytes;
    }
    this.#records.push(source, start, size, sequence, key);
    return true;
  }

  headSize(): number {
    return this.#records.headSize();
  }
  headSequence(): number {
    return this.#records.headSequence();
  }
  headBlock(): Block | null {
    return this.#blocks.get(this.#records.headSequence()) ?? null;
  }
  take(target: Uint8Array, at: number, limit: number): number {
    const bytes = this.#records.take(target, at, limit);
    if (this.#blocks.size > 0) this.#unqueue(this.#records.lastTaken);
    return bytes;
  }

  /** The pool has no block left: drops a large message, if the policy drops. @returns whether it did */
  shedBlock(): boolean {
    const before = this.#blocks.size;
    while (this.#blocks.size > 0 && this.#blocks.size === before) if (!this.#records.forgo()) return false;
    return this.#blocks.size < before;
  }

  /** Forgets everything. */
  clear(): void {
    this.#records.clear();
    for (const sequence of [...this.#blocks.keys()]) this.pool.unref(this.#unqueue(sequence)!);
  }

  /** Whether a block may be queued: what is queued counts as a whole, and one may always be. */
  #takesBlock(bytes: number): boolean {
    return this.blockBytes === 0 || this.blockBytes + bytes <= this.maxBytes;
  }

  /** The message is not queued any more. @returns its block, if it has one, with the reference to it */
  #unqueue(sequence: number): Block | undefined {
    const block = this.#blocks.get(sequence);
    if (block === undefined) return undefined;
    this.#blocks.delete(sequence);
    this.blockBytes -= block.bytes;
    return block;
  }

  #make(): Backlog {
    return makeBacklog(this.#inForce, this.maxBytes, (sequence) => {
      const block = this.#unqueue(sequence);
      if (block !== undefined) this.pool.unref(block);
      this.dropped(sequence);
    });
  }
}
