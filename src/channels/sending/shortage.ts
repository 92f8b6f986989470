import type { Control } from '../control.js';
import type { Holdings } from '../lending/holdings.js';
import type { Landings } from '../lending/landings.js';
import type { Block, Pool } from '../lending/pool.js';
import type { Peer } from '../peer.js';
import type { Transport } from '../transport.js';
import { KIND } from '../wire.js';
import type { Destination } from './destination.js';
import type { Room } from './room.js';

/** What the shortage needs of its member. */
export interface ShortageHost {
  readonly transport: Transport;
  readonly control: Control;
  readonly pool: Pool;
  readonly holdings: Holdings;
  readonly landings: Landings;
  readonly self: Peer;
  readonly peers: ReadonlyMap<number, Peer>;
  readonly publishers: { shedBlock(): boolean };
  schedule(): void;
  progress(): void;
}

/**
 * Who waits for blocks of this member's pool, or for leave to lend more to a subscriber. While somebody does, receivers are asked
 * to tell of what they give back, and to keep nothing needlessly (VACATE).
 */
export class Shortage {
  /** Publishers that were refused for want of a block. */
  #rooms = new Set<Room>();
  /** Destinations that hold as much as they may. */
  #roomless = new Set<Destination>();
  #asked = false;

  constructor(private readonly host: ShortageHost) {}

  /** A message was refused for want of a block: `poolTurn()` follows when some came back. */
  wantsBlock(room: Room): void {
    this.#rooms.add(room);
    this.host.schedule();
  }

  /** The subscriber holds as much of the pool as it may: it is served when some came back. */
  awaitsRoom(destination: Destination): void {
    this.#roomless.add(destination);
    this.host.schedule();
  }

  /** Whether somebody waits. */
  get waits(): boolean {
    return this.#rooms.size > 0 || this.#roomless.size > 0 || this.host.landings.waits;
  }

  /** Whether large messages of ours are offered to members elsewhere, or being read by them. */
  get offered(): boolean {
    for (const peer of this.host.peers.values()) if (peer.offers > 0) return true;
    return false;
  }

  /** A block of the pool; what drop policies let go of makes room. Null when there is none. @throws as Pool.lend() */
  lend(bytes: number): Block | null {
    const { pool, publishers } = this.host;
    let block = pool.lend(bytes);
    if (block === null && this.offered) {
      // Members elsewhere say by messages what they gave back.
      this.host.progress();
      block = pool.lend(bytes);
    }
    while (block === null && publishers.shedBlock()) block = pool.lend(bytes);
    return block;
  }

  /** A receiver has given back blocks. It has told once, and is asked again if that was not enough. */
  returned(peer: Peer): void {
    if (peer.gone) return;
    this.#asked = false;
    this.host.schedule();
  }

  /** A receiver elsewhere has read what was offered to it, or does not want it. */
  landed(peer: Peer, serial: number): void {
    this.host.pool.landed(peer, serial);
    this.host.schedule();
  }

  /** The end of a turn. */
  turn(): void {
    const { landings, pool } = this.host;
    if (landings.waits) pool.used = true;
    this.look();
    if (landings.waits) landings.start();
  }

  /** Looks what was given back, and serves who waits for it. */
  look(): void {
    const { pool, holdings, landings, self } = this.host;
    if (!pool.used) return;
    // What came from elsewhere lies here; each time, since it was perhaps being read when it was last asked for.
    if (this.#rooms.size > 0 || landings.waits) holdings.vacate(self);
    const { waits } = this;
    const some = pool.collect(waits);
    if (!waits) {
      this.#asked = false;
      return;
    }
    if (!this.#asked) this.#ask();
    if (!some) return;
    const roomless = this.#roomless;
    this.#roomless = new Set();
    for (const destination of roomless) destination.serve();
    const rooms = this.#rooms;
    this.#rooms = new Set();
    for (const room of rooms) room.poolTurn();
  }

  #ask(): void {
    const { self, peers, control, transport } = this.host;
    this.#asked = true;
    // Who does not subscribe any more may keep what it was given.
    for (const peer of [self, ...peers.values()]) if (peer.lent) control.sendEmpty(peer, KIND.VACATE);
    transport.flush();
    this.host.schedule();
  }
}
