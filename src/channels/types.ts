import type { AnyMillraceError } from '../errors.js';
import type { GapReason } from './wire.js';

/** A member, as others see it. */
export interface PeerInfo {
  /** Index in this member's tables; may be used again after the peer is gone. */
  readonly index: number;
  /** Never used again. */
  readonly incarnation: number;
  readonly name: string;
  readonly pid: number;
}

/** Who published. */
export interface Publisher {
  readonly incarnation: number;
  readonly name: string;
  readonly pid: number;
}

/** Headers of a message: short strings by name. */
export type Headers = Readonly<Record<string, string>>;

/** One message with all that is known of it. */
export interface MessageEvent<T> {
  readonly type: 'message';
  /** The channel's name. */
  readonly channel: string;
  readonly publisher: Publisher;
  /** From 1, per publisher and channel. */
  readonly sequence: number;
  /** When it was published: milliseconds since the epoch by the publisher's clock. */
  readonly time: number;
  readonly headers: Headers;
  readonly value: T;
  /** The encoded payload, owned by whoever holds it. */
  readonly bytes: Uint8Array;
  /** Whether it was kept by the publisher and sent again for this subscriber. */
  readonly replayed: boolean;
}

/** Messages `from` to `to` of a publisher will not come. */
export interface GapEvent {
  readonly type: 'gap';
  readonly channel: string;
  readonly publisher: Publisher;
  /** First missing sequence. */
  readonly from: number;
  /** Last missing sequence. */
  readonly to: number;
  readonly count: number;
  readonly reason: GapReason;
}

/** A publisher's first sign on this channel: from `sequence` on everything is live. */
export interface PublisherJoinedEvent {
  readonly type: 'publisher-joined';
  readonly channel: string;
  readonly publisher: Publisher;
  readonly sequence: number;
}

/** A publisher is gone; stands after its last message. */
export interface PublisherLeftEvent {
  readonly type: 'publisher-left';
  readonly channel: string;
  readonly publisher: Publisher;
  readonly reason: 'left' | 'died' | 'refused' | 'closed';
  /** Its last sequence that was seen here. */
  readonly sequence: number;
}

/** What `messages$` emits, in order. */
export type ChannelEvent<T> = MessageEvent<T> | GapEvent | PublisherJoinedEvent | PublisherLeftEvent;

/** What a pattern's subscribers get. */
export interface PatternMessage<T> {
  readonly channel: string;
  readonly value: T;
  readonly publisher: Publisher;
  readonly sequence: number;
  /** Milliseconds since the epoch by the publisher's clock. */
  readonly time: number;
}

