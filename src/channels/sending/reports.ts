import type { Window } from './window.js';

/**
 * When a subscriber is asked to say what it took (REPORT). It says so by itself at half of its window, which is not enough for
 * a message that is larger than the other half, and for who waits for the delivery of the last one.
 */
export class Reports {
  /** One is to be asked for behind what is queued. */
  due = false;
  /** Sequence of the head for which one was asked. */
  #askedFor = 0;

  constructor(
    private readonly window: Window,
    /** Sends a REPORT record. */
    private readonly send: () => void,
  ) {}

  /** Asks at once, since the answer is what makes room, and once more behind what is queued unless nothing is (`idle`). */
  ask(idle: boolean): void {
    this.due = !idle;
    this.send();
  }

  /** The window has no room for the queue's head: a record of that size, with a number of its own. */
  askForRoom(size: number, sequence: number): void {
    if (size * 2 <= this.window.size || this.#askedFor === sequence) return;
    this.#askedFor = sequence;
    this.ask(false);
  }
}
