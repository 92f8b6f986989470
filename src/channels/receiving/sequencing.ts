import type { Clock } from '../clock.js';
import type { Control } from '../control.js';
import type { Batch } from '../frames.js';
import { Reorder, type ReorderHost } from '../multicast/reorder.js';
import type { Peer } from '../peer.js';
import type { LocalSubscription, Origin } from '../subscription.js';
import type { Transport } from '../transport.js';
import { FLAG, type GapReason, KIND, sequenceAt, WORD } from '../wire.js';
import type { Accounts } from './accounts.js';
import type { Handover } from './handover.js';
import type { Origins } from './origins.js';

/** What sequencing needs of its member. */
export interface SequencingHost {
  readonly clock: Clock;
  /** From 0 to below 1. */
  readonly dice: () => number;
  readonly transport: Transport;
  readonly control: Control;
  /** A flush at the end of this turn. */
  schedule(): void;
}

/** Messages of multicast channels, which come in any order, in parts and not at all: handed on in their order. */
export class Sequencing implements ReorderHost<Origin> {
  readonly clock: Clock;
  readonly dice: () => number;

  constructor(
    private readonly host: SequencingHost,
    private readonly origins: Origins,
    private readonly accounts: Accounts,
    private readonly handover: Handover,
  ) {
    this.clock = host.clock;
    this.dice = host.dice;
  }

  /** What puts the messages of a publisher in order. */
  begin(origin: Origin, { wanted }: LocalSubscription): Reorder<Origin> {
    return new Reorder(this, origin, { ...wanted.hold, record: this.host.transport.maxRow });
  }

  /** A message: handed on in order, or held until what precedes it is repaired or given up. */
  take(origin: Origin, reorder: Reorder<Origin>, batch: Batch, pos: number, size: number): void {
    const word = pos >>> 2;
    if ((batch.u32[word + WORD.BITS]! >>> 8) & FLAG.REPAIR) reorder.counts.repaired++;
    if (!reorder.take(batch, pos, size, sequenceAt(batch.u32, word))) return;
    this.#hand(origin, batch, pos);
    this.follow(origin);
  }

  /** A part of a message. */
  fragment(peer: Peer, batch: Batch, pos: number): void {
    const origin = this.origins.of(peer)?.get(batch.u32[pos >>> 2]!);
    const reorder = origin?.reorder ?? null;
    if (origin === undefined || reorder === null || origin.closed) {
      this.origins.strays++;
      return;
    }
    const whole = reorder.join(batch, pos);
    if (whole !== null) this.take(origin, reorder, whole, 0, whole.bytes.length);
  }

  // ---- for what puts them in order (ReorderHost) -----------------------------------------------------------------------

  follow(origin: Origin): void {
    const { reorder } = origin;
    if (reorder === null) return;
    for (let next = reorder.following(); next !== null; next = reorder.following()) {
      this.#hand(origin, next, 0);
      if (origin.closed || this.host.transport.closed) return;
    }
    this.host.schedule();
  }

  missing(origin: Origin, to: number, reason: GapReason): void {
    this.accounts.touch(origin);
    this.origins.missing(origin, to, reason);
  }

  requestRepair(origin: Origin, ranges: readonly (readonly [number, number])[]): void {
    const { peer, number, generation } = origin;
    if (peer.gone) return;
    const payload = new Uint8Array(new Float64Array(ranges.flat()).buffer);
    this.host.control.send(peer, 0, KIND.REPAIR, number, 0, generation, payload);
    this.host.schedule();
  }

  reportMissed({ peer, number, generation }: Origin, from: number, to: number): void {
    if (peer.gone) return;
    this.host.control.sendNumbers(peer, 0, KIND.MISSED, number, 0, generation, from, to);
    this.host.schedule();
  }

  #hand(origin: Origin, batch: Batch, pos: number): void {
    // No block is lent to a group: a descriptor would be for one receiver.
    this.handover.live(origin, this.handover.locate(batch, pos), 0);
  }
}
