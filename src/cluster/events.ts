import { MillraceError } from '../errors.js';
import type { MalformedFrame } from './framing.js';
import type { Peer, PeerInfo } from './peer.js';

/** Why a peer is down. */
export type DownReason = 'left' | 'died' | 'refused';

/**
 * What happens to the other members. Each is called on the environment's own thread, from the event loop, never from within a
 * call of the cluster, and never before the promise of `Cluster.join` has resolved. What a handler throws is reported
 * to `fault` and goes no further.
 */
export interface ClusterEvents {
  /** A member can be sent to. The same incarnation again is a new session: nothing of the earlier one is left. */
  peerUp(peer: PeerInfo): void;
  /**
   * A member is gone: it `left`, it `died` (end of its connection and a free presence lock, R5; never by time), or one side
   * `refused` the other. Called *before* the transport lets go of the peer, so the handler can take out of the inbox what
   * the peer still sent. Afterwards its index can be given to another one.
   */
  peerDown(peer: PeerInfo, why: DownReason, detail?: string): void;
  /** The connection to a living member broke and is being made again. Nothing is lost: what was sent waits. */
  peerSuspect?(peer: PeerInfo, on: boolean): void;
  /** A message of a type that the cluster does not know. `body` was parsed from JSON, and is otherwise unchecked (I9). */
  message(peer: PeerInfo, type: string, body: unknown): void;
  /** Something went wrong that concerns one peer or is worth a notice; the member goes on. */
  fault(error: Error): void;
  /** What `millrace ls` shows of this member: plain data for JSON. */
  onInspect?(): unknown;
}

/** Calls the handlers of a cluster's events: nothing before the join has resolved, nothing once the member leaves. */
export class Announcer {
  /** Events of the time before join() has resolved. */
  #held: (() => void)[] | undefined = [];
  #ended = false;

  constructor(private readonly events: ClusterEvents) {}

  /** Delivers an event: at once, or when the join is over. What `event` throws is reported. */
  emit(event: (events: ClusterEvents) => void): void {
    if (this.#held !== undefined) this.#held.push(() => this.#deliver(event));
    else this.#deliver(event);
  }

  /** The join is over: what was held is delivered in a later turn, when the caller has the cluster. */
  open(): void {
    setImmediate(() => {
      const held = this.#held ?? [];
      // Those that these cause are called at once, hence after all of them only if they are taken one by one.
      for (let next = held.shift(); next !== undefined; next = held.shift()) next();
      this.#held = undefined;
    });
  }

  /** No event is delivered any more. Idempotent. */
  end(): void {
    this.#ended = true;
    this.#held = undefined;
  }

  fault(error: Error): void {
    this.emit(() => this.#report(error));
  }

  /** Reports a fault of a peer once for each code. */
  faultOf(
    peer: Peer,
    code: 'ERR_PEER_REFUSED' | 'ERR_PROTOCOL_VERSION',
    message: string,
    cause?: unknown,
  ): void {
    if (peer.reported.has(code)) return;
    peer.reported.add(code);
    const details = { incarnation: peer.incarnation, peer: peer.info?.name };
    this.fault(new MillraceError(code, message, { details, ...(cause === undefined ? {} : { cause }) }));
  }

  malformed(who: string, reason: MalformedFrame): void {
    const message = `${who} sent a malformed control message: ${reason.message}.`;
    this.fault(new MillraceError('ERR_CONTROL_MALFORMED', message, { cause: reason }));
  }

  #deliver(event: (events: ClusterEvents) => void): void {
    if (this.#ended) return;
    try {
      event(this.events);
    } catch (error) {
      const message = `A handler of cluster events threw: ${error instanceof Error ? error.message : String(error)}`;
      this.#report(new MillraceError('ERR_INTERNAL', message, { cause: error }));
    }
  }

  #report(error: Error): void {
    try {
      this.events.fault(error);
    } catch (thrown) {
      process.emitWarning(`The handler of cluster faults threw: ${thrown}`, { code: 'ERR_INTERNAL' });
    }
  }
}
