import type { Clock } from './clock.js';
import type { Control } from './control.js';
import { Batch, type EndMark } from './frames.js';
import { Gate } from './gate.js';
import type { Holdings } from './lending/holdings.js';
import type { Landings } from './lending/landings.js';
import { Reorder, type ReorderHost } from './multicast/reorder.js';
import { Origins } from './origins.js';
import type { Peer } from './peer.js';
import { TURN_MESSAGES } from './pump.js';
import { ControlRecords, type RecordsHost } from './records.js';
import type { Status } from './status.js';
import type { LocalSubscription, MessageAt, Origin } from './subscription.js';
import type { Transport } from './transport.js';
import { reportUnhandled } from './unhandled.js';
import type { GapReason } from './wire.js';
import { FLAG, KIND, RECORD_BYTES, sequenceAt, sizeAt, TIME_WORD, WORD } from './wire.js';

/** How many messages pass between two looks at the clock. */
const LOOK_EVERY = 32;
const TWO32 = 0x1_0000_0000;

/** What the receiving side needs of its member. */
export interface InboundHost extends RecordsHost {
  readonly clock: Clock;
  /** From 0 to below 1. */
  readonly dice: () => number;
  readonly control: Control;
  readonly transport: Transport;
  readonly status: Status;
  readonly holdings: Holdings;
  readonly landings: Landings;
  /** A flush at the end of this turn. */
  schedule(): void;
  /** A turn follows: what was held may be delivered now. */
  wake(): void;
}

/**
 * The subscriber's side: frames become messages and go to the local subscribers.
 *
 * What comes from a peer is checked before it is used (I9); native code has copied the frame and checked that its records
 * add up. Messages of one publisher on one channel are handed on in order or a gap says what is missing (I4).
 */
export class Inbound implements ReorderHost<Origin> {
  readonly clock: Clock;
  readonly dice: () => number;
  /** The publishers that are heard. */
  readonly origins: Origins;
  /** This member's subscriptions, by id. */
  readonly locals: Map<number, LocalSubscription>;
  readonly #records: ControlRecords;
  #touched: Origin[] = [];
  /** Channels whose line may go on. */
  readonly #ready = new Set<Origin>();
  readonly #at: MessageAt = {
    bytes: new Uint8Array(0),
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
  #messages = 0;
  #looked = 0;
  /** Holds back frames that came before subscriptions which their sender had made earlier. */
  readonly gate: Gate;

