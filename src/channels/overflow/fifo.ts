import { RecordQueue } from '../record-queue.js';
import type { RecordSource } from '../wire.js';
import type { Backlog, Dropped } from './policy.js';

/** What the three policies with a plain queue share. */
export abstract class Fifo implements Backlog {
  protected readonly queue = new RecordQueue();
  readonly waits: boolean = false;
  readonly keyPath = null;

  constructor(
    protected readonly maxBytes: number,
    protected readonly dropped: Dropped,
  ) {}

  get bytes(): number {
    return this.queue.bytes;
  }
  get count(): number {
    return this.queue.count;
  }
  get lastTaken(): number {
    return this.queue.lastTaken;
  }
  accepts(length: number): boolean {
    return this.queue.count === 0 || this.queue.bytes + length <= this.maxBytes;
  }
  abstract push(source: RecordSource, start: number, length: number, sequence: number, key: unknown): void;
  shed(): boolean {
    return false;
  }
  forgo(): boolean {
    return this.shed();
  }
  /** What shed() does where the oldest may go. */
  protected dropOldest(): boolean {
    if (this.queue.count === 0) return false;
    const sequence = this.queue.headSequence();
    this.queue.shift();
    this.dropped(sequence);
    return true;
  }
  headSize(): number {
    return this.queue.headSize();
  }
  headSequence(): number {
    return this.queue.headSequence();
  }
  take(target: Uint8Array, at: number, limit: number): number {
    return this.queue.take(target, at, limit);
  }
  clear(): void {
    this.queue.clear();
  }
}
