import type { Control } from './control.js';
import type { Peer } from './peer.js';
import { KIND } from './wire.js';

const NOTHING = new Uint8Array(0);

/**
 * The sender's half of a promise: whoever receives a message of this member knows every subscription that this member had
 * made before it sent it.
 *
 * Subscriptions travel on the control connection and messages in lanes, which know nothing of each other. So the first
 * message after a subscription is preceded, on each lane to each peer, by an AFTER record that says how many subscriptions
 * that peer must have heard of before it delivers what follows. With nothing new to say it costs a look at `pending`.
 */
export class Seals {
  /** Something was told to a peer, and no message has been sent since. */
  pending = false;
  readonly #peers = new Set<Peer>();

  constructor(private readonly control: Control) {}

  /** A subscription was handed to the control connection of that peer. */
  told(peer: Peer): void {
    peer.told++;
    this.#peers.add(peer);
    this.pending = true;
  }

  /** A message is about to be taken: it comes after all that was told. */
  seal(): void {
    this.pending = false;
    for (const peer of this.#peers) for (const { lane } of peer.destinations) this.lane(peer, lane);
    this.#peers.clear();
  }

  /** Sees to it that what is sent to that peer on that lane from now on comes after all that it was told. */
  lane(peer: Peer, lane: number): void {
    if ((peer.sealed.get(lane) ?? 0) === peer.told) return;
    peer.sealed.set(lane, peer.told);
    this.control.send(peer, lane, KIND.AFTER, 0, peer.told, 0, NOTHING);
  }

  forget(peer: Peer): void {
    this.#peers.delete(peer);
  }
}
