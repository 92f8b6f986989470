import { MillraceError } from '../errors.js';
import type { Peer } from './peer.js';
import type { Status } from './status.js';

/** Says that a peer's codec or schema differs. */
export function reportMismatch(
  status: Status,
  what: 'codec' | 'schema',
  channel: string,
  peer: Peer,
  ours: string,
  theirs: string,
): void {
  const error = new MillraceError(
    what === 'codec' ? 'ERR_CODEC_MISMATCH' : 'ERR_SCHEMA_MISMATCH',
    `Channel ${JSON.stringify(channel)}: ${peer.info.name} (pid ${peer.info.pid}) uses the ${what} ` +
      `${JSON.stringify(theirs)}, this member ${JSON.stringify(ours)}. Nothing of it is decoded; use the same ${what} in both.`,
    { details: { channel, peer: peer.identity, ours, theirs } },
  );
  status.emit({ type: 'mismatch', channel, peer: peer.identity, ours, theirs, error });
}
