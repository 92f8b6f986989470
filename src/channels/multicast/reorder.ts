import type { Clock, Scheduled } from '../clock.js';
import { Batch } from '../frames.js';
import type { GapReason, RecordSource } from '../wire.js';
import { Joiner } from './fragments.js';

/** The first request goes after about so long, each further one after twice as long. */
const BACK_OFF_MS = 4;
/** After so many requests that brought nothing, what is missing is given up. */
const ATTEMPTS = 8;
/** One request names so many ranges at most. */
export const RANGES = 32;

/** A publisher whose messages are put in order. */
export interface Sequenced {
  /** Next sequence that is to be handed on. */
  next: number;
  closed: boolean;
  readonly count: { duplicates: number };
}

/** No publisher comes so far, and beyond it counting stands still (I9). */
const isPossible = (sequence: number): boolean => sequence < Number.MAX_SAFE_INTEGER;

/** What it needs of the receiving side. */
export interface ReorderHost<O extends Sequenced> {
  readonly clock: Clock;
  /** From 0 to below 1. */
  readonly dice: () => number;
  /** Asks the publisher to send these again. */
  requestRepair(origin: O, ranges: readonly (readonly [number, number])[]): void;
  /** Tells the publisher that these were given up. */
  reportMissed(origin: O, from: number, to: number): void;
  /** Tells the subscribers that nothing comes up to `to`. */
  missing(origin: O, to: number, reason: GapReason): void;
  /** `following` may have something. */
  follow(origin: O): void;
}

/**
 * The messages of one publisher of a multicast channel, put in order: what comes too early is held (its memory is a copy, so
 * that it keeps nothing else alive) until what precedes it was repaired, or given up after a bounded number of requests, or
 * because more would have to be held than the limits allow. Then a gap says what is missing (I4).
 *
 * Each request comes after a random back-off: what one subscriber has lost others often have, too.
 */
export class Reorder<O extends Sequenced> {
  readonly counts = { requests: 0, repaired: 0, givenUp: 0 };
  readonly #held = new Map<number, Batch>();
  #heldBytes = 0;
  /** The publisher does not have these any more. */
  #lost: { readonly from: number; readonly to: number; readonly reason: GapReason }[] = [];
  /** Highest sequence that is known to have been sent. */
  #known: number;
  #timer: Scheduled | null = null;
  #attempts = 0;
  /** What waits for everything up to a sequence: the end of the publishing. */
  #after: { readonly sequence: number; readonly call: () => void }[] = [];
  readonly #joiner = new Joiner();

  constructor(
    private readonly host: ReorderHost<O>,
    private readonly origin: O,
    private readonly limits: { readonly messages: number; readonly bytes: number; readonly record: number },
  ) {
    this.#known = origin.next - 1;
  }

  /** Messages that are held. */
  get held(): number {
    return this.#held.size;
  }

