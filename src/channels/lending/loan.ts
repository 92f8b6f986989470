import { MillraceError } from '../../errors.js';
import { LOAN_NOT_POSTED } from './not-posted.js';
import type { Block, Pool } from './pool.js';

/**
 * A writable block of the member's pool. Fill `bytes` and publish it, or discard it; from then on all its views are empty,
 * and what was published can't change. `using` discards what was not published.
 */
export class Loan implements Disposable {
  /** @internal */
  readonly posted = LOAN_NOT_POSTED;
  readonly #pool: Pool;
  readonly #bytes: Uint8Array;
  #block: Block | null;

  /** @internal Loans are made by channel.loan(). */
  constructor(pool: Pool, block: Block) {
    this.#pool = pool;
    this.#block = block;
    this.#bytes = pool.open(block);
  }

  /** The block's memory; of length 0 once it was published or discarded. Its content is not defined at first. */
  get bytes(): Uint8Array {
    return this.#bytes;
  }

  /** Gives the block back unused. Without effect once it was published or discarded. */
  discard(): void {
    const block = this.#block;
    if (block === null) return;
    this.#block = null;
    if (this.#pool.lost(block)) return;
    this.#pool.seal(block);
    this.#pool.unref(block);
  }

  /** discard() */
  [Symbol.dispose](): void {
    this.discard();
  }

  /** @internal Of which pool it is. */
  of(pool: Pool): boolean {
    return this.#pool === pool;
  }

  /** @internal Its length, or 0 when it is used up. */
  get length(): number {
    return this.#block === null || this.#pool.lost(this.#block) ? 0 : this.#block.bytes;
  }

  /** @internal The block; only while `length` is not 0. */
  get block(): Block {
    return this.#block!;
  }

  /** @internal Ends the writing; the reference to the block goes to the caller. @throws MillraceError ERR_LOAN */
  seal(): void {
    const block = this.#block!;
    this.#block = null;
    if (this.#pool.seal(block)) return;
    this.#pool.unref(block);
    throw usedUp('its memory was transferred to another ArrayBuffer');
  }
}

/** A loan can be published once, and only while its memory is its own. */
export function usedUp(why: string): MillraceError {
  return new MillraceError('ERR_LOAN', `The loan can't be published: ${why}. Ask for another with loan().`);
}

/** Loans are for channels that carry bytes from one publisher to each subscriber. */
export function noLoans(channel: string, why: string): MillraceError {
  return new MillraceError(
    'ERR_LOAN',
    `Loans can't be published on channel ${JSON.stringify(channel)}: it ${why}. Publish values, or use a channel of codec 'bytes' on lanes.`,
  );
}
