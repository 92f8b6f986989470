import type { AnyMillraceError } from '../../errors.js';
import type { Status } from '../status.js';

/** What publishing gives instead of a sequence. */
export const REFUSED = {
  /** A `wait` subscriber is full, or the arena is. Try later. */
  FULL: -1,
  /** The value cannot be sent; `lastError` says why. */
  VALUE: -2,
  /** complete(), error() or close() came first. */
  ENDED: -3,
  /** The system has no memory for it; `lastError` says what was measured. */
  SYSTEM: -4,
} as const;

/** What a publisher did not take: counted, kept for who asks, and told by one status event of each kind a turn. */
export class Tally {
  /** Why the last value was not taken. */
  lastError: AnyMillraceError | null = null;
  lastCode: number = REFUSED.FULL;
  #refused = 0;
  #errors = 0;
  #full: AnyMillraceError | null = null;
  #ended: AnyMillraceError | null = null;
  #error: AnyMillraceError | null = null;

  constructor(
    private readonly channel: string,
    private readonly status: Status,
    private readonly counts: { refused: number; encodeErrors: number },
    /** There is something to tell at the end of the turn. */
    private readonly due: (tally: Tally) => void,
  ) {}

  /** A value had no room. A loop that ignores refusals must not pay for an error each time, so `make` is called once a turn. */
  full(make: () => AnyMillraceError): number {
    this.#refused++;
    this.counts.refused++;
    this.#full ??= make();
    return this.#notTaken(REFUSED.FULL, this.#full);
  }

  /** The system had no memory for a value. */
  short(error: AnyMillraceError): number {
    this.#refused++;
    this.counts.refused++;
    this.#full ??= error;
    return this.#notTaken(REFUSED.SYSTEM, error);
  }

  /** A value came after the publishing had ended. */
  ended(make: () => AnyMillraceError): number {
    this.#refused++;
    this.counts.refused++;
    this.#ended ??= make();
    return this.#notTaken(REFUSED.ENDED, this.#ended);
  }

  /** A value cannot be sent. */
  failed(error: AnyMillraceError): number {
    this.#errors++;
    this.counts.encodeErrors++;
    this.#error ??= error;
    return this.#notTaken(REFUSED.VALUE, error);
  }

  /** Tells status$, and begins anew. */
  tell(): void {
    const { channel } = this;
    const [refused, errors] = [this.#refused, this.#errors];
    const [refusal, error] = [this.#full ?? this.#ended, this.#error];
    this.#refused = 0;
    this.#errors = 0;
    this.#full = null;
    this.#ended = null;
    this.#error = null;
    if (refused > 0) this.status.emit({ type: 'refused', channel, count: refused, error: refusal! });
    if (errors > 0) this.status.emit({ type: 'encode-error', channel, count: errors, error: error! });
  }

  #notTaken(code: number, error: AnyMillraceError): number {
    this.lastCode = code;
    this.lastError = error;
    this.due(this);
    return code;
  }
}
