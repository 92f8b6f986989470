import { join } from 'node:path';
import { MillraceError } from '../../errors.js';
import type { Native } from '../../native/binding.js';
import { nativeError } from '../../native/faults.js';
import { ENDED, USE } from '../../native/lending-calls.js';
import { forgetSource } from '../codec/plain-read.js';
import { sources } from '../codec/view.js';
import type { Peer } from '../peer.js';
import type { MessageAt, Origin } from '../subscription.js';
import type { StatusEvent } from '../types.js';
import type { Copies } from './copies.js';
import { putBack } from './fields.js';
import { Held as OfOrigin } from './held.js';
import { HeldTable } from './held-table.js';
import { Lease, type LeaseEnd } from './lease.js';
import { type Body, LARGE_BYTES, type Place, readLarge, readOffer } from './pool.js';
import { untransferable } from './untransferable.js';

type Held = OfOrigin<Origin>;

/** What the holdings need of their member. */
export interface HoldingsHost {
  readonly self: Peer;
  /** Tells a publisher, who waits for it, that something was given back. */
  gaveBack(peer: Peer): void;
  /** Tells the channel's subscribers and the member. */
  tellOf(origin: Origin, event: StatusEvent): void;
}

/** What is in every stack of a subscription: this library, RxJS and Node.js itself. */
const OURS = [join(__dirname, '..', '..', '/'), '/node_modules/rxjs/', '(node:', 'at node:'];

/**
 * The blocks of other members that this one holds. Subscribers get the message as its own, held until nobody can reach its
 * memory any more, or as a lease, held until it is released. Nothing is used again before (I5).
 */
export class Holdings {
  readonly #held = new HeldTable<Held>();
  readonly #dev = process.env.MILLRACE_DEV === '1';
  #watching = false;
  #closed = false;

  constructor(
    private readonly native: Native,
    private readonly handle: number,
    private readonly host: HoldingsHost,
    private readonly copies: Copies,
  ) {}

  /**
   * Takes the large message at `at`.
   * @returns null when its publisher has taken it back
   * @throws MillraceError when it is not valid or cannot be mapped; nothing is held then
   */
  take(origin: Origin, at: MessageAt): Held | null {
    const body = readLarge(at);
    if (body === null) {
      this.revoke(origin.peer, at);
      throw notValid(origin);
    }
    let id: number;
    try {
      id = this.native.takeHold(this.handle, origin.peer.info.incarnation, at.bytes, at.headersEnd);
    } catch (error) {
      throw nativeError('map a large message', this.native, error);
    }
    return id === 0 ? null : this.#hold(id, origin, origin.peer, at.sequence, body);
  }

  /** What a descriptor from elsewhere offers; zeros where it is too short for one. */
  offerAt(at: Place): { serial: number; bytes: number } {
    if (at.payloadEnd - at.headersEnd < LARGE_BYTES) return { serial: 0, bytes: 0 };
    const { serial, bytes } = readOffer(at.view, at.headersEnd);
    return Number.isSafeInteger(serial) && Number.isSafeInteger(bytes)
      ? { serial, bytes }
      : { serial: 0, bytes: 0 };
  }

