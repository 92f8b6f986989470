import type { AnyMillraceError } from '../../errors.js';
import type { Control } from '../control.js';
import type { Membership } from '../membership.js';
import type { Groups } from '../multicast/groups.js';
import type { Peer } from '../peer.js';
import type { Status } from '../status.js';
import { LocalSubscription, type Origin, type Wanted } from '../subscription.js';
import type { Transport } from '../transport.js';
import { KIND } from '../wire.js';
import type { Inbound } from './inbound.js';

/** What subscribing needs of its member. */
export interface SubscribingHost {
  readonly self: Peer;
  readonly peers: ReadonlyMap<number, Peer>;
  readonly transport: Transport;
  readonly control: Control;
  readonly groups: Groups;
  readonly membership: Membership;
  readonly inbound: Inbound;
}

/** This member's subscriptions on the wire: what publishers are told of them, and of what was taken. */
export class Subscribing {
  #next = 1;

  constructor(private readonly host: SubscribingHost) {}

  /** Every publisher that matches, now and later, sends to it until `unsubscribeAll`. */
  subscribe(wanted: Wanted, status: Status): LocalSubscription {
    const { self, peers, transport, membership, inbound } = this.host;
    const subscription = new LocalSubscription(this.#next++, wanted, status);
    inbound.locals.set(subscription.id, subscription);
    // Before anybody is told, so that nothing needs a repair only because the group was joined late.
    if (wanted.delivery === 'multicast') subscription.stopListening = this.listen(wanted.channel!, status);
    const body = subscription.body(transport.maxRow);
    for (const peer of peers.values()) membership.tell(peer, body);
    if (wanted.echo) membership.subscribed(self, body);
    return subscription;
  }

  unsubscribeAll(subscription: LocalSubscription): void {
    if (!subscription.open) return;
    const { self, peers, inbound } = this.host;
    inbound.drop(subscription);
    subscription.stopListening();
    for (const peer of peers.values()) this.unsubscribe(peer, subscription.id);
    if (subscription.wanted.echo) this.unsubscribe(self, subscription.id);
  }

  /** Tells one peer that a subscription is over. */
  unsubscribe(peer: Peer, id: number): void {
    const { self, membership } = this.host;
    if (peer.gone) return;
    if (peer === self) membership.unsubscribed(peer, { id });
    else membership.send(peer.index, 'unsubscribe', { id });
  }

  /** Listens to a multicast channel's group until the returned function is called. Where that cannot be, status$ says so. */
  listen(channel: string, status: Status): () => void {
    try {
      return this.host.groups.listen(channel);
    } catch (error) {
      status.emit({ type: 'fault', error: error as AnyMillraceError });
      return () => {};
    }
  }

  /** Sends a CONSUMED record. */
  report({ peer, number, generation }: Origin, delivered: number, bytes: number): void {
    if (peer.gone) return;
    const { control } = this.host;
    control.sendNumbers(peer, 0, KIND.CONSUMED, number, delivered, generation, delivered, bytes);
  }
}
