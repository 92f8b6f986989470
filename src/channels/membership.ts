import { MillraceError } from '../errors.js';
import type { Control } from './control.js';
import { readLast } from './farewell.js';
import type { Faults } from './faults.js';
import type { Batch } from './frames.js';
import type { Pool } from './lending/pool.js';
import { type Mismatch, reportMismatch } from './mismatch.js';
import { Peer, type PeerEnd, SELF } from './peer.js';
import type { Inbound } from './receiving/inbound.js';
import type { Seals } from './seals.js';
import type { AnyOutChannel } from './sending/outbound.js';
import type { Status } from './status.js';
import { readSubscribe, readUnsubscribe } from './subscriptions.js';
import type { Transport } from './transport.js';
import type { PeerInfo } from './types.js';

/** What the membership needs of its member. */
export interface MembershipHost {
  readonly closed: boolean;
  readonly transport: Transport;
  readonly inbound: Inbound;
  readonly pool: Pool;
  readonly control: Control;
  readonly seals: Seals;
  readonly status: Status;
  readonly publishers: { readonly channels: ReadonlyMap<number, AnyOutChannel> };
  readonly agenda: {
    /** Settles who waits for rows that have arrived. */
    settleRows(): void;
    /** Nobody waits for rows of that peer any more. */
    forget(peer: Peer): void;
  };
  readonly faults: Faults;
  /** A polling turn follows. */
  wake(): void;
}

/**
 * The other members as the cluster tells of them: who is up, what they subscribe to, and how they end. Calls come from the
 * event loop, never from within a call of ours.
 */
export class Membership {
  /** Those that are up, by index. */
  readonly peers = new Map<number, Peer>();
  readonly #early = new Map<number, { batch: Batch; start: number; end: number }[]>();

  constructor(
    private readonly host: MembershipHost,
    readonly send: (peerIndex: number, type: string, body: unknown) => void,
  ) {}

  /** Frames of a peer that is not up yet; they are the first to be delivered when it is. */
  early(index: number, batch: Batch, start: number, end: number): void {
    const frames = this.#early.get(index) ?? [];
    this.#early.set(index, frames);
    frames.push({ batch, start, end });
  }

  /** Tells a peer of a subscription. */
  tell(peer: Peer, body: Record<string, unknown>): void {
    this.send(peer.index, 'subscribe', body);
    this.host.seals.told(peer);
  }

  /** Announces a channel to a peer. */
  announce(peer: Peer, body: Record<string, unknown>): void {
    if (peer.index !== SELF) this.send(peer.index, 'announce', body);
  }

