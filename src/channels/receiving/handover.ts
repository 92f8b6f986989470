import type { Batch } from '../frames.js';
import type { Holdings } from '../lending/holdings.js';
import type { Landings } from '../lending/landings.js';
import type { Peer } from '../peer.js';
import type { MessageAt, Origin } from '../subscription.js';
import { reportUnhandled } from '../unhandled.js';
import { FLAG, RECORD_BYTES, sequenceAt, TIME_WORD, WORD } from '../wire.js';
import type { Accounts } from './accounts.js';
import type { Origins } from './origins.js';

const FAILED = Symbol('failed');

/** What the handover needs of its member. */
export interface HandoverHost {
  readonly holdings: Holdings;
  readonly landings: Landings;
}

/** One message to its local subscribers, decoded once for all of them, or the gap that is there in its place (I4). */
export class Handover {
  /** Where the message lies that is being handed over. */
  readonly #at: MessageAt = {
    bytes: new Uint8Array(0),
    view: new DataView(new ArrayBuffer(0)),
    sequence: 0,
    time: 0,
    headersStart: 0,
    headersEnd: 0,
    payloadEnd: 0,
    size: 0,
    replayed: false,
    held: null,
    landing: null,
  };

  constructor(
    private readonly host: HandoverHost,
    private readonly origins: Origins,
    private readonly accounts: Accounts,
  ) {}

  /** Where the message at `pos` lies, until the next call. */
  locate({ bytes, view, u32, f64 }: Batch, pos: number): MessageAt {
    const at = this.#at;
    const word = pos >>> 2;
    at.bytes = bytes;
    at.view = view;
    at.sequence = sequenceAt(u32, word);
    at.time = f64[(pos >>> 3) + TIME_WORD]!;
    at.headersStart = pos + RECORD_BYTES;
    const headersEnd = pos + RECORD_BYTES + (u32[word + WORD.BITS]! >>> 16);
    const payloadEnd = headersEnd + u32[word + WORD.LENGTH]!;
    at.headersEnd = headersEnd;
    at.payloadEnd = payloadEnd;
    at.size = (payloadEnd - pos + 7) & ~7;
    at.landing = null;
    return at;
  }

  /** A message in its place in the sequence. */
  live(origin: Origin, at: MessageAt, flags: number): void {
    const { sequence } = at;
    if (!origin.touched) this.accounts.touch(origin);
    if (sequence !== origin.next) {
      if (sequence < origin.next) {
        // Also frames that were posted again after an error (R14). Its bytes were counted the first time.
        origin.count.duplicates++;
        if ((flags & FLAG.LARGE) !== 0) this.unwanted(origin.peer, at, flags);
        return;
      }
      this.origins.missing(origin, sequence - 1, 'lost');
    }
    origin.next = sequence + 1;
    // Nobody waits for what is taken of a multicast channel.
    if (origin.reorder === null) origin.received += at.size;
    if (origin.waiting.length > 0) origin.arrive(sequence);
    at.replayed = false;
    if ((flags & FLAG.LARGE) !== 0) {
      this.#large(origin, origin.plain, origin.rich, at);
      origin.last = sequence;
      return;
    }
    const value = this.#decode(origin, at);
    origin.last = sequence;
    if (value === FAILED) return;
    this.#hand(origin, origin.plain, origin.rich, value, at);
  }

  /** Nobody here wants the large message at `at`. */
  unwanted(peer: Peer, at: MessageAt, flags: number): void {
    const { landings, holdings } = this.host;
    if (at.landing !== null) landings.drop(at.landing);
    else if ((flags & FLAG.REMOTE) === 0) holdings.revoke(peer, at);
    else {
      const { serial } = holdings.offerAt(at);
      if (serial > 0) landings.decline(peer, serial);
    }
  }

  /** A message that was kept, for the subscription of that id. */
  replayed(origin: Origin, at: MessageAt, flags: number, id: number): void {
    this.accounts.touch(origin);
    origin.received += at.size;
    const subscription = this.origins.locals.get(id);
    const large = (flags & FLAG.LARGE) !== 0;
    if (subscription === undefined || !subscription.origins.has(origin)) {
      if (large) this.unwanted(origin.peer, at, flags);
      return;
    }
    at.replayed = true;
    if (large) return this.#large(origin, subscription.plain, subscription.rich, at);
    const value = this.#decode(origin, at);
    if (value === FAILED) return;
    this.#hand(origin, subscription.plain, subscription.rich, value, at);
  }

  /** A message that lies in its publisher's pool: one hold for all local subscribers, whatever they ask for. */
  #large(origin: Origin, plain: Origin['plain'], rich: Origin['rich'], at: MessageAt): void {
    const { holdings } = this.host;
    const { landing } = at;
    if (landing !== null && landing.error !== null)
      return this.origins.notRead(origin, landing.at.sequence, landing.bytes, landing.error);
    let value: unknown;
    try {
      at.held = landing === null ? holdings.take(origin, at) : landing.held;
      if (at.held === null) return this.origins.gap(origin, at.sequence, at.sequence, 1, 'unavailable');
      let lessees = 0;
      for (const one of rich) if (one.leases === true) lessees++;
      // Of several the first must not take it from the next.
      if (lessees > 1) holdings.several(at.held);
      if (plain.length > 0 || rich.length > lessees) {
        value = holdings.value(at.held);
        if (origin.validate !== null) value = origin.validate(value);
      }
      this.#hand(origin, plain, rich, value, at);
    } catch (error) {
      this.origins.unreadable(origin, at.sequence, error);
    } finally {
      if (at.held !== null) holdings.handed(at.held);
      at.held = null;
    }
  }

  #decode(origin: Origin, at: MessageAt): unknown {
    try {
      const value = origin.decoder.decode(at.bytes, at.headersEnd, at.payloadEnd);
      return origin.validate === null ? value : origin.validate(value);
    } catch (error) {
      this.origins.unreadable(origin, at.sequence, error);
      return FAILED;
    }
  }

  #hand(origin: Origin, plain: Origin['plain'], rich: Origin['rich'], value: unknown, at: MessageAt): void {
    origin.count.received++;
    origin.count.receivedBytes += at.size;
    for (let i = 0; i < plain.length; i++) {
      try {
        plain[i]!.next(value);
      } catch (error) {
        reportUnhandled(error);
      }
    }
    for (let i = 0; i < rich.length; i++) {
      try {
        rich[i]!.message(origin, value, at);
      } catch (error) {
        reportUnhandled(error);
      }
    }
  }
}
