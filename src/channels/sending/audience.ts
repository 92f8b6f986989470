import { writeSubscribed } from '../bodies.js';
import type { Encoder } from '../codec/codec.js';
import { type Mismatch, reportMismatch } from '../mismatch.js';
import { keyAt } from '../overflow/index.js';
import type { Peer, PeerSubscription } from '../peer.js';
import type { Seals } from '../seals.js';
import { KIND } from '../wire.js';
import { Destination, type DestinationChannel, type DestinationMember } from './destination.js';
import type { DestinationEnd } from './expectations.js';
import type { ReplayStore } from './replay.js';

/** What an audience needs of its member. */
export interface AudienceMember extends DestinationMember {
  /** A flush at the end of this turn. */
  schedule(): void;
  readonly seals: Seals;
  readonly publishers: {
    /** The number of a window that was never used before. */
    nextGeneration(): number;
  };
  readonly membership: {
    /** Announces the channel to one peer on the control connection. */
    announce(peer: Peer, body: Record<string, unknown>): void;
  };
}

/** What an audience needs of its channel. */
export interface AudienceChannel extends DestinationChannel {
  /** The codec as it is announced, and as its program named it. */
  readonly codecName: string;
  readonly options: { readonly codec: { readonly name: string }; readonly schemaId: string | null };
  readonly encoder: Pick<Encoder<unknown>, 'allDefinitions'>;
  readonly kept: ReplayStore | null;
  /** What is said behind the last message; null while publishing goes on. */
  readonly lastWord: Uint8Array | null;
  /** A closed channel has told all its subscribers. */
  finished(): void;
}

/** The subscribers of one channel, as its publisher knows them: who comes and goes, and what they are told with it. */
export class Audience {
  destinations: readonly Destination[] = [];
  #keyed = false;
  readonly #watchers = new Set<() => void>();

  constructor(
    private readonly member: AudienceMember,
    private readonly channel: AudienceChannel,
  ) {}

  of(peer: Peer): Destination | undefined {
    return this.destinations.find((one) => one.peer === peer);
  }

  /** Calls at every change of the number of subscribers. */
  onChange(call: () => void): () => void {
    this.#watchers.add(call);
    return () => this.#watchers.delete(call);
  }

  get queuedBytes(): number {
    return this.destinations.reduce((sum, one) => sum + one.queuedBytes, 0);
  }

  // ---- coming and going ----------------------------------------------------------------------------------------------

  /**
   * Adds a peer's subscription in one turn: SUBSCRIBED with the first live sequence, definitions, the replay, then live.
   * @returns false if codec or schema differ, of which the peer and status$ are told
   */
  subscribe(subscription: PeerSubscription): boolean {
    const { channel, member } = this;
    const { peer } = subscription;
    if (peer.gone || channel.ended === 'closed') return false;
    const refused = this.#mismatch(subscription);
    member.membership.announce(peer, {
      channel: channel.name,
      number: channel.number,
      codec: channel.codecName,
      schema: channel.options.schemaId,
      delivery: channel.delivery,
      subscription: subscription.id,
      refused,
    });
    if (refused !== null) {
      this.#reportMismatch(subscription, refused);
      return false;
    }
    const known = this.of(peer);
    const destination = known ?? this.#add(subscription);
    destination.subscriptions.set(subscription.id, subscription);
    this.#configure(destination);
    this.#sendSubscribed(destination, subscription.id);
    // For each one: the peer may have given up the first before it was acknowledged, and then skipped what came with it.
    for (const definition of channel.encoder.allDefinitions()) this.#sendDefinition(peer, definition);
    if (channel.kept !== null && subscription.replay > 0) destination.replay(channel.kept, subscription);
    if (channel.lastWord !== null) destination.finish(channel.lastWord);
    member.schedule();
    if (known === undefined) this.#changed('subscriber-joined', peer);
    return true;
  }

  unsubscribe(peer: Peer, id: number): void {
    const destination = this.of(peer);
    if (destination?.subscriptions.delete(id) !== true) return;
    if (destination.subscriptions.size === 0) destination.end('unsubscribed');
    else this.#configure(destination);
  }