  /** A whole message came. @returns whether it is to be handed on now; otherwise it is held, or was here before */
  take(source: RecordSource, start: number, size: number, sequence: number): boolean {
    const { origin } = this;
    if (!isPossible(sequence)) return false;
    if (sequence > this.#known) this.#known = sequence;
    if (sequence < origin.next || this.#held.has(sequence)) {
      origin.count.duplicates++;
      return false;
    }
    while (
      sequence > origin.next &&
      (this.#held.size >= this.limits.messages || this.#heldBytes + size > this.limits.bytes)
    )
      this.#giveUp(sequence);
    if (sequence === origin.next) return true;
    if (sequence < origin.next) return false;
    const copy = new Batch(size);
    copy.bytes.set(source.bytes.subarray(start, start + size));
    this.#held.set(sequence, copy);
    this.#heldBytes += size;
    this.#watch();
    return false;
  }

  /** A part of a message. @returns the whole, once it is there */
  join(source: RecordSource, pos: number): Batch | null {
    return this.#joiner.take(source, pos, this.limits.record);
  }

  /** The publisher has sent everything up to there. */
  sent(sequence: number): void {
    if (!isPossible(sequence)) return;
    if (sequence > this.#known) this.#known = sequence;
    this.#watch();
  }

  /** The publisher can't send these again. */
  lost(from: number, to: number, reason: GapReason): void {
    if (to > this.#known) this.#known = to;
    if (to >= this.origin.next && this.#lost.length < RANGES) this.#lost.push({ from, to, reason });
    this.host.follow(this.origin);
  }

  /** Calls when everything up to that sequence was handed on or given up. */
  whenDone(sequence: number, call: () => void): void {
    if (this.origin.next > sequence) return call();
    this.#after.push({ sequence, call });
    this.sent(sequence);
  }

  /** The next message in order, if it is here; what is known to be lost in front of it is told. */
  following(): Batch | null {
    const { origin } = this;
    while (!origin.closed) {
      const record = this.#held.get(origin.next);
      if (record !== undefined) {
        this.#held.delete(origin.next);
        this.#heldBytes -= record.bytes.length;
        return record;
      }
      const lost = this.#lost.find(({ from, to }) => from <= origin.next && to >= origin.next);
      if (lost === undefined) break;
      this.#gap(Math.min(lost.to, this.#nextHeld() - 1), lost.reason);
    }
    this.#attempts = 0;
    if (this.#lost.length > 0) this.#lost = this.#lost.filter(({ to }) => to >= origin.next);
    const due = this.#after.filter(({ sequence }) => sequence < origin.next);
    if (due.length > 0) {
      this.#after = this.#after.filter(({ sequence }) => sequence >= origin.next);
      for (const { call } of due) call();
    }
    return null;
  }

  /** Nothing more comes: tells what is missing up to what is known, and hands on what is held. */
  finish(reason: GapReason): void {
    while (!this.origin.closed && this.origin.next <= this.#known) {
      this.#gap(this.#nextHeld() - 1, reason);
      this.host.follow(this.origin);
    }
  }

  close(): void {
    if (this.#timer !== null) this.host.clock.clearTimeout(this.#timer);
    this.#timer = null;
    this.#held.clear();
    this.#after = [];
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  get #waiting(): boolean {
    return !this.origin.closed && this.origin.next <= this.#known;
  }

  #watch(): void {
    if (this.#timer !== null || !this.#waiting) return;
    const ms = BACK_OFF_MS * 2 ** this.#attempts * (0.5 + this.host.dice());
    this.#timer = this.host.clock.setTimeout(() => {
      this.#timer = null;
      if (this.#waiting) this.#due();
      this.#watch();
    }, ms);
    this.#timer.unref?.();
  }

  #due(): void {
    if (this.#attempts >= ATTEMPTS) {
      this.#giveUp();
      return;
    }
    this.#attempts++;
    this.counts.requests++;
    this.host.requestRepair(this.origin, this.#ranges());
  }

  /** What is missing, oldest first. */
  #ranges(): [number, number][] {
    const ranges: [number, number][] = [];
    let from = this.origin.next;
    for (const sequence of [...this.#held.keys()].sort((a, b) => a - b)) {
      if (ranges.length === RANGES) return ranges;
      if (sequence > from) ranges.push([from, sequence - 1]);
      from = sequence + 1;
    }
    if (from <= this.#known && ranges.length < RANGES) ranges.push([from, this.#known]);
    return ranges;
  }

  /** Gives up what precedes the first message that is held, or the one that has just come, or all that is missing. */
  #giveUp(came = Number.POSITIVE_INFINITY): void {
    const from = this.origin.next;
    const to = Math.min(this.#nextHeld(), came) - 1;
    this.counts.givenUp += to - from + 1;
    this.#gap(to, 'lost');
    this.host.reportMissed(this.origin, from, to);
    this.host.follow(this.origin);
  }

  #gap(to: number, reason: GapReason): void {
    if (to >= this.origin.next) this.host.missing(this.origin, to, reason);
  }

  /** The first message that is held, or the one after all that is known. */
  #nextHeld(): number {
    let first = this.#known + 1;
    for (const sequence of this.#held.keys()) if (sequence < first) first = sequence;
    return first;
  }
}
