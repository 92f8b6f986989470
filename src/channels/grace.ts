/** Grace of the adaptive mode: polling goes on for so long after the last activity. */
const GRACE_MS = 0.1;
/** After so many graces in a row in which nothing came, most are left out. */
const PATIENCE = 8;
/** One in so many is then tried nevertheless: times change. */
const RETRY = 32;

/**
 * Decides whether a member goes on polling a little before it sleeps. Polling pays off where an answer comes within
 * microseconds; where it does not (messages are rare, or the CPU that we poll on is the one that the other side needs), it
 * only burns time. So it is judged by what it found.
 */
export class Grace {
  #since = 0;
  #polling = false;
  /** Graces in a row that found nothing. */
  #vain = 0;
  #skipped = 0;

  /** Something happened. */
  active(now: number): void {
    this.#since = now;
    if (this.#polling) this.#vain = 0;
    this.#polling = false;
  }

  /** Nothing is to be done: whether to poll again rather than to sleep. */
  goesOn(now: number): boolean {
    if (!this.#polling) {
      if (this.#vain >= PATIENCE && ++this.#skipped % RETRY !== 0) return false;
      this.#polling = true;
      return true;
    }
    if (now - this.#since < GRACE_MS) return true;
    this.#polling = false;
    this.#vain++;
    return false;
  }
}
