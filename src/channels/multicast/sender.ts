import type { Clock, Scheduled } from '../clock.js';
import type { Control } from '../control.js';
import type { Peer } from '../peer.js';
import { SELF } from '../peer.js';
import type { Destination } from '../sending/destination.js';
import type { Obstacle, Room } from '../sending/room.js';
import type { Transport } from '../transport.js';
import { FLAG, GAP_REASONS, type GapReason, KIND, RECORD_BYTES, WORD, writeHeader } from '../wire.js';
import { Bucket } from './bucket.js';
import { fragmentBytes, partBytes, writeFragment } from './fragments.js';
import type { SendingGroup } from './groups.js';
import { History } from './history.js';

/** The first heartbeat follows the last message after so long, the next ones after twice as long each, up to the bound. */
const FIRST_BEAT_MS = 5;
const LAST_BEAT_MS = 1000;
/** Messages that may wait for their turn, of however few bytes. */
const QUEUE_MESSAGES = 16 * 1024;
/** One request is answered with so much at most; the rest is asked for again. */
const ANSWER_MESSAGES = 256;
const ANSWER_BYTES = 256 * 1024;
/** No room in the arena: tried again after so long. */
const RETRY_MS = 1;

/** How a publisher of a multicast channel sends. */
export interface MulticastOptions {
  /** Bytes per second; Infinity: as fast as it is published. */
  readonly pace: number;
  /** Messages and bytes that are kept for repair. */
  readonly repair: number;
  readonly repairBytes: number;
}

/** What it needs of its member. */
export interface SenderParts {
  readonly clock: Clock;
  readonly transport: Transport;
  readonly control: Control;
  /** Milliseconds since the epoch, taken once a turn. */
  stamp(): number;
  /** A flush at the end of this turn. */
  schedule(): void;
  readonly keepalive: {
    /** It begins or ends to hold messages back. */
    queues(on: boolean): void;
  };
}

/** What it needs of its channel. */
export interface SenderHost {
  readonly number: number;
  readonly maxQueueBytes: number;
  readonly room: Room;
  readonly audience: { readonly destinations: readonly Destination[] };
}

/**
 * A publisher's way to its multicast group: each record goes once, however many listen, at a pace if there is one. What went
 * is kept for a while, and is sent again on the lane of whoever missed it. While nothing goes, heartbeats name the last
 * sequence, so that a lost end is noticed, too.
 */
export class Sender implements Obstacle {
  /** Bytes that wait for their turn; `full` when no more are taken. */
  queuedBytes = 0;
  full = false;
  /** Its pace is never given up on. */
  readonly patienceEnds = Number.POSITIVE_INFINITY;
  /** Last sequence that went. */
  sent = 0;
  readonly counts = { datagrams: 0, heartbeats: 0, requests: 0, repaired: 0, evicted: 0 };
  readonly #history: History;
  readonly #bucket: Bucket | null;
  #turn: Scheduled | null = null;
  #beat: Scheduled | null = null;
  #beatMs = FIRST_BEAT_MS;
  #busy = false;
  #whenSent: (() => void) | null = null;

