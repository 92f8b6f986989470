import type { MillraceError } from '../errors.js';
import type { Native } from '../native/binding.js';
import { nativeError } from '../native/faults.js';
import { FAULT } from '../native/tables.js';
import type { Clock } from './clock.js';
import { Control } from './control.js';
import { lastOf } from './farewell.js';
import { Faults } from './faults.js';
import { Fetches } from './fetches.js';
import type { Batch } from './frames.js';
import { Keepalive, type KeepaliveHost } from './keepalive.js';
import { Copies } from './lending/copies.js';
import { Holdings } from './lending/holdings.js';
import { Landings } from './lending/landings.js';
import { Pool } from './lending/pool.js';
import { Membership, type MembershipHost } from './membership.js';
import { Groups } from './multicast/groups.js';
import { Peer, SELF } from './peer.js';
import { Pump, type PumpWork, type WaitMode } from './pump.js';
import { LANE_STATES } from './reasons.js';
import { Inbound, type InboundHost } from './receiving/inbound.js';
import { Subscribing, type SubscribingHost } from './receiving/subscribing.js';
import { Seals } from './seals.js';
import { Agenda, type AgendaHost } from './sending/agenda.js';
import { Feedback } from './sending/feedback.js';
import { Publishers, type PublishersHost } from './sending/publishers.js';
import { Shortage, type ShortageHost } from './sending/shortage.js';
import { Status } from './status.js';
import { Transport, type TransportEvents } from './transport.js';
import { KIND } from './wire.js';

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
 * One member without its public face: its parts, and the turn in which they work together.
 *
 * All calls are made on the environment's own thread (I6). Calls from the cluster come from the event loop, never from
 * within a call of ours.
 */
