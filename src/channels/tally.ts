import type { AnyMillraceError } from '../errors.js';
import type { Status } from './status.js';

/** What a publisher did not take in one turn: one status event of each kind tells of all of it. */
export class Tally {
  #refused = 0;
  #errors = 0;
  #full: AnyMillraceError | null = null;
  #ended: AnyMillraceError | null = null;
  #error: AnyMillraceError | null = null;

  constructor(
    private readonly channel: string,
    private readonly status: Status,
  ) {}

  /** A value had no room. A loop that ignores refusals must not pay for an error each time, so `make` is called once a turn. */
  full(make: () => AnyMillraceError): AnyMillraceError {
    this.#refused++;
    this.#full ??= make();
    return this.#full;
  }

  /** A value came after the publishing had ended. */
  ended(make: () => AnyMillraceError): AnyMillraceError {
    this.#refused++;
    this.#ended ??= make();
    return this.#ended;
  }

  /** A value cannot be sent. */
  failed(error: AnyMillraceError): AnyMillraceError {
    this.#errors++;
    this.#error ??= error;
    return error;
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
}
