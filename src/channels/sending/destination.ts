import type { Clock } from '../clock.js';
import type { Control } from '../control.js';
import type { Block, Pool } from '../lending/pool.js';
import type { Overflow } from '../overflow/index.js';
import type { Peer, PeerEnd, PeerPart, PeerSubscription } from '../peer.js';
import type { Status } from '../status.js';
import type { Transport } from '../transport.js';
import { type Delivery, GAP_REASONS, type GapReason, KIND } from '../wire.js';
import { type DeliveryWaiter, type DestinationEnd, Expectations, type Ticket } from './expectations.js';
import { Gaps } from './gaps.js';
import { Patience } from './patience.js';
import { type Pending, Queue } from './queue.js';
import { Replay, type ReplayStore } from './replay.js';
import { Reports } from './reports.js';
import type { Room } from './room.js';
import { Window } from './window.js';

/** What a destination needs of its member. */
export interface DestinationMember {
  readonly transport: Transport;
  readonly control: Control;
  readonly clock: Clock;
  readonly pool: Pool;
  readonly agenda: {
    /** Gap records are due within 100 ms: `reportGaps()` follows. */
    gapDue(destination: Destination): void;
    /** The arena has no room: serve again at the end of the turn. */
    later(destination: Destination): void;
    /** A row is waited for. */
    awaits(peer: Peer): void;
  };
  readonly shortage: {
    /** The subscriber holds as much of the pool as it may: serve again when it gave something back. */
    awaitsRoom(destination: Destination): void;
  };
  readonly keepalive: {
    /** It begins or ends to hold messages back. */
    queues(on: boolean): void;
  };
}

/** What a destination needs of its channel. */
export interface DestinationChannel {
  readonly name: string;
  readonly number: number;
  readonly lane: number;
  readonly status: Status;
  /** On a multicast channel messages don't come this way: only what is for one subscriber. */
  readonly delivery: Delivery;
  readonly maxQueueBytes: number;
  readonly maxWait: number;
  /** Last sequence that was given out. */
  readonly sequence: number;
  /** How this member's publishing ended, or null. */
  readonly ended: string | null;
  readonly room: Room;
  readonly counts: { dropped: number };
}

/**
 * One subscriber (a member) of one channel, as its publisher sees it. A message goes straight to the transport while nothing
 * is queued and the window has room; else it waits in the queue under the subscriber's policy.
 */
export class Destination implements PeerPart {
  readonly subscriptions = new Map<number, PeerSubscription>();
  readonly window = new Window();
  readonly gaps: Gaps;
  readonly queue: Queue;
  /** Nothing is queued: the next message may go straight to the arena. */
  idle = true;
  gone = false;
  /** First sequence that is for it. */
  readonly first: number;
  /** Last sequence that was handed to the subscriber's next. */
  delivered: number;
  /** Largest record that fits the subscriber's slots. */
  maxRecord = 0;
  /** Key of the value that is being published, if the policy wants one. */
  key: unknown = undefined;
  readonly #patience: Patience;
  readonly #reports: Reports;
  readonly #replay = new Replay();
  readonly #expected = new Expectations<Destination>(this);
  #done: Uint8Array | null = null;

  constructor(
    private readonly member: DestinationMember,
    readonly channel: DestinationChannel,
    readonly peer: Peer,
    /** Number of this window: a CONSUMED of an earlier one is not for us. */
    readonly generation: number,
    overflow: Overflow,
    /** Told once, at its end. */
    private readonly onEnd: (destination: Destination) => void,
  ) {
    const { room, maxWait, maxQueueBytes, number, lane } = channel;
    this.first = channel.sequence + 1;
    this.delivered = channel.sequence;
    this.gaps = new Gaps(this.first, peer, (from, to, reason) => {
      const why = [to - from + 1, GAP_REASONS.indexOf(reason)] as const;
      member.control.sendNumbers(peer, lane, KIND.GAP, number, from, 0, from, to, why);
    });
    this.#patience = new Patience(room, member.clock, maxWait, maxQueueBytes);
    this.queue = new Queue(member.pool, maxQueueBytes, overflow, (sequence) => {
      this.#expected.dropped(sequence);
      this.#drop(this.queue.waits ? 'max-wait' : 'overflow');
    });
    this.#reports = new Reports(this.window, () => this.#sendControl(KIND.REPORT, NOTHING));
    peer.destinations.add(this);
  }

  get lane(): number {
    return this.channel.lane;
  }
  get queuedBytes(): number {
    return this.queue.bytes + this.#replay.bytes;
  }
  /** Its queue is full, and the publisher is refused. */
  get full(): boolean {
    return this.#patience.full;
  }

  /** Takes over what the winning subscription asks for. A queue under the old policy is first sent. */
  configure(subscription: PeerSubscription): void {
    this.window.size = subscription.window;
    this.maxRecord = subscription.maxRecord;
    this.queue.overflow = subscription.overflow;
    if (this.idle) this.queue.adopt();
  }