/** What happens besides messages. Everything that heals, was refused or was dropped shows here. */
export type StatusEvent =
  /** next() was refused `count` times in this turn. */
  | {
      readonly type: 'refused';
      readonly channel: string;
      readonly count: number;
      readonly error: AnyMillraceError;
    }
  /** A value could not be encoded or is not valid; `count` times in this turn, `error` is the first. */
  | {
      readonly type: 'encode-error';
      readonly channel: string;
      readonly count: number;
      readonly error: AnyMillraceError;
    }
  /** A message could not be decoded or is not valid; it was skipped and is a gap. */
  | {
      readonly type: 'decode-error';
      readonly channel: string;
      readonly peer: Publisher;
      readonly count: number;
      readonly error: AnyMillraceError;
    }
  /** A peer's codec or schema differs; nothing of it is decoded. */
  | {
      readonly type: 'mismatch';
      readonly channel: string;
      readonly peer: Publisher;
      readonly ours: string;
      readonly theirs: string;
      readonly error: AnyMillraceError;
    }
  /**
   * Messages were dropped, as the subscriber's policy says: at the `publisher`, which this member is, for the subscriber
   * `peer`; or at the `subscriber`, by a loop of this member that is slower than the publisher `peer`. `count` since the last
   * such event, `total` ever.
   */
  | {
      readonly type: 'dropped';
      readonly at: 'publisher' | 'subscriber';
      readonly channel: string;
      readonly peer: Publisher;
      readonly count: number;
      readonly total: number;
      readonly reason: GapReason;
    }
  /** Messages of a publisher are missing here. */
  | {
      readonly type: 'gap';
      readonly channel: string;
      readonly peer: Publisher;
      readonly from: number;
      readonly to: number;
      readonly count: number;
      readonly reason: GapReason;
    }
  /** A publisher completed, or ended with an error. It may still be in the domain. */
  | {
      readonly type: 'publisher-done';
      readonly channel: string;
      readonly peer: Publisher;
      readonly how: 'complete' | 'error';
      readonly error?: { readonly name: string; readonly message: string; readonly code?: string };
    }
  | {
      readonly type: 'subscriber-joined';
      readonly channel: string;
      readonly peer: Publisher;
      readonly subscribers: number;
    }
  | {
      readonly type: 'subscriber-left';
      readonly channel: string;
      readonly peer: Publisher;
      readonly subscribers: number;
    }
  | { readonly type: 'peer-joined'; readonly peer: Publisher }
  | { readonly type: 'peer-left'; readonly peer: Publisher }
  /** A peer died. What it had published and what had arrived is still delivered. */
  | { readonly type: 'peer-lost'; readonly peer: Publisher; readonly detail?: string }
  /** A peer's control connection is broken although it lives (on), or works again. Nothing is dropped. */
  | { readonly type: 'peer-suspect'; readonly peer: Publisher; readonly on: boolean }
  /**
   * The lease of a large message was collected and never released (`lease-forgotten`), or somebody wrote to the pages of
   * one (`stray-write`), which reached nobody else and was undone. Each is a process warning, too.
   */
  | {
      readonly type: 'lease-forgotten' | 'stray-write';
      readonly channel: string;
      readonly peer: Publisher;
      readonly sequence: number;
      readonly bytes: number;
    }
  /** So much of a large message of a member on another port is here; every 64 MiB. */
  | {
      readonly type: 'payload-progress';
      readonly channel: string;
      readonly peer: Publisher;
      readonly sequence: number;
      readonly bytes: number;
      readonly done: number;
    }
  /** A large message of a member on another port could not be read; it is a gap. */
  | {
      readonly type: 'payload-failed';
      readonly channel: string;
      readonly peer: Publisher;
      readonly sequence: number;
      readonly bytes: number;
      readonly error: AnyMillraceError;
    }
  /** A lane went down, came up or was armed again. */
  | { readonly type: 'lane'; readonly lane: number; readonly state: 'up' | 'down' | 'rearmed' }
  /** A counted fault, of one peer (`peer`) or of the cluster. */
  | { readonly type: 'fault'; readonly peer?: Publisher; readonly error: Error };

/** What was not delivered to one peer on one channel. */
export interface Undelivered {
  readonly channel: string;
  readonly peer: Publisher;
  /** First sequence that is not known to be delivered. */
  readonly from: number;
  readonly to: number;
  readonly count: number;
  readonly reason: 'timeout' | 'died' | 'left' | 'aborted' | 'closed';
  /** Some of it may have been delivered nevertheless. */
  readonly ambiguous: boolean;
}

/** What flush() and drain() found. */
export interface DrainReport {
  /** Whether everything was handed to every subscriber. */
  readonly complete: boolean;
  readonly undelivered: readonly Undelivered[];
}

/** What publish() resolves to. */
export interface PublishReceipt {
  readonly sequence: number;
  /** Subscribers (members) that have it in their inbox. */
  readonly received: number;
  /** Subscribers whose policy dropped it. */
  readonly dropped: number;
}

/** Counts of a channel since it was opened. */
export interface ChannelStats {
  /** Messages that this member published: the last one's sequence. */
  readonly published: number;
  /** Their payloads, encoded. */
  readonly publishedBytes: number;
  /** Calls of next(), offer() and publish() that were not taken, for other reasons than the value. */
  readonly refused: number;
  /** Values that could not be encoded, or were not valid. */
  readonly encodeErrors: number;
  /** Messages dropped for subscribers, summed over them. */
  readonly dropped: number;
  /** Messages that came, of all publishers. */
  readonly received: number;
  /** Their payloads, encoded. */
  readonly receivedBytes: number;
  /** Messages that gaps say will not come. */
  readonly missing: number;
  /** Messages that could not be decoded, or were not valid; they are among the missing. */
  readonly decodeErrors: number;
  /** Messages that came again, and were left out. */
  readonly duplicates: number;
  /** Members that subscribe to this publisher now. */
  readonly subscribers: number;
  /** Members that publish to this subscriber now. */
  readonly publishers: number;
  /** Bytes that wait for slow subscribers now, summed over them. */
  readonly queuedBytes: number;
}
