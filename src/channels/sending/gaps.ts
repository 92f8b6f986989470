import type { Peer } from '../peer.js';
import type { GapReason } from '../wire.js';

/**
 * What one subscriber misses: `next` is the sequence that it expects, and whatever is sent with another one is preceded by a
 * GAP record, so nothing is lost in silence (I4), whichever policy dropped it.
 */
export class Gaps {
  /** Everything that was dropped, and why the last of it. */
  total = 0;
  reason: GapReason = 'overflow';
  /** Dropped since status$ was told. */
  untold = 0;
  /** A GAP record is due. */
  due = false;

  constructor(
    /** Next sequence that the subscriber expects. */
    public next: number,
    private readonly peer: Peer,
    /** Sends a GAP record. */
    private readonly send: (from: number, to: number, reason: GapReason) => void,
  ) {}

  /** A message was dropped. */
  dropped(reason: GapReason): void {
    this.total++;
    this.untold++;
    this.due = true;
    this.reason = reason;
  }

  /** Says that everything from `next` to `to` is missing. @returns false if there is no room for saying it */
  tell(to: number): boolean {
    if (to < this.next) return true;
    if (this.peer.stalled) return false;
    this.send(this.next, to, this.reason);
    this.next = to + 1;
    // Put aside for want of room: then what follows must wait, too.
    return !this.peer.stalled;
  }
}
