/** The event loop looks at its timers no sooner. */
const SOON_MS = 1;

/**
 * One call in the next turn of the event loop, as setImmediate() makes it. When it is unreferenced it does not keep the loop
 * alive, but where something else does it runs all the same: before an unreferenced immediate alone the loop would first wait
 * for whatever comes next, and who has it as its next look at a queue would not look.
 */
export class Turn {
  readonly #immediate: NodeJS.Immediate;
  #timer: NodeJS.Timeout | undefined;
  readonly #once = () => {
    this.cancel();
    this.run();
  };

  constructor(private readonly run: () => void) {
    this.#immediate = setImmediate(this.#once);
  }

  unref(): this {
    this.#immediate.unref();
    this.#timer ??= setTimeout(this.#once, SOON_MS).unref();
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
