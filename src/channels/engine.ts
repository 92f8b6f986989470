import { MillraceError } from '../errors.js';
import type { Native } from '../native/binding.js';
import { nativeError } from '../native/faults.js';
import { FAULT } from '../native/tables.js';
import type { Clock, Scheduled } from './clock.js';
import { Control } from './control.js';
import { lastOf } from './farewell.js';
import { Fetches } from './fetches.js';
import type { Batch } from './frames.js';
import { Inbound, type InboundHost } from './inbound.js';
import { Copies } from './lending/copies.js';
import { Holdings } from './lending/holdings.js';
import { Landings } from './lending/landings.js';
import { type Block, Pool } from './lending/pool.js';
import { Membership, type MembershipHost } from './membership.js';
import { Groups, type SendingGroup } from './multicast/groups.js';
import { Peer, SELF } from './peer.js';
import { Pump, type PumpWork, type WaitMode } from './pump.js';
import { FAULT_REASONS, LANE_STATES } from './reasons.js';
import { Seals } from './seals.js';
import type { Destination } from './sending/destination.js';
import { type AnyOutChannel, type OutboundHost, OutChannel, type OutOptions } from './sending/outbound.js';
import type { Room } from './sending/room.js';
import type { Tally } from './sending/tally.js';
import { Status } from './status.js';
import { LocalSubscription, type Origin, type Wanted } from './subscription.js';
import { Transport, type TransportEvents } from './transport.js';
import { KIND } from './wire.js';

const NOTHING = new Uint8Array(0);
/** Drops are told within this time even if nothing else is sent. */
const GAP_MS = 100;

/** What the channels need of the cluster: `Cluster` of src/cluster has it, and so has the tests' fake. */
export interface ClusterPort {
  readonly incarnation: number;
  readonly handle: number;
  send(peerIndex: number, type: string, body: unknown): void;
  tunnel(peerIndex: number, data: Uint8Array): void;
  ref(on: boolean): void;
  leave(): Promise<void>;
}

/** What an engine is made of. */
export interface EngineOptions {
  readonly native: Native;
  readonly cluster: ClusterPort;
  readonly clock: Clock;
  /** From 0 to below 1. */
  readonly dice: () => number;
  readonly domain: string;
  readonly name: string;
  readonly slotBytes: number;
  readonly poolBytes: number;
  readonly mode: WaitMode;
}

/**
 * One member without its public face: the peers, who publishes what to whom, who listens to what, and the turn.
 *
 * All calls are made on the environment's own thread (I6). Calls from the cluster come from the event loop, never from
 * within a call of ours.
 */
export class Engine implements InboundHost, OutboundHost, MembershipHost, PumpWork, TransportEvents {
  readonly clock: Clock;
  readonly dice: () => number;
  readonly transport: Transport;
  readonly groups: Groups;
  readonly control: Control;
  readonly seals: Seals;
  readonly inbound: Inbound;
  /** Blocks of this member, and of others. */
  readonly copies = new Copies();
  readonly pool: Pool;
  readonly holdings: Holdings;
  /** Large messages of members elsewhere on their way here. */
  readonly landings: Landings;
  /** Payloads that are read out of other members' memory. */
  readonly fetches: Fetches;
  readonly pump: Pump;
  readonly status = new Status();
  readonly self: Peer;
  readonly membership: Membership;
  /** The other members that are up, by index. */
  readonly peers: ReadonlyMap<number, Peer>;
  readonly channels = new Map<number, AnyOutChannel>();
  closed = false;
  /** Input of peers that was refused, and records for nobody. */
  faults = 0;
  readonly #cluster: ClusterPort;
  readonly #native: Native;
  #nextChannel = 1;
  #nextSubscription = 1;
  #generation = 0;
  #stamp = 0;
  #dirty = new Set<Tally>();
  /** Channels that were refused for want of room in the arena. */
  readonly #wantArena = new Set<Room>();
  /** Channels that were refused for want of a block, and destinations that hold as much as they may. */
  #wantBlock = new Set<Room>();
  #roomless = new Set<Destination>();
  #vacateAsked = false;
  #gaps = new Set<Destination>();
  #gapTimer: Scheduled | null = null;
  #later = new Set<Destination>();
  readonly #awaiting = new Set<Peer>();
  readonly #turnCalls = new Set<() => void>();
  /** Destinations that hold something back. */
  #queueing = 0;
  /** Subscribers and promises. */
  #holds = 0;
  #mayHold = true;
  #holding = false;