export class Engine
  implements
    AgendaHost,
    InboundHost,
    KeepaliveHost,
    MembershipHost,
    PublishersHost,
    PumpWork,
    ShortageHost,
    SubscribingHost,
    TransportEvents
{
  readonly clock: Clock;
  readonly dice: () => number;
  readonly status = new Status();
  readonly faults = new Faults(this.status);
  readonly self: Peer;
  /** The other members that are up, by index. */
  readonly peers: ReadonlyMap<number, Peer>;
  readonly transport: Transport;
  readonly control: Control;
  readonly pump: Pump;
  readonly keepalive = new Keepalive(this);
  readonly membership: Membership;
  readonly seals: Seals;
  readonly groups: Groups;
  // ---- blocks of this member, and of others ----
  readonly copies = new Copies();
  readonly pool: Pool;
  readonly holdings: Holdings;
  /** Large messages of members elsewhere on their way here. */
  readonly landings: Landings;
  /** Payloads that are read out of other members' memory. */
  readonly fetches: Fetches;
  // ---- sending ----
  readonly agenda = new Agenda(this);
  readonly shortage: Shortage = new Shortage(this);
  readonly publishers: Publishers = new Publishers(this);
  readonly feedback = new Feedback(this.publishers.channels, this.faults);
  // ---- receiving ----
  readonly inbound: Inbound;
  readonly subscribing = new Subscribing(this);
  closed = false;
  readonly #cluster: ClusterPort;
  readonly #native: Native;
  #stamp = 0;
  readonly #turnCalls = new Set<() => void>();

  constructor(options: EngineOptions) {
    const { native, cluster, clock, name } = options;
    const { handle } = cluster;
    this.#native = native;
    this.#cluster = cluster;
    this.clock = clock;
    this.dice = options.dice;
    this.self = new Peer({ index: SELF, incarnation: cluster.incarnation, name, pid: process.pid });
    this.transport = new Transport(native, handle, options.slotBytes, this.self, this);
    this.groups = new Groups(this.transport, options.domain);
    this.control = new Control(
      this.transport,
      () => this.stamp(),
      (peer) => this.agenda.resumed(peer),
    );
    this.seals = new Seals(this.control);
    this.pool = new Pool(
      native,
      handle,
      options.poolBytes,
      this.copies,
      (peer, error) => this.faults.of(peer, error),
      () => this.schedule(),
    );
    this.holdings = new Holdings(
      native,
      handle,
      {
        self: this.self,
        gaveBack: (peer) => {
          this.control.sendEmpty(peer, KIND.RELEASED);
          this.schedule();
        },
        tellOf: (origin, event) => this.inbound.origins.tell(origin, event),
      },
      this.copies,
    );
    this.fetches = new Fetches({
      native,
      handle,
      peerOf: (incarnation) => [...this.peers.values()].find(({ info }) => info.incarnation === incarnation),
      hold: () => this.keepalive.hold(),
      wake: () => this.wake(),
    });
    this.landings = new Landings({
      native,
      handle,
      holdings: this.holdings,
      fetches: this.fetches,
      landed: (peer, serial) => {
        if (peer.gone || this.closed) return;
        const payload = new Uint8Array(Float64Array.of(serial).buffer);
        this.control.send(peer, 0, KIND.LANDED, 0, 0, 0, payload);
        this.schedule();
      },
      ready: (origin) => this.inbound.lines.ready(origin),
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

  // ---- the turn ------------------------------------------------------------------------------------------------------

  deliver(deadline: number, fresh: boolean): boolean {
    return this.inbound.deliver(deadline, fresh);
  }

  /** Sends what was produced and settles what can be settled. Also runs in the middle of a long turn. */
  endOfTurn(): void {
    if (this.closed) return;
    this.inbound.accounts.endOfTurn();
    if (this.control.stalled.size > 0) this.control.retry();
    this.agenda.serve();
    if (this.transport.pending || this.transport.unsent) this.transport.flush();
    this.#stamp = 0;
    this.agenda.settle();
    this.shortage.turn();
    this.pool.prepare();
    this.keepalive.update();
    for (const call of [...this.#turnCalls]) call();
  }

  /** Whether something waits that only polling moves on: credits, completions, room in the arena. */
  pending(): boolean {
    const { agenda, shortage, transport, control } = this;
    return agenda.waits || shortage.waits || transport.unsent || control.stalled.size > 0;
  }

  /** Polls natively and serves who got room; delivers nothing. */
  progress(): void {
    this.transport.flush();
    this.#stamp = 0;
    this.transport.poll();
    this.inbound.takeConsumed();
    this.shortage.look();
    // Also when nothing came: the poll took the wake-up that a sleeping pump waits for, so it must arm again.
    this.pump.wake();
    this.pump.schedule();
  }

  /** A flush at the end of this turn. */
  schedule(): void {
    this.pump.schedule();
  }

  /** A polling turn follows. */
  wake(): void {
    this.pump.wake();
  }

  /** Milliseconds since the epoch, taken once a turn. */
  stamp(): number {
    if (this.#stamp === 0) {
      this.#stamp = this.clock.epoch();
      this.pump.schedule();
    }
    return this.#stamp;
  }

  /** Calls at the end of each turn. */
  onTurn(call: () => void): () => void {
    this.#turnCalls.add(call);
    return () => this.#turnCalls.delete(call);
  }

  members(): number {
    return this.peers.size + 1;
  }

  holdLoop(on: boolean): void {
    this.pump.hold(on);
    this.#cluster.ref(on);
  }

  // ---- what native code finds (TransportEvents) ----------------------------------------------------------------------

  /** Set by the member: what to do when the transport fails for good. */
  onFailure: (error: MillraceError) => void = () => {};

  failed(error: unknown): void {
    if (this.closed) return;
    this.onFailure(nativeError('go on with the transport', this.#native, error));
  }
  peerAt(index: number): Peer | undefined {
    return this.peers.get(index);
  }
  early(index: number, batch: Batch, start: number, end: number): void {
    this.membership.early(index, batch, start, end);
  }
  peerFault(index: number, wcStatus: number, reason: number): void {
    const peer = this.peers.get(index);
    this.faults.found(peer, wcStatus, reason);
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
    this.inbound.accounts.last();
    this.transport.flush();
    return this.lingers;
  }

  /** Whether what was handed to the transport is still here, or large messages of ours are being read from elsewhere. */
  get lingers(): boolean {
    if (this.transport.closed) return false;
    return this.transport.unsent || this.shortage.offered;
  }

  /** Lets go of everything but the cluster. What is unsent is lost; drain() before, if it matters. Idempotent. */
  close(): void {
    if (this.closed) return;
    this.lastFlush();
    this.agenda.settleRows();
    for (const peer of this.peers.values()) {
      for (const last of lastOf(peer, this.publishers.channels.values(), this.transport))
        this.#cluster.send(peer.index, 'last', last);
    }
    this.closed = true;
    this.pump.hold(false);
    this.pump.close();
    this.agenda.close();
    for (const peer of [this.self, ...this.peers.values()]) {
      peer.gone = true;
      for (const { waiter } of peer.awaiting.splice(0)) waiter.lost('closed', true);
    }
    this.publishers.close();
    this.pool.close();
    // Before the goodbye: publishers take our holds for given back when they hear it.
    this.holdings.close();
    this.fetches.close();
    this.transport.close();
    this.inbound.close();
    this.membership.peers.clear();
  }
}
