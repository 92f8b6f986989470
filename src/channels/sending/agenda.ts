import type { Clock, Scheduled } from '../clock.js';
import type { Peer } from '../peer.js';
import type { Transport } from '../transport.js';
import type { Destination } from './destination.js';
import type { Room } from './room.js';
import type { Tally } from './tally.js';

/** Drops are told within this time even if nothing else is sent. */
const GAP_MS = 100;

/** What the agenda needs of its member. */
export interface AgendaHost {
  readonly clock: Clock;
  readonly transport: Transport;
  /** A flush at the end of this turn. */
  schedule(): void;
  endOfTurn(): void;
}

/** What this member's publishers have left for the end of a turn. */
export class Agenda {
  #dirty = new Set<Tally>();
  /** Publishers that were refused for want of room in the arena. */
  readonly #wantArena = new Set<Room>();
  #later = new Set<Destination>();
  #gaps = new Set<Destination>();
  #gapTimer: Scheduled | null = null;
  /** Peers some of whose rows are waited for. */
  readonly #awaited = new Set<Peer>();

  constructor(private readonly host: AgendaHost) {}

  /** Something was not taken: status$ is told. */
  dirty(tally: Tally): void {
    this.#dirty.add(tally);
    this.host.schedule();
  }
  /** A message was refused for want of room in the arena: `arenaTurn()` follows at the end of turns. */
  wantsArena(room: Room): void {
    this.#wantArena.add(room);
    this.host.schedule();
  }
  /** It is to be served again. */
  later(destination: Destination): void {
    this.#later.add(destination);
    this.host.schedule();
  }
  /** Gap records are due within 100 ms: `reportGaps()` follows. */
  gapDue(destination: Destination): void {
    this.#gaps.add(destination);
    if (this.#gapTimer !== null) return;
    this.#gapTimer = this.host.clock.setTimeout(() => this.#reportGaps(), GAP_MS);
    this.#gapTimer.unref?.();
  }
  /** A row of that peer is waited for. */
  awaits(peer: Peer): void {
    this.#awaited.add(peer);
  }
  /** Nobody waits for its rows any more. */
  forget(peer: Peer): void {
    this.#awaited.delete(peer);
  }
  /** What was put aside for that peer has gone: what waited behind it is served. */
  resumed(peer: Peer): void {
    for (const destination of peer.destinations) this.#later.add(destination as Destination);
  }

  /** Whether something is left that only polling moves on: completions, room in the arena. */
  get waits(): boolean {
    return this.#wantArena.size > 0 || this.#awaited.size > 0 || this.#later.size > 0;
  }

  /** Before the flush: sends what found room. */
  serve(): void {
    if (this.#later.size === 0) return;
    const later = this.#later;
    this.#later = new Set();
    for (const destination of later) destination.serve();
  }

  /** After the flush: settles and tells what can be. */
  settle(): void {
    if (this.#awaited.size > 0) this.settleRows();
    if (this.#dirty.size > 0) {
      const dirty = this.#dirty;
      this.#dirty = new Set();
      for (const tally of dirty) tally.tell();
    }
    for (const room of this.#wantArena) if (room.arenaTurn()) this.#wantArena.delete(room);
  }

  /** publish(): rows that are in their peers' inboxes. */
  settleRows(): void {
    for (const peer of this.#awaited) {
      const arrived = this.host.transport.arrived(peer);
      let done = 0;
      while (done < peer.awaiting.length && peer.awaiting[done]!.row <= arrived)
        peer.awaiting[done++]!.waiter.arrived();
      peer.awaiting.splice(0, done);
      if (peer.awaiting.length === 0) this.#awaited.delete(peer);
    }
  }

  close(): void {
    this.#wantArena.clear();
    if (this.#gapTimer !== null) this.host.clock.clearTimeout(this.#gapTimer);
  }

  #reportGaps(): void {
    this.#gapTimer = null;
    const gaps = this.#gaps;
    this.#gaps = new Set();
    for (const destination of gaps) destination.reportGaps();
    this.host.endOfTurn();
  }
}
