import type { Clock } from './clock.js';
import type { Control } from './control.js';
import { type DeliveryWaiter, type DestinationEnd, Expectations, type Ticket } from './expectations.js';
import type { Block, Pool } from './lending/pool.js';
import { type Backlog, makeBacklog, type Overflow } from './overflow/index.js';
import type { Peer, PeerEnd, PeerPart, PeerSubscription } from './peer.js';
import type { Replay } from './replay.js';
import type { Transport } from './transport.js';
import { type Delivery, GAP_REASONS, type GapReason, KIND } from './wire.js';

/** What a destination needs of its channel and member. */
export interface DestinationHost {
  readonly transport: Transport;
  readonly control: Control;
  readonly clock: Clock;
  readonly pool: Pool;
  readonly number: number;
  readonly lane: number;
  /** On a multicast channel messages don't come this way: only what is for one subscriber. */
  readonly delivery: Delivery;
  readonly maxQueueBytes: number;
  readonly maxWait: number;
  /** Last sequence that was given out. */
  readonly sequence: number;
  /** How this member's publishing ended, or null. */
  readonly ended: string | null;
  /** It fills up (it refuses) or has room again. */
  refuses(on: boolean): void;
  /** It begins or ends to hold messages back. */
  queues(on: boolean): void;
  /** So many bytes more are held back. */
  heldBack(bytes: number): void;
  /** A message was dropped; a gap record is due within 100 ms. */
  messageDropped(destination: Destination): void;
  /** The arena has no room: serve again at the end of the turn. */
  later(destination: Destination): void;
  /** The subscriber holds as much of the pool as it may: serve again when it gave something back. */
  awaitsRoom(destination: Destination): void;
  /** A row is waited for. */
  awaits(peer: Peer): void;
  destinationEnded(destination: Destination, why: DestinationEnd): void;
}

/**
 * One subscriber (a member) of one channel, as its publisher sees it: the byte window, the queue behind the window with
 * the subscriber's policy, and the gaps.
 *
 * `next` is the sequence that the subscriber expects. Whatever is sent with another one is preceded by a GAP record, so
 * nothing is lost in silence (I4), whichever policy dropped it.
 */
export class Destination implements PeerPart {
  readonly subscriptions = new Map<number, PeerSubscription>();
  /** Nothing is queued: the next message may go straight to the arena. */
  idle = true;
  /** First sequence that is for it. */
  readonly first: number;
  /** Next sequence that the subscriber expects. */
  next: number;
  window = 0;
  maxRecord = 0;
  /** Bytes of DATA that were sent, and of those that the subscriber took. */
  sent = 0;
  consumed = 0;
  /** Last sequence that was handed to the subscriber's next. */
  delivered: number;
  droppedTotal = 0;
  /** Dropped since status$ was told, and why. */
  untold = 0;
  /** A gap record is due. */
  gapDue = false;
  reason: GapReason = 'overflow';
  /** A `wait` queue is full: the publisher is refused. */
  full = false;
  gone = false;
  /** Key of the value that is being published, if the policy wants one. */
  key: unknown = undefined;
  #lowWater = 0;
  #fullSince = 0;
  #overflow: Overflow;
  /** The policy that the backlog follows; another one takes over when it is empty. */
  #inForce: Overflow;
  #backlog: Backlog;
  /** Sequence of the head for which a report was asked. */
  #askedFor = 0;
  #replay: Replay | null = null;
  /** The blocks of large messages in the backlog, by sequence; each is referred to from here. */
  readonly #blocks = new Map<number, Block>();
  #blockBytes = 0;
  readonly #expected = new Expectations<Destination>(this);
  #reportWanted = false;
  #done: Uint8Array | null = null;

  constructor(
    readonly host: DestinationHost,
    readonly peer: Peer,
    /** Number of this window: a CONSUMED of an earlier one is not for us. */
    readonly generation: number,
    overflow: Overflow,
  ) {
    this.first = host.sequence + 1;
    this.next = this.first;
    this.delivered = host.sequence;
    this.#overflow = overflow;
    this.#inForce = overflow;
    this.#backlog = this.#makeBacklog();
    peer.destinations.add(this);
  }

