import type { Clock } from '../clock.js';
import { TURN_MESSAGES } from '../pump.js';

/** How many messages pass between two looks at the clock. */
const LOOK_EVERY = 32;

/** A deadline that stops at nothing. */
export const NO_DEADLINE = Number.POSITIVE_INFINITY;

/** How much of a turn of the event loop was used: messages are bounded in number and time. */
export class Budget {
  /** Messages in this turn of the event loop, and how many there may be before the next look at the clock. */
  #messages = 0;
  #next = LOOK_EVERY;

  constructor(private readonly clock: Clock) {}

  /** A delivery begins, perhaps with a turn of the event loop (`fresh`). @returns false if nothing is left for it */
  begin(fresh: boolean): boolean {
    if (fresh) this.#messages = 0;
    this.#next = Math.min(this.#messages + LOOK_EVERY, TURN_MESSAGES);
    return this.#messages < TURN_MESSAGES;
  }

  /** One message more. @returns whether the delivery is to stop behind it */
  spend(deadline: number): boolean {
    return ++this.#messages >= this.#next && this.over(deadline);
  }

  /** Whether the delivery is to stop: there were enough messages, or it is late. */
  over(deadline: number): boolean {
    if (deadline === NO_DEADLINE) return false;
    if (this.#messages >= TURN_MESSAGES) return true;
    this.#next = Math.min(this.#messages + LOOK_EVERY, TURN_MESSAGES);
    return this.clock.now() >= deadline;
  }
}
