import type { Codec, Decoder } from './codec/codec.js';
import { announced } from './codecs.js';
import type { Held } from './lending/held.js';
import type { Landing, Waiting } from './lending/landing.js';
import type { NotPosted } from './lending/not-posted.js';
import type { Reorder } from './multicast/reorder.js';
import type { ChannelSettings } from './options.js';
import type { Overflow } from './overflow/index.js';
import type { Peer } from './peer.js';
import { validator } from './schema.js';
import type { Status } from './status.js';
import type { GapEvent, PublisherJoinedEvent, PublisherLeftEvent } from './types.js';
import type { Delivery } from './wire.js';

/** Where a message lies. One object per member, overwritten for each message: read it at once, never keep it. */
export interface MessageAt {
  bytes: Uint8Array;
  view: DataView;
  sequence: number;
  time: number;
  headersStart: number;
  headersEnd: number;
  payloadEnd: number;
  /** Bytes of the whole record: what counts against the window. */
  size: number;
  replayed: boolean;
  /** A large message: what is held of it while it is handed out. */
  held: Held<Origin> | null;
  /** A large message that was read from elsewhere. */
  landing: Landing<Origin> | null;
}

/** A subscriber that wants values only: the shortest way there is. */
export interface Plain<T> {
  next(value: T): void;
  error(error: unknown): void;
  complete(): void;
}

/** A subscriber that wants more: events, batches, a buffer of its own. */
export interface Rich<T> {
  /** It takes leases: of a large message there is no value for it, but `at.held`. */
  readonly leases?: true;
  message(origin: Origin, value: T, at: MessageAt): void;
  gap?(origin: Origin, event: GapEvent): void;
  joined?(origin: Origin, event: PublisherJoinedEvent): void;
  left?(origin: Origin, event: PublisherLeftEvent): void;
  /** The turn's messages were delivered. */
  endOfTurn?(): void;
  /** This side ended: in order, or by a fatal local fault. */
  ended(error?: Error): void;
}

/** Counts of a channel as it arrives, of all publishers together. */
export interface InboundCounts {
  received: number;
  receivedBytes: number;
  /** Messages that gaps told of. */
  missing: number;
  decodeErrors: number;
  duplicates: number;
}

/** What a local subscription asks of publishers, and how it reads them. */
export interface Wanted {
  readonly channel: string | null;
  readonly pattern: string | null;
  matches(channel: string): boolean;
  readonly overflow: Overflow;
  /** null: whichever the publisher has. */
  readonly delivery: Delivery | null;
  /** Multicast: what is held while a repair is waited for. */
  readonly hold: { readonly messages: number; readonly bytes: number };
  readonly window: number;
  /** null: whatever built-in codec the publisher announces. */
  readonly codec: Codec<unknown> | null;
  readonly schemaId: string | null;
  readonly replay: number;
  readonly replayBytes: number;
  readonly echo: boolean;
  /** Makes the check for one publisher; throws what is wrong with the value. */
  readonly validator: (() => (value: unknown) => unknown) | null;
}

/** What a subscription asks for, from the settings of a channel or pattern. */
export function wantedOf(
  settings: ChannelSettings,
  what: { channel: string } | { pattern: string; matches(channel: string): boolean },
): Wanted {
  const { schema, validate } = settings;
  return {
    channel: 'channel' in what ? what.channel : null,
    pattern: 'pattern' in what ? what.pattern : null,
    matches: 'channel' in what ? (name) => name === what.channel : what.matches,
    overflow: settings.overflow,
    // What a slow reader has not taken would have no bound where neither it drops nor the publisher waits.
    delivery: 'channel' in what ? settings.delivery : settings.overflow === 'wait' ? 'lane' : null,
    hold: { messages: settings.repair, bytes: settings.repairBytes },
    window: settings.windowBytes,
    codec: settings.codec,
    schemaId: settings.schemaId,
    replay: settings.replay,
    replayBytes: settings.replayBytes,
    echo: settings.echo,
    validator: schema === null || validate === 'off' ? null : () => validator(schema, validate),
  };
}

/**
 * One subscription on the wire and the local subscribers that share it. Lists are copied on write, so a loop over one of
 * them is not disturbed by whoever subscribes or unsubscribes meanwhile.
 */
export class LocalSubscription {
  plain: readonly Plain<unknown>[] = [];
  rich: readonly Rich<unknown>[] = [];
  /** Publishers that acknowledged it. */
  readonly origins = new Set<Origin>();
  open = true;
  /** Stops listening to the group of a multicast channel. */
  stopListening: () => void = () => {};

  constructor(
    readonly id: number,
    readonly wanted: Wanted,
    readonly status: Status,
  ) {}

  get empty(): boolean {
    return this.plain.length === 0 && this.rich.length === 0;
  }

  addPlain(subscriber: Plain<unknown>): void {
    this.plain = [...this.plain, subscriber];
    this.#changed();
  }

  addRich(subscriber: Rich<unknown>): void {
    this.rich = [...this.rich, subscriber];
    this.#changed();
  }

  /** @returns false if it was not there (any more) */
  remove(subscriber: Plain<unknown> | Rich<unknown>): boolean {
    const plain = this.plain.filter((one) => one !== subscriber);
    const rich = this.rich.filter((one) => one !== subscriber);
    if (plain.length === this.plain.length && rich.length === this.rich.length) return false;
    this.plain = plain;
    this.rich = rich;
    this.#changed();
    return true;
  }

  /** A publisher acknowledged it. */
  acknowledged(): void {
    for (const told of [...this.onAcknowledged]) told();
  }
  readonly onAcknowledged = new Set<() => void>();

