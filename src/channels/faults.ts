import { MillraceError } from '../errors.js';
import { statusHint, statusText } from './completions.js';
import type { Peer } from './peer.js';
import { FAULT_REASONS } from './reasons.js';
import type { Status } from './status.js';

/** What peers do wrong: counted here and at the peer, told by status$, and of no consequence for others (I9). */
export class Faults {
  /** Input of peers that was refused. */
  count = 0;

  constructor(private readonly status: Status) {}

  of(peer: Peer, error: Error): void {
    this.count++;
    peer.faults++;
    this.status.emit({ type: 'fault', peer: peer.identity, error });
  }

  /** The transport found it, of a peer that is perhaps not known. */
  found(peer: Peer | undefined, wcStatus: number, reason: number): void {
    const who = peer === undefined ? 'an unknown peer' : `${peer.info.name} (${peer.info.incarnation})`;
    const error = new MillraceError(
      'ERR_PEER_INPUT',
      `The transport found a fault of ${who}: ${FAULT_REASONS[reason] ?? `reason ${reason}`} (${statusText(wcStatus)})${statusHint(wcStatus)}.`,
      { details: { wcStatus, reason } },
    );
    if (peer !== undefined) return this.of(peer, error);
    this.count++;
    this.status.emit({ type: 'fault', error });
  }
}
