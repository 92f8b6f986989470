import { type AnyMillraceError, MillraceError } from '../../errors.js';
import type { EndMark } from '../frames.js';
import type { Peer } from '../peer.js';
import type { Status } from '../status.js';
import type { InboundCounts, LocalSubscription, Origin } from '../subscription.js';
import type { GapEvent, PublisherLeftEvent, StatusEvent } from '../types.js';
import type { GapReason } from '../wire.js';

/**
 * The publishers that this member hears, by peer and channel number, and what its subscribers are told of them besides
 * messages: gaps, errors, and their end.
 */
export class Origins {
  /** This member's subscriptions, by id. */
  readonly locals = new Map<number, LocalSubscription>();
  /** Records for which nobody is (any more), and records of kinds that this version does not know. */
  strays = 0;
  readonly #origins = new Map<Peer, Map<number, Origin>>();
  readonly #counts = new Map<string, InboundCounts>();

  constructor(private readonly status: Status) {}

  /** Opens the counts of a channel of this member. Names that only patterns hear are not kept: there may be any number. */
  count(channel: string): InboundCounts {
    const counts = newCounts();
    this.#counts.set(channel, counts);
    for (const origin of this.named(channel)) origin.count = counts;
    return counts;
  }

  /** The channel is closed. */
  uncount(channel: string): void {
    this.#counts.delete(channel);
  }

  /** Publishers that a subscription hears. */
  *named(channel: string): Iterable<Origin> {
    for (const byNumber of this.#origins.values()) {
      for (const origin of byNumber.values()) if (origin.name === channel) yield origin;
    }
  }

