import { checkChannelName } from './names.js';
import type { Peer } from './peer.js';
import type { AnyOutChannel } from './sending/outbound.js';
import type { Transport } from './transport.js';

/** Entries of one `last` message: far below the limit of a control message. */
const ENTRIES = 500;

/** The last word on one channel: everything up to `to` was published, and what of it has not come will not. */
export interface Last {
  readonly number: number;
  readonly name: string;
  /** First sequence that was for that subscriber. */
  readonly from: number;
  readonly to: number;
}

/**
 * What a leaving member tells a peer on the control connection, which works where its lane is stuck: the last sequence of
 * each channel of which something may not arrive any more. So a subscriber that was slower than the publisher's leaving
 * sees a gap (I4). Nothing where everything has arrived.
 */
export function lastOf(peer: Peer, channels: Iterable<AnyOutChannel>, transport: Transport): Last[][] {
  const stuck = peer.stalled || transport.arrived(peer) < peer.rows;
  const messages: Last[][] = [];
  for (const { number, name, sequence, audience } of channels) {
    const destination = audience.of(peer);
    if (destination === undefined || sequence < destination.first) continue;
    if (!stuck && destination.gaps.next > sequence) continue;
    const entry = { number, name, from: destination.first, to: sequence };
    const message = messages.at(-1);
    if (message === undefined || message.length === ENTRIES) messages.push([entry]);
    else message.push(entry);
  }
  return messages;
}

/** Checks the body of a `last` message (I9). @returns null if it is not valid */
export function readLast(body: unknown): Last[] | null {
  if (!Array.isArray(body)) return null;
  try {
    return body.map((entry: Partial<Last> | null) => {
      const { number, name, from, to } = entry ?? {};
      checkChannelName(name);
      if (!isWhole(number) || !isWhole(from) || !isWhole(to) || to < from)
        throw new RangeError('no sequence');
      return { number, name, from, to };
    });
  } catch {
    return null;
  }
}

const isWhole = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) > 0;
