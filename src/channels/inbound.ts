import { type AnyMillraceError, MillraceError } from '../errors.js';
import { readDone, readSubscribed } from './bodies.js';
import type { Clock } from './clock.js';
import type { Codec } from './codec/codec.js';
import { announced, builtin } from './codecs.js';
import { Batch, type EndMark } from './frames.js';
import { Gate } from './gate.js';
import { reportMismatch } from './mismatch.js';
import type { Peer } from './peer.js';
import { TURN_MESSAGES } from './pump.js';
import type { Status } from './status.js';
import { type InboundCounts, type LocalSubscription, type MessageAt, Origin } from './subscription.js';
import type { Transport } from './transport.js';
import type { GapEvent, PublisherLeftEvent, StatusEvent } from './types.js';
import { reportUnhandled } from './unhandled.js';
import {
  FLAG,
  GAP_REASONS,
  type GapReason,
  KIND,
  RECORD_BYTES,
  type SubscribedBody,
  sequenceAt,
  sizeAt,
  TIME_WORD,
  WORD,
} from './wire.js';

/** How many messages pass between two looks at the clock. */
const LOOK_EVERY = 32;
const TWO32 = 0x1_0000_0000;

/** What the receiving side needs of its member. */
export interface InboundHost {
  readonly clock: Clock;
  readonly transport: Transport;
  readonly status: Status;
  /** A CONSUMED record came. */
  consumed(peer: Peer, channel: number, generation: number, delivered: number, bytes: number): void;
  /** Sends a CONSUMED record. */
  report(origin: Origin, delivered: number, bytes: number): void;
  /** Tells one peer that a subscription is over. */
  unsubscribe(peer: Peer, id: number): void;
  /** A counted fault of one peer (I9). */
  fault(peer: Peer, error: Error): void;
  /** Held frames may be delivered now. */
  released(): void;
}

/**
 * The subscriber's side: frames become messages and go to the local subscribers.
 *
 * What comes from a peer is checked before it is used (I9); native code has copied the frame and checked that its records
 * add up. Messages of one publisher on one channel are handed on in order or a gap says what is missing (I4).
 */
