import { MillraceError } from '../errors.js';
import { checkChannelName, parsePattern } from './names.js';
import { isOverflow } from './overflow/index.js';
import type { Peer, PeerSubscription } from './peer.js';

const isNumber = (value: unknown, least: number, most: number): value is number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value >= least && value <= most;
const isText = (value: unknown): value is string | null =>
  value === null || (typeof value === 'string' && value.length <= 64 * 1024);

/** Checks the body of a `subscribe` message (I9). @returns the subscription, or what is wrong with it */
export function readSubscribe(peer: Peer, body: unknown): PeerSubscription | MillraceError {
  try {
    const given = (typeof body === 'object' && body !== null ? body : {}) as Record<string, unknown>;
    const {
      id,
      channel,
      pattern,
      overflow,
      delivery = 'lane',
      window,
      codec,
      schema,
      replay,
      replayBytes,
      maxRecord,
    } = given;
    const bad = (what: string) => new Error(`its ${what} is not valid`);
    if (!isNumber(id, 1, 0xffff_ffff)) throw bad('id');
    if (!isOverflow(overflow)) throw bad('overflow policy');
    if (delivery !== null && delivery !== 'lane' && delivery !== 'multicast') throw bad('delivery');
    if (!isNumber(window, 1, 2 ** 40)) throw bad('window');
    if (!isText(codec)) throw bad('codec');
    if (!isText(schema)) throw bad('schema');
    if (!isNumber(replay, 0, 2 ** 40) || !isNumber(replayBytes, 0, 2 ** 40)) throw bad('replay');
    if (!isNumber(maxRecord, 64, 2 ** 30)) throw bad('maxRecord');
    let matches: (name: string) => boolean;
    if (channel === undefined) {
      const parsed = parsePattern(pattern);
      matches = (name) => parsed.matches(name);
    } else {
      checkChannelName(channel);
      matches = (name) => name === channel;
    }
    const exact = channel !== undefined;
    return {
      id,
      peer,
      exact,
      matches,
      overflow,
      delivery,
      window,
      codec,
      schema,
      replay,
      replayBytes,
      maxRecord,
    };
  } catch (error) {
    return new MillraceError(
      'ERR_PEER_INPUT',
      `${peer.info.name} (${peer.info.incarnation}) sent a subscription that is not valid: ${(error as Error).message}`,
      { cause: error },
    );
  }
}

/** Checks the body of an `unsubscribe` message. @returns the id, or null */
export function readUnsubscribe(body: unknown): number | null {
  const id = (body as { id?: unknown } | null)?.id;
  return isNumber(id, 1, 0xffff_ffff) ? id : null;
}
