/** A deadline for what should take no time; a slow machine is no fault. */
export const DEADLINE_MS = 60_000;

/** Waits for what events make true. Nothing is polled: each event looks whether a waiter is content. */
export class Waiters {
  readonly #looks = new Set<() => void>();

  /** To be called after each event. */
  look(): void {
    for (const look of [...this.#looks]) look();
  }

  /**
   * Resolves once the condition holds; rejects at the deadline, or when it cannot come true any more.
   * @param seen what there was instead, for the message
   * @param over why it cannot come true any more
   */
  until(
    what: string,
    condition: () => boolean,
    seen: () => string,
    over: () => string | undefined = () => undefined,
  ): Promise<void> {
    return new Promise((done, fail) => {
      const finish = (why?: string) => {
        clearTimeout(timer);
        this.#looks.delete(look);
        if (why === undefined) done();
        else fail(new Error(`${why}: ${what}\n${seen()}`));
      };
      const look = () => {
        if (condition()) return finish();
        const why = over();
        if (why !== undefined) finish(why);
      };
      const timer = setTimeout(() => finish('did not happen'), DEADLINE_MS);
      this.#looks.add(look);
      look();
    });
  }
}