  // ---- messages ------------------------------------------------------------------------------------------------------

  /**
   * Whether a message may be published as far as this subscriber is concerned: of so many bytes as a record, and so many in
   * a block of the pool.
   */
  admits(size: number, block = 0): boolean {
    const { queue } = this;
    if (this.idle && this.window.fits(size) && (block === 0 || this.member.pool.fits(this.peer, block)))
      return true;
    if (!queue.waits || size > this.maxRecord || queue.accepts(size, block)) return true;
    this.#patience.fill(Math.max(0, this.channel.maxQueueBytes - size));
    return this.#patience.over;
  }

  /**
   * Hands over the record at `start` in the arena, which has the channel's newest sequence. The record of a large message is
   * this subscriber's own, since its descriptor is.
   */
  take(start: number, size: number, sequence: number, ticket: Ticket | null, block: Block | null): void {
    if (
      this.idle &&
      this.gaps.next === sequence &&
      !this.peer.stalled &&
      this.window.fits(size) &&
      size <= this.maxRecord &&
      (block === null || this.#offer(block, start))
    ) {
      this.gaps.next = sequence + 1;
      this.#add(start, size);
      if (ticket !== null) this.#handed(ticket);
      return;
    }
    this.#takeSlowly(start, size, sequence, ticket, block);
  }

  #takeSlowly(
    start: number,
    size: number,
    sequence: number,
    ticket: Ticket | null,
    block: Block | null,
  ): void {
    if (size > this.maxRecord) {
      this.#drop('too-large');
      ticket?.dropped();
      return;
    }
    if (ticket !== null) this.#expected.queue(sequence, ticket);
    const { queue, member } = this;
    const { stalled } = this.peer;
    const fits = this.window.fits(size);
    const room = block === null || member.pool.room(this.peer, block.bytes);
    if (this.idle && fits && !stalled && room && this.gaps.tell(sequence - 1)) {
      if (block !== null) this.#offer(block, start);
      this.gaps.next = sequence + 1;
      this.#add(start, size);
      this.#settle(sequence);
      return;
    }
    if (this.idle) {
      this.#queues();
      if (!room) member.shortage.awaitsRoom(this);
      else if (stalled || fits) member.agenda.later(this);
      else this.#reports.askForRoom(size, sequence);
    }
    if (!queue.push(member.transport.arena, start, size, sequence, this.key, block)) return;
    this.channel.room.heldBack(size);
    if (queue.waits && !this.full && queue.full) this.#patience.fill(this.channel.maxQueueBytes / 2);
  }

