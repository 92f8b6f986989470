import type { AnyMillraceError, MillraceError } from '../errors.js';
import { writeSubscribed } from './bodies.js';
import type { Clock } from './clock.js';
import type { Codec, Encoder } from './codec/codec.js';
import { announced } from './codecs.js';
import type { Control } from './control.js';
import { Destination, type DestinationHost } from './destination.js';
import type { DestinationEnd, Ticket } from './expectations.js';
import { writeHeaders } from './headers.js';
import { Loan, usedUp } from './lending/loan.js';
import { pack } from './lending/pack.js';
import { type Block, type Body, LARGE_BYTES, NO_FIELDS, type Pool, writeLarge } from './lending/pool.js';
import type { Mismatch } from './mismatch.js';
import type { SendingGroup } from './multicast/groups.js';
import { type MulticastOptions, Sender, type SenderHost } from './multicast/sender.js';
import { keyAt } from './overflow/index.js';
import type { Peer, PeerSubscription } from './peer.js';
import {
  type Full,
  notEncoded,
  notSelfContained,
  poolFull,
  publishingEnded,
  reentrant,
  refused,
  tooLarge,
} from './refusals.js';
import { ReplayStore } from './replay.js';
import type { Status } from './status.js';
import { Tally } from './tally.js';
import type { Transport } from './transport.js';
import type { Headers } from './types.js';
import {
  type Delivery,
  type DoneBody,
  FLAG,
  FRAME_BYTES,
  KIND,
  payloadLimit,
  RECORD_BYTES,
  recordSize,
  writeHeader,
} from './wire.js';

/** Room that is kept behind a message for the definitions that it makes. */
const DEFINE_ROOM = recordSize(0, 2048);
/** A full arena is polled for so many times before a message is refused: delayed completions come by polling. */
const ARENA_TRIES = 64;

/**
 * While messages are held back, a look for what the subscribers took comes after so many bytes of them: a loop that goes on
 * publishing would otherwise leave a subscriber without work until the queue is full.
 */
const LOOK_BYTES = 16 * 1024;

/** What `emit` returns instead of a sequence. */
export const REFUSED = {
  /** A `wait` subscriber is full, or the arena is. Try later. */
  FULL: -1,
  /** The value cannot be sent; `lastError` says why. */
  VALUE: -2,
  /** complete(), error() or close() came first. */
  ENDED: -3,
} as const;

/** What a publishing channel needs of its member. */
export interface OutboundHost {
  readonly clock: Clock;
  readonly transport: Transport;
  readonly control: Control;
  readonly pool: Pool;
  /** A block of the pool; what drop policies let go of makes room. Null when there is none. @throws as Pool.lend() */
  lend(bytes: number): Block | null;
  /** Milliseconds since the epoch, taken once a turn. */
  stamp(): number;
  /** Subscriptions of this member were told to peers since `seal` was called. */
  readonly unsealed: boolean;
  /** Whatever is sent from here on is delivered after those subscriptions. */
  seal(): void;
  /** The same for one peer on one lane, where a first record is about to go. */
  sealLane(peer: Peer, lane: number): void;
  /** A flush at the end of this turn. */
  schedule(): void;
  /** Polls natively and serves who got room; delivers nothing. */
  progress(): void;
  nextGeneration(): number;
  /** Channels that have something to tell at the end of the turn. */
  dirty(channel: AnyOutChannel): void;
  /** A message was refused for want of room in the arena. */
  wantsArena(channel: AnyOutChannel): void;
  /** A message was refused for want of a block. */
  wantsBlock(channel: AnyOutChannel): void;
  awaitsRoom(destination: Destination): void;
  /** Gap records are due within 100 ms. */
  gapDue(destination: Destination): void;
  later(destination: Destination): void;
  awaits(peer: Peer): void;
  /** Something is held back, or no more. */
  queues(on: boolean): void;
  /** A closed channel has told all its subscribers. */
  finished(channel: AnyOutChannel): void;
  /** Opens the sending end of a channel's multicast group. @throws NativeError */
  sendingGroup(channel: string): SendingGroup;
  /** Announces the channel to one peer on the control connection. */
  announce(peer: Peer, body: Record<string, unknown>): void;
}

