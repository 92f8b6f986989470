import type { Decoder } from '../codec/codec.js';
import type { Peer } from '../peer.js';
import type { Body } from './pool.js';

/** Who published it, on what, and how it is read. */
export interface HeldFrom {
  readonly name: string;
  readonly peer: Peer;
  readonly decoder: Decoder<unknown>;
}

/** A large message that this member holds. */
export class Held<From extends HeldFrom = HeldFrom> {
  /** Leases that were handed out and are not released; one more while it is handed out to several. */
  leases = 0;
  /** Its memory, while the message is being handed out. */
  leased: ArrayBuffer | null = null;
  owned: ArrayBuffer | null = null;
  /** Where it was retained, under MILLRACE_DEV=1. */
  retained: string[] | null = null;
  /** Several take leases of it, which none of them may end while it is handed out. */
  several = false;
  /** It is being handed out: the hold stays whoever releases. */
  taken = true;

  constructor(
    readonly id: number,
    readonly from: From,
    /** Whose pool it lies in: its publisher's, or our own where it was read from elsewhere. */
    readonly owner: Peer,
    readonly sequence: number,
    readonly body: Body & { readonly bytes: number },
  ) {}

  /** Where its leases were retained, under MILLRACE_DEV=1. */
  remember(where: string): void {
    if (where === '') return;
    this.retained ??= [];
    this.retained.push(where);
  }
}

/** The encoded message, of which somebody was given the value. */
export const encodedOf = ({ owned, body }: Held): Uint8Array =>
  new Uint8Array(owned!, body.start, body.end - body.start);
