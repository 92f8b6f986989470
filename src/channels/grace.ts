/** Polling goes on for so long after the last activity. */
export const GRACE_MS = 0.1;
/** A message that came within so long would have been found by polling: the time that a wake-up takes is part of it. */
const NEAR_MS = GRACE_MS + 0.05;
/** So many messages in a row that were far apart and polling is left out; one that was near brings it back. */
const PATIENCE = 8;

/** When other work took the CPU from one who polls, polling rests for so long, doubled each time. */
const REST_MS = 10;
const MOST_REST_MS = 640;
/**
 * So much lost time is put up with first. Often the other work is the peer itself, on the same CPU while another
 * is idle: schedulers part the two only when they have seen both want to run for some tens of milliseconds, and whoever
 * slept at once would stay there for good.
 */
const LOST_MS = 64;
/**
 * And this share of the time always: the garbage collectors' and compilers' own threads take a CPU for a millisecond now
 * and then, ours and the peer's. Who would sleep for that waits longer than they take.
 */
const LOST_SHARE = 0.1;
/** Who then polled undisturbed for so many times its rest begins anew: now and then every CPU is taken away for a moment. */
const CALM = 5;

/**
 * Decides whether a member goes on polling a little before it sleeps. Polling pays off where the next message comes within
 * microseconds; where messages are rare it only burns time. So it is judged by the gaps between them, which are seen whether
 * it polled or slept: the first near one after a long time brings polling back.
 */
export class Grace {
  #since = Number.NEGATIVE_INFINITY;
  #patience = PATIENCE;
  #disturbedAt = Number.NEGATIVE_INFINITY;
  #rest = 0;
  /** Lost, as far as it was more than its share of the time since. */
  #lost = 0;
  #countedAt = Number.NEGATIVE_INFINITY;

  /** Something came, at `now`, and is dealt with. */
  came(now: number): void {
    if (now - this.#since < NEAR_MS) {
      if (this.#patience < PATIENCE) this.#patience++;
    } else if (this.#patience > 0) this.#patience--;
  }

  /**
   * While it polled other work had the CPU, until `now` and for `lost` milliseconds. One who sleeps is put before such work
   * when it is woken, one who polls waits behind it: so it rests, unless that has only begun, or is little in all.
   */
  disturbed(now: number, lost: number): void {
    // Nothing is lost while it rests, which says nothing about the other work.
    const polled = now - Math.max(this.#countedAt, this.#disturbedAt + this.#rest);
    this.#countedAt = now;
    const before = Math.min(this.#lost, LOST_MS) - LOST_SHARE * Math.max(polled, 0);
    this.#lost = Math.max(before, 0) + lost;
    if (this.#lost <= LOST_MS) return;
    const calm = now - this.#disturbedAt - this.#rest;
    this.#rest = calm >= CALM * this.#rest ? REST_MS : Math.min(2 * this.#rest, MOST_REST_MS);
    this.#disturbedAt = now;
  }

  /** What came has been dealt with: the gap to the next begins. */
  done(now: number): void {
    this.#since = now;
  }

  /** Nothing is to be done: whether to poll again rather than to sleep. */
  goesOn(now: number): boolean {
    return this.#patience > 0 && now - this.#since < GRACE_MS && now - this.#disturbedAt >= this.#rest;
  }
}