/** A publishing channel of whatever type. */
// biome-ignore lint/suspicious/noExplicitAny: a channel of T takes only T, which nobody who holds them all knows
export type AnyOutChannel = OutChannel<any>;

/** What a publisher of one channel is made of. */
export interface OutOptions<T> {
  readonly codec: Codec<T>;
  readonly schemaId: string | null;
  readonly maxQueueBytes: number;
  readonly maxWait: number;
  readonly replay: number;
  readonly replayBytes: number;
  readonly lane: number;
  /** null: on lanes. */
  readonly multicast: MulticastOptions | null;
  /** Throws what is wrong with a value; null if values are not checked. */
  readonly validate: ((value: unknown) => unknown) | null;
}

const utf8 = new TextEncoder();
/** What a large message's record takes, as it is estimated before it is packed. */
const ESTIMATE = recordSize(0, LARGE_BYTES + 256);

/**
 * The publisher's side of one channel: encodes a value once and hands the record to every destination.
 *
 * Sequences are given out here and nowhere else; a value that is refused takes none, so whatever is missing at a
 * subscriber was dropped by its own policy and is told by its destination (I4).
 */
export class OutChannel<T> implements DestinationHost, SenderHost {
  readonly transport: Transport;
  readonly control: Control;
  readonly clock: Clock;
  readonly pool: Pool;
  readonly lane: number;
  readonly maxQueueBytes: number;
  readonly maxWait: number;
  readonly encoder: Encoder<T>;
  readonly delivery: Delivery;
  /** How a multicast channel sends; null on lanes. */
  readonly sender: Sender | null;
  /** The codec as it is announced. */
  readonly codecName: string;
  /** Last sequence that was given out. */
  sequence = 0;
  destinations: Destination[] = [];
  ended: DoneBody['how'] | null = null;
  /** Why the last value was not taken. */
  lastError: AnyMillraceError | null = null;
  lastCode: number = REFUSED.FULL;
  readonly counts = { publishedBytes: 0, refused: 0, encodeErrors: 0, dropped: 0 };
  readonly #tally: Tally;
  #done: Uint8Array | null = null;
  #full = 0;
  /** Bytes that were queued since the last look. */
  #heldBack = 0;
  #arenaFull = false;
  #poolFull = false;
  #keys = false;
  readonly #replay: ReplayStore | null;
  readonly #limit: number;
  readonly #writable = new Set<() => void>();
  readonly #watchers = new Set<() => void>();

  constructor(
    private readonly host: OutboundHost,
    readonly number: number,
    readonly name: string,
    readonly options: OutOptions<T>,
    readonly status: Status,
  ) {
    this.transport = host.transport;
    this.control = host.control;
    this.clock = host.clock;
    this.pool = host.pool;
    this.lane = options.lane;
    this.maxQueueBytes = options.maxQueueBytes;
    this.maxWait = options.maxWait;
    const { multicast } = options;
    this.delivery = multicast === null ? 'lane' : 'multicast';
    this.sender = multicast === null ? null : new Sender(host, this, host.sendingGroup(name), multicast);
    this.encoder = options.codec.encoder({ selfContained: multicast !== null });
    this.codecName = announced(options.codec.name);
    this.#replay =
      options.replay > 0
        ? new ReplayStore(options.replay, options.replayBytes, (block) => host.pool.unref(block))
        : null;
    this.#limit = payloadLimit(host.transport.slotBytes);
    this.#tally = new Tally(name, status);
  }

  // ---- publishing ----------------------------------------------------------------------------------------------------

