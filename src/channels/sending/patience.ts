import type { Clock } from '../clock.js';
import type { Obstacle, Room } from './room.js';

/**
 * A subscriber whose policy is `wait` and whose queue is full: from then on the publisher is refused, for its `maxWait` at
 * most, until half of the queue has gone, or as much as the refused message takes.
 */
export class Patience implements Obstacle {
  /** The publisher is refused. */
  full = false;
  #lowWater = 0;
  #since = 0;

  constructor(
    private readonly room: Room,
    private readonly clock: Clock,
    private readonly maxWait: number,
    private readonly maxQueueBytes: number,
  ) {}

  get patienceEnds(): number {
    return this.full ? this.#since + this.maxWait : Number.POSITIVE_INFINITY;
  }

  get over(): boolean {
    return this.clock.now() >= this.patienceEnds;
  }

  /** The queue is full, until no more than so many bytes are in it; half of its bound at most. */
  fill(lowWater: number): void {
    this.#lowWater = Math.min(lowWater, this.full ? this.#lowWater : this.maxQueueBytes / 2);
    if (this.full) return;
    this.full = true;
    this.#since = this.clock.now();
    this.room.refuses(this);
  }

  /** So many bytes of records and blocks are left in the queue. */
  left(recordBytes: number, blockBytes: number): void {
    if (this.full && recordBytes <= this.#lowWater && blockBytes * 2 <= this.maxQueueBytes) this.end();
  }

  /** The queue is empty, or nobody's any more. */
  end(): void {
    if (!this.full) return;
    this.full = false;
    this.room.relents(this);
  }
}