export class Inbound {
  readonly locals = new Map<number, LocalSubscription>();
  readonly #origins = new Map<Peer, Map<number, Origin>>();
  readonly #counts = new Map<string, InboundCounts>();
  #touched: Origin[] = [];
  readonly #at: MessageAt = {
    bytes: new Uint8Array(0),
    sequence: 0,
    time: 0,
    headersStart: 0,
    headersEnd: 0,
    payloadEnd: 0,
    size: 0,
    replayed: false,
  };
  #messages = 0;
  #looked = 0;
  /** Records for which nobody is (any more), and records of kinds that this version does not know. */
  strays = 0;

  /** Holds back frames that came before subscriptions which their sender had made earlier. */
  readonly gate: Gate;

  constructor(private readonly host: InboundHost) {
    this.gate = new Gate(host);
  }

  /** Opens the counts of a channel of this member. Names that only patterns hear are not kept: there may be any number. */
  count(channel: string): InboundCounts {
    const counts = newCounts();
    this.#counts.set(channel, counts);
    for (const origin of this.originsOf(channel)) origin.count = counts;
    return counts;
  }

  /** The channel is closed. */
  uncount(channel: string): void {
    this.#counts.delete(channel);
  }

  /** Publishers that a subscription hears. */
  *originsOf(channel: string): Iterable<Origin> {
    for (const byNumber of this.#origins.values()) {
      for (const origin of byNumber.values()) if (origin.name === channel) yield origin;
    }
  }

  /**
   * Delivers frames until they are gone, the time is up or enough messages were delivered in this turn of the event loop,
   * which `fresh` begins.
   * @returns whether anything was delivered
   */
  deliver(deadline: number, fresh: boolean): boolean {
    const { frames } = this.host.transport;
    const { gate } = this;
    if (fresh) this.#messages = 0;
    if ((frames.empty && gate.due === undefined) || this.#messages >= TURN_MESSAGES) return false;
    this.#looked = this.#messages;
    if (gate.due !== undefined && !this.#deliverHeld(deadline)) return true;
    while (!frames.empty && !this.host.transport.closed) {
      const { peer, what } = frames;
      if (peer.held) {
        if (what instanceof Batch) this.#consumedIn(peer, what, frames.start, frames.end);
        gate.add(peer, what, frames.start, frames.end);
        frames.shift();
        if (!(what instanceof Batch)) gate.ended(peer);
        if (gate.due !== undefined && !this.#deliverHeld(deadline)) break;
        continue;
      }
      if (!(what instanceof Batch)) {
        frames.shift();
        this.#peerEnded(peer, what);
        continue;
      }
      const end = frames.end;
      const stopped = this.#frame(peer, what, frames.start, end, deadline);
      if (this.host.transport.closed) return true;
      if (stopped < end) {
        frames.resumeAt(stopped);
        break;
      }
      frames.shift();
      if (this.#late(deadline)) break;
    }
    return true;
  }

  /** Looks through frames that wait for CONSUMED records, so that a loop of next() that never yields still gets room. */
  takeConsumed(): void {
    this.host.transport.frames.scan(this.#consumedIn);
  }

  readonly #consumedIn = (peer: Peer, { u32, f64 }: Batch, start: number, end: number): void => {
    for (let at = start; at < end; ) {
      const word = at >>> 2;
      const bits = u32[word + WORD.BITS]!;
      if ((bits & 0xff) === KIND.CONSUMED) {
        this.#consumed(peer, u32, f64, word);
        u32[word + WORD.BITS] = bits & ~0xff; // KIND.NONE: the delivery skips it
      }
      at += sizeAt(u32, word);
    }
  };

  /** Delivers what was held and may go. @returns false if it stopped before the end of that */
  #deliverHeld(deadline: number): boolean {
    const { gate } = this;
    for (let peer = gate.due; peer !== undefined; peer = gate.due) {
      const { what, start, end } = gate.oldest(peer);
      if (what instanceof Batch) {
        const stopped = this.#frame(peer, what, start, end, deadline);
        if (this.host.transport.closed) return false;
        // Another AFTER record, which holds the rest.
        if (gate.due !== peer) continue;
        gate.delivered(peer, stopped);
        if (stopped < end || this.#late(deadline)) return false;
      } else {
        gate.delivered(peer, end);
        this.#peerEnded(peer, what);
      }
    }
    return true;
  }

  /** End of the turn: subscribers' own buffers, errors of the turn, and what publishers are to be told. */
  endOfTurn(): void {
    if (this.#touched.length === 0) return;
    const touched = this.#touched;
    this.#touched = [];
    for (const origin of touched) {
      origin.touched = false;
      if (origin.turnErrors > 0) this.#tellErrors(origin);
      for (const rich of origin.rich) rich.endOfTurn?.();
      if (origin.closed) continue;
      const bytes = origin.consumed;
      const delivered = origin.delivered;
      const due = (bytes - origin.reported) * 2 >= origin.window;
      // Asked for a report: at once, and once more when all that preceded the question is delivered.
      const owed = origin.asked || (origin.owes >= 0 && delivered >= origin.owes);
      if (!due && !owed) continue;
      origin.asked = false;
      origin.reported = bytes;
      origin.reportedSequence = delivered;
      if (delivered >= origin.owes) origin.owes = -1;
      this.host.report(origin, delivered, bytes);
    }
  }

  /** Before this member leaves: publishers learn what was taken to the last, so that their drain() is right. */
  lastReport(): void {
    for (const byNumber of this.#origins.values()) {
      for (const origin of byNumber.values()) {
        const { consumed, delivered } = origin;
        if (origin.closed || (consumed === origin.reported && delivered === origin.reportedSequence))
          continue;
        origin.reported = consumed;
        origin.reportedSequence = delivered;
        this.host.report(origin, delivered, consumed);
      }
    }
  }

  /** Something was taken out of a subscriber's own buffer, or came: look after this publisher at the end of the turn. */
  touch(origin: Origin): void {
    if (origin.touched) return;
    origin.touched = true;
    this.#touched.push(origin);
  }

  /** A local subscription is over. */
  drop(subscription: LocalSubscription): void {
    subscription.open = false;
    this.locals.delete(subscription.id);
    for (const origin of [...subscription.origins]) {
      origin.detach(subscription);
      // With nobody left the publisher ends the stream, too; a later subscription starts a new one.
      if (origin.idle) this.#forget(origin);
    }
  }

  /** Everything ends. */
  close(): void {
    this.gate.close();
    for (const subscription of this.locals.values()) {
      subscription.open = false;
      for (const origin of subscription.origins) origin.closed = true;
    }
    this.locals.clear();
    this.#origins.clear();
    this.#touched = [];
  }

  // ---- frames ------------------------------------------------------------------------------------------------------

  /** Delivers the records of a frame. @returns where it stopped */
  #frame(peer: Peer, batch: Batch, start: number, end: number, deadline: number): number {
    const { u32, f64, bytes } = batch;
    const at = this.#at;
    const byNumber = this.#origins.get(peer);
    let number = -1;
    let origin: Origin | undefined;
    let pos = start;
    while (pos < end) {
      const word = pos >>> 2;
      const bits = u32[word + WORD.BITS]!;
      const payload = u32[word + WORD.LENGTH]!;
      const size = (RECORD_BYTES + (bits >>> 16) + payload + 7) & ~7;
      if ((bits & 0xff) !== KIND.DATA) {
        if ((bits & 0xff) === KIND.AFTER && this.gate.blocks(peer, sequenceAt(u32, word))) {
          this.#consumedIn(peer, batch, pos, end);
          this.gate.hold(peer, batch, pos + size, end, sequenceAt(u32, word));
          return end;
        }
        this.#control(peer, batch, pos);
        if (this.host.transport.closed) return end;
        origin = undefined;
        number = -1;
        pos += size;
        continue;
      }
      const channel = u32[word]!;
      if (channel !== number) {
        number = channel;
        origin = (byNumber ?? this.#origins.get(peer))?.get(channel);
      }
      if (origin === undefined || origin.closed) {
        this.strays++;
        pos += size;
        continue;
      }
      at.bytes = bytes;
      at.sequence = u32[word + WORD.SEQUENCE_HIGH]! * TWO32 + u32[word + WORD.SEQUENCE_LOW]!;
      at.time = f64[(pos >>> 3) + TIME_WORD]!;
      at.headersStart = pos + RECORD_BYTES;
      at.headersEnd = at.headersStart + (bits >>> 16);
      at.payloadEnd = at.headersEnd + payload;
      at.size = size;
      pos += size;
      if (((bits >>> 8) & FLAG.REPLAY) === 0) this.#live(origin, at);
      else this.#replay(origin, at, u32[word + WORD.CORRELATION]!);
      this.#messages++;
      if (this.#messages >= TURN_MESSAGES) return pos;
      if (this.#messages - this.#looked >= LOOK_EVERY && this.#late(deadline)) return pos;
    }
    return pos;
  }

  #late(deadline: number): boolean {
    if (this.#messages >= TURN_MESSAGES) return true;
    this.#looked = this.#messages;
    return this.host.clock.now() >= deadline;
  }

  #live(origin: Origin, at: MessageAt): void {
    const { sequence } = at;
    if (!origin.touched) this.touch(origin);
    if (sequence !== origin.next) {
      if (sequence < origin.next) {
        // Also frames that were posted again after an error (R14). Its bytes were counted the first time.
        origin.count.duplicates++;
        return;
      }
      this.#missing(origin, sequence - 1, 'lost');
    }
    origin.next = sequence + 1;
    origin.received += at.size;
    if (origin.waiting.length > 0) origin.arrive(sequence);
    const value = this.#decode(origin, at);
    origin.last = sequence;
    if (value === FAILED) return;
    at.replayed = false;
    this.#hand(origin, origin.plain, origin.rich, value, at);
  }

  #replay(origin: Origin, at: MessageAt, id: number): void {
    this.touch(origin);
    origin.received += at.size;
    const subscription = this.locals.get(id);
    if (subscription === undefined || !subscription.origins.has(origin)) return;
    const value = this.#decode(origin, at);
    if (value === FAILED) return;
    at.replayed = true;
    this.#hand(origin, subscription.plain, subscription.rich, value, at);
  }

  #decode(origin: Origin, at: MessageAt): unknown {
    try {
      const value = origin.decoder.decode(at.bytes, at.headersEnd, at.payloadEnd);
      return origin.validate === null ? value : origin.validate(value);
    } catch (error) {
      this.#unreadable(origin, at.sequence, error);
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

  #unreadable(origin: Origin, sequence: number, error: unknown): void {
    const known = asMillraceError(error, origin);
    origin.count.decodeErrors++;
    origin.turnErrors++;
    origin.turnError ??= known;
    this.#gap(origin, sequence, sequence, 1, known.code.startsWith('ERR_SCHEMA') ? 'schema' : 'decode');
  }

  #tellErrors(origin: Origin): void {
    const count = origin.turnErrors;
    const error = origin.turnError as AnyMillraceError;
    origin.turnErrors = 0;
    origin.turnError = null;
    this.#tell(origin, {
      type: 'decode-error',
      channel: origin.name,
      peer: origin.peer.identity,
      count,
      error,
    });
  }

  #gap(origin: Origin, from: number, to: number, count: number, reason: GapReason): void {
    origin.count.missing += count;
    const { name: channel, peer } = origin;
    const event: GapEvent = { type: 'gap', channel, publisher: peer.identity, from, to, count, reason };
    for (const rich of origin.rich) rich.gap?.(origin, event);
    this.#tell(origin, { type: 'gap', channel, peer: peer.identity, from, to, count, reason });
  }

  /** Tells the channels and patterns that hear this publisher, and the member once. */
  #tell(origin: Origin, event: StatusEvent): void {
    const told = new Set<Status>();
    for (const { status } of [...origin.live, ...origin.waiting.map((one) => one.subscription)])
      told.add(status);
    for (const status of told) status.emitHere(event);
    this.host.status.emit(event);
  }

  // ---- control records, in order with the messages -------------------------------------------------------------------

  #control(peer: Peer, batch: Batch, pos: number): void {
    const { u32, f64 } = batch;
    const word = pos >>> 2;
    const channel = u32[word]!;
    const payload = u32[word + WORD.LENGTH]!;
    const start = pos + RECORD_BYTES + (u32[word + WORD.BITS]! >>> 16);
    const text = () => Buffer.from(batch.buffer, start, payload).toString('utf8');
    switch (u32[word + WORD.BITS]! & 0xff) {
      case KIND.NONE:
      case KIND.AFTER:
        return;
      case KIND.CONSUMED:
        return this.#consumed(peer, u32, f64, word);
      case KIND.SUBSCRIBED:
        return this.#subscribed(peer, batch, pos, payload);
    }
    const origin = this.#origins.get(peer)?.get(channel);
    if (origin === undefined || origin.closed) {
      this.strays++;
      return;
    }
    switch (u32[word + WORD.BITS]! & 0xff) {
      case KIND.DEFINE:
        try {
          origin.decoder.define(batch.bytes.slice(start, start + payload));
        } catch (error) {
          // An id is immutable: a different second definition is an error against that publisher.
          this.host.fault(peer, asMillraceError(error, origin));
        }
        return;
      case KIND.GAP: {
        if (payload < 24) return this.#bad(peer, `a GAP of ${payload} bytes`);
        const at = start >>> 3;
        return this.#gapRecord(origin, f64[at]!, f64[at + 1]!, u32[(start >>> 2) + 5]!);
      }
      case KIND.DONE:
        return this.#done(origin, text());
      case KIND.REPORT:
        origin.owes = origin.last;
        origin.asked = true;
        return this.touch(origin);
      default:
        this.strays++; // a later version's: reserved kinds are skipped
    }
  }

  #consumed(peer: Peer, u32: Uint32Array, f64: Float64Array, word: number): void {
    if (u32[word + WORD.LENGTH]! < 16) return this.#bad(peer, 'a short CONSUMED');
    const at = (word + RECORD_BYTES / 4 + (u32[word + WORD.BITS]! >>> 18)) >>> 1;
    this.host.consumed(peer, u32[word]!, u32[word + WORD.CORRELATION]!, f64[at]!, f64[at + 1]!);
  }

  #gapRecord(origin: Origin, from: number, to: number, reason: number): void {
    if (!(Number.isSafeInteger(from) && Number.isSafeInteger(to) && from >= 1 && to >= from)) {
      return this.#bad(origin.peer, `a GAP from ${from} to ${to}`);
    }
    if (to < origin.next) return;
    this.#missing(origin, from - 1, 'lost');
    this.#missing(origin, to, GAP_REASONS[reason] ?? 'lost');
    this.touch(origin);
  }

  /** "You are subscribed, live from `first` on": the first record of a stream, before its definitions and messages. */
  #subscribed(peer: Peer, batch: Batch, pos: number, payload: number): void {
    const start = pos + RECORD_BYTES;
    if (payload < 16) return this.#bad(peer, `a SUBSCRIBED of ${payload} bytes`);
    const id = batch.u32[start >>> 2]!;
    const generation = batch.u32[(start >>> 2) + 1]!;
    const first = batch.f64[(start >>> 3) + 1]!;
    const subscription = this.locals.get(id);
    if (subscription === undefined) return; // unsubscribed meanwhile
    let body: SubscribedBody;
    try {
      body = readSubscribed(Buffer.from(batch.buffer, start + 16, payload - 16).toString('utf8'));
      if (!Number.isSafeInteger(first) || first < 1) throw new Error(`first live sequence ${first}`);
      if (!subscription.wanted.matches(body.name))
        throw new Error(`${body.name} is not what was subscribed to`);
    } catch (error) {
      return this.#bad(peer, `a SUBSCRIBED: ${(error as Error).message}`);
    }
    const number = batch.u32[pos >>> 2]!;
    const codec = this.#agree(peer, subscription, body);
    if (codec === null) return this.host.unsubscribe(peer, id);
    let byNumber = this.#origins.get(peer);
    if (byNumber === undefined) {
      byNumber = new Map();
      this.#origins.set(peer, byNumber);
    }
    let origin = byNumber.get(number);
    if (origin === undefined || origin.generation !== generation) {
      if (origin !== undefined) this.#forget(origin);
      origin = new Origin(
        peer,
        number,
        body.name,
        body.codec,
        generation,
        codec.decoder(),
        first,
        subscription.wanted.window,
        this.#counts.get(body.name) ?? newCounts(),
      );
      byNumber.set(number, origin);
    }
    origin.attach(subscription, first);
    const event = {
      type: 'publisher-joined',
      channel: body.name,
      publisher: peer.identity,
      sequence: first,
    } as const;
    for (const rich of subscription.rich) rich.joined?.(origin, event);
    subscription.acknowledged();
  }

  /** The codec to read that publisher with; null when the two sides differ, which is reported and never decoded. */
  #agree(peer: Peer, subscription: LocalSubscription, body: SubscribedBody): Codec<unknown> | null {
    const { codec, schemaId } = subscription.wanted;
    const known = codec ?? builtin(body.codec);
    if (known === null || announced(known.name) !== body.codec) {
      reportMismatch(
        subscription.status,
        'codec',
        body.name,
        peer,
        codec?.name ?? 'any built-in codec',
        body.codec,
      );
      return null;
    }
    if (schemaId !== null && body.schema !== null && schemaId !== body.schema) {
      reportMismatch(subscription.status, 'schema', body.name, peer, schemaId, body.schema);
      return null;
    }
    return known;
  }

  #done(origin: Origin, text: string): void {
    const body = readDone(text);
    if (body === null) return this.#bad(origin.peer, 'a DONE that is not valid');
    if (body.how === 'closed') return this.#left(origin, 'closed');
    this.#tell(origin, {
      type: 'publisher-done',
      channel: origin.name,
      peer: origin.peer.identity,
      how: body.how,
      ...(body.error === undefined ? {} : { error: body.error }),
    });
  }

  /** Stands behind the peer's last frame. */
  #peerEnded(peer: Peer, { why }: EndMark): void {
    for (const origin of [...(this.#origins.get(peer)?.values() ?? [])]) {
      const last = peer.lasts.get(origin.number);
      peer.lasts.delete(origin.number);
      // It left, and what it published to the last is not all here.
      if (last !== undefined && last.to >= origin.next) this.#missing(origin, last.to, 'left');
      this.#left(origin, why);
    }
    this.#origins.delete(peer);
    for (const [, last] of peer.lasts) this.#unheard(peer, last);
  }

  /** Nothing comes of what is next, up to `to`. Each subscription is told of what was for it: one may begin within. */
  #missing(origin: Origin, to: number, reason: GapReason): void {
    for (let from = origin.next; from <= to; from = origin.next) {
      if (origin.waiting.length > 0) origin.arrive(from);
      const until = Math.min(to, ...origin.waiting.map(({ first }) => first - 1));
      origin.next = until + 1;
      origin.last = until;
      this.#gap(origin, from, until, until - from + 1, reason);
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
    this.host.status.emit(event);
  }

  #left(origin: Origin, reason: PublisherLeftEvent['reason']): void {
    const { name: channel, peer, last: sequence } = origin;
    // Also those that were acknowledged and for which nothing has come yet.
    origin.arrive(Number.POSITIVE_INFINITY);
    const event = { type: 'publisher-left', channel, publisher: peer.identity, reason, sequence } as const;
    for (const rich of origin.rich) rich.left?.(origin, event);
    this.#forget(origin);
  }

  #forget(origin: Origin): void {
    origin.closed = true;
    const byNumber = this.#origins.get(origin.peer);
    if (byNumber?.get(origin.number) === origin) byNumber.delete(origin.number);
    for (const subscription of [...origin.live, ...origin.waiting.map((one) => one.subscription)]) {
      subscription.origins.delete(origin);
    }
  }

  #bad(peer: Peer, what: string): void {
    this.host.fault(
      peer,
      new MillraceError('ERR_PEER_INPUT', `${peer.info.name} (${peer.info.incarnation}) sent ${what}.`),
    );
  }
}

const FAILED = Symbol('failed');

const newCounts = (): InboundCounts => ({
  received: 0,
  receivedBytes: 0,
  missing: 0,
  decodeErrors: 0,
  duplicates: 0,
});

function asMillraceError(error: unknown, origin: Origin): AnyMillraceError {
  if (error instanceof MillraceError) return error;
  return new MillraceError(
    'ERR_DECODE',
    `A message of ${origin.peer.info.name} on ${JSON.stringify(origin.name)} could not be decoded: ${String(error)}`,
    { cause: error },
  );
}