  constructor(options: EngineOptions) {
    const { native, cluster, clock, name } = options;
    this.#native = native;
    this.#cluster = cluster;
    this.clock = clock;
    this.dice = options.dice;
    this.self = new Peer({ index: SELF, incarnation: cluster.incarnation, name, pid: process.pid });
    this.transport = new Transport(native, cluster.handle, options.slotBytes, this.self, this);
    this.groups = new Groups(this.transport, options.domain);
    this.control = new Control(
      this.transport,
      () => this.stamp(),
      (peer) => {
        for (const destination of peer.destinations) this.#later.add(destination as Destination);
      },
    );
    this.seals = new Seals(this.control);
    this.pool = new Pool(native, cluster.handle, options.poolBytes, this.copies, (peer, error) =>
      this.fault(peer, error),
    );
    this.holdings = new Holdings(
      native,
      cluster.handle,
      {
        self: this.self,
        gaveBack: (peer) => this.#sendEmpty(peer, KIND.RELEASED),
        tellOf: (origin, event) => this.inbound.origins.tell(origin, event),
      },
      this.copies,
    );
    this.fetches = new Fetches({
      native,
      handle: cluster.handle,
      peerOf: (incarnation) => [...this.peers.values()].find(({ info }) => info.incarnation === incarnation),
      hold: () => this.hold(),
      wake: () => this.pump.wake(),
    });
    this.landings = new Landings({
      native,
      handle: cluster.handle,
      holdings: this.holdings,
      fetches: this.fetches,
      landed: (peer, serial) => {
        if (peer.gone || this.closed) return;
        const payload = new Uint8Array(Float64Array.of(serial).buffer);
        this.control.send(peer, 0, KIND.LANDED, 0, 0, 0, payload);
        this.pump.schedule();
      },
      ready: (origin) => this.inbound.ready(origin),
      tellOf: (origin, event) => this.inbound.origins.tell(origin, event),
    });
    this.inbound = new Inbound(this);
    this.membership = new Membership(this, (index, type, body) => cluster.send(index, type, body));
    this.peers = this.membership.peers;
    this.pump = new Pump(this.transport, clock, options.mode, this);
  }

  start(): void {
    this.pump.start();
  }

  // ---- channels ------------------------------------------------------------------------------------------------------