  /**
   * Takes a block of our own for the large message at `at`, of a member elsewhere, and begins to read it.
   * @returns null when there is no room for it now
   * @throws MillraceError, NativeError: it is not valid, or why there will be no room; nothing is held then
   */
  land(origin: Origin, at: Place & { sequence: number }): { held: Held; fetch: number } | null {
    const body = readLarge(at);
    if (body === null) throw notValid(origin);
    const begun = this.native.land(this.handle, origin.peer.index, at.bytes, at.headersEnd);
    if (begun === null) return null;
    this.copies.add(body.bytes);
    return { held: this.#hold(begun.hold, origin, this.host.self, at.sequence, body), fetch: begun.fetch };
  }

  #hold(
    id: number,
    origin: Origin,
    owner: Peer,
    sequence: number,
    body: Body & { readonly bytes: number },
  ): Held {
    if (!this.#watching) {
      this.#watching = true;
      this.native.onCollected(this.handle, this.#collected);
    }
    const held = new OfOrigin(id, origin, owner, sequence, body);
    this.#held.add(held);
    return held;
  }

  /** Nobody here wants the large message at `at`. */
  revoke(peer: Peer, at: { bytes: Uint8Array; headersEnd: number }): void {
    this.native.revokeHold(this.handle, peer.info.incarnation, at.bytes, at.headersEnd);
  }

  /** The message as a value that may be kept for ever. @throws what the decoder throws */
  value(held: Held): unknown {
    held.owned = this.native.holdBuffer(this.handle, held.id, USE.OWNED);
    try {
      return decode(held, held.owned);
    } catch (error) {
      const { owned } = held;
      held.owned = null;
      this.#ended(held, this.native.endHold(this.handle, held.id, USE.OWNED, owned));
      throw error;
    }
  }

  /** Its memory, until the last of its leases ends. */
  #buffer(held: Held): ArrayBuffer {
    return untransferable(this.native.holdBuffer(this.handle, held.id, USE.LEASED));
  }

  /** A lease of the message that is being handed out to who subscribed at `subscribed`, under MILLRACE_DEV=1. */
  lease<T>(held: Held, at: MessageAt, subscribed: string): Lease<T> {
    held.leased ??= this.#buffer(held);
    held.leases++;
    const buffer = held.leased;
    held.remember(subscribed);
    const { start, end } = held.body;
    const bytes = new Uint8Array(buffer, start, end - start);
    return new Lease<T>(held.from, at, bytes, new HeldLease(this, held, buffer));
  }

