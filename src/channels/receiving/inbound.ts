import { Batch, type EndMark } from '../frames.js';
import type { Holdings } from '../lending/holdings.js';
import type { Landings } from '../lending/landings.js';
import type { Peer } from '../peer.js';
import type { Status } from '../status.js';
import type { LocalSubscription, Origin } from '../subscription.js';
import { FLAG, KIND, sequenceAt, sizeAt, WORD } from '../wire.js';
import { Accounts, type AccountsHost } from './accounts.js';
import { Budget } from './budget.js';
import { Gate, type GateHost } from './gate.js';
import { Handover } from './handover.js';
import { Lines } from './lines.js';
import { Origins } from './origins.js';
import { ControlRecords, type RecordsHost } from './records.js';
import { Sequencing, type SequencingHost } from './sequencing.js';

/** What the receiving side needs of its member. */
export interface InboundHost extends AccountsHost, GateHost, SequencingHost, Omit<RecordsHost, 'holdings'> {
  readonly subscribing: AccountsHost['subscribing'] & RecordsHost['subscribing'];
  readonly status: Status;
  readonly holdings: Holdings;
  readonly landings: Landings;
}

/**
 * The subscriber's side: frames become messages and go to the local subscribers.
 *
 * What comes from a peer is checked before it is used (I9); native code has copied the frame and checked that its records
 * add up. Messages of one publisher on one channel are handed on in order or a gap says what is missing (I4).
 */
export class Inbound {
  /** The publishers that are heard. */
  readonly origins: Origins;
  /** This member's subscriptions, by id. */
  readonly locals: Map<number, LocalSubscription>;
  readonly accounts: Accounts;
  /** What waits behind large messages that are being read from elsewhere. */
  readonly lines: Lines;
  /** Holds back frames that came before subscriptions which their sender had made earlier. */
  readonly gate: Gate;
  readonly #records: ControlRecords;
  readonly #handover: Handover;
  readonly #sequencing: Sequencing;
  readonly #budget: Budget;

  constructor(private readonly host: InboundHost) {
    const origins = new Origins(host.status);
    this.origins = origins;
    this.locals = origins.locals;
    this.gate = new Gate(host);
    this.#budget = new Budget(host.clock);
    this.accounts = new Accounts(host, origins);
    this.#handover = new Handover(host, origins, this.accounts);
    this.#sequencing = new Sequencing(host, origins, this.accounts, this.#handover);
    this.#records = new ControlRecords(host, origins, this.accounts, this.#sequencing);
    this.lines = new Lines(host, origins, this.#records, this.#handover, this.#budget);
  }

  /**
   * Delivers frames until they are gone, the time is up or enough messages were delivered in this turn of the event loop,
   * which `fresh` begins.
   * @returns whether anything was delivered
   */
  deliver(deadline: number, fresh: boolean): boolean {
    const { frames } = this.host.transport;
    const { gate, lines } = this;
    const left = this.#budget.begin(fresh);
    if (frames.empty && gate.due === undefined && lines.atRest) return false;
    if (!left) return false;
    if (!lines.deliver(deadline)) return true;
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
      if (this.#budget.over(deadline)) break;
    }
    return true;
  }

  /** Looks through frames that wait for what gives room, so that a loop of next() that never yields still gets it. */
  takeConsumed(): void {
    this.host.transport.frames.scan(this.#consumedIn);
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
    this.accounts.close();
  }

  // ---- frames ------------------------------------------------------------------------------------------------------

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
        if (stopped < end || this.#budget.over(deadline)) return false;
      } else {
        gate.delivered(peer, end);
        this.#ended(peer, what);
      }
    }
    return true;
  }

  /** Behind its last frame: what it offered and nobody took is given back (R16). */
  #ended(peer: Peer, mark: EndMark): void {
    for (const origin of [...(this.origins.of(peer)?.values() ?? [])]) this.lines.end(origin);
    this.origins.peerEnded(peer, mark);
    this.host.holdings.publisherGone(peer);
  }

  /** Delivers the records of a frame. @returns where it stopped */
  #frame(peer: Peer, batch: Batch, start: number, end: number, deadline: number): number {
    const { u32 } = batch;
    const byNumber = this.origins.of(peer);
    const handover = this.#handover;
    const budget = this.#budget;
    let number = -1;
    let origin: Origin | undefined;
    for (let pos = start; pos < end; ) {
      const word = pos >>> 2;
      const bits = u32[word + WORD.BITS]!;
      const size = sizeAt(u32, word);
      if ((bits & 0xff) !== KIND.DATA) {
        if (this.#control(peer, batch, pos, size, end)) return end;
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
      const flags = (bits >>> 8) & 0xff;
      const from = pos;
      pos += size;
      if (origin === undefined || origin.closed) {
        this.origins.strays++;
        if ((flags & FLAG.LARGE) !== 0) handover.unwanted(peer, handover.locate(batch, from), flags);
        continue;
      }
      if (origin.reorder !== null && (flags & FLAG.REPLAY) === 0) {
        this.#sequencing.take(origin, origin.reorder, batch, from, size);
        if (this.host.transport.closed) return end;
      } else if (origin.line.length > 0 || (flags & FLAG.REMOTE) !== 0) {
        this.lines.add(origin, batch, from, flags);
        continue;
      } else {
        const at = handover.locate(batch, from);
        if ((flags & FLAG.REPLAY) === 0) handover.live(origin, at, flags);
        else handover.replayed(origin, at, flags, u32[word + WORD.CORRELATION]!);
      }
      if (budget.spend(deadline)) return pos;
    }
    return end;
  }

  /** The control record at `pos`. @returns whether nothing more of the frame is delivered now */
  #control(peer: Peer, batch: Batch, pos: number, size: number, end: number): boolean {
    if (this.lines.takes(peer, batch, pos)) return false;
    const word = pos >>> 2;
    const kind = batch.u32[word + WORD.BITS]! & 0xff;
    if (kind === KIND.AFTER && this.gate.blocks(peer, sequenceAt(batch.u32, word))) {
      this.#consumedIn(peer, batch, pos, end);
      this.gate.hold(peer, batch, pos + size, end, sequenceAt(batch.u32, word));
      return true;
    }
    if (kind === KIND.FRAGMENT) this.#sequencing.fragment(peer, batch, pos);
    else this.#records.take(peer, batch, pos);
    return this.host.transport.closed;
  }
}
