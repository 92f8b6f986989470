import type { Context } from './context.js';
import { isAlive, removeMember } from './registry.js';

/** Looks after members that have left: they remove their files themselves, unless they are killed before. */
export class Departed {
  /** By incarnation: what cancels the next look. */
  readonly #looks = new Map<number, () => void>();

  constructor(private readonly context: Context) {}

  lookAfter(incarnation: number, turn = 0): void {
    const { native, clock, limits, registration } = this.context;
    const cancel = clock.after(Math.min(16 * 2 ** turn, limits.pause), () => {
      this.#looks.delete(incarnation);
      if (isAlive(native, registration.folder, incarnation))
        this.lookAfter(incarnation, Math.min(turn + 1, 20));
      else removeMember(native, registration.folder, incarnation);
    });
    this.#looks.set(incarnation, cancel);
  }

  /** Looks after nobody any more. */
  clear(): void {
    for (const cancel of this.#looks.values()) cancel();
    this.#looks.clear();
  }
}
