import { MillraceError } from '../../errors.js';
import type { Publisher } from '../types.js';
import { leaseNotPosted, type NotPosted } from './not-posted.js';

/** What a lease does when it is over. */
export interface LeaseEnd {
  /** Gives back the last reference of one lease, whose bytes are no longer needed. */
  release(bytes: Uint8Array): void;
  /** Decodes what the lease holds. */
  decode(): unknown;
  /** Somebody retained it: for `MILLRACE_DEV=1`. */
  retained(): void;
}

/** Of whom a lease is. */
export interface LeaseFrom {
  readonly name: string;
  readonly peer: { readonly identity: Publisher };
  /** Made with its first lease. */
  notPosted: NotPosted | null;
}

const EMPTY = new Uint8Array(0);

/**
 * A received message whose bytes are the publisher's own pages, until release(). Read only: a write reaches nobody else, and
 * is reported.
 */
export class Lease<T = Uint8Array> implements Disposable {
  readonly channel: string;
  readonly publisher: Publisher;
  /** From 1, per publisher and channel. */
  readonly sequence: number;
  /** When it was published: milliseconds since the epoch by the publisher's clock. */
  readonly time: number;
  /** @internal */
  readonly posted: NotPosted;
  readonly #end: LeaseEnd;
  #bytes: Uint8Array;
  #references = 1;
  #value: { readonly value: T } | null = null;

  /** @internal Leases are made by channel.leases(). */
  constructor(from: LeaseFrom, at: { sequence: number; time: number }, bytes: Uint8Array, end: LeaseEnd) {
    this.channel = from.name;
    this.publisher = from.peer.identity;
    this.sequence = at.sequence;
    this.time = at.time;
    from.notPosted ??= leaseNotPosted(from.name);
    this.posted = from.notPosted;
    this.#bytes = bytes;
    this.#end = end;
  }

  /** The encoded message; of length 0 after release(). */
  get bytes(): Uint8Array {
    return this.#bytes;
  }

  /** The decoded message, whose large fields are views of the same pages. Decoded when it is first asked for. */
  get value(): T {
    this.#checkHeld();
    this.#value ??= { value: this.#end.decode() as T };
    return this.#value.value;
  }

  /** Whether it was given back. */
  get released(): boolean {
    return this.#references === 0;
  }

  /**
   * Calls with the bytes and releases, also when that throws; after an async function once its promise is settled.
   * @throws MillraceError ERR_LEASE_RELEASED
   */
  use<R>(call: (bytes: Uint8Array, lease: this) => R): R {
    this.#checkHeld();
    let result: R;
    try {
      result = call(this.#bytes, this);
      // Any promise: those of other realms and libraries are no instances of ours.
      if (typeof (result as { then?: unknown } | null | undefined)?.then === 'function')
        return Promise.resolve(result).finally(() => this.release()) as R;
    } catch (error) {
      this.release();
      throw error;
    }
    this.release();
    return result;
  }

  /** One release() more is needed. @throws MillraceError ERR_LEASE_RELEASED */
  retain(): this {
    this.#checkHeld();
    this.#references++;
    this.#end.retained();
    return this;
  }

  /** Gives it back: with the last reference all views become empty and the publisher may use the block again. */
  release(): void {
    if (this.#references === 0) return;
    this.#references--;
    if (this.#references > 0) return;
    const bytes = this.#bytes;
    this.#bytes = EMPTY;
    this.#value = null;
    this.#end.release(bytes);
  }

  /** release() */
  [Symbol.dispose](): void {
    this.release();
  }

  #checkHeld(): void {
    if (this.released)
      throw new MillraceError('ERR_LEASE_RELEASED', `The lease of message ${this.sequence} was released.`);
  }
}