  peerUp(info: PeerInfo): void {
    if (this.host.closed) return;
    const { transport, pool } = this.host;
    const peer = new Peer(info);
    peer.elsewhere = transport.native.isElsewhere(transport.handle, info.index);
    if (peer.elsewhere) pool.serveElsewhere();
    this.peers.set(info.index, peer);
    for (const { batch, start, end } of this.#early.get(info.index) ?? [])
      this.host.transport.frames.push(peer, batch, start, end);
    this.#early.delete(info.index);
    for (const subscription of this.host.inbound.locals.values()) {
      this.tell(peer, subscription.body(this.host.transport.maxRow));
    }
    this.host.status.emit({ type: 'peer-joined', peer: peer.identity });
    this.host.wake();
  }

  /** Called before native code lets go of the peer, so that what it had sent is still taken out of the inbox. */
  peerDown(info: PeerInfo, why: PeerEnd, detail?: string): void {
    const peer = this.peers.get(info.index);
    if (this.host.closed || peer === undefined) return;
    this.host.transport.drain();
    this.host.inbound.takeConsumed();
    // Behind its last frame, so that its subscribers hear of it in order (I4).
    this.host.transport.frames.push(peer, { why, detail }, 0, 0);
    this.peers.delete(info.index);
    peer.gone = true;
    // Rows that completed are in its inbox: known to have been received.
    this.host.transport.flush();
    this.host.agenda.settleRows();
    this.host.control.forget(peer);
    this.host.seals.forget(peer);
    this.giveUp(peer, why);
    if (why === 'died') {
      this.host.status.emit({
        type: 'peer-lost',
        peer: peer.identity,
        ...(detail === undefined ? {} : { detail }),
      });
    } else {
      this.host.status.emit({ type: 'peer-left', peer: peer.identity });
    }
    this.host.wake();
  }

  /** Its destinations end, and what waits for it settles. */
  giveUp(peer: Peer, why: PeerEnd): void {
    for (const part of [...peer.destinations]) part.peerGone(why);
    for (const { waiter } of peer.awaiting.splice(0)) waiter.lost(why, true);
    peer.subscriptions.clear();
    this.host.agenda.forget(peer);
    // Its holds: all of them are over with it, but who lives on keeps what it has taken (R16).
    this.host.pool.peerGone(peer, peer.gone && why !== 'refused');
  }

  peerSuspect(info: PeerInfo, on: boolean): void {
    const peer = this.peers.get(info.index);
    if (peer !== undefined) this.host.status.emit({ type: 'peer-suspect', peer: peer.identity, on });
  }

  message(info: PeerInfo, type: string, body: unknown): void {
    const peer = this.peers.get(info.index);
    if (this.host.closed || peer === undefined) return;
    if (type === 'subscribe') {
      this.subscribed(peer, body);
      this.host.inbound.gate.heard(peer);
    } else if (type === 'unsubscribe') this.unsubscribed(peer, body);
    else if (type === 'announce') this.#announced(peer, body);
    else if (type === 'last') this.#last(peer, body);
    // Other types are a later version's.
  }

  clusterFault(error: Error): void {
    this.host.status.emit({ type: 'fault', error });
  }

  /** A `subscribe` message, or one of our own with echo. */
  subscribed(peer: Peer, body: unknown): void {
    const subscription = readSubscribe(peer, body);
    if (subscription instanceof Error) return this.host.faults.of(peer, subscription);
    const old = peer.subscriptions.get(subscription.id);
    if (old !== undefined)
      return this.host.faults.of(
        peer,
        new MillraceError('ERR_PEER_INPUT', `${peer.info.name} subscribed twice as ${old.id}.`),
      );
    peer.subscriptions.set(subscription.id, subscription);
    for (const channel of this.host.publishers.channels.values()) {
      if (subscription.matches(channel.name)) channel.audience.subscribe(subscription);
    }
  }

  /** An `unsubscribe` message, or one of our own with echo. */
  unsubscribed(peer: Peer, body: unknown): void {
    const id = readUnsubscribe(body);
    if (id === null)
      return this.host.faults.of(
        peer,
        new MillraceError('ERR_PEER_INPUT', `${peer.info.name} sent a bad unsubscribe.`),
      );
    if (!peer.subscriptions.delete(id)) return;
    for (const channel of [...this.host.publishers.channels.values()]) channel.audience.unsubscribe(peer, id);
  }

  /** Only of interest where the publisher refuses: an accepted subscription is acknowledged in the lane. */
  #announced(peer: Peer, body: unknown): void {
    const { channel, codec, schema, delivery, subscription, refused } = (body ?? {}) as Record<
      string,
      unknown
    >;
    if (refused !== 'codec' && refused !== 'schema' && refused !== 'delivery') return;
    const local = this.host.inbound.locals.get(Number(subscription));
    if (local === undefined || typeof channel !== 'string') return;
    const { wanted } = local;
    const ours = {
      codec: wanted.codec?.name ?? 'any built-in codec',
      schema: String(wanted.schemaId),
      delivery: String(wanted.delivery),
    } satisfies Record<Mismatch, string>;
    const theirs = { codec, schema, delivery }[refused];
    reportMismatch(local.status, refused, channel, peer, ours[refused], String(theirs));
  }

  /** It leaves, and what it published to the last may not arrive. */
  #last(peer: Peer, body: unknown): void {
    const lasts = readLast(body);
    if (lasts === null)
      return this.host.faults.of(
        peer,
        new MillraceError('ERR_PEER_INPUT', `${peer.info.name} sent a last word that is not valid.`),
      );
    for (const { number, ...last } of lasts) peer.lasts.set(number, last);
  }
}