  get lane(): number {
    return this.host.lane;
  }
  get outstanding(): number {
    return this.sent - this.consumed;
  }
  get queuedBytes(): number {
    return this.#backlog.bytes + this.#blockBytes + (this.#replay?.records.bytes ?? 0);
  }
  get queuedCount(): number {
    return this.#backlog.count;
  }
  get overflow(): Overflow {
    return this.#overflow;
  }
  /** Path of the key that its policy wants, or null. */
  get keyPath(): readonly string[] | null {
    return this.#backlog.keyPath;
  }

  /** Takes over what the winning subscription asks for. A queue under the old policy is first sent. */
  configure(subscription: PeerSubscription): void {
    this.window = subscription.window;
    this.maxRecord = subscription.maxRecord;
    this.#overflow = subscription.overflow;
    if (this.idle) this.#changePolicy();
  }

  /**
   * Whether a message may be published as far as this subscriber is concerned: of so many bytes as a record, and so many in
   * a block of the pool.
   */
  admits(size: number, block = 0): boolean {
    if (this.idle && this.#fits(size) && (block === 0 || this.host.pool.room(this.peer, block))) return true;
    if (!this.#backlog.waits || size > this.maxRecord) return true;
    if (this.#backlog.accepts(size) && this.#queueable(block)) return true;
    this.#fill(Math.max(0, this.host.maxQueueBytes - size));
    return this.#patienceIsOver();
  }

  /**
   * Hands over the record at `start` in the arena, which has the channel's newest sequence. The record of a large message is
   * this subscriber's own, since its descriptor is.
   */
  take(start: number, size: number, sequence: number, ticket: Ticket | null, block: Block | null): void {
    if (
      this.idle &&
      this.next === sequence &&
      !this.peer.stalled &&
      this.#fits(size) &&
      size <= this.maxRecord &&
      (block === null || this.#offer(block, start))
    ) {
      this.next = sequence + 1;
      this.sent += size;
      this.host.transport.add(this.peer, this.host.lane, start, size);
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
    if (
      this.idle &&
      this.#fits(size) &&
      !this.peer.stalled &&
      (block === null || this.host.pool.room(this.peer, block.bytes)) &&
      this.#tellGap(sequence - 1)
    ) {
      if (block !== null) this.#offer(block, start);
      this.next = sequence + 1;
      this.sent += size;
      this.host.transport.add(this.peer, this.host.lane, start, size);
      this.#settle(sequence);
      return;
    }
    if (this.idle) {
      this.idle = false;
      this.host.queues(true);
      if (block !== null && !this.host.pool.room(this.peer, block.bytes)) this.host.awaitsRoom(this);
      else if (this.peer.stalled || this.#fits(size)) this.host.later(this);
      else this.#blocked(size, sequence);
    }
    if (block !== null && !this.#queueBlock(block, sequence)) return;
    this.#backlog.push(this.host.transport.arena, start, size, sequence, this.key);
    this.host.heldBack(size);
    if (this.#backlog.waits && !this.full && !this.#backlog.accepts(1))
      this.#fill(this.host.maxQueueBytes / 2);
  }

  /** Whether a block of so many bytes may be queued: what is queued counts as a whole, and one may always be. */
  #queueable(bytes: number): boolean {
    return this.#blockBytes === 0 || this.#blockBytes + bytes <= this.host.maxQueueBytes;
  }

  /** Refers to a block that is about to be queued. @returns false when it was dropped instead, as the policy says */
  #queueBlock(block: Block, sequence: number): boolean {
    while (!this.#queueable(block.bytes) && this.#backlog.shed()) {}
    if (!this.#queueable(block.bytes)) {
      this.#expected.dropped(sequence);
      this.#drop(this.#backlog.waits ? 'max-wait' : 'overflow');
      return false;
    }
    block.refs++;
    this.#blocks.set(sequence, block);
    this.#blockBytes += block.bytes;
    return true;
  }

  /** The message is not queued any more. @returns its block, if it has one, with the queue's reference */
  #unqueueBlock(sequence: number): Block | undefined {
    const block = this.#blocks.get(sequence);
    if (block === undefined) return undefined;
    this.#blocks.delete(sequence);
    this.#blockBytes -= block.bytes;
    return block;
  }

  /** The pool has no block left: drops a large message that is queued, if the policy drops. @returns whether it did */
  shedBlock(): boolean {
    const before = this.#blocks.size;
    while (this.#blocks.size > 0 && this.#blocks.size === before) if (!this.#backlog.shed()) return false;
    return this.#blocks.size < before;
  }

  /** Records the hold of this subscriber, and its descriptor in the record (R15). @returns false: it has no room */
  #offer(block: Block, start: number): boolean {
    return this.host.pool.offer(block, this.peer, this.host.transport.arena, start);
  }

  /** The subscriber says what it took. @returns false if it cannot be (I9) */
  returned(delivered: number, bytes: number): boolean {
    if (!(bytes >= this.consumed && bytes <= this.sent)) return false;
    if (!(delivered >= this.delivered && delivered <= this.host.sequence)) return false;
    this.consumed = bytes;
    this.delivered = delivered;
    if (this.host.delivery === 'multicast') this.#expected.sent(delivered, (ticket) => ticket.arrived());
    if (this.#expected.delivery) this.#expected.delivered(delivered);
    this.serve();
    return true;
  }

  /** Sends from the queue what the window and the arena allow. */
  serve(): void {
    if (this.gone) return;
    if (!this.idle) {
      if (this.peer.stalled || !this.#sendReplay() || !this.#sendBacklog()) return;
      this.idle = true;
      this.host.queues(false);
      this.#changePolicy();
    }
    if (this.gapDue && this.#tellGap(this.host.sequence)) this.gapDue = false;
    if (this.#reportWanted) this.#sendReport();
    if (this.#done !== null) {
      this.host.control.send(
        this.peer,
        this.host.lane,
        KIND.DONE,
        this.host.number,
        this.host.sequence,
        0,
        this.#done,
      );
      this.#done = null;
      if (this.host.ended !== 'closed') return;
      // The group gives no word of what arrived: what was lost at the end is still repaired.
      if (this.host.delivery === 'multicast') this.whenDelivered(this.host.sequence, ENDS);
      else this.end('unsubscribed');
    }
  }

  /** The 100 ms are over: says what is missing as far as it can be said in order. @returns what was dropped since */
  reportGaps(): number {
    const count = this.untold;
    this.untold = 0;
    if (this.gone || !this.gapDue) return count;
    // Behind what is queued: the gap must not overtake older messages.
    const to = this.#backlog.count > 0 ? this.#backlog.headSequence() - 1 : this.host.sequence;
    const told = this.#replay === null && this.#tellGap(to);
    if (told && this.#backlog.count === 0) this.gapDue = false;
    return count;
  }

  /** Queues kept messages for one subscription: copies with its id in them. */
  replay(kept: Replay): void {
    if (this.#replay === null) this.#replay = kept;
    else {
      this.#replay.records.append(kept.records);
      this.#replay.blocks.push(...kept.blocks);
    }
    if (this.idle) {
      this.idle = false;
      this.host.queues(true);
    }
    this.serve();
  }

  /** This member's publishing ended: said behind the last message. */
  finish(body: Uint8Array): void {
    this.#done = body;
    this.serve();
  }

  /** Calls the waiter when everything up to `sequence` is delivered. */
  whenDelivered(sequence: number, waiter: DeliveryWaiter<Destination>): void {
    if (this.delivered >= sequence) return waiter.delivered(this);
    this.#expected.add(sequence, waiter);
    this.askReport();
  }

  /** Multicast: the ticket of a message that goes to the group; what the subscriber reports settles it. */
  expect(sequence: number, ticket: Ticket): void {
    this.#expected.queue(sequence, ticket);
    this.askReport();
  }

  /** Multicast: the subscriber has given these up. @returns false if they were never sent (I9) */
  missed(from: number, to: number): boolean {
    if (!(from >= this.first && to >= from && to <= this.host.sequence)) return false;
    this.droppedTotal += to - from + 1;
    this.#expected.droppedWithin(from, to);
    return true;
  }

  /** Forgets a waiter that gave up. */
  forget(waiter: DeliveryWaiter<Destination>): void {
    this.#expected.forget(waiter);
  }

  /** Asks the subscriber to say what it took, behind what is queued. */
  askReport(): void {
    this.#reportWanted = true;
    // With a queue it is asked for at once as well: the answer is what makes room.
    this.#sendReport();
    if (!this.idle) this.#reportWanted = true;
  }

  peerGone(why: PeerEnd): void {
    this.end(why);
  }

  /** The peer is gone or has unsubscribed. */
  end(why: DestinationEnd): void {
    if (this.gone) return;
    this.gone = true;
    this.peer.destinations.delete(this);
    if (!this.idle) this.host.queues(false);
    this.idle = true;
    this.#empty();
    this.#expected.end(why, this.host.delivery === 'multicast');
    this.#backlog.clear();
    for (const sequence of [...this.#blocks.keys()]) this.host.pool.unref(this.#unqueueBlock(sequence)!);
    for (const block of this.#replay?.blocks ?? []) if (block !== null) this.host.pool.unref(block);
    this.#replay = null;
    this.host.destinationEnded(this, why);
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  #changePolicy(): void {
    if (this.#inForce === this.#overflow) return;
    this.#inForce = this.#overflow;
    this.#backlog = this.#makeBacklog();
  }

  #makeBacklog(): Backlog {
    return makeBacklog(this.#inForce, this.host.maxQueueBytes, (sequence) => {
      const block = this.#unqueueBlock(sequence);
      if (block !== undefined) this.host.pool.unref(block);
      this.#expected.dropped(sequence);
      this.#drop(this.#backlog.waits ? 'max-wait' : 'overflow');
    });
  }

  /** A message that is larger than the window goes when nothing else is on its way. */
  #fits(size: number): boolean {
    const outstanding = this.sent - this.consumed;
    return outstanding + size <= this.window || outstanding === 0;
  }

  #drop(reason: GapReason): void {
    this.droppedTotal++;
    this.untold++;
    this.gapDue = true;
    this.reason = reason;
    this.host.messageDropped(this);
  }

  /** Says that everything from `next` to `to` is missing. @returns false if there is no room for saying it */
  #tellGap(to: number): boolean {
    if (to < this.next) return true;
    if (this.peer.stalled) return false;
    const count = to - this.next + 1;
    this.host.control.sendNumbers(
      this.peer,
      this.host.lane,
      KIND.GAP,
      this.host.number,
      this.next,
      0,
      this.next,
      to,
      [count, GAP_REASONS.indexOf(this.reason)],
    );
    this.next = to + 1;
    // Put aside for want of room: then what follows must wait, too.
    return !this.peer.stalled;
  }

  #sendReport(): void {
    if (this.idle) this.#reportWanted = false;
    this.host.control.send(
      this.peer,
      this.host.lane,
      KIND.REPORT,
      this.host.number,
      this.host.sequence,
      0,
      NOTHING,
    );
  }

  /** @returns whether all of it is sent */
  #sendReplay(): boolean {
    if (this.#replay === null) return true;
    const { records: queue, blocks } = this.#replay;
    const alone = blocks.some((block) => block !== null);
    while (queue.count > 0) {
      const size = queue.headSize();
      if (!this.#fits(size)) {
        this.#blocked(size, -queue.headSequence());
        return false;
      }
      const block = blocks[0] ?? null;
      if (block !== null && !this.host.pool.room(this.peer, block.bytes)) {
        this.host.awaitsRoom(this);
        return false;
      }
      const start = this.#room(size);
      if (start < 0) return false;
      const count = queue.count;
      const moved = queue.take(this.host.transport.arena.bytes, start, alone ? size : this.#budget(size));
      blocks.splice(0, count - queue.count);
      if (block !== null) this.#offerTaken(block, start);
      this.#send(start, moved);
    }
    this.#replay = null;
    return true;
  }

  /** @returns whether all of it is sent */
  #sendBacklog(): boolean {
    const backlog = this.#backlog;
    while (backlog.count > 0) {
      const size = backlog.headSize();
      if (!this.#fits(size)) {
        this.#roomAgain();
        this.#blocked(size, backlog.headSequence());
        return false;
      }
      const block = this.#blocks.get(backlog.headSequence());
      if (block !== undefined && !this.host.pool.room(this.peer, block.bytes)) {
        this.#roomAgain();
        this.host.awaitsRoom(this);
        return false;
      }
      if (!this.#tellGap(backlog.headSequence() - 1)) {
        this.host.later(this);
        return false;
      }
      const start = this.#room(size);
      if (start < 0) return false;
      // A large message goes alone: the next one may have to wait for room.
      const budget = this.#blocks.size > 0 ? size : this.#budget(size);
      const moved = backlog.take(this.host.transport.arena.bytes, start, budget);
      this.next = backlog.lastTaken + 1;
      if (block !== undefined) this.#offerTaken(this.#unqueueBlock(backlog.lastTaken)!, start);
      this.#send(start, moved);
      if (this.#expected.queued) this.#settle(backlog.lastTaken);
    }
    this.#empty();
    return true;
  }

  /** Bytes that may be taken at once: what the window and a slot allow, and at least one record. */
  #budget(first: number): number {
    return Math.max(first, Math.min(this.window - this.outstanding, this.host.transport.maxRow));
  }

  /**
   * No window. The subscriber reports at half of it, so a message that is larger than the other half may never fit unless
   * it is asked.
   */
  #blocked(size: number, sequence: number): void {
    if (size * 2 <= this.window || this.#askedFor === sequence) return;
    this.#askedFor = sequence;
    this.askReport();
  }

  /** Offset in the arena for what `#budget` allows, or -1: no arena, then it is tried again. */
  #room(first: number): number {
    const start = this.host.transport.reserve(this.#budget(first));
    if (start < 0) this.host.later(this);
    return start;
  }

  #send(start: number, bytes: number): void {
    this.host.transport.arena.commit(bytes);
    this.sent += bytes;
    this.host.transport.add(this.peer, this.host.lane, start, bytes);
  }

  /** Offers a block whose message was queued, and gives the queue's reference back. */
  #offerTaken(block: Block, start: number): void {
    this.#offer(block, start);
    this.host.pool.unref(block);
  }

  /** Tickets up to that sequence are handed to the transport. */
  #settle(sequence: number): void {
    this.#expected.sent(sequence, (ticket) => this.#handed(ticket));
  }

  #handed(ticket: Ticket): void {
    this.peer.awaiting.push({ row: this.peer.rows, waiter: ticket });
    this.host.awaits(this.peer);
  }

  #fill(lowWater: number): void {
    this.#lowWater = this.full
      ? Math.min(this.#lowWater, lowWater)
      : Math.min(lowWater, this.host.maxQueueBytes / 2);
    if (this.full) return;
    this.full = true;
    this.#fullSince = this.host.clock.now();
    this.host.refuses(true);
  }

  #roomAgain(): void {
    if (!this.full || this.#backlog.bytes > this.#lowWater) return;
    if (this.#blockBytes * 2 <= this.host.maxQueueBytes) this.#empty();
  }

  #empty(): void {
    if (!this.full) return;
    this.full = false;
    this.host.refuses(false);
  }

  /** When its patience (the publisher's maxWait) ends, in clock.now(). */
  get patienceEnds(): number {
    return this.full ? this.#fullSince + this.host.maxWait : Number.POSITIVE_INFINITY;
  }

  #patienceIsOver(): boolean {
    return this.host.clock.now() >= this.patienceEnds;
  }
}

const NOTHING = new Uint8Array(0);

/** Ends the destination of a closed channel. */
const ENDS: DeliveryWaiter<Destination> = {
  delivered: (destination) => destination.end('unsubscribed'),
  ended() {},
};