  constructor(private readonly host: InboundHost) {
    this.clock = host.clock;
    this.dice = host.dice;
    this.gate = new Gate(host);
    this.origins = new Origins(host.status);
    this.locals = this.origins.locals;
    this.#records = new ControlRecords(
      host,
      this.origins,
      (origin) => this.touch(origin),
      (origin, { wanted }) => {
        return new Reorder(this, origin, { ...wanted.hold, record: host.transport.maxRow });
      },
    );
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
    if (frames.empty && gate.due === undefined && this.#ready.size === 0) return false;
    if (this.#messages >= TURN_MESSAGES) return false;
    this.#looked = this.#messages;
    for (const origin of this.#ready) if (!this.#advance(origin, deadline)) return true;
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
        this.#ended(peer, what);
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

  /** Looks through frames that wait for what gives room, so that a loop of next() that never yields still gets it. */
  takeConsumed(): void {
    this.host.transport.frames.scan(this.#consumedIn);
  }

  readonly #consumedIn = (peer: Peer, batch: Batch, start: number, end: number): void => {
    const { u32, f64 } = batch;
    for (let at = start; at < end; ) {
      const word = at >>> 2;
      const bits = u32[word + WORD.BITS]!;
      const kind = bits & 0xff;
      if (kind === KIND.CONSUMED || kind === KIND.LANDED) {
        if (kind === KIND.CONSUMED) this.#records.consumed(peer, u32, f64, word);
        else this.#records.landed(peer, batch, at);
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
        this.#ended(peer, what);
      }
    }
    return true;
  }

  /** Behind its last frame: what it offered and nobody took is given back (R16). */
  #ended(peer: Peer, mark: EndMark): void {
    for (const origin of [...(this.origins.of(peer)?.values() ?? [])]) {
      this.host.landings.lost(origin);
      // All of it, however late it is: its end follows.
      this.#advance(origin, ALL);
    }
    this.origins.peerEnded(peer, mark);
    this.host.holdings.publisherGone(peer);
  }

  /** End of the turn: subscribers' own buffers, errors of the turn, and what publishers are to be told. */
  endOfTurn(): void {
    if (this.#touched.length === 0) return;
    const touched = this.#touched;
    this.#touched = [];
    for (const origin of touched) {
      origin.touched = false;
      if (origin.turnErrors > 0) this.origins.tellErrors(origin);
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
      this.host.subscribing.report(origin, delivered, bytes);
    }
  }

  /** Before this member leaves: publishers learn what was taken to the last, so that their drain() is right. */
  lastReport(): void {
    for (const origin of this.origins) {
      const { consumed, delivered } = origin;
      if (origin.closed || (consumed === origin.reported && delivered === origin.reportedSequence)) continue;
      origin.reported = consumed;
      origin.reportedSequence = delivered;
      this.host.subscribing.report(origin, delivered, consumed);
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
      if (origin.idle) this.origins.forget(origin);
    }
  }

  /** Everything ends. */
  close(): void {
    this.gate.close();
    for (const subscription of this.locals.values()) {
      subscription.open = false;
      for (const origin of subscription.origins) origin.close();
      subscription.stopListening();
    }
    this.origins.clear();
    this.#touched = [];
  }

  // ---- frames ------------------------------------------------------------------------------------------------------

  /** Delivers the records of a frame. @returns where it stopped */
  #frame(peer: Peer, batch: Batch, start: number, end: number, deadline: number): number {
    const { u32, f64, bytes } = batch;
    const at = this.#at;
    const byNumber = this.origins.of(peer);
    let number = -1;
    let origin: Origin | undefined;
    let pos = start;
    while (pos < end) {
      const word = pos >>> 2;
      const bits = u32[word + WORD.BITS]!;
      const payload = u32[word + WORD.LENGTH]!;
      const size = (RECORD_BYTES + (bits >>> 16) + payload + 7) & ~7;
      if ((bits & 0xff) !== KIND.DATA) {
        if (this.#behind(peer, batch, pos)) {
          pos += size;
          continue;
        }
        if ((bits & 0xff) === KIND.AFTER && this.gate.blocks(peer, sequenceAt(u32, word))) {
          this.#consumedIn(peer, batch, pos, end);
          this.gate.hold(peer, batch, pos + size, end, sequenceAt(u32, word));
          return end;
        }
        if ((bits & 0xff) === KIND.FRAGMENT) this.#fragment(peer, batch, pos);
        else this.#records.take(peer, batch, pos);
        if (this.host.transport.closed) return end;
        origin = undefined;
        number = -1;
        pos += size;
        continue;
      }
      const channel = u32[word]!;
      if (channel !== number) {
        number = channel;
        origin = (byNumber ?? this.origins.of(peer))?.get(channel);
      }
      if (origin === undefined || origin.closed) {
        this.origins.strays++;
        if (((bits >>> 8) & FLAG.LARGE) !== 0)
          this.#unwanted(peer, this.#locate(batch, pos), (bits >>> 8) & 0xff);
        pos += size;
        continue;
      }
      if (origin.reorder !== null && ((bits >>> 8) & FLAG.REPLAY) === 0) {
        this.#sequenced(origin, origin.reorder, batch, pos, size);
        pos += size;
        if (this.host.transport.closed) return end;
        this.#messages++;
        if (this.#messages >= TURN_MESSAGES) return pos;
        if (this.#messages - this.#looked >= LOOK_EVERY && this.#late(deadline)) return pos;
        continue;
      }
      const flags = (bits >>> 8) & 0xff;
      if (origin.line.length > 0 || (flags & FLAG.REMOTE) !== 0) {
        const landing =
          (flags & FLAG.REMOTE) === 0 ? null : this.host.landings.add(origin, this.#locate(batch, pos));
        origin.line.push({ batch, pos, landing });
        if (landing?.pending === false) this.#ready.add(origin);
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
      at.landing = null;
      pos += size;
      if ((flags & FLAG.REPLAY) === 0) this.#live(origin, at, flags);
      else this.#replay(origin, at, u32[word + WORD.CORRELATION]!, flags);
      this.#messages++;
      if (this.#messages >= TURN_MESSAGES) return pos;
      if (this.#messages - this.#looked >= LOOK_EVERY && this.#late(deadline)) return pos;
    }
    return pos;
  }

  // ---- large messages of members elsewhere ---------------------------------------------------------------------------

  /** The line of that channel may go on. Delivers nothing: it may be called from within next(). */
  ready(origin: Origin): void {
    this.#ready.add(origin);
    this.host.wake();
  }

  /** Whether the control record at `pos` waits its turn behind a large message of its channel. */
  #behind(peer: Peer, batch: Batch, pos: number): boolean {
    const word = pos >>> 2;
    if (!IN_ORDER.has(batch.u32[word + WORD.BITS]! & 0xff)) return false;
    const line = this.origins.of(peer)?.get(batch.u32[word]!)?.line;
    if (line === undefined || line.length === 0) return false;
    line.push({ batch, pos, landing: null });
    return true;
  }

  /** Hands on what is at the head of a channel's line and is here. @returns false if the time is up before the end of that */
  #advance(origin: Origin, deadline: number): boolean {
    const { line, peer } = origin;
    while (line.length > 0 && line[0]!.landing?.pending !== true) {
      const { batch, pos, landing } = line.shift()!;
      const bits = batch.u32[(pos >>> 2) + WORD.BITS]!;
      if ((bits & 0xff) === KIND.DATA) {
        const at = this.#locate(batch, pos);
        at.landing = landing;
        const flags = (bits >>> 8) & 0xff;
        if ((flags & FLAG.REPLAY) === 0) this.#live(origin, at, flags);
        else this.#replay(origin, at, batch.u32[(pos >>> 2) + WORD.CORRELATION]!, flags);
        this.#messages++;
      } else this.#records.take(peer, batch, pos);
      if (this.host.transport.closed) return false;
      if (this.#messages - this.#looked >= LOOK_EVERY && deadline < ALL && this.#late(deadline)) return false;
    }
    this.#ready.delete(origin);
    return true;
  }

  /** Nobody here wants the large message at `at`. */
  #unwanted(peer: Peer, at: MessageAt, flags: number): void {
    if (at.landing !== null) this.host.landings.drop(at.landing);
    else if ((flags & FLAG.REMOTE) === 0) this.host.holdings.revoke(peer, at);
    else {
      const { serial } = this.host.holdings.offerAt(at);
      if (serial > 0) this.host.landings.decline(peer, serial);
    }
  }

  /** Where the message at `pos` lies. */
  #locate({ bytes, u32, f64 }: Batch, pos: number): MessageAt {
    const at = this.#at;
    const word = pos >>> 2;
    at.bytes = bytes;
    at.sequence = sequenceAt(u32, word);
    at.time = f64[(pos >>> 3) + TIME_WORD]!;
    at.headersStart = pos + RECORD_BYTES;
    at.headersEnd = at.headersStart + (u32[word + WORD.BITS]! >>> 16);
    at.payloadEnd = at.headersEnd + u32[word + WORD.LENGTH]!;
    at.size = sizeAt(u32, word);
    at.landing = null;
    return at;
  }

  // ---- multicast -----------------------------------------------------------------------------------------------------

  /** A message of a multicast channel: handed on in order, or held until what precedes it is repaired or given up. */
  #sequenced(origin: Origin, reorder: Reorder<Origin>, batch: Batch, pos: number, size: number): void {
    if ((batch.u32[(pos >>> 2) + WORD.BITS]! >>> 8) & FLAG.REPAIR) reorder.counts.repaired++;
    if (!reorder.take(batch, pos, size, sequenceAt(batch.u32, pos >>> 2))) return;
    this.#record(origin, batch, pos);
    this.follow(origin);
  }

  #fragment(peer: Peer, batch: Batch, pos: number): void {
    const origin = this.origins.of(peer)?.get(batch.u32[pos >>> 2]!);
    const reorder = origin?.reorder ?? null;
    if (origin === undefined || reorder === null || origin.closed) {
      this.origins.strays++;
      return;
    }
    const whole = reorder.join(batch, pos);
    if (whole !== null) this.#sequenced(origin, reorder, whole, 0, whole.bytes.length);
  }

  /** Hands on what is in order by now. */
  follow(origin: Origin): void {
    const { reorder } = origin;
    if (reorder === null) return;
    for (let next = reorder.following(); next !== null; next = reorder.following()) {
      this.#record(origin, next, 0);
      if (origin.closed || this.host.transport.closed) return;
    }
    this.host.schedule();
  }

  missing(origin: Origin, to: number, reason: GapReason): void {
    this.touch(origin);
    this.origins.missing(origin, to, reason);
  }

  requestRepair(origin: Origin, ranges: readonly (readonly [number, number])[]): void {
    if (origin.peer.gone) return;
    const numbers = new Float64Array(ranges.flat());
    this.host.control.send(
      origin.peer,
      0,
      KIND.REPAIR,
      origin.number,
      0,
      origin.generation,
      new Uint8Array(numbers.buffer),
    );
    this.host.schedule();
  }

  reportMissed(origin: Origin, from: number, to: number): void {
    if (origin.peer.gone) return;
    this.host.control.sendNumbers(origin.peer, 0, KIND.MISSED, origin.number, 0, origin.generation, from, to);
    this.host.schedule();
  }

  /** Hands on the message at `pos`. */
  #record(origin: Origin, batch: Batch, pos: number): void {
    // No block is lent to a group: a descriptor would be for one receiver.
    this.#live(origin, this.#locate(batch, pos), 0);
  }

  #late(deadline: number): boolean {
    if (this.#messages >= TURN_MESSAGES) return true;
    this.#looked = this.#messages;
    return this.host.clock.now() >= deadline;
  }

  #live(origin: Origin, at: MessageAt, flags: number): void {
    const { sequence } = at;
    if (!origin.touched) this.touch(origin);
    if (sequence !== origin.next) {
      if (sequence < origin.next) {
        // Also frames that were posted again after an error (R14). Its bytes were counted the first time.
        origin.count.duplicates++;
        if ((flags & FLAG.LARGE) !== 0) this.#unwanted(origin.peer, at, flags);
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

  #replay(origin: Origin, at: MessageAt, id: number, flags: number): void {
    this.touch(origin);
    origin.received += at.size;
    const subscription = this.locals.get(id);
    const large = (flags & FLAG.LARGE) !== 0;
    if (subscription === undefined || !subscription.origins.has(origin)) {
      if (large) this.#unwanted(origin.peer, at, flags);
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
      const lessees = rich.filter((one) => one.leases === true).length;
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

/** A deadline that stops at nothing. */
const ALL = Number.POSITIVE_INFINITY;

/** Control records that have their place among a channel's messages. */
const IN_ORDER: ReadonlySet<number> = new Set([KIND.DEFINE, KIND.GAP, KIND.DONE, KIND.REPORT]);

const FAILED = Symbol('failed');
