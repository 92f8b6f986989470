import type { RecordSource } from '../wire.js';
/** What a subscriber may ask for when it is slower than a publisher. */
export type Overflow =
  /** Queue, and refuse the publisher when the queue is full. Nothing is lost. */
  | 'wait'
  /** Queue, and drop the oldest queued message. */
  | 'drop-oldest'
  /** Queue, and drop the new message. */
  | 'drop-newest'
  /** Keep only the newest message. */
  | 'latest'
  /** Keep the newest message of each key; the key is the value at this property path, such as `order.id`. */
  | { readonly latestBy: string };

/**
 * The queue of one subscriber at a publisher, beyond its byte window. One class a policy, so that the publisher only asks
 * and tells. All records are copies; sequences only grow from the head to the tail.
 */
export interface Backlog {
  readonly bytes: number;
  readonly count: number;
  /** Whether a full queue may refuse the publisher. */
  readonly waits: boolean;
  /** Whether `push` wants the key of the value. */
  readonly keyPath: readonly string[] | null;
  /** Whether the record can be queued without loss; the bound is exact, but an empty queue takes any record. */
  accepts(length: number): boolean;
  /**
   * Queues the record, or drops it or others, as the policy says. Calls `dropped` for each message that was dropped.
   * A `wait` queue drops the new one when it is full: only called so when its patience (maxWait) is over.
   */
  push(source: RecordSource, start: number, length: number, sequence: number, key: unknown): void;
  /** Drops the oldest record, if the policy is one that drops such. @returns whether it did */
  shed(): boolean;
  /** The publisher is short of blocks: drops the record that goes first, if the policy drops any. @returns whether it did */
  forgo(): boolean;
  /** Size and sequence of the head; 0 when empty. */
  headSize(): number;
  headSequence(): number;
  /** Moves a run of neighbours, at most `limit` bytes, to `target[at..]`; `lastTaken` is its last sequence. */
  take(target: Uint8Array, at: number, limit: number): number;
  readonly lastTaken: number;
  clear(): void;
}

/** Told of each message that a policy drops. */
export type Dropped = (sequence: number) => void;