  /** Publishing has ended: said to each behind its last message. */
  finish(lastWord: Uint8Array): void {
    for (const destination of [...this.destinations]) destination.finish(lastWord);
    this.member.schedule();
  }

  /** The member is gone: nobody waits any more. */
  end(why: DestinationEnd): void {
    for (const destination of [...this.destinations]) destination.end(why);
  }

  // ---- messages ------------------------------------------------------------------------------------------------------

  /** Whether everyone can take a record of that size, and a block of so many bytes; only a `wait` subscriber can say no. */
  admits(size: number, block: number): boolean {
    let admitted = true;
    for (const destination of this.destinations) if (!destination.admits(size, block)) admitted = false;
    return admitted;
  }

  /** Finds the keys of a value that is about to be published, for those whose policy wants one. */
  keysOf(value: unknown): void {
    if (!this.#keyed) return;
    for (const one of this.destinations) {
      const path = one.queue.keyPath;
      if (path !== null) one.key = keyAt(value, path);
    }
  }

  /** Definitions that a message depends on: they go ahead of it, exempt from windows and drops. */
  define(payload: Uint8Array): void {
    for (const { peer } of this.destinations) this.#sendDefinition(peer, payload);
    this.member.schedule();
  }

  /** Somebody else finds no block: drops a queued large message of a subscriber whose policy drops. @returns whether it did */
  shedBlock(): boolean {
    return this.destinations.some(({ queue }) => queue.shedBlock());
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  #mismatch({ delivery, codec, schema }: PeerSubscription): Mismatch | null {
    const { channel } = this;
    const { schemaId } = channel.options;
    if (delivery !== null && delivery !== channel.delivery) return 'delivery';
    if (codec !== null && codec !== channel.codecName) return 'codec';
    if (schema !== null && schemaId !== null && schema !== schemaId) return 'schema';
    return null;
  }

  #reportMismatch(theirs: PeerSubscription, what: Mismatch): void {
    const { status, name, options, delivery } = this.channel;
    const ours = { codec: options.codec.name, schema: options.schemaId, delivery };
    reportMismatch(status, what, name, theirs.peer, String(ours[what]), String(theirs[what]));
  }

  #add({ peer, overflow }: PeerSubscription): Destination {
    const { member, channel } = this;
    member.seals.lane(peer, channel.lane);
    const generation = member.publishers.nextGeneration();
    const destination = new Destination(member, channel, peer, generation, overflow, (one) =>
      this.#ended(one),
    );
    this.destinations = [...this.destinations, destination];
    return destination;
  }

  #ended(destination: Destination): void {
    this.destinations = this.destinations.filter((one) => one !== destination);
    this.#changed('subscriber-left', destination.peer);
    if (this.channel.ended === 'closed' && this.destinations.length === 0) this.channel.finished();
  }

  #changed(type: 'subscriber-joined' | 'subscriber-left', { identity }: Peer): void {
    const { status, name } = this.channel;
    status.emit({ type, channel: name, peer: identity, subscribers: this.destinations.length });
    for (const call of [...this.#watchers]) call();
  }

  #configure(destination: Destination): void {
    // By name wins over by pattern, then the oldest.
    let best: PeerSubscription | undefined;
    for (const one of destination.subscriptions.values()) {
      if (best === undefined || (one.exact && !best.exact)) best = one;
    }
    destination.configure(best!);
    this.#keyed = this.destinations.some(
      ({ queue }) => queue.keyPath !== null || typeof queue.overflow === 'object',
    );
  }

  #sendSubscribed({ peer, generation }: Destination, id: number): void {
    const { name, number, lane, sequence, codecName: codec, options, delivery } = this.channel;
    const first = sequence + 1;
    const facts = { name, codec, schema: options.schemaId, delivery };
    const payload = writeSubscribed(id, generation, first, facts);
    this.member.control.send(peer, lane, KIND.SUBSCRIBED, number, first, 0, payload);
  }

  #sendDefinition(peer: Peer, payload: Uint8Array): void {
    const { lane, number } = this.channel;
    this.member.control.send(peer, lane, KIND.DEFINE, number, 0, 0, payload);
  }
}
