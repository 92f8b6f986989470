import type { Origin } from '../subscription.js';
import type { Origins } from './origins.js';

/** What accounts need of their member. */
export interface AccountsHost {
  readonly subscribing: {
    /** Sends a CONSUMED record. */
    report(origin: Origin, delivered: number, bytes: number): void;
  };
}

/** What was taken of each publisher, and when it is told. */
export class Accounts {
  /** Those to look after at the end of the turn. */
  #touched: Origin[] = [];

  constructor(
    private readonly host: AccountsHost,
    private readonly origins: Origins,
  ) {}

  /** Something of this publisher came, or was taken out of a subscriber's own buffer. */
  touch(origin: Origin): void {
    if (origin.touched) return;
    origin.touched = true;
    this.#touched.push(origin);
  }

  /** End of the turn: subscribers' own buffers, errors of the turn, and what publishers are to be told. */
  endOfTurn(): void {
    if (this.#touched.length === 0) return;
    const touched = this.#touched;
    this.#touched = [];
    for (const origin of touched) {
      origin.touched = false;
      if (origin.turnErrors > 0) this.origins.tellErrors(origin);
      for (const rich of origin.rich) rich.endOfTurn?.();
      if (origin.closed) continue;
      const bytes = origin.consumed;
      const delivered = origin.delivered;
      const due = (bytes - origin.reported) * 2 >= origin.window;
      // Asked for a report: at once, and once more when all that preceded the question is delivered.
      const owed = origin.asked || (origin.owes >= 0 && delivered >= origin.owes);
      if (!due && !owed) continue;
      origin.asked = false;
      if (delivered >= origin.owes) origin.owes = -1;
      this.#report(origin, delivered, bytes);
    }
  }

  /** Before this member leaves: publishers learn what was taken to the last, so that their drain() is right. */
  last(): void {
    for (const origin of this.origins) {
      const { consumed, delivered } = origin;
      if (origin.closed || (consumed === origin.reported && delivered === origin.reportedSequence)) continue;
      this.#report(origin, delivered, consumed);
    }
  }

  close(): void {
    this.#touched = [];
  }

  #report(origin: Origin, delivered: number, bytes: number): void {
    origin.reported = bytes;
    origin.reportedSequence = delivered;
    this.host.subscribing.report(origin, delivered, bytes);
  }
}
