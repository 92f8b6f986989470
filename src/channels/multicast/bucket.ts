import type { Clock } from '../clock.js';

/** A burst may have what the pace allows in so long. */
const BURST_MS = 10;

/**
 * A token bucket: bytes come at a steady pace, up to a burst, and a message goes when there are any. It may take more than
 * there are; then what follows waits the longer, so that large messages keep the pace, too.
 */
export class Bucket {
  #tokens: number;
  #since: number;
  readonly #burst: number;

  /** @param pace bytes per second */
  constructor(
    private readonly clock: Clock,
    private readonly pace: number,
  ) {
    this.#burst = Math.max(1, (pace * BURST_MS) / 1000);
    this.#tokens = this.#burst;
    this.#since = clock.now();
  }

  /** Milliseconds until something may go; 0: now. */
  get wait(): number {
    const now = this.clock.now();
    this.#tokens = Math.min(this.#burst, this.#tokens + ((now - this.#since) * this.pace) / 1000);
    this.#since = now;
    return this.#tokens > 0 ? 0 : Math.max(1, Math.ceil(((1 - this.#tokens) * 1000) / this.pace));
  }

  /** So many bytes went. */
  spend(bytes: number): void {
    this.#tokens -= bytes;
  }
}
