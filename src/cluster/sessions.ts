import { Awaited } from './awaited.js';
import type { ControlConnection } from './connection.js';
import type { Context } from './context.js';
import { Departed } from './departed.js';
import type { DownReason } from './events.js';
import type { Greeting } from './handshake.js';
import { Peer, type PeerInfo } from './peer.js';
import { isAlive, removeMember } from './registry.js';

/**
 * Everybody that this member knows of, from the beginning of a session with it to its end. Who makes the connections is the
 * connector, which is called to make one (`connect`).
 */
export class Sessions {
  /** By incarnation: everybody that we know of. */
  readonly #known = new Map<number, Peer>();
  /** By index: those that are up. */
  readonly #byIndex = new Map<number, Peer>();
  readonly #infos = new Map<number, PeerInfo>();
  readonly awaited = new Awaited();
  readonly #departed: Departed;
  #begun = 0;
  #ended = false;

  constructor(
    private readonly context: Context,
    private readonly connect: (peer: Peer) => void,
  ) {
    this.#departed = new Departed(context);
  }

  /** The member leaves: no session begins any more. */
  get ended(): boolean {
    return this.#ended;
  }

  /** The members that are up, by index, as the owner was told. */
  get infos(): ReadonlyMap<number, PeerInfo> {
    return this.#infos;
  }

  /** Whoever is known by that incarnation. */
  known(incarnation: number): Peer | undefined {
    return this.#known.get(incarnation);
  }

  /** Whoever is up at that index. */
  up(index: number): Peer | undefined {
    return this.#byIndex.get(index);
  }

  /** The connections of all sessions, attempts included. */
  *connections(): Iterable<ControlConnection> {
    for (const { connection, attempt } of this.#known.values()) {
      if (connection !== undefined) yield connection;
      if (attempt !== undefined) yield attempt;
    }
  }

  begin(incarnation: number): Peer {
    this.#begun += 1;
    const peer = new Peer(incarnation, this.#begun);
    this.#known.set(incarnation, peer);
    return peer;
  }

  /** join() need not wait for this one any longer. */
  settle(peer: Peer): void {
    this.awaited.settle(peer.incarnation);
  }

  /** The session's connection works: the peer is up, or no longer suspect. */
  established(peer: Peer, { name, pid }: Greeting): void {
    if (peer.info !== undefined) {
      this.#suspect(peer, false);
      return;
    }
    const info: PeerInfo = Object.freeze({ index: peer.index, incarnation: peer.incarnation, name, pid });
    peer.info = info;
    this.#byIndex.set(info.index, peer);
    this.context.announcer.emit((events) => {
      this.#infos.set(info.index, info);
      events.peerUp(info);
    });
  }

  /**
   * A peer has no connection: it is dead if its lock is free (R5), else it is tried again after a pause. Time alone decides
   * nothing.
   */
  examine(peer: Peer): void {
    if (this.#ended || !peer.idle || peer.cancelTimer !== undefined) return;
    const { native, clock, limits, registration } = this.context;
    if (!isAlive(native, registration.folder, peer.incarnation)) {
      this.#lost(peer);
      return;
    }
    const pause = Math.min(2 ** peer.failures, limits.pause);
    peer.failures = Math.min(peer.failures + 1, 30);
    peer.cancelTimer = clock.after(pause, () => {
      peer.cancelTimer = undefined;
      if (!isAlive(native, registration.folder, peer.incarnation)) this.#lost(peer);
      else {
        this.#suspect(peer, true);
        this.connect(peer);
      }
    });
  }

  /** Ends the session with a peer. */
  drop(peer: Peer, why: DownReason, detail?: string): void {
    if (peer.gone) return;
    peer.gone = true;
    peer.cancelTimer?.();
    peer.cancelTimer = undefined;
    peer.connection?.destroy();
    peer.attempt?.destroy();
    peer.connection = undefined;
    peer.attempt = undefined;
    this.#known.delete(peer.incarnation);
    this.settle(peer);
    const { native, handle, announcer } = this.context;
    const { info, index } = peer;
    if (info === undefined) {
      if (index >= 0) native.disconnect(handle, index);
      return;
    }
    this.#byIndex.delete(index);
    announcer.emit((events) => {
      this.#infos.delete(index);
      try {
        if (detail === undefined) events.peerDown(info, why);
        else events.peerDown(info, why, detail);
      } finally {
        // A handler may have left the domain, and with it closed the handle.
        if (!this.#ended) native.disconnect(handle, index);
      }
    });
  }

  /** Ends the session with a peer, and begins no other with that incarnation. */
  block(peer: Peer, detail: string): void {
    this.drop(peer, 'refused', detail);
    if (this.#ended) return;
    this.begin(peer.incarnation).blocked = true;
  }

  /** A peer leaves. It waits until we have let go, and removes its files itself, unless it is killed before. */
  goodbye(peer: Peer): void {
    const { connection, incarnation } = peer;
    peer.connection = undefined;
    this.drop(peer, 'left');
    connection?.end();
    this.#departed.lookAfter(incarnation);
  }

  /** The member leaves. @returns the connections on which to say so */
  end(): ControlConnection[] {
    this.#ended = true;
    const open: ControlConnection[] = [];
    for (const peer of this.#known.values()) {
      peer.cancelTimer?.();
      peer.attempt?.destroy();
      if (peer.connection !== undefined) open.push(peer.connection);
    }
    return open;
  }

  /** Lets go of everybody at once. Idempotent. */
  clear(): void {
    this.#ended = true;
    this.#departed.clear();
    for (const connection of this.connections()) connection.destroy();
    for (const peer of this.#known.values()) {
      peer.gone = true;
      peer.cancelTimer?.();
    }
    this.#known.clear();
    this.#byIndex.clear();
    this.#infos.clear();
  }

  /** A peer is dead: what it left is removed, by every survivor. */
  #lost(peer: Peer): void {
    const { native, registration } = this.context;
    this.drop(peer, 'died');
    removeMember(native, registration.folder, peer.incarnation);
  }

  #suspect(peer: Peer, on: boolean): void {
    const { info } = peer;
    if (peer.suspect === on || info === undefined) return;
    peer.suspect = on;
    this.context.announcer.emit((events) => events.peerSuspect?.(info, on));
  }
}