  /** Sends copies of kept messages for one subscription, ahead of what is queued. */
  replay(store: ReplayStore, { id, replay, replayBytes }: PeerSubscription): void {
    store.copy(this.#replay, id, replay, replayBytes);
    if (this.#replay.count === 0) return;
    if (this.idle) this.#queues();
    this.serve();
  }

  /** Sends from the queue what the window and the arena allow. */
  serve(): void {
    if (this.gone) return;
    const { channel, gaps } = this;
    if (!this.idle) {
      if (this.peer.stalled || !this.#send(this.#replay, false) || !this.#send(this.queue, true)) return;
      this.#patience.end();
      this.idle = true;
      this.member.keepalive.queues(false);
      this.queue.adopt();
    }
    if (gaps.due && gaps.tell(channel.sequence)) gaps.due = false;
    if (this.#reports.due) this.#reports.ask(true);
    if (this.#done !== null) this.#sendDone(this.#done);
  }

  /** The 100 ms are over: says what is missing as far as it can be said in order, and tells status$ what was dropped. */
  reportGaps(): void {
    const { gaps, queue, channel } = this;
    const count = gaps.untold;
    gaps.untold = 0;
    if (!this.gone && gaps.due) {
      // Behind what is queued: the gap must not overtake older messages.
      const to = queue.count > 0 ? queue.headSequence() - 1 : channel.sequence;
      const told = this.#replay.count === 0 && gaps.tell(to);
      if (told && queue.count === 0) gaps.due = false;
    }
    if (count === 0) return;
    channel.status.emit({
      type: 'dropped',
      at: 'publisher',
      channel: channel.name,
      peer: this.peer.identity,
      count,
      total: gaps.total,
      reason: gaps.reason,
    });
  }

  // ---- what the subscriber says ----------------------------------------------------------------------------------------

  /** It says what it took. @returns false if it cannot be (I9) */
  returned(delivered: number, bytes: number): boolean {
    if (!(delivered >= this.delivered && delivered <= this.channel.sequence)) return false;
    if (!this.window.took(bytes)) return false;
    this.delivered = delivered;
    if (this.channel.delivery === 'multicast') this.#expected.sent(delivered, (ticket) => ticket.arrived());
    if (this.#expected.delivery) this.#expected.delivered(delivered);
    this.serve();
    return true;
  }

  /** Multicast: it has given these up. @returns false if they were never sent (I9) */
  missed(from: number, to: number): boolean {
    if (!(from >= this.first && to >= from && to <= this.channel.sequence)) return false;
    this.gaps.total += to - from + 1;
    this.#expected.droppedWithin(from, to);
    return true;
  }

  /** Multicast: the ticket of a message that goes to the group; what the subscriber reports settles it. */
  expect(sequence: number, ticket: Ticket): void {
    this.#expected.queue(sequence, ticket);
    this.#reports.ask(this.idle);
  }

  /** Calls the waiter when everything up to `sequence` is delivered. */
  whenDelivered(sequence: number, waiter: DeliveryWaiter<Destination>): void {
    if (this.delivered >= sequence) return waiter.delivered(this);
    this.#expected.add(sequence, waiter);
    this.#reports.ask(this.idle);
  }

  /** Forgets a waiter that gave up. */
  forget(waiter: DeliveryWaiter<Destination>): void {
    this.#expected.forget(waiter);
  }

  // ---- the end -------------------------------------------------------------------------------------------------------

  /** This member's publishing ended: said behind the last message. */
  finish(body: Uint8Array): void {
    this.#done = body;
    this.serve();
  }

  peerGone(why: PeerEnd): void {
    this.end(why);
  }

  /** The peer is gone or has unsubscribed. */
  end(why: DestinationEnd): void {
    if (this.gone) return;
    this.gone = true;
    this.peer.destinations.delete(this);
    if (!this.idle) this.member.keepalive.queues(false);
    this.idle = true;
    this.#patience.end();
    this.#expected.end(why, this.channel.delivery === 'multicast');
    this.queue.clear();
    this.#replay.clear(this.member.pool);
    this.onEnd(this);
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  #queues(): void {
    this.idle = false;
    this.member.keepalive.queues(true);
  }

  #drop(reason: GapReason): void {
    this.gaps.dropped(reason);
    this.channel.counts.dropped++;
    this.member.agenda.gapDue(this);
  }

  /** Sends the oldest of `from`: kept messages, or live ones, which come in order. @returns whether all of it is sent */
  #send(from: Pending, live: boolean): boolean {
    const { member, window, gaps } = this;
    const { transport, pool } = member;
    while (from.count > 0) {
      const size = from.headSize();
      const sequence = from.headSequence();
      const block = from.headBlock();
      if (!window.fits(size)) {
        this.#waits();
        this.#reports.askForRoom(size, live ? sequence : -sequence);
        return false;
      }
      if (block !== null && !pool.room(this.peer, block.bytes)) {
        this.#waits();
        member.shortage.awaitsRoom(this);
        return false;
      }
      const budget = window.budget(size, transport.maxRow);
      const start = live && !gaps.tell(sequence - 1) ? -1 : transport.reserve(budget);
      if (start < 0) {
        member.agenda.later(this);
        return false;
      }
      // A large message goes alone: the next one may have to wait for room.
      const moved = from.take(transport.arena.bytes, start, from.mixed ? size : budget);
      if (live) gaps.next = from.lastTaken + 1;
      if (block !== null) {
        this.#offer(block, start);
        pool.unref(block);
      }
      transport.arena.commit(moved);
      this.#add(start, moved);
      if (live && this.#expected.queued) this.#settle(from.lastTaken);
    }
    return true;
  }

  /** The queue waits again; perhaps enough of it has gone for the publisher to go on. */
  #waits(): void {
    this.#patience.left(this.queue.recordBytes, this.queue.blockBytes);
  }

  #add(start: number, bytes: number): void {
    this.window.sent += bytes;
    this.member.transport.add(this.peer, this.channel.lane, start, bytes);
  }

  /** Records the hold of this subscriber, and its descriptor in the record (R15). @returns false: it has no room */
  #offer(block: Block, start: number): boolean {
    return this.member.pool.offer(block, this.peer, this.member.transport.arena, start);
  }

  /** Tickets up to that sequence are handed to the transport. */
  #settle(sequence: number): void {
    this.#expected.sent(sequence, (ticket) => this.#handed(ticket));
  }

  #handed(ticket: Ticket): void {
    this.peer.awaiting.push({ row: this.peer.rows, waiter: ticket });
    this.member.agenda.awaits(this.peer);
  }

  #sendDone(body: Uint8Array): void {
    this.#done = null;
    this.#sendControl(KIND.DONE, body);
    const { channel } = this;
    if (channel.ended !== 'closed') return;
    // The group gives no word of what arrived: what was lost at the end is still repaired.
    if (channel.delivery === 'multicast') this.whenDelivered(channel.sequence, ENDS);
    else this.end('unsubscribed');
  }

  #sendControl(kind: number, payload: Uint8Array): void {
    const { lane, number, sequence } = this.channel;
    this.member.control.send(this.peer, lane, kind, number, sequence, 0, payload);
  }
}

const NOTHING = new Uint8Array(0);

/** Ends the destination of a closed channel. */
const ENDS: DeliveryWaiter<Destination> = {
  delivered: (destination) => destination.end('unsubscribed'),
  ended() {},
};
