import type { ControlConnection } from './connection.js';
import type { Known } from './handshake.js';
import { Outbox } from './outbox.js';

/** A member that can be sent to. The same object from its `peerUp` to its `peerDown`. */
export interface PeerInfo {
  /** Its index in the tables of the native binding. Given again to another peer after `peerDown`. */
  readonly index: number;
  readonly incarnation: number;
  readonly name: string;
  readonly pid: number;
}

/** What this member knows of another one, for one session. Made by the cluster only. */
export class Peer implements Known {
  /** Its number of the session; 0 until it has said one. */
  theirSession = 0;
  established = 0;
  /** Index and offer that the transport has reserved for it; -1 until then. */
  index = -1;
  offer: Uint8Array = new Uint8Array(0);
  /** Set from its `peerUp` on. */
  info: PeerInfo | undefined;
  connection: ControlConnection | undefined;
  attempt: ControlConnection | undefined;
  readonly outbox = new Outbox();
  /** Messages of the session that were received, and what of them is not acknowledged. */
  received = 0;
  acknowledged = 0;
  unacknowledgedBytes = 0;
  suspect = false;
  /** Reconnections since the last one that worked: the back-off. */
  failures = 0;
  /** Connections that ended with a malformed message. */
  malformed = 0;
  /** Neither side can change its mind: no further attempts. */
  blocked = false;
  /** The session is over; whoever still has a reference leaves it alone. */
  gone = false;
  cancelTimer: (() => void) | undefined;
  /** Codes of the faults that were reported, each once. */
  readonly reported = new Set<string>();

  constructor(
    readonly incarnation: number,
    /** Our number of the session. */
    readonly session: number,
  ) {}

  get connected(): boolean {
    return this.connection !== undefined;
  }

  get attempting(): boolean {
    return this.attempt !== undefined;
  }

  /** Neither connected nor about to be, and neither gone nor given up: somebody should connect to it. */
  get idle(): boolean {
    return !this.gone && !this.connected && !this.attempting && !this.blocked;
  }
}
