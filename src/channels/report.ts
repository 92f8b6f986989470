import type { Channel } from './channel.js';
import type { Engine } from './engine.js';
import type { Overflow } from './overflow/index.js';
import type { Pattern } from './pattern.js';
import type { Publisher } from './types.js';

/** One subscriber of a channel, as its publisher sees it. */
export interface SubscriberReport {
  readonly peer: Publisher;
  readonly overflow: Overflow;
  readonly windowBytes: number;
  /** Bytes on their way that it has not taken. */
  readonly outstandingBytes: number;
  readonly queuedBytes: number;
  readonly queued: number;
  readonly sentBytes: number;
  /** Last sequence that was handed to its `next`. */
  readonly delivered: number;
  readonly dropped: number;
  /** Frames that may be sent to it now. */
  readonly credits: number | null;
}

/** One channel of a member. */
export interface ChannelReport {
  readonly name: string;
  readonly codec: string;
  readonly schema: string | null;
  /** null while it has not published. */
  readonly publishing: {
    readonly sequence: number;
    readonly bytes: number;
    readonly refused: number;
    readonly encodeErrors: number;
    readonly dropped: number;
    readonly ended: string | null;
    readonly subscribers: readonly SubscriberReport[];
  } | null;
  readonly listeners: number;
  readonly received: number;
  readonly receivedBytes: number;
  readonly missing: number;
  readonly decodeErrors: number;
  readonly publishers: readonly Publisher[];
}

/** What `millrace ls` shows of one member: plain data for JSON. */
export interface MemberReport {
  readonly channels: readonly ChannelReport[];
  readonly patterns: readonly {
    readonly pattern: string;
    readonly listeners: number;
    readonly overflow: Overflow;
  }[];
  readonly peers: readonly Publisher[];
  readonly faults: number;
}

/** Describes a channel. */
export function reportChannel(engine: Engine, channel: Channel<unknown, never>): ChannelReport {
  const { out, name, settings } = channel;
  const stats = channel.stats();
  return {
    name,
    codec: settings.codec?.name ?? 'msgpackr',
    schema: settings.schemaId,
    publishing:
      out === null
        ? null
        : {
            sequence: out.sequence,
            bytes: out.counts.publishedBytes,
            refused: out.counts.refused,
            encodeErrors: out.counts.encodeErrors,
            dropped: out.counts.dropped,
            ended: out.ended,
            subscribers: out.destinations.map((one) => ({
              peer: one.peer.identity,
              overflow: one.overflow,
              windowBytes: one.window,
              outstandingBytes: one.outstanding,
              queuedBytes: one.queuedBytes,
              queued: one.queuedCount,
              sentBytes: one.sent,
              delivered: one.delivered,
              dropped: one.droppedTotal,
              credits: engine.transport.credits(one.peer),
            })),
          },
    listeners: channel.listeners,
    received: stats.received,
    receivedBytes: stats.receivedBytes,
    missing: stats.missing,
    decodeErrors: stats.decodeErrors,
    publishers: [...engine.inbound.origins.named(name)].map((origin) => origin.peer.identity),
  };
}

/** Describes a member. */
export function reportMember(
  engine: Engine,
  channels: Iterable<Channel<unknown, never>>,
  patterns: Iterable<Pattern<unknown>>,
): MemberReport {
  return {
    channels: [...channels].map((channel) => reportChannel(engine, channel)),
    patterns: [...patterns].map(({ pattern, listeners, settings }) => ({
      pattern,
      listeners,
      overflow: settings.overflow,
    })),
    peers: [...engine.peers.values()].map(({ identity }) => identity),
    faults: engine.faults,
  };
}
