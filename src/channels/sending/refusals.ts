import { type AnyMillraceError, MillraceError } from '../../errors.js';
import type { Destination } from './destination.js';

/** Why a message was not taken: the errors of publishing, each with the measured limit and the remedy. */

const quoted = (channel: string): string => JSON.stringify(channel);

/** What had no room. */
export type Full = 'subscriber' | 'arena' | 'pool' | 'pace';

/** A `wait` subscriber, the arena, the pool, or what waits for the pace is full. */
export function refused(
  channel: string,
  what: Full,
  maxQueueBytes: number,
  destinations: readonly Destination[],
): MillraceError {
  const slow = destinations
    .filter((one) => one.full)
    .map(({ peer, queuedBytes }) => `${peer.info.name}: ${queuedBytes}`);
  const cause =
    what === 'arena'
      ? 'the send arena has no room, since the transport could not send for a while.'
      : what === 'pool'
        ? 'it is larger than a slot, and all blocks of the pool are lent or held by subscribers (poolBytes).'
        : what === 'pace'
          ? `it is ahead of its pace (maxQueueBytes ${maxQueueBytes} wait to be sent).`
          : `the queue of a subscriber that waits is full (maxQueueBytes ${maxQueueBytes}; ${slow.join(', ')} bytes).`;
  return new MillraceError(
    'ERR_REFUSED',
    `Channel ${quoted(channel)} took no message: ${cause} Wait with whenWritable().`,
    { details: { channel, maxQueueBytes } },
  );
}

/** leave() came first. */
export function memberLeft(channel: string): MillraceError {
  return new MillraceError(
    'ERR_MEMBER_CLOSED',
    `The member has left the domain; channel ${quoted(channel)} is closed.`,
  );
}

/** complete(), error() or close() came first. */
export function publishingEnded(channel: string, how: 'complete' | 'error' | 'closed'): MillraceError {
  return how === 'closed'
    ? new MillraceError(
        'ERR_CHANNEL_CLOSED',
        `Channel ${quoted(channel)} is closed. Open it again with member.channel().`,
      )
    : new MillraceError(
        'ERR_PUBLISHING_ENDED',
        `This member's publishing on ${quoted(channel)} has ended (${how}()). Close the channel and open it again.`,
      );
}

/** The codec, the schema or code of the value itself threw. */
export function notEncoded(channel: string, codec: string, error: unknown): AnyMillraceError {
  if (error instanceof MillraceError) return error;
  const what = error instanceof Error ? error.message : String(error);
  return new MillraceError(
    'ERR_ENCODE',
    `A value for ${quoted(channel)} could not be encoded (${codec}): ${what}`,
    {
      cause: error,
    },
  );
}

/** An encoder, a getter or a toJSON published. */
export function reentrant(channel: string): MillraceError {
  return new MillraceError(
    'ERR_REENTRANT_ENCODE',
    `Channel ${quoted(channel)} was published to while a message was being encoded. Publish after the encoder has returned.`,
  );
}

/** What must fit a slot does not. */
export function tooLarge(channel: string, what: string, limit: number): MillraceError {
  return new MillraceError(
    'ERR_MESSAGE_TOO_LARGE',
    `A message for ${quoted(channel)} can't be sent: ${what} take more than ${limit} bytes, the limit with this member's slotBytes. ` +
      'Put less into headers, or join with larger slotBytes.',
    { details: { channel, limit } },
  );
}

/** No block for a loan. */
export function poolFull(bytes: number, poolBytes: number): MillraceError {
  return new MillraceError(
    'ERR_POOL_FULL',
    `There is no block of ${bytes} bytes: all that the pool may have (poolBytes ${poolBytes}) are lent, or held by subscribers. ` +
      'Wait with whenWritable(), discard loans, let subscribers release sooner, or join with larger poolBytes.',
    { details: { bytes, poolBytes } },
  );
}

/** A codec of the program's own has definitions, and multicast messages must be read without. */
export function notSelfContained(channel: string, codec: string): MillraceError {
  return new MillraceError(
    'ERR_ENCODE',
    `Channel ${quoted(channel)}: the codec ${JSON.stringify(codec)} made a definition that messages depend on, which a multicast channel cannot have. Heed encoder({ selfContained: true }).`,
  );
}