  /** All of them. */
  *[Symbol.iterator](): Iterator<Origin> {
    for (const byNumber of this.#origins.values()) yield* byNumber.values();
  }

  /** Those of one peer, by channel number. */
  of(peer: Peer): ReadonlyMap<number, Origin> | undefined {
    return this.#origins.get(peer);
  }

  /** The counts of a channel, or new ones where nobody keeps them. */
  countsOf(channel: string): InboundCounts {
    return this.#counts.get(channel) ?? newCounts();
  }

  /** A publisher has answered a subscription; it takes the place of an earlier stream of that number. */
  add(origin: Origin): void {
    let byNumber = this.#origins.get(origin.peer);
    if (byNumber === undefined) {
      byNumber = new Map();
      this.#origins.set(origin.peer, byNumber);
    }
    byNumber.set(origin.number, origin);
  }

  clear(): void {
    this.locals.clear();
    this.#origins.clear();
  }

  // ---- what is told ------------------------------------------------------------------------------------------------

  /** A message could not be decoded or is not valid: counted, told once a turn, and a gap. */
  unreadable(origin: Origin, sequence: number, error: unknown): void {
    const known = asMillraceError(error, origin);
    origin.count.decodeErrors++;
    origin.turnErrors++;
    origin.turnError ??= known;
    this.gap(origin, sequence, sequence, 1, known.code.startsWith('ERR_SCHEMA') ? 'schema' : 'decode');
  }

  /** A large message of a member elsewhere could not be read: a gap, and why. */
  notRead(origin: Origin, sequence: number, bytes: number, error: AnyMillraceError): void {
    const reason =
      error.code === 'ERR_MESSAGE_TOO_LARGE'
        ? 'too-large'
        : error.code === 'ERR_PEER_LOST'
          ? 'lost'
          : 'unavailable';
    this.gap(origin, sequence, sequence, 1, reason);
    const { name: channel, peer } = origin;
    this.tell(origin, { type: 'payload-failed', channel, peer: peer.identity, sequence, bytes, error });
  }

  /** Tells status$ of the turn's errors. */
  tellErrors(origin: Origin): void {
    const count = origin.turnErrors;
    const error = origin.turnError as AnyMillraceError;
    origin.turnErrors = 0;
    origin.turnError = null;
    this.tell(origin, {
      type: 'decode-error',
      channel: origin.name,
      peer: origin.peer.identity,
      count,
      error,
    });
  }

  /** Tells its subscribers that messages are missing. */
  gap(origin: Origin, from: number, to: number, count: number, reason: GapReason): void {
    origin.count.missing += count;
    const { name: channel, peer } = origin;
    const event: GapEvent = { type: 'gap', channel, publisher: peer.identity, from, to, count, reason };
    for (const rich of origin.rich) rich.gap?.(origin, event);
    this.tell(origin, { type: 'gap', channel, peer: peer.identity, from, to, count, reason });
  }

  /** Tells the channels and patterns that hear this publisher, and the member once. */
  tell(origin: Origin, event: StatusEvent): void {
    const told = new Set<Status>();
    for (const { status } of [...origin.live, ...origin.waiting.map((one) => one.subscription)])
      told.add(status);
    for (const status of told) status.emitHere(event);
    this.status.emit(event);
  }

  /** Stands behind the peer's last frame. */
  peerEnded(peer: Peer, { why }: EndMark): void {
    for (const origin of [...(this.#origins.get(peer)?.values() ?? [])]) {
      const last = peer.lasts.get(origin.number);
      peer.lasts.delete(origin.number);
      origin.reorder?.finish(why === 'left' ? 'left' : 'lost');
      if (origin.closed) continue;
      // It left, and what it published to the last is not all here.
      if (last !== undefined && last.to >= origin.next) this.missing(origin, last.to, 'left');
      this.left(origin, why);
    }
    this.#origins.delete(peer);
    for (const [, last] of peer.lasts) this.#unheard(peer, last);
  }

  /** Nothing comes of what is next, up to `to`. Each subscription is told of what was for it: one may begin within. */
  missing(origin: Origin, to: number, reason: GapReason): void {
    // Beyond it counting stands still, whatever a peer says (I9).
    const last = Math.min(to, Number.MAX_SAFE_INTEGER - 1);
    for (let from = origin.next; from <= last; from = origin.next) {
      if (origin.waiting.length > 0) origin.arrive(from);
      const until = Math.min(last, ...origin.waiting.map(({ first }) => first - 1));
      origin.next = until + 1;
      origin.last = until;
      this.gap(origin, from, until, until - from + 1, reason);
    }
  }

  /** It left before anything of a channel came here, not even that we are subscribed. */
  #unheard(peer: Peer, { name: channel, from, to }: { name: string; from: number; to: number }): void {
    const told = new Set<Status>();
    for (const { wanted, status } of this.locals.values()) if (wanted.matches(channel)) told.add(status);
    if (told.size === 0) return;
    const event = {
      type: 'gap',
      channel,
      peer: peer.identity,
      from,
      to,
      count: to - from + 1,
      reason: 'left',
    } as const;
    for (const status of told) status.emitHere(event);
    this.status.emit(event);
  }

  /** It publishes no more; stands after its last message. */
  left(origin: Origin, reason: PublisherLeftEvent['reason']): void {
    const { name: channel, peer, last: sequence } = origin;
    // Also those that were acknowledged and for which nothing has come yet.
    origin.arrive(Number.POSITIVE_INFINITY);
    const event = { type: 'publisher-left', channel, publisher: peer.identity, reason, sequence } as const;
    for (const rich of origin.rich) rich.left?.(origin, event);
    this.forget(origin);
  }

  /** Nothing more of it is for anybody here. */
  forget(origin: Origin): void {
    origin.close();
    const byNumber = this.#origins.get(origin.peer);
    if (byNumber?.get(origin.number) === origin) byNumber.delete(origin.number);
    for (const subscription of [...origin.live, ...origin.waiting.map((one) => one.subscription)]) {
      subscription.origins.delete(origin);
    }
  }
}

const newCounts = (): InboundCounts => ({
  received: 0,
  receivedBytes: 0,
  missing: 0,
  decodeErrors: 0,
  duplicates: 0,
});

export function asMillraceError(error: unknown, origin: Origin): AnyMillraceError {
  if (error instanceof MillraceError) return error;
  return new MillraceError(
    'ERR_DECODE',
    `A message of ${origin.peer.info.name} on ${JSON.stringify(origin.name)} could not be decoded: ${String(error)}`,
    { cause: error },
  );
}
