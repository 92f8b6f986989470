import { nativeError } from '../../native/faults.js';
import type { Peer } from '../peer.js';
import type { Status } from '../status.js';
import { type AnyOutChannel, type OutboundHost, OutChannel, type OutOptions } from './outbound.js';

/** What the publishers need of their member. */
export interface PublishersHost extends OutboundHost {
  readonly closed: boolean;
  readonly self: Peer;
  readonly peers: ReadonlyMap<number, Peer>;
}

/** The channels that this member publishes. */
export class Publishers {
  /** By number. */
  readonly channels = new Map<number, AnyOutChannel>();
  #next = 1;
  #generation = 0;

  constructor(private readonly host: PublishersHost) {}

  /** Makes this member a publisher of a channel; those who subscribed before are its subscribers at once. */
  publish<T>(name: string, options: OutOptions<T>, status: Status): OutChannel<T> {
    const { host } = this;
    let channel: OutChannel<T>;
    try {
      channel = new OutChannel<T>(host, this.#next++, name, options, status);
    } catch (error) {
      if (options.lane !== 0) host.transport.native.closeLane(host.transport.handle, options.lane);
      throw error;
    }
    this.channels.set(channel.number, channel);
    for (const peer of [host.self, ...host.peers.values()]) {
      for (const subscription of peer.subscriptions.values()) {
        if (subscription.matches(name)) channel.audience.subscribe(subscription);
      }
    }
    return channel;
  }

  /** The channel is closed: what is queued is still sent, then its subscribers are told. */
  unpublish(channel: AnyOutChannel): void {
    channel.end({ how: 'closed' });
    if (channel.audience.destinations.length === 0) this.finished(channel);
  }

  /** A closed channel has told all its subscribers. */
  finished(channel: AnyOutChannel): void {
    const { transport, peers, closed } = this.host;
    this.channels.delete(channel.number);
    channel.sender?.close();
    if (channel.lane === 0 || closed) return;
    // The last rows must be with the transport: it closes a lane when what it accepted there is sent.
    transport.flush();
    transport.native.closeLane(transport.handle, channel.lane);
    // Its number can be given to another one.
    for (const peer of peers.values()) peer.sealed.delete(channel.lane);
  }

  /** A lane of its own for a channel. @throws MillraceError when the device, or the member, has no more */
  openLane(channel: string): number {
    const { native, handle } = this.host.transport;
    try {
      return native.openLane(handle);
    } catch (error) {
      throw nativeError(`open a lane of its own for channel ${JSON.stringify(channel)}`, native, error);
    }
  }

  /** The number of a window that was never used before. */
  nextGeneration(): number {
    this.#generation = (this.#generation + 1) >>> 0;
    return this.#generation;
  }

  /** Somebody finds no block: drops a queued large message of a subscriber whose policy drops. @returns whether it did */
  shedBlock(): boolean {
    for (const { audience } of this.channels.values()) if (audience.shedBlock()) return true;
    return false;
  }

  /** The member is gone: nobody waits any more. */
  close(): void {
    for (const channel of [...this.channels.values()]) channel.close('closed');
    this.channels.clear();
  }
}
