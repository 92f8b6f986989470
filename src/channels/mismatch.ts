import { MillraceError } from '../errors.js';
import type { Peer } from './peer.js';
import type { Status } from './status.js';

/** What two members can differ in on one channel. */
export type Mismatch = 'codec' | 'schema' | 'delivery';

const CODES = {
  codec: 'ERR_CODEC_MISMATCH',
  schema: 'ERR_SCHEMA_MISMATCH',
  delivery: 'ERR_DELIVERY_MISMATCH',
} as const;

/** Says that a peer's codec, schema or delivery differs. */
export function reportMismatch(
  status: Status,
  what: Mismatch,
  channel: string,
  peer: Peer,
  ours: string,
  theirs: string,
): void {
  const error = new MillraceError(
    CODES[what],
    `Channel ${JSON.stringify(channel)}: ${peer.info.name} (pid ${peer.info.pid}) uses the ${what} ` +
      `${JSON.stringify(theirs)}, this member ${JSON.stringify(ours)}. Nothing of it is decoded; use the same ${what} in both.`,
    { details: { channel, peer: peer.identity, ours, theirs } },
  );
  status.emit({ type: 'mismatch', channel, peer: peer.identity, ours, theirs, error });
}