  constructor(
    private readonly host: SenderParts,
    private readonly channel: SenderHost,
    private readonly group: SendingGroup,
    options: MulticastOptions,
  ) {
    const { maxRow } = host.transport;
    this.#bucket = Number.isFinite(options.pace) ? new Bucket(host.clock, options.pace) : null;
    this.#history = new History(
      options.repair + QUEUE_MESSAGES,
      (options.repairBytes + channel.maxQueueBytes + 2 * maxRow + 7) & ~7,
    );
  }

  /** Whether a message of that size may be published now. */
  admits(size: number): boolean {
    if (this.queuedBytes === 0) return true;
    const room =
      this.queuedBytes + size <= this.channel.maxQueueBytes &&
      this.#history.last - this.sent < QUEUE_MESSAGES;
    if (!room && !this.full) {
      this.full = true;
      this.channel.room.refuses(this);
    }
    return room;
  }

  /** Takes the record at `start` of the arena, which stays there until the next flush at least. */
  take(start: number, size: number, sequence: number): void {
    // What nobody listened to was not kept, and what waits from before is for nobody who is there now.
    if (sequence !== this.#history.last + 1) this.#forgetQueue();
    this.#history.keep(this.host.transport.arena, start, size, sequence);
    if (this.queuedBytes === 0) {
      const wait = this.#bucket?.wait ?? 0;
      if (wait === 0 && this.#send(start, size, sequence)) return;
      this.sent = sequence - 1;
      this.host.keepalive.queues(true);
      this.#later(Math.max(wait, RETRY_MS));
    }
    this.queuedBytes += size;
  }

  /** Calls when all that was taken has gone: at once, or later. */
  whenSent(call: () => void): void {
    if (this.queuedBytes === 0) return call();
    this.#whenSent = call;
  }

  /**
   * Sends messages again to a subscriber that missed them, on its lane; says what is not kept any more. Bounded: what is
   * left out is asked for again.
   */
  repair(destination: Destination, ranges: readonly (readonly [number, number])[]): void {
    const { transport } = this.host;
    const { peer } = destination;
    this.counts.requests++;
    let messages = ANSWER_MESSAGES;
    let bytes = ANSWER_BYTES;
    // An earlier answer is still under way.
    if (transport.backlog(peer) > ANSWER_BYTES) return;
    for (const [from, to] of ranges) {
      const history = this.#history;
      const last = Math.min(to, this.sent);
      const gone = Math.min(history.first - 1, last);
      if (from <= gone) {
        this.counts.evicted += gone - from + 1;
        this.#tellGap(peer, from, gone, 'lost');
      }
      for (let sequence = Math.max(from, history.first); sequence <= last; sequence++) {
        const offset = history.offset(sequence);
        const size = offset < 0 ? 0 : history.size(offset);
        if (offset < 0 || peer.stalled || messages === 0 || bytes < size) return;
        if (size > destination.maxRecord) {
          this.#tellGap(peer, sequence, sequence, 'too-large');
          continue;
        }
        const start = transport.reserve(size);
        if (start < 0) return;
        transport.arena.bytes.set(history.bytes.subarray(offset, offset + size), start);
        transport.arena.u32[(start >>> 2) + WORD.BITS]! |= FLAG.REPAIR << 8;
        transport.arena.commit(size);
        transport.add(peer, 0, start, size);
        messages--;
        bytes -= size;
        this.counts.repaired++;
      }
    }
    this.host.schedule();
  }

  /** The channel is over, or the member. */
  close(): void {
    for (const timer of [this.#turn, this.#beat]) if (timer !== null) this.host.clock.clearTimeout(timer);
    this.#turn = null;
    this.#beat = null;
    this.#whenSent = null;
    this.#forgetQueue();
    this.group.close();
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  #forgetQueue(): void {
    if (this.queuedBytes === 0) return;
    this.queuedBytes = 0;
    this.host.keepalive.queues(false);
    this.#roomAgain();
  }

  #roomAgain(): void {
    if (!this.full || this.queuedBytes > this.channel.maxQueueBytes / 2) return;
    this.full = false;
    this.channel.room.relents(this);
  }

  /** These can't be sent again to that subscriber. */
  #tellGap(peer: Peer, from: number, to: number, reason: GapReason): void {
    this.host.control.sendNumbers(peer, 0, KIND.GAP, this.channel.number, from, 0, from, to, [
      to - from + 1,
      GAP_REASONS.indexOf(reason),
    ]);
  }

  #later(ms: number): void {
    this.#turn ??= this.host.clock.setTimeout(() => {
      this.#turn = null;
      this.#sendQueued();
    }, ms);
  }

  #sendQueued(): void {
    const { arena } = this.host.transport;
    const history = this.#history;
    while (this.queuedBytes > 0) {
      const wait = this.#bucket?.wait ?? 0;
      if (wait > 0) {
        this.#later(wait);
        break;
      }
      const sequence = this.sent + 1;
      const offset = history.offset(sequence);
      const size = history.size(offset);
      const start = this.host.transport.reserve(size);
      if (start >= 0) {
        arena.bytes.set(history.bytes.subarray(offset, offset + size), start);
        arena.pinned = arena.head;
        arena.commit(size);
      }
      const gone = start >= 0 && this.#send(start, size, sequence);
      arena.pinned = -1;
      if (!gone) {
        this.#later(RETRY_MS);
        break;
      }
      this.queuedBytes -= size;
    }
    this.host.schedule();
    this.#roomAgain();
    if (this.queuedBytes > 0) return;
    this.host.keepalive.queues(false);
    const call = this.#whenSent;
    this.#whenSent = null;
    call?.();
  }

  /** @returns false if the arena has no room for the fragments */
  #send(start: number, size: number, sequence: number): boolean {
    const { transport } = this.host;
    const { number, room } = this.group;
    if (size <= room) {
      transport.addDatagram(number, room, start, size);
      this.counts.datagrams++;
    } else {
      const most = partBytes(room);
      for (let offset = 0; offset < size; offset += most) {
        const part = Math.min(most, size - offset);
        const bytes = fragmentBytes(part);
        const at = transport.reserve(bytes);
        if (at < 0) return false;
        writeFragment(transport.arena, start, offset, part, at);
        transport.arena.commit(bytes);
        transport.addDatagram(number, room, at, bytes);
        this.counts.datagrams++;
      }
    }
    // Our own subscribers hear us without the device, as on a lane.
    const self = this.#self();
    if (self !== null) transport.add(self, 0, start, size);
    this.sent = sequence;
    this.#bucket?.spend(size);
    this.#busy = true;
    this.#beatMs = FIRST_BEAT_MS;
    this.#startBeat();
    return true;
  }

  #self(): Peer | null {
    for (const { peer } of this.channel.audience.destinations) if (peer.index === SELF) return peer;
    return null;
  }

  #startBeat(): void {
    if (this.#beat !== null) return;
    this.#beat = this.host.clock.setTimeout(() => {
      this.#beat = null;
      if (this.channel.audience.destinations.length === 0) return;
      if (!this.#busy) this.#sendBeat();
      this.#busy = false;
      this.#startBeat();
    }, this.#beatMs);
    this.#beat.unref?.();
  }

  #sendBeat(): void {
    const { transport } = this.host;
    const { arena } = transport;
    this.#beatMs = Math.min(LAST_BEAT_MS, this.#beatMs * 2);
    const start = transport.reserve(RECORD_BYTES);
    if (start < 0) return;
    writeHeader(
      arena.u32,
      arena.f64,
      start,
      this.channel.number,
      0,
      this.sent,
      KIND.HEARTBEAT,
      0,
      this.host.stamp(),
    );
    arena.commit(RECORD_BYTES);
    transport.addDatagram(this.group.number, this.group.room, start, RECORD_BYTES);
    this.counts.heartbeats++;
    this.host.schedule();
  }
}