  /** Makes this member a publisher of a channel; those who subscribed before are its subscribers at once. */
  publish<T>(name: string, options: OutOptions<T>, status: Status): OutChannel<T> {
    const channel = new OutChannel<T>(this, this.#nextChannel++, name, options, status);
    this.channels.set(channel.number, channel);
    for (const peer of [this.self, ...this.peers.values()]) {
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

  finished(channel: AnyOutChannel): void {
    this.channels.delete(channel.number);
    channel.sender?.close();
    if (channel.lane === 0 || this.closed) return;
    // The last rows must be with the transport: it closes a lane when what it accepted there is sent.
    this.transport.flush();
    this.#native.closeLane(this.transport.handle, channel.lane);
    // Its number can be given to another one.
    for (const peer of this.peers.values()) peer.sealed.delete(channel.lane);
  }

  /** Listens to a multicast channel's group until the returned function is called. Where that cannot be, status$ says so. */
  listen(channel: string, status: Status): () => void {
    try {
      return this.groups.listen(channel);
    } catch (error) {
      const doing = `join the multicast group of channel ${JSON.stringify(channel)}`;
      status.emit({ type: 'fault', error: nativeError(doing, this.#native, error) });
      return () => {};
    }
  }

  openLane(): number {
    return this.#native.openLane(this.transport.handle);
  }

  /** Subscribes on the wire: every publisher that matches, now and later, sends to it until `unsubscribeAll`. */
  subscribe(wanted: Wanted, status: Status): LocalSubscription {
    const subscription = new LocalSubscription(this.#nextSubscription++, wanted, status);
    this.inbound.locals.set(subscription.id, subscription);
    // Before anybody is told, so that nothing needs a repair only because the group was joined late.
    if (wanted.delivery === 'multicast') subscription.stopListening = this.listen(wanted.channel!, status);
    const body = subscription.body(this.transport.maxRow);
    for (const peer of this.peers.values()) this.membership.tell(peer, body);
    if (wanted.echo) this.membership.subscribed(this.self, body);
    return subscription;
  }

  unsubscribeAll(subscription: LocalSubscription): void {
    if (!subscription.open) return;
    this.inbound.drop(subscription);
    subscription.stopListening();
    for (const peer of this.peers.values()) this.unsubscribe(peer, subscription.id);
    if (subscription.wanted.echo) this.unsubscribe(this.self, subscription.id);
  }

  // ---- the event loop ------------------------------------------------------------------------------------------------

  /** A subscriber or a promise holds the event loop until the returned function is called. */
  hold(): () => void {
    let held = true;
    this.#holds++;
    this.#updateHold();
    return () => {
      if (!held) return;
      held = false;
      this.#holds--;
      this.#updateHold();
    };
  }

  /** Whether this member may hold the event loop at all. */
  ref(on: boolean): void {
    this.#mayHold = on;
    this.#updateHold();
  }

  /** Whether something was published that is not on its way yet. */
  get unsent(): boolean {
    return this.#queueing > 0 || this.transport.unsent || this.transport.pending;
  }

  #updateHold(): void {
    const holding =
      this.#mayHold && !this.closed && (this.#holds > 0 || this.#queueing > 0 || this.transport.unsent);
    if (holding === this.#holding) return;
    this.#holding = holding;
    this.pump.hold(holding);
    this.#cluster.ref(holding);
  }

  // ---- the turn (PumpWork) -------------------------------------------------------------------------------------------

  /** Set by the member: what to do when the transport fails for good. */
  onFailure: (error: MillraceError) => void = () => {};

  failed(error: unknown): void {
    if (this.closed) return;
    this.onFailure(nativeError('go on with the transport', this.#native, error));
  }

  deliver(deadline: number, fresh: boolean): boolean {
    return this.inbound.deliver(deadline, fresh);
  }

  members(): number {
    return this.peers.size + 1;
  }

  /** Sends what was produced and settles what can be settled. Also runs in the middle of a long turn. */
  endOfTurn(): void {
    if (this.closed) return;
    this.inbound.endOfTurn();
    if (this.control.stalled.size > 0) this.control.retry();
    if (this.#later.size > 0) {
      const later = this.#later;
      this.#later = new Set();
      for (const destination of later) destination.serve();
    }
    if (this.transport.pending || this.transport.unsent) this.transport.flush();
    this.#stamp = 0;
    if (this.#awaiting.size > 0) this.settleRows();
    if (this.#dirty.size > 0) {
      const dirty = this.#dirty;
      this.#dirty = new Set();
      for (const tally of dirty) tally.tell();
    }
    for (const room of this.#wantArena) if (room.arenaTurn()) this.#wantArena.delete(room);
    if (this.landings.waits) this.pool.used = true;
    if (this.pool.used) this.#lookAtHolds();
    if (this.landings.waits) this.landings.start();
    this.#updateHold();
    for (const call of [...this.#turnCalls]) call();
  }

  /** Whether something waits that only polling moves on: credits, completions, room in the arena. */
  pending(): boolean {
    return (
      this.#wantArena.size > 0 ||
      this.#wantBlock.size > 0 ||
      this.#roomless.size > 0 ||
      this.landings.waits ||
      this.transport.unsent ||
      this.#awaiting.size > 0 ||
      this.#later.size > 0 ||
      this.control.stalled.size > 0
    );
  }

  schedule(): void {
    this.pump.schedule();
  }

  wake(): void {
    this.pump.wake();
  }

  stamp(): number {
    if (this.#stamp === 0) {
      this.#stamp = this.clock.epoch();
      this.pump.schedule();
    }
    return this.#stamp;
  }

  progress(): void {
    this.transport.flush();
    this.#stamp = 0;
    this.transport.poll();
    this.inbound.takeConsumed();
    if (this.pool.used) this.#lookAtHolds();
    // Also when nothing came: the poll took the wake-up that a sleeping pump waits for, so it must arm again.
    this.pump.wake();
    this.pump.schedule();
  }

  // ---- for publishing channels (OutboundHost) -------------------------------------------------------------------------

  get unsealed(): boolean {
    return this.seals.pending;
  }
  seal(): void {
    this.seals.seal();
  }
  sealLane(peer: Peer, lane: number): void {
    this.seals.lane(peer, lane);
  }
  nextGeneration(): number {
    this.#generation = (this.#generation + 1) >>> 0;
    return this.#generation;
  }
  dirty(tally: Tally): void {
    this.#dirty.add(tally);
    this.pump.schedule();
  }
  wantsArena(room: Room): void {
    this.#wantArena.add(room);
    this.pump.schedule();
  }
  wantsBlock(room: Room): void {
    this.#wantBlock.add(room);
    this.pump.schedule();
  }
  awaitsRoom(destination: Destination): void {
    this.#roomless.add(destination);
    this.pump.schedule();
  }
  lend(bytes: number): Block | null {
    let block = this.pool.lend(bytes);
    if (block === null && this.#offered) {
      // Members elsewhere say by messages what they gave back.
      this.progress();
      block = this.pool.lend(bytes);
    }
    while (block === null && [...this.channels.values()].some(({ audience }) => audience.shedBlock()))
      block = this.pool.lend(bytes);
    return block;
  }
  gapDue(destination: Destination): void {
    this.#gaps.add(destination);
    if (this.#gapTimer !== null) return;
    this.#gapTimer = this.clock.setTimeout(() => this.#reportGaps(), GAP_MS);
    this.#gapTimer.unref?.();
  }
  later(destination: Destination): void {
    this.#later.add(destination);
    this.pump.schedule();
  }
  awaits(peer: Peer): void {
    this.#awaiting.add(peer);
  }
  awaited(peer: Peer): void {
    this.#awaiting.delete(peer);
  }
  queues(on: boolean): void {
    this.#queueing += on ? 1 : -1;
    this.pump.schedule();
  }
  sendingGroup(channel: string): SendingGroup {
    try {
      return this.groups.send(channel);
    } catch (error) {
      throw nativeError(
        `send to the multicast group of channel ${JSON.stringify(channel)}`,
        this.#native,
        error,
      );
    }
  }
  announce(peer: Peer, body: Record<string, unknown>): void {
    if (peer !== this.self) this.#cluster.send(peer.index, 'announce', body);
  }

  /** Somebody waits for blocks: looks what was given back, and asks receivers to tell, and to keep nothing needlessly. */
  #lookAtHolds(): void {
    const waiting = this.#wantBlock.size > 0 || this.#roomless.size > 0 || this.landings.waits;
    // What came from elsewhere lies here; each time, since it was perhaps being read when it was last asked for.
    if (this.#wantBlock.size > 0 || this.landings.waits) this.holdings.vacate(this.self);
    const some = this.pool.collect(waiting);
    if (!waiting) {
      this.#vacateAsked = false;
      return;
    }
    if (!this.#vacateAsked) {
      this.#vacateAsked = true;
      for (const peer of [this.self, ...this.peers.values()])
        if (peer.destinations.size > 0) this.#sendEmpty(peer, KIND.VACATE);
      this.transport.flush();
    }
    if (!some) return;
    const roomless = this.#roomless;
    this.#roomless = new Set();
    for (const destination of roomless) destination.serve();
    const rooms = this.#wantBlock;
    this.#wantBlock = new Set();
    for (const room of rooms) room.poolTurn();
  }

  #sendEmpty(peer: Peer, kind: number): void {
    if (peer.gone || this.closed) return;
    this.control.send(peer, 0, kind, 0, 0, 0, NOTHING);
    this.pump.schedule();
  }

  #reportGaps(): void {
    this.#gapTimer = null;
    const gaps = this.#gaps;
    this.#gaps = new Set();
    for (const destination of gaps) destination.reportGaps();
    this.endOfTurn();
  }

  /** publish(): rows that are in their peers' inboxes. */
  settleRows(): void {
    for (const peer of this.#awaiting) {
      const arrived = this.transport.arrived(peer);
      let done = 0;
      while (done < peer.awaiting.length && peer.awaiting[done]!.row <= arrived)
        peer.awaiting[done++]!.waiter.arrived();
      peer.awaiting.splice(0, done);
      if (peer.awaiting.length === 0) this.#awaiting.delete(peer);
    }
  }

  // ---- for the receiving side (InboundHost) ---------------------------------------------------------------------------

  consumed(peer: Peer, channel: number, generation: number, delivered: number, bytes: number): void {
    const destination = this.channels.get(channel)?.audience.of(peer);
    if (destination === undefined || destination.generation !== generation) return; // of an earlier window
    if (!destination.returned(delivered, bytes)) {
      this.fault(
        peer,
        new MillraceError(
          'ERR_PEER_INPUT',
          `${peer.info.name} (${peer.info.incarnation}) says that it took ${bytes} bytes up to ${delivered}, of ${destination.window.sent} up to ${destination.channel.sequence}.`,
        ),
      );
    }
  }

  holdsReleased(peer: Peer): void {
    // It has told once, and is asked again if that was not enough.
    if (peer.gone) return;
    this.#vacateAsked = false;
    this.pump.schedule();
  }
  landed(peer: Peer, serial: number): void {
    this.pool.landed(peer, serial);
    this.pump.schedule();
  }
  vacate(peer: Peer): void {
    this.holdings.vacate(peer);
  }

  repair(peer: Peer, channel: number, generation: number, ranges: readonly [number, number][]): void {
    const out = this.channels.get(channel);
    const destination = out?.audience.of(peer);
    if (destination?.generation === generation) out!.sender?.repair(destination, ranges);
  }

  missed(peer: Peer, channel: number, generation: number, from: number, to: number): void {
    const destination = this.channels.get(channel)?.audience.of(peer);
    if (destination === undefined || destination.generation !== generation) return;
    if (!destination.missed(from, to)) {
      this.fault(
        peer,
        new MillraceError(
          'ERR_PEER_INPUT',
          `${peer.info.name} (${peer.info.incarnation}) says that it missed ${from} to ${to}, which it was not sent.`,
        ),
      );
    }
  }

  report(origin: Origin, delivered: number, bytes: number): void {
    if (origin.peer.gone) return;
    this.control.sendNumbers(
      origin.peer,
      0,
      KIND.CONSUMED,
      origin.number,
      delivered,
      origin.generation,
      delivered,
      bytes,
    );
  }

  unsubscribe(peer: Peer, id: number): void {
    if (peer.gone) return;
    if (peer === this.self) this.membership.unsubscribed(peer, { id });
    else this.#cluster.send(peer.index, 'unsubscribe', { id });
  }

  released(): void {
    this.pump.wake();
  }

  fault(peer: Peer, error: Error): void {
    this.faults++;
    peer.faults++;
    this.status.emit({ type: 'fault', peer: peer.identity, error });
  }

  // ---- what native code finds (TransportEvents) ----------------------------------------------------------------------

  peerAt(index: number): Peer | undefined {
    return this.peers.get(index);
  }
  early(index: number, batch: Batch, start: number, end: number): void {
    this.membership.early(index, batch, start, end);
  }
  peerFault(index: number, wcStatus: number, reason: number): void {
    this.faults++;
    const peer = this.peers.get(index);
    const who = peer === undefined ? 'an unknown peer' : `${peer.info.name} (${peer.info.incarnation})`;
    const error = new MillraceError(
      'ERR_PEER_INPUT',
      `The transport found a fault of ${who}: ${FAULT_REASONS[reason] ?? `reason ${reason}`} (completion status ${wcStatus}).`,
      { details: { wcStatus, reason } },
    );
    if (peer !== undefined) peer.faults++;
    this.status.emit({ type: 'fault', ...(peer === undefined ? {} : { peer: peer.identity }), error });
    // Nothing more is sent to it, so nobody may go on waiting for it. What it sends still comes.
    if (peer !== undefined && reason === FAULT.REFUSED) this.membership.giveUp(peer, 'refused');
  }
  lane(lane: number, state: number): void {
    this.status.emit({ type: 'lane', lane, state: LANE_STATES[state] ?? 'down' });
  }
  fetched(number: number, end: number, done: number, wcStatus: number): void {
    this.fetches.row(number, end, done, wcStatus);
  }
  tunnel(index: number, bytes: Uint8Array): void {
    this.#cluster.tunnel(index, bytes);
  }

  // ---- the end -------------------------------------------------------------------------------------------------------

  /** Hands the last reports to publishers, and all that is to be sent, to the transport. @returns lingers */
  lastFlush(): boolean {
    if (this.closed) return false;
    this.inbound.lastReport();
    this.transport.flush();
    return this.lingers;
  }

  /** Whether what was handed to the transport is still here, or large messages of ours are being read from elsewhere. */
  get lingers(): boolean {
    if (this.transport.closed) return false;
    return this.transport.unsent || this.#offered;
  }

  /** Whether large messages of ours are offered to members elsewhere, or being read by them. */
  get #offered(): boolean {
    for (const peer of this.peers.values()) if (peer.offers > 0) return true;
    return false;
  }

  /** Calls at the end of each turn. */
  onTurn(call: () => void): () => void {
    this.#turnCalls.add(call);
    return () => this.#turnCalls.delete(call);
  }

  /** Lets go of everything but the cluster. What is unsent is lost; drain() before, if it matters. Idempotent. */
  close(): void {
    if (this.closed) return;
    this.lastFlush();
    this.settleRows();
    for (const peer of this.peers.values()) {
      for (const last of lastOf(peer, this.channels.values(), this.transport))
        this.#cluster.send(peer.index, 'last', last);
    }
    this.closed = true;
    this.#wantArena.clear();
    this.pump.hold(false);
    this.pump.close();
    if (this.#gapTimer !== null) this.clock.clearTimeout(this.#gapTimer);
    for (const peer of [this.self, ...this.peers.values()]) {
      peer.gone = true;
      for (const { waiter } of peer.awaiting.splice(0)) waiter.lost('closed', true);
    }
    for (const channel of this.channels.values()) channel.close('closed');
    this.channels.clear();
    // Before the goodbye: publishers take our holds for given back when they hear it.
    this.holdings.close();
    this.fetches.close();
    this.transport.close();
    this.inbound.close();
    this.membership.peers.clear();
  }
}