  /** One lease less. */
  release(held: Held, buffer: ArrayBuffer): void {
    held.leases--;
    if (held.leases > 0) return;
    // Everything was given back, and the memory is this process's own.
    if (this.#closed) return this.native.detachBuffer(buffer);
    // Nobody else is to have the message that is being handed out: one call in place of two.
    const whole = held.taken && !held.several && held.owned === null;
    if (whole) held.taken = false;
    this.#ended(held, this.native.endHold(this.handle, held.id, whole ? USE.LAST : USE.LEASED, buffer));
  }

  /** Where the caller was called from, under MILLRACE_DEV=1. */
  here(what: string): string {
    if (!this.#dev) return '';
    const limit = Error.stackTraceLimit;
    Error.stackTraceLimit = 32;
    const { stack = '' } = new Error(what);
    Error.stackTraceLimit = limit;
    const [, ...frames] = stack.split('\n');
    const others = frames.filter((frame) => !OURS.some((ours) => frame.includes(ours)));
    // In a bundle all frames are of one file.
    return [what, ...(others.length > 0 ? others : frames)].join('\n');
  }

  /** Several will take leases of it. */
  several(held: Held): void {
    held.several = true;
    held.leases = 1;
    held.leased = this.#buffer(held);
  }

  /** A lease of a message that lay in a slot: its bytes are a copy. */
  copied<T>(origin: Origin, value: unknown, at: MessageAt): Lease<T> {
    const bytes = at.bytes.slice(at.headersEnd, at.payloadEnd);
    this.copies.add(bytes.length);
    return new Lease<T>(origin, at, bytes, {
      retained: () => {},
      decode: () => value,
      release: (own) => this.native.detachBuffer(own.buffer as ArrayBuffer),
    });
  }

  /** The message was handed to everyone. */
  handed(held: Held): void {
    // From here on the memory is held by those who got it, and by nobody else.
    if (held.leases > 0 && held.several) this.release(held, held.leased!);
    held.leased = null;
    held.owned = null;
    if (!held.taken) return;
    held.taken = false;
    this.#ended(held, this.native.endHold(this.handle, held.id, USE.TAKEN));
  }

  /** That publisher is gone, and its last frame is delivered. */
  publisherGone(peer: Peer): void {
    this.native.publisherGone(this.handle, peer.info.incarnation);
  }

  /** A publisher is short of blocks: what is only kept moves to memory of this process. */
  vacate(peer: Peer): void {
    if (this.native.vacate(this.handle, peer.info.incarnation) === 0) return;
    for (const held of this.#held) {
      if (held.leases === 0 && held.owner === peer) this.#held.delete(held);
    }
    this.host.gaveBack(peer);
  }

  /** The member leaves: everything is given back, and what is in use keeps its content. */
  close(): void {
    this.#closed = true;
    this.native.closeLeases(this.handle);
    this.#held.clear();
  }

  readonly #collected = (hold: number, use: number, last: boolean, wanted: boolean, strays: number): void => {
    const held = this.#held.get(hold);
    if (held === undefined) return;
    if (use === USE.LEASED && held.leases > 0) this.#forgotten(held);
    this.#ended(held, (last ? ENDED.LAST : 0) | (wanted ? ENDED.WANTED : 0) | (strays << ENDED.STRAYS_SHIFT));
  };

  #ended(held: Held, bits: number): void {
    if ((bits & ENDED.LAST) !== 0) this.#held.delete(held);
    const strays = bits >>> ENDED.STRAYS_SHIFT;
    const { from } = held;
    if (strays > 0) {
      this.#warn(
        'stray-write',
        held,
        `Somebody wrote to ${strays} page${strays === 1 ? '' : 's'} of message ${held.sequence} of ${from.peer.info.name} on channel ${JSON.stringify(from.name)}, ` +
          'which is read only. The writes reached nobody else and are undone. Copy what is to be changed.',
      );
    }
    if ((bits & ENDED.WANTED) === 0 || held.owner.gone) return;
    if ((bits & ENDED.LAST) !== 0) this.host.gaveBack(held.owner);
    // The publisher asked before this was only kept, and waits for an answer before it asks again.
    else if (held.leases === 0 && !held.taken) this.vacate(held.owner);
  }

  #forgotten(held: Held): void {
    const { from, sequence, body, retained } = held;
    held.leases = 0;
    this.#warn(
      'lease-forgotten',
      held,
      `The lease of message ${sequence} of ${from.peer.info.name} on channel ${JSON.stringify(from.name)} (${body.bytes} bytes) was ` +
        'collected and never released. Use lease.use(), using, or release().' +
        (this.#dev
          ? `\nIt was retained by:\n${(retained ?? []).join('\n')}`
          : ' MILLRACE_DEV=1 shows where it was retained.'),
    );
  }

  #warn(type: 'stray-write' | 'lease-forgotten', held: Held, message: string): void {
    const { from, sequence } = held;
    process.emitWarning(message, { type: 'MillraceWarning', code: type });
    this.host.tellOf(held.from, {
      type,
      channel: from.name,
      peer: from.peer.identity,
      sequence,
      bytes: held.body.bytes,
    });
  }
}

const notValid = (origin: Origin) =>
  new MillraceError('ERR_DECODE', `A large message of ${origin.peer.info.name} is not valid.`);

/** How a lease of a held message ends. */
class HeldLease implements LeaseEnd {
  constructor(
    private readonly holdings: Holdings,
    private readonly held: Held,
    private readonly buffer: ArrayBuffer,
  ) {}

  release(): void {
    this.holdings.release(this.held, this.buffer);
  }
  decode(): unknown {
    return decode(this.held, this.buffer);
  }
  retained(): void {
    this.held.remember(this.holdings.here('retain()'));
  }
}

function decode({ from, body }: Held, buffer: ArrayBuffer): unknown {
  try {
    const value = from.decoder.decode(new Uint8Array(buffer), body.start, body.end);
    return putBack(value, body.fields, buffer);
  } finally {
    // The codecs' cache would keep the block.
    sources.clear();
    forgetSource();
  }
}
