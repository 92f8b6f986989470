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

/** What a publisher of a multicast channel did. */
export interface SentReport {
  /** Last sequence that went. */
  readonly sent: number;
  /** Messages, each part of a split one for itself. Several may go in one datagram of the device: `datagramsSent` of resources(). */
  readonly datagrams: number;
  readonly heartbeats: number;
  /** Requests for repair, the messages that were sent again, and those that were not kept any more. */
  readonly requests: number;
  readonly repaired: number;
  readonly evicted: number;
}

/** What a member did to hear a multicast channel, for all its present publishers. */
export interface RepairReport {
  /** Requests for repair, the messages that came of them, and those that were given up. */
  readonly requests: number;
  readonly repaired: number;
  readonly givenUp: number;
  /** Messages that wait for what precedes them. */
  readonly held: number;
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
    /** Of a multicast channel. */
    readonly multicast: SentReport | null;
  } | null;
  readonly listeners: number;
  readonly received: number;
  readonly receivedBytes: number;
  readonly missing: number;
  readonly decodeErrors: number;
  readonly publishers: readonly Publisher[];
  /** Of a multicast channel, as it arrives here. */
  readonly multicast: RepairReport | null;
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
  /** Channels and patterns that are left out, where others are told: what they are told has 1 MB at most. */
  readonly omitted?: number;
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
            subscribers: out.audience.destinations.map((one) => ({
              peer: one.peer.identity,
              overflow: one.queue.overflow,
              windowBytes: one.window.size,
              outstandingBytes: one.window.outstanding,
              queuedBytes: one.queuedBytes,
              queued: one.queue.count,
              sentBytes: one.window.sent,
              delivered: one.delivered,
              dropped: one.gaps.total,
              credits: engine.transport.credits(one.peer),
            })),
            multicast: out.sender === null ? null : { sent: out.sender.sent, ...out.sender.counts },
          },
    listeners: channel.listeners,
    received: stats.received,
    receivedBytes: stats.receivedBytes,
    missing: stats.missing,
    decodeErrors: stats.decodeErrors,
    publishers: [...engine.inbound.origins.named(name)].map((origin) => origin.peer.identity),
    multicast: settings.delivery === 'multicast' ? reportRepairs(engine, name) : null,
  };
}

function reportRepairs(engine: Engine, name: string): RepairReport {
  const sum = { requests: 0, repaired: 0, givenUp: 0, held: 0 };
  for (const { reorder } of engine.inbound.origins.named(name)) {
    if (reorder === null) continue;
    sum.requests += reorder.counts.requests;
    sum.repaired += reorder.counts.repaired;
    sum.givenUp += reorder.counts.givenUp;
    sum.held += reorder.held;
  }
  return sum;
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
    faults: engine.faults.count,
  };
}

/** Bytes of JSON that others are told at most, so that it fits a control message. */
const TOLD_BYTES = 1_000_000;

/** A report as others are told it: with as many channels and patterns as fit, the oldest first. */
export function toldReport(report: MemberReport): MemberReport {
  let room = TOLD_BYTES - Buffer.byteLength(JSON.stringify({ ...report, channels: [], patterns: [] }));
  const fitting = <V>(all: readonly V[]): readonly V[] => {
    const over = all.findIndex((one) => {
      room -= Buffer.byteLength(JSON.stringify(one)) + 1;
      return room < 0;
    });
    return over < 0 ? all : all.slice(0, over);
  };
  const [channels, patterns] = [fitting(report.channels), fitting(report.patterns)];
  const omitted = report.channels.length + report.patterns.length - channels.length - patterns.length;
  return omitted === 0 ? report : { ...report, channels, patterns, omitted };
}
