import type { AnyMillraceError } from '../../errors.js';
import type { Batch } from '../frames.js';
import type { Held, HeldFrom } from './held.js';

/** A large message of a member elsewhere, on its way into a block of this member's pool. */
export class Landing<O extends HeldFrom> {
  /** It is neither here nor given up yet. */
  pending = true;
  /** The block, from when the reading begins. */
  held: Held<O> | null = null;
  /** Why it does not come. */
  error: AnyMillraceError | null = null;
  /** The read that is under way; 0: none is (any more). */
  fetch = 0;

  constructor(
    readonly origin: O,
    /** Where its payload lies. The batch is not used again (I5). */
    readonly at: {
      readonly bytes: Uint8Array;
      readonly sequence: number;
      readonly view: DataView;
      readonly headersEnd: number;
      readonly payloadEnd: number;
    },
    /** What its publisher calls the offer. */
    readonly serial: number,
    readonly bytes: number,
  ) {}
}

/** A record of a channel that waits for its turn: it is a landing itself, or came behind one. */
export interface Waiting<O extends HeldFrom> {
  readonly batch: Batch;
  readonly pos: number;
  readonly landing: Landing<O> | null;
}
