import { MillraceError } from '../../errors.js';
import type { Clock, Scheduled } from '../clock.js';
import type { Faults } from '../faults.js';
import type { Batch, EndMark } from '../frames.js';
import type { Peer } from '../peer.js';

/** Frames wait for subscriptions for so long at most. */
const HOLD_MS = 5000;
/** And so many bytes of one peer at most. Its windows keep an honest one far below. */
const HOLD_BYTES = 32 * 1024 * 1024;

/** A frame, what is left of it, or the end of the peer. */
export interface HeldPart {
  readonly what: Batch | EndMark;
  start: number;
  readonly end: number;
}

/** Frames of one peer that wait for subscriptions of the same peer. */
export interface HeldFrames {
  /** Oldest first. */
  readonly parts: HeldPart[];
  bytes: number;
  /** Subscriptions that must have arrived. */
  needs: number;
  /** They may be delivered. */
  due: boolean;
  timer: Scheduled;
}

/** What the gate needs of its member. */
export interface GateHost {
  readonly clock: Clock;
  /** Frames may be delivered that were held. */
  wake(): void;
  readonly faults: Faults;
}

/**
 * The receiver's half of a promise: whoever receives a message of a member knows every subscription which that member had
 * made before it sent it (the sender's half: Seals).
 *
 * An AFTER record says how many subscriptions of its sender must have arrived. Until they have, that peer's later frames
 * wait here, in memory of the garbage collector: no slot and no credit is held, and nobody else waits. They are delivered
 * when the subscriptions come, when the peer is gone (then nothing more comes), or when the wait exceeds its bounds, which
 * is a fault of that peer and loses nothing but the order.
 */
export class Gate {
  readonly #due: Peer[] = [];
  readonly #held = new Map<Peer, HeldFrames>();

  constructor(private readonly host: GateHost) {}

  /** The first peer whose held frames may be delivered; all of them, before any other frame of that peer. */
  get due(): Peer | undefined {
    return this.#due[0];
  }

  /** Whether what follows an AFTER record of that count must wait. */
  blocks(peer: Peer, count: number): boolean {
    return count > peer.heard && count > peer.excused;
  }

  /** What is left of a frame behind an AFTER record waits. It is the oldest part in any case. */
  hold(peer: Peer, what: Batch, start: number, end: number, needs: number): void {
    const timer = this.host.clock.setTimeout(() => this.#giveUp(peer, `${HOLD_MS} ms`), HOLD_MS);
    timer.unref?.();
    const held = this.#held.get(peer);
    if (held === undefined) {
      peer.held = true;
      this.#held.set(peer, { parts: [{ what, start, end }], bytes: end - start, needs, due: false, timer });
      return;
    }
    // In the middle of delivering what was held: on to the next AFTER record.
    held.bytes -= start - held.parts[0]!.start;
    held.parts[0] = { what, start, end };
    held.needs = needs;
    held.due = false;
    held.timer = timer;
    this.#due.splice(this.#due.indexOf(peer), 1);
  }

  /** A later frame of a peer whose frames are held, or its end. */
  add(peer: Peer, what: Batch | EndMark, start: number, end: number): void {
    const held = this.#held.get(peer)!;
    held.parts.push({ what, start, end });
    held.bytes += end - start;
    if (held.bytes > HOLD_BYTES) this.#giveUp(peer, `${HOLD_BYTES} bytes`);
  }

  /** A subscription of that peer has arrived. */
  heard(peer: Peer): void {
    peer.heard++;
    const held = this.#held.get(peer);
    if (held !== undefined && !this.blocks(peer, held.needs)) this.#release(peer, held);
  }

  /** Nothing more comes on the control connection of that peer. */
  ended(peer: Peer): void {
    peer.excused = Number.POSITIVE_INFINITY;
    const held = this.#held.get(peer);
    if (held !== undefined) this.#release(peer, held);
  }

  /** The oldest part of a peer that is due. */
  oldest(peer: Peer): HeldPart {
    return this.#held.get(peer)!.parts[0]!;
  }

  /** The oldest part was delivered as far as `stopped`. */
  delivered(peer: Peer, stopped: number): void {
    const held = this.#held.get(peer)!;
    const part = held.parts[0]!;
    held.bytes -= stopped - part.start;
    part.start = stopped;
    if (stopped < part.end) return;
    held.parts.shift();
    if (held.parts.length > 0) return;
    peer.held = false;
    this.#due.splice(this.#due.indexOf(peer), 1);
    this.#held.delete(peer);
  }

  close(): void {
    for (const [peer, held] of this.#held) {
      if (!held.due) this.host.clock.clearTimeout(held.timer);
      peer.held = false;
    }
    this.#held.clear();
    this.#due.length = 0;
  }

  #release(peer: Peer, held: HeldFrames): void {
    if (held.due) return;
    held.due = true;
    this.host.clock.clearTimeout(held.timer);
    this.#due.push(peer);
    this.host.wake();
  }

  #giveUp(peer: Peer, limit: string): void {
    const held = this.#held.get(peer);
    if (held === undefined || held.due) return;
    peer.excused = held.needs;
    const missing = held.needs - peer.heard;
    this.host.faults.of(
      peer,
      new MillraceError(
        'ERR_SUBSCRIPTION_LATE',
        `Messages of ${peer.info.name} (${peer.info.incarnation}) have waited for ${missing} of its subscriptions, which its control connection has not brought; the limit is ${limit}. They are delivered now, and what is published in answer may miss those subscriptions.`,
        { details: { missing, limit } },
      ),
    );
    this.#release(peer, held);
  }
}
