import type { Clock } from '../clock.js';
import type { Transport } from '../transport.js';
import { FRAME_BYTES, recordSize } from '../wire.js';

/** Room that is kept behind a message for the definitions that it makes. */
const DEFINE_ROOM = recordSize(0, 2048);
/** A full arena is polled for so many times before a message is refused: delayed completions come by polling. */
const ARENA_TRIES = 64;

/**
 * While messages are held back, a look for what the subscribers took comes after so many bytes of them: a loop that goes on
 * publishing would otherwise leave a subscriber without work until the queue is full.
 */
const LOOK_BYTES = 16 * 1024;

/** Where the system had no memory, others may have given some back after so many milliseconds; nobody tells. */
const MEMORY_MS = 100;

/** What a publisher's room needs of its member. */
export interface RoomHost {
  readonly clock: Clock;
  readonly transport: Transport;
  /** Polls natively and serves who got room; delivers nothing. */
  progress(): void;
  readonly agenda: {
    /** A message was refused for want of room in the arena: `arenaTurn()` follows at the end of turns. */
    wantsArena(room: Room): void;
  };
  readonly shortage: {
    /** A message was refused for want of a block: `poolTurn()` follows when some came back. */
    wantsBlock(room: Room): void;
  };
}

/** Who is full, and until when the publisher puts up with it, in clock.now(). */
export interface Obstacle {
  readonly patienceEnds: number;
}

/**
 * Whether a publisher may take a message now: what its subscribers or its pace refuse, and what arena and pool have no room
 * for. Who waits until that may have changed is called from here.
 */
export class Room {
  readonly #obstacles = new Set<Obstacle>();
  /** Bytes that were queued since the last look. */
  #heldBack = 0;
  /** The largest record. */
  readonly #largest: number;
  #arenaFull = false;
  #poolFull = false;
  #shortOfMemory = false;
  readonly #calls = new Set<() => void>();

  constructor(
    private readonly host: RoomHost,
    /** Milliseconds that a full subscriber may hold up the publisher; Infinity: for ever. */
    private readonly maxWait: number,
  ) {
    this.#largest = host.transport.slotBytes - FRAME_BYTES;
  }

  /** Whether a message may be taken, as far as is known without its size. */
  get open(): boolean {
    return !(this.refused || this.#arenaFull || this.#poolFull);
  }

  /** Whether somebody is full whom the publisher still waits for. */
  get refused(): boolean {
    return this.#obstacles.size > 0 && this.#mustWait();
  }

  /** Calls once when `open` may be true again, or publishing has ended. */
  onOpen(call: () => void): () => void {
    this.#calls.add(call);
    return () => this.#calls.delete(call);
  }

  /** Calls who waits. */
  tell(): void {
    if (this.#calls.size === 0) return;
    const calls = [...this.#calls];
    this.#calls.clear();
    for (const call of calls) call();
  }

  // ---- subscribers and pace ------------------------------------------------------------------------------------------

  /** It is full from now on, until `relents()`. */
  refuses(one: Obstacle): void {
    this.#obstacles.add(one);
    if (!Number.isFinite(this.maxWait)) return;
    const timer = this.host.clock.setTimeout(() => {
      if (this.#obstacles.size > 0 && !this.#mustWait()) this.tell();
    }, this.maxWait);
    timer.unref?.();
  }

  /** It has room again, or is gone. */
  relents(one: Obstacle): void {
    this.#obstacles.delete(one);
    if (this.#obstacles.size === 0) this.tell();
  }

  /** So many bytes more are queued. */
  heldBack(bytes: number): void {
    this.#heldBack += bytes;
  }

  /** Looks for what subscribers took, when enough was queued since the last look. */
  look(): void {
    if (this.#heldBack < LOOK_BYTES) return;
    this.#heldBack = 0;
    this.host.progress();
  }

  #mustWait(): boolean {
    const now = this.host.clock.now();
    for (const { patienceEnds } of this.#obstacles) if (now < patienceEnds) return true;
    return false;
  }

  // ---- arena and pool ------------------------------------------------------------------------------------------------

  /**
   * Finds so many contiguous bytes in the arena, or as many as any record takes, and behind them what definitions may take;
   * by polling if need be.
   * @returns the offset; -1: there is no room, and `arenaTurn()` follows
   */
  reserve(bytes = this.#largest): number {
    const { transport } = this.host;
    const need = bytes + DEFINE_ROOM;
    const start = transport.arena.reserve(need);
    return start >= 0 ? start : this.#reserveSlowly(need);
  }

  #reserveSlowly(need: number): number {
    const { transport } = this.host;
    let start = transport.reserve(need);
    for (let tries = 0; start < 0 && tries < ARENA_TRIES; tries++) {
      this.host.progress();
      start = transport.reserve(need);
    }
    if (start < 0) {
      this.#arenaFull = true;
      this.host.agenda.wantsArena(this);
    }
    return start;
  }

  /** The pool had no block. */
  wantsBlock(): void {
    this.#poolFull = true;
    this.host.shortage.wantsBlock(this);
  }

  /** The pool got no memory of the system for a block: one that comes back may do, or what others give back. */
  wantsMemory(): void {
    this.wantsBlock();
    if (this.#shortOfMemory) return;
    this.#shortOfMemory = true;
    const timer = this.host.clock.setTimeout(() => {
      this.#shortOfMemory = false;
      this.poolTurn();
    }, MEMORY_MS);
    timer.unref?.();
  }

  /** The end of a turn. @returns whether the arena has room again */
  arenaTurn(): boolean {
    if (this.#arenaFull && this.host.transport.arena.reserve(this.#largest + DEFINE_ROOM) < 0) return false;
    this.#arenaFull = false;
    this.tell();
    return true;
  }

  /** Blocks may be free again. */
  poolTurn(): void {
    this.#poolFull = false;
    this.tell();
  }
}