  /**
   * Takes a value: validates, encodes once, hands it to every destination, keeps it for replay.
   * @returns its sequence, or one of REFUSED; then nothing was taken and `lastError` is set
   */
  emit(value: T | Loan, headers: Headers | undefined, ticket: TicketMaker | null): number {
    const { transport } = this;
    const { arena } = transport;
    if (this.ended !== null) return this.#endedError();
    if (arena.encoding) return this.#failed(reentrant(this.name));
    if (this.#heldBack >= LOOK_BYTES) {
      this.#heldBack = 0;
      this.host.progress();
    }
    if (this.#full > 0 && this.#mustWait()) {
      this.host.progress();
      if (this.#full > 0 && this.#mustWait()) return this.#refuse(null);
    }
    if (value instanceof Loan) return this.#emitLoan(value, headers, ticket);
    if (this.options.validate !== null) {
      arena.encoding = true; // a validator is user code, too
      try {
        this.options.validate(value);
      } catch (error) {
        return this.#failed(error);
      } finally {
        arena.encoding = false;
      }
    }
    if (this.destinations.length === 0 && this.#replay === null) return ++this.sequence;
    if (this.host.unsealed) this.host.seal();

    const start = this.#reserve();
    if (start < 0) return this.#refuse('arena');
    const limit = this.#limit;
    let head = 0;
    let end: number;
    arena.encoding = true;
    try {
      if (headers !== undefined) head = writeHeaders(headers, arena.bytes, start + RECORD_BYTES, limit);
      if (this.#keys)
        for (const one of this.destinations) if (one.keyPath !== null) one.key = keyAt(value, one.keyPath);
      const from = start + RECORD_BYTES + head;
      end = head < 0 ? -1 : this.encoder.encode(value, arena.bytes, from, start + RECORD_BYTES + limit);
    } catch (error) {
      return this.#failed(error);
    } finally {
      arena.encoding = false;
    }
    if (head < 0) return this.#failed(tooLarge(this.name, 'its headers', limit));
    if (end < 0) {
      if (this.sender === null) return this.#emitLarge(value, headers, ticket);
      return this.#failed(
        tooLarge(this.name, 'its encoded bytes (a multicast channel lends no blocks)', limit),
      );
    }
    if (this.ended !== null) return this.#endedError(); // an encoder that closed the channel
    const payload = end - start - RECORD_BYTES - head;
    const size = (end - start + 7) & ~7;
    for (let at = end; at < start + size; at++) arena.bytes[at] = 0;
    const defined = this.encoder.takeDefinitions();
    if (defined !== null) {
      if (this.sender !== null) return this.#failed(notSelfContained(this.name, this.options.codec.name));
      this.#define(defined, size);
    }
    if (!this.#admitted(size)) return this.#refuse(null);

    const sequence = ++this.sequence;
    const bits = head === 0 ? KIND.DATA : KIND.DATA | (FLAG.HEADERS << 8) | (head << 16);
    writeHeader(arena.u32, arena.f64, start, this.number, payload, sequence, bits, 0, this.host.stamp());
    this.counts.publishedBytes += size;
    if (this.#replay !== null) this.#replay.keep(arena, start, size, null);
    const { destinations } = this;
    if (destinations.length > 0) {
      // Several destinations point at one record: a flush in between must not free it.
      if (arena.pinned < 0) {
        arena.pinned = arena.head;
        arena.commit(size);
      }
      const made = ticket === null ? null : ticket(destinations.length);
      if (this.sender === null) {
        for (let i = 0; i < destinations.length; i++)
          destinations[i]!.take(start, size, sequence, made, null);
      } else {
        this.sender.take(start, size, sequence);
        if (made !== null) for (const one of destinations) one.expect(sequence, made);
      }
      this.host.schedule();
    }
    arena.pinned = -1;
    return sequence;
  }

  /** See Channel.loan(). */
  loan(bytes: number): Loan {
    const block = this.ended === null ? this.host.lend(bytes) : null;
    if (this.ended !== null) throw this.endError;
    if (block !== null) return new Loan(this.pool, block);
    this.#poolFull = true;
    this.host.wantsBlock(this);
    throw poolFull(bytes, this.pool.limit);
  }

  /** A loan: its block goes to everyone as it is. What is refused stays the caller's. */
  #emitLoan(loan: Loan, headers: Headers | undefined, ticket: TicketMaker | null): number {
    if (this.options.codec.name !== 'bytes') {
      return this.#failed(usedUp(`channel ${JSON.stringify(this.name)} has another codec than 'bytes'`));
    }
    if (this.sender !== null) {
      return this.#failed(
        usedUp(`channel ${JSON.stringify(this.name)} is multicast: copy its bytes and publish those`),
      );
    }
    if (!loan.of(this.pool)) return this.#failed(usedUp('it is of another member'));
    if (loan.length === 0) return this.#failed(usedUp('it was published or discarded before'));
    if (this.destinations.length === 0 && this.#replay === null) {
      loan.discard();
      return ++this.sequence;
    }
    const body = { start: 0, end: loan.length, fields: NO_FIELDS };
    return this.#emitBlock(loan.block, loan, body, headers, ticket);
  }

  /** A value that is larger than a slot: it is copied into the pool once, whatever the number of subscribers. */
  #emitLarge(value: T, headers: Headers | undefined, ticket: TicketMaker | null): number {
    const { arena } = this.transport;
    // Not copied in vain: of bytes the size is known before.
    const least = (value as { byteLength?: unknown } | null)?.byteLength;
    if (!this.#admitted(ESTIMATE, typeof least === 'number' ? least : 1)) return this.#refuse(null);
    let packed: ReturnType<typeof pack>;
    arena.encoding = true;
    try {
      packed = pack(this.options.codec.name, this.encoder, value, this.pool, (bytes) =>
        this.host.lend(bytes),
      );
    } catch (error) {
      return this.#failed(error);
    } finally {
      arena.encoding = false;
    }
    if (packed === null) {
      this.#poolFull = true;
      this.host.wantsBlock(this);
      return this.#refuse('pool');
    }
    return this.#emitBlock(packed.block, null, packed, headers, ticket);
  }

  /**
   * Publishes a block: each destination gets a record with its own descriptor. The caller's reference to the block ends here,
   * but a loan that is refused stays as it is.
   */
  #emitBlock(
    block: Block,
    loan: Loan | null,
    body: Body,
    headers: Headers | undefined,
    ticket: TicketMaker | null,
  ): number {
    let ours = loan === null;
    try {
      if (this.ended !== null) return this.#endedError(); // an encoder that closed the channel
      const { transport, destinations } = this;
      const { arena } = transport;
      if (this.host.unsealed) this.host.seal();
      // As many records as there are destinations, and room for the headers, whose size is not known yet.
      const most = this.transport.slotBytes - FRAME_BYTES;
      const start = this.#reserve(most + DEFINE_ROOM);
      if (start < 0) return this.#refuse('arena');
      const head =
        headers === undefined
          ? 0
          : writeHeaders(headers, arena.bytes, start + RECORD_BYTES, this.#limit - LARGE_BYTES);
      const payload = LARGE_BYTES + body.fields.length;
      const size = recordSize(head, payload);
      if (head < 0 || size > most) return this.#failed(tooLarge(this.name, 'its headers', this.#limit));
      const copies = Math.max(1, destinations.length);
      // The place may be another one now; then the headers are written again.
      const at = this.#reserve(size * copies + DEFINE_ROOM);
      if (at < 0) return this.#refuse('arena');
      if (headers !== undefined) writeHeaders(headers, arena.bytes, at + RECORD_BYTES, this.#limit);
      arena.bytes.fill(0, at + RECORD_BYTES + head, at + size);
      writeLarge(arena.bytes, at + RECORD_BYTES + head, body);
      const defined = this.encoder.takeDefinitions();
      if (defined !== null) this.#define(defined, size * copies);
      if (!this.#admitted(size, block.bytes)) return this.#refuse(null);
      if (loan !== null) {
        try {
          loan.seal();
        } catch (error) {
          return this.#failed(error);
        }
        ours = true;
      }

      const sequence = ++this.sequence;
      const flags = head === 0 ? FLAG.LARGE : FLAG.LARGE | FLAG.HEADERS;
      const bits = KIND.DATA | (flags << 8) | (head << 16);
      writeHeader(arena.u32, arena.f64, at, this.number, payload, sequence, bits, 0, this.host.stamp());
      this.counts.publishedBytes += size + block.bytes;
      if (this.#replay !== null) this.#replay.keep(arena, at, size, block);
      if (destinations.length > 0) {
        if (arena.pinned < 0) {
          arena.pinned = arena.head;
          arena.commit(size * copies);
        }
        for (let i = 1; i < copies; i++) arena.bytes.copyWithin(at + i * size, at, at + size);
        const made = ticket === null ? null : ticket(destinations.length);
        for (let i = 0; i < destinations.length; i++)
          destinations[i]!.take(at + i * size, size, sequence, made, block);
        this.host.schedule();
      }
      arena.pinned = -1;
      return sequence;
    } finally {
      if (ours) this.pool.unref(block);
    }
  }

  /** Whether a message may be taken now, as far as is known without its size. */
  get writable(): boolean {
    return (
      this.ended === null && !(this.#full > 0 && this.#mustWait()) && !this.#arenaFull && !this.#poolFull
    );
  }

  /** Calls once when `writable` may be true again. */
  onWritable(call: () => void): () => void {
    this.#writable.add(call);
    return () => this.#writable.delete(call);
  }

  /** Ends this member's publishing; `body` is told to the subscribers behind the last message. */
  end(body: DoneBody): void {
    if (this.ended === 'closed' || (this.ended !== null && body.how !== 'closed')) return;
    this.ended = body.how;
    if (body.how === 'closed') this.forgetReplay();
    this.#done = utf8.encode(JSON.stringify(body));
    const tell = () => {
      for (const destination of [...this.destinations]) destination.finish(this.#done!);
      this.host.schedule();
    };
    if (this.sender === null) tell();
    else this.sender.whenSent(tell);
    this.#tellWritable();
  }

  // ---- subscribers ---------------------------------------------------------------------------------------------------

  /**
   * Adds a peer's subscription in one turn: SUBSCRIBED with the first live sequence, definitions, the replay, then live.
   * @returns false if codec or schema differ, of which the peer and status$ are told
   */
  subscribe(subscription: PeerSubscription): boolean {
    const { schemaId } = this.options;
    const { peer } = subscription;
    if (peer.gone || this.ended === 'closed') return false;
    let refused: Mismatch | null = null;
    if (subscription.delivery !== null && subscription.delivery !== this.delivery) refused = 'delivery';
    else if (subscription.codec !== null && subscription.codec !== this.codecName) refused = 'codec';
    else if (subscription.schema !== null && schemaId !== null && subscription.schema !== schemaId)
      refused = 'schema';
    this.host.announce(peer, {
      channel: this.name,
      number: this.number,
      codec: this.codecName,
      schema: schemaId,
      delivery: this.delivery,
      subscription: subscription.id,
      refused,
    });
    if (refused !== null) {
      this.mismatches(subscription, refused);
      return false;
    }
    let destination = this.of(peer);
    const known = destination !== undefined;
    if (destination === undefined) {
      this.host.sealLane(peer, this.lane);
      destination = new Destination(this, peer, this.host.nextGeneration(), subscription.overflow);
      this.destinations = [...this.destinations, destination];
    }
    destination.subscriptions.set(subscription.id, subscription);
    this.#configure(destination);
    this.#sendSubscribed(destination, subscription.id);
    if (!known) {
      for (const definition of this.encoder.allDefinitions()) {
        this.control.send(peer, this.lane, KIND.DEFINE, this.number, 0, 0, definition);
      }
    }
    if (this.#replay !== null && subscription.replay > 0) {
      const kept = this.#replay.copy(subscription.id, subscription.replay, subscription.replayBytes);
      if (kept.records.count > 0) destination.replay(kept);
    }
    if (this.#done !== null) destination.finish(this.#done);
    this.host.schedule();
    if (!known) {
      this.status.emit({
        type: 'subscriber-joined',
        channel: this.name,
        peer: peer.identity,
        subscribers: this.destinations.length,
      });
      this.#changed();
    }
    return true;
  }

  /** Set by the member: how a mismatch is reported. */
  mismatches: (subscription: PeerSubscription, what: Mismatch) => void = () => {};

  unsubscribe(peer: Peer, id: number): void {
    const destination = this.of(peer);
    if (destination?.subscriptions.delete(id) !== true) return;
    if (destination.subscriptions.size === 0) destination.end('unsubscribed');
    else this.#configure(destination);
  }

  of(peer: Peer): Destination | undefined {
    return this.destinations.find((one) => one.peer === peer);
  }

  /** Calls at every change of the number of subscribers. */
  onSubscribers(call: () => void): () => void {
    this.#watchers.add(call);
    return () => this.#watchers.delete(call);
  }

  get queuedBytes(): number {
    return this.destinations.reduce((sum, one) => sum + one.queuedBytes, this.sender?.queuedBytes ?? 0);
  }

  /** Whether the arena has room again; at the end of a turn. */
  arenaTurn(): boolean {
    if (this.#arenaFull && this.transport.arena.reserve(this.#need) < 0) return false;
    this.#arenaFull = false;
    this.#tellWritable();
    return true;
  }

  /** Blocks may be free again. */
  poolTurn(): void {
    this.#poolFull = false;
    this.#tellWritable();
  }

  /** Somebody else finds no block: drops a queued large message of a subscriber whose policy drops. @returns whether it did */
  shedBlock(): boolean {
    return this.destinations.some((one) => one.shedBlock());
  }

  /** Nothing is kept for later subscribers any more. */
  forgetReplay(): void {
    this.#replay?.clear();
  }

  /** The member is gone: nobody waits any more. */
  close(why: DestinationEnd): void {
    this.ended = 'closed';
    for (const destination of [...this.destinations]) destination.end(why);
    this.forgetReplay();
    this.sender?.close();
    this.#tellWritable();
  }

  // ---- for destinations ----------------------------------------------------------------------------------------------

  refuses(on: boolean): void {
    this.#full += on ? 1 : -1;
    if (!on && this.#full === 0) this.#tellWritable();
    if (on && Number.isFinite(this.maxWait)) {
      const timer = this.clock.setTimeout(() => {
        if (this.#full > 0 && !this.#mustWait()) this.#tellWritable();
      }, this.maxWait);
      timer.unref?.();
    }
  }
  queues(on: boolean): void {
    this.host.queues(on);
  }
  heldBack(bytes: number): void {
    this.#heldBack += bytes;
  }
  messageDropped(destination: Destination): void {
    this.counts.dropped++;
    this.host.gapDue(destination);
  }
  destinationEnded(destination: Destination): void {
    this.destinations = this.destinations.filter((one) => one !== destination);
    this.status.emit({
      type: 'subscriber-left',
      channel: this.name,
      peer: destination.peer.identity,
      subscribers: this.destinations.length,
    });
    this.#changed();
    if (this.ended === 'closed' && this.destinations.length === 0) this.host.finished(this);
  }
  later(destination: Destination): void {
    this.host.later(destination);
  }
  awaitsRoom(destination: Destination): void {
    this.host.awaitsRoom(destination);
  }
  awaits(peer: Peer): void {
    this.host.awaits(peer);
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  get #need(): number {
    return this.transport.slotBytes - FRAME_BYTES + DEFINE_ROOM;
  }

  #reserve(need = this.#need): number {
    let start = this.transport.arena.reserve(need);
    if (start >= 0) return start;
    start = this.transport.reserve(need);
    for (let tries = 0; start < 0 && tries < ARENA_TRIES; tries++) {
      this.host.progress();
      start = this.transport.reserve(need);
    }
    if (start < 0) {
      this.#arenaFull = true;
      this.host.wantsArena(this);
    }
    return start;
  }

  /**
   * New definitions: they lie behind the message in the arena, hence the message's room is committed first, and are sent
   * before it. They are exempt from windows and drops, and go out even if the message is then refused.
   */
  #define(payload: Uint8Array, size: number): void {
    const { arena } = this.transport;
    arena.pinned = arena.head;
    arena.commit(size);
    for (const { peer } of this.destinations)
      this.control.send(peer, this.lane, KIND.DEFINE, this.number, 0, 0, payload);
    this.host.schedule();
  }

  /** Whether every destination can take it; only a `wait` subscriber can say no. */
  #admitted(size: number, block = 0): boolean {
    if (this.sender !== null) return this.sender.admits(size);
    let admitted = true;
    for (const destination of this.destinations) if (!destination.admits(size, block)) admitted = false;
    return admitted;
  }

  /** Whether a full `wait` subscriber still has the publisher's patience. */
  #mustWait(): boolean {
    if (this.sender !== null) return this.sender.full;
    const now = this.clock.now();
    return this.destinations.some((one) => one.full && now < one.patienceEnds);
  }

  #configure(destination: Destination): void {
    // By name wins over by pattern, then the oldest.
    let best: PeerSubscription | undefined;
    for (const one of destination.subscriptions.values()) {
      if (best === undefined || (one.exact && !best.exact)) best = one;
    }
    destination.configure(best!);
    this.#keys = this.destinations.some((one) => one.keyPath !== null || typeof one.overflow === 'object');
  }

  #sendSubscribed(destination: Destination, id: number): void {
    const first = this.sequence + 1;
    const payload = writeSubscribed(id, destination.generation, first, {
      name: this.name,
      codec: this.codecName,
      schema: this.options.schemaId,
      delivery: this.delivery,
    });
    this.control.send(destination.peer, this.lane, KIND.SUBSCRIBED, this.number, first, 0, payload);
  }

  #changed(): void {
    for (const call of [...this.#watchers]) call();
  }

  #tellWritable(): void {
    if (this.#writable.size === 0) return;
    const calls = [...this.#writable];
    this.#writable.clear();
    for (const call of calls) call();
  }

  #refuse(why: 'arena' | 'pool' | null): number {
    const what: Full = why ?? (this.sender === null ? 'subscriber' : 'pace');
    this.counts.refused++;
    return this.#notTaken(
      REFUSED.FULL,
      this.#tally.full(() => refused(this.name, what, this.maxQueueBytes, this.destinations)),
    );
  }

  #endedError(): number {
    this.counts.refused++;
    return this.#notTaken(
      REFUSED.ENDED,
      this.#tally.ended(() => this.endError),
    );
  }

  #failed(error: unknown): number {
    this.counts.encodeErrors++;
    const known = notEncoded(this.name, this.options.codec.name, error);
    return this.#notTaken(REFUSED.VALUE, this.#tally.failed(known));
  }

  /** What is wrong with publishing now that it has ended. */
  get endError(): MillraceError {
    return publishingEnded(this.name, this.ended!);
  }

  #notTaken(code: number, error: AnyMillraceError): number {
    this.transport.arena.pinned = -1;
    this.lastCode = code;
    this.lastError = error;
    this.host.dirty(this);
    return code;
  }

  /** Tells status$ what was refused in this turn. */
  endOfTurn(): void {
    this.#tally.tell();
  }
}

/** Makes the ticket of one message, once it is known how many destinations it has. */
export type TicketMaker = (destinations: number) => Ticket;
