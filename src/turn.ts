/** The event loop looks at its timers no sooner. */
const SOON_MS = 1;

/**
 * One call in the next turn of the event loop, as setImmediate() makes it. When it is unreferenced it does not keep the loop
 * alive, but where something else does it runs all the same: before an unreferenced immediate alone the loop would first wait
 * for whatever comes next, and who has it as its next look at a queue would not look.
 */
export class Turn {
  readonly #immediate: NodeJS.Immediate;
  readonly #run: () => void;
  #timer: NodeJS.Timeout | undefined;

  constructor(run: () => void) {
    this.#run = run;
    // Members take one for each look at their queues: no function of its own for each.
    this.#immediate = setImmediate(Turn.#inTime, this);
  }

  static #inTime(this: void, turn: Turn): void {
    if (turn.#timer !== undefined) clearTimeout(turn.#timer);
    turn.#run();
  }

  static #late(this: void, turn: Turn): void {
    clearImmediate(turn.#immediate);
    turn.#run();
  }

  unref(): this {
    this.#immediate.unref();
    this.#timer ??= setTimeout(Turn.#late, SOON_MS, this).unref();
    return this;
  }

  ref(): this {
    this.#immediate.ref();
    clearTimeout(this.#timer);
    this.#timer = undefined;
    return this;
  }

  cancel(): void {
    clearImmediate(this.#immediate);
    clearTimeout(this.#timer);
  }
}