  /** The body of `subscribe`. */
  body(maxRecord: number): Record<string, unknown> {
    const { channel, pattern, overflow, delivery, window, codec, schemaId, replay, replayBytes } =
      this.wanted;
    return {
      id: this.id,
      ...(channel === null ? { pattern } : { channel }),
      overflow,
      delivery,
      window,
      codec: codec === null ? null : announced(codec.name),
      schema: schemaId,
      replay,
      replayBytes,
      maxRecord,
    };
  }

  #changed(): void {
    for (const origin of this.origins) origin.refresh();
  }
}

/** Bytes and sequence that a buffering subscriber (an iterator, a Web stream) still holds of one publisher. */
export class Holder {
  /** Messages that were dropped here in this turn, and ever. */
  dropped = 0;
  droppedTotal = 0;
  constructor(
    /** What it holds counts against the publisher's window. */
    readonly waits: boolean,
  ) {}
  bytes = 0;
  /** Sequence of the oldest message that it holds; meaningful while bytes > 0. */
  first = 0;
}

/**
 * One publisher's channel as it arrives here: its decoder, its place in the sequence, its byte window, and who listens.
 * One per (publisher incarnation, channel), whatever the number of local subscriptions.
 */
export class Origin {
  /** Next live sequence. */
  next: number;
  plain: readonly Plain<unknown>[] = [];
  rich: readonly Rich<unknown>[] = [];
  /** Subscriptions that are live, and those that wait for their first live sequence (a queue may be in front of it). */
  live: LocalSubscription[] = [];
  waiting: { subscription: LocalSubscription; first: number }[] = [];
  /** Checks values; null if nothing is to be checked. */
  validate: ((value: unknown) => unknown) | null = null;
  readonly holders: Holder[] = [];
  /** What the channel's counts are kept in. */
  count: InboundCounts;
  /** Bytes of DATA that came, and what was told of them last. */
  received = 0;
  reported = 0;
  reportedSequence = 0;
  /** Last sequence that was handed on, dropped or known to be missing. */
  last: number;
  /** Tell the publisher again and again until this sequence is delivered (REPORT). */
  owes = -1;
  asked = false;
  /** In the list of those to look after at the end of the turn. */
  touched = false;
  closed = false;
  decodeErrors = 0;
  /** First error of this turn, for one status event a turn. */
  turnErrors = 0;
  turnError: unknown = null;
  /** Puts what comes of a multicast channel in order; null on lanes, which are. */
  reorder: Reorder<Origin> | null = null;
  /** Stops listening to its group. */
  stopListening: () => void = () => {};
  /** Records that wait behind a large message of a member elsewhere, which is the first, until it is here. */
  readonly line: Waiting<Origin>[] = [];
  /** Serial of the last offer of such a message. */
  offers = 0;
  /** What its leases say to who wants to clone them. */
  notPosted: NotPosted | null = null;
  /** Gives up what is in the line. */
  abandon: () => void = () => {};
  /** Smallest window that was asked for: CONSUMED goes out at half of it. */
  window: number;

  constructor(
    readonly peer: Peer,
    readonly number: number,
    readonly name: string,
    readonly codec: string,
    /** The publisher's count of windows for us; a CONSUMED of an older one is ignored there. */
    readonly generation: number,
    readonly decoder: Decoder<unknown>,
    first: number,
    window: number,
    count: InboundCounts,
  ) {
    this.count = count;
    this.next = first;
    this.last = first - 1;
    this.reportedSequence = first - 1;
    this.window = window;
  }

  /** A subscription was acknowledged: live from `first` on. */
  attach(subscription: LocalSubscription, first: number): void {
    subscription.origins.add(this);
    if (this.validate === null && subscription.wanted.validator !== null)
      this.validate = subscription.wanted.validator();
    this.window = Math.min(this.window, subscription.wanted.window);
    if (first <= this.next) this.live.push(subscription);
    else this.waiting.push({ subscription, first });
    this.refresh();
  }

  detach(subscription: LocalSubscription): void {
    subscription.origins.delete(this);
    this.live = this.live.filter((one) => one !== subscription);
    this.waiting = this.waiting.filter((one) => one.subscription !== subscription);
    this.refresh();
  }

  /** Nothing more is delivered. */
  close(): void {
    this.closed = true;
    this.reorder?.close();
    this.stopListening();
    this.abandon();
  }

  /** Whether anybody listens. */
  get idle(): boolean {
    return this.live.length === 0 && this.waiting.length === 0;
  }

  /** Moves subscriptions to the live ones whose first sequence is reached. */
  arrive(sequence: number): void {
    const ready = this.waiting.filter(({ first }) => first <= sequence);
    if (ready.length === 0) return;
    this.waiting = this.waiting.filter(({ first }) => first > sequence);
    for (const { subscription } of ready) this.live.push(subscription);
    this.refresh();
  }

  /** The lists of subscribers changed. */
  refresh(): void {
    if (this.live.length === 1) {
      this.plain = this.live[0]!.plain;
      this.rich = this.live[0]!.rich;
    } else {
      this.plain = this.live.flatMap((one) => one.plain);
      this.rich = this.live.flatMap((one) => one.rich);
    }
  }

  /** Bytes that the slowest local subscriber has taken. */
  get consumed(): number {
    let held = 0;
    for (const holder of this.holders) if (holder.waits && holder.bytes > held) held = holder.bytes;
    return this.received - held;
  }

  /** Last sequence that every local subscriber has taken. */
  get delivered(): number {
    let sequence = this.last;
    for (const holder of this.holders)
      if (holder.bytes > 0 && holder.first <= sequence) sequence = holder.first - 1;
    return sequence;
  }
}
