import type { Clock } from './clock.js';

/** The members that were there when this one joined, and whose answers `join()` waits for. */
export class Awaited {
  readonly #incarnations = new Set<number>();
  #settled: () => void = () => {};

  add(incarnation: number): void {
    this.#incarnations.add(incarnation);
  }

  /** That one need not be waited for any longer. */
  settle(incarnation: number): void {
    if (this.#incarnations.delete(incarnation) && this.#incarnations.size === 0) this.#settled();
  }

  /** Resolves when all are settled, or after `limit` ms; from then on nothing is awaited. @throws the signal's reason */
  async wait(clock: Clock, limit: number, signal: AbortSignal | undefined): Promise<void> {
    if (this.#incarnations.size === 0) return;
    await new Promise<void>((resolve, reject) => {
      const end = (): void => {
        this.#settled = () => {};
        cancel();
        signal?.removeEventListener('abort', abort);
      };
      const abort = (): void => {
        end();
        reject(signal?.reason);
      };
      signal?.addEventListener('abort', abort);
      this.#settled = () => {
        end();
        resolve();
      };
      const cancel = clock.after(limit, () => this.#settled());
    });
    this.#incarnations.clear();
  }
}
