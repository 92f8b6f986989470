import { MillraceError } from '../../errors.js';
import type { Faults } from '../faults.js';
import type { Peer } from '../peer.js';
import type { Destination } from './destination.js';
import type { AnyOutChannel } from './outbound.js';

/** What subscribers say of the messages of this member: it finds its destination, or is a fault of theirs (I9). */
export class Feedback {
  constructor(
    private readonly channels: ReadonlyMap<number, AnyOutChannel>,
    private readonly faults: Faults,
  ) {}

  /** CONSUMED: it took so many bytes of records, up to that sequence. */
  consumed(peer: Peer, channel: number, generation: number, delivered: number, bytes: number): void {
    const destination = this.#find(peer, channel, generation);
    if (destination === undefined || destination.returned(delivered, bytes)) return;
    const { window, channel: of } = destination;
    this.#fault(peer, `it took ${bytes} bytes up to ${delivered}, of ${window.sent} up to ${of.sequence}`);
  }

  /** A subscriber of a multicast channel wants messages again. */
  repair(peer: Peer, channel: number, generation: number, ranges: readonly [number, number][]): void {
    const destination = this.#find(peer, channel, generation);
    if (destination !== undefined) this.channels.get(channel)!.sender?.repair(destination, ranges);
  }

  /** It has given messages up. */
  missed(peer: Peer, channel: number, generation: number, from: number, to: number): void {
    const destination = this.#find(peer, channel, generation);
    if (destination === undefined || destination.missed(from, to)) return;
    this.#fault(peer, `it missed ${from} to ${to}, which it was not sent`);
  }

  /** Nobody, if it is of an earlier window. */
  #find(peer: Peer, channel: number, generation: number): Destination | undefined {
    const destination = this.channels.get(channel)?.audience.of(peer);
    return destination?.generation === generation ? destination : undefined;
  }

  #fault(peer: Peer, what: string): void {
    const { name, incarnation } = peer.info;
    this.faults.of(peer, new MillraceError('ERR_PEER_INPUT', `${name} (${incarnation}) says that ${what}.`));
  }
}
