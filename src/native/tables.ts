import type { NativeRegions } from './region-calls.js';

/**
 * The memory that a member shares with the addon: rows to send, rows of events, counters, peers. The layout is the addon's
 * ({@link NATIVE_ABI}).
 */

/** `sends`: int32 numbers a row, `[peer, offset, length, lane]`. */
export const SEND_STRIDE = 4;
/** `sends`: rows in the table. */
export const SEND_ROWS = 4096;
/** `sends`: index in the arena, within the row, of each field. */
export const SEND_PEER = 0;
/** Byte offset of the records in the arena (position modulo the arena's size). */
export const SEND_OFFSET = 1;
/** Bytes of the records, a multiple of 8. */
export const SEND_LENGTH = 2;
/** The lane: 0 is the shared one. With {@link GROUP_PEER} the number of a group. */
export const SEND_LANE = 3;
/** Stands for the peer where the records are one datagram to a multicast group; see `openGroup`. */
export const GROUP_PEER = -2;

/** `events`: int32 numbers a row, `[kind, peer, a, b, c, d, e, f]`. */
export const EVENT_STRIDE = 8;
/** `events`: rows in the table. */
export const EVENT_ROWS = 1024;

/** Kinds of rows in `events`. */
export const EVENT = {
  /** `[offset, length, records, lane, seqLo, seqHi]`: checked records lie at `target[offset..offset + length)`. */
  FRAME: 1,
  /** `[bytes]`: the target has too little room. Nothing was consumed: poll again with at least `max(65536, slotBytes)`. */
  NEED_ROOM: 2,
  /** `[wcStatus, reason]`: bad input from that peer, or that peer refused ours. Only that peer is concerned (I9). */
  PEER_FAULT: 3,
  /** `[lane, state]` with state 0 up, 1 down, 2 armed again (R14). */
  LANE: 4,
  /** `[offset, length]`: opaque bytes at `target[offset..]`, to be carried to that peer's `tunnel`. */
  TUNNEL: 5,
  /** The backlog of this peer is empty again. */
  DRAINED: 6,
  /** `[number, end, doneLo, doneHi, wcStatus]`, see {@link NativeRegions.fetch}; the peer is -1. */
  FETCH: 7,
  /** `[offset, length, records]`: as FRAME, of a multicast group. */
  DATAGRAM: 16,
} as const;

/** How a fetch ended, in a FETCH row. */
export const FETCH_END = {
  /** Not yet: so many bytes are here. */
  NONE: 0,
  DONE: 1,
  /** The peer's memory is not there, or the device failed again and again (wcStatus). */
  FAILED: 2,
  PEER_LOST: 3,
  CANCELLED: 4,
} as const;

/** Reasons in a PEER_FAULT row. */
export const FAULT = {
  /** A frame whose header is not valid; the peer is -1 where the sender can't be told. */
  HEADER: 1,
  /** A frame whose records don't add up; they were dropped. */
  RECORDS: 2,
  /** A frame out of order, or a count that goes backwards; the frame was dropped. */
  ORDER: 3,
  /** Our own row of `sends` was not valid (bounds, alignment, lane, records); it was dropped. */
  ROW: 4,
  /** A record is larger than this peer's slots; it was dropped. */
  TOO_LARGE: 5,
  /** This peer's inbox failed again and again without progress: nothing more is sent to it. */
  REFUSED: 6,
  /** A tunnel message that is not valid. */
  TUNNEL: 7,
} as const;

/** States in a LANE row. */
export const LANE_STATE = { UP: 0, DOWN: 1, REARMED: 2 } as const;

/** Bits of what `flush` returns. */
export const FLUSH = {
  /** Something is still unsent (no credit, or the lane is down): poll and flush again. */
  UNSENT: 1,
  /** At least one frame was posted or completed. */
  PROGRESS: 2,
} as const;

/** What `linger` returns. */
export const LINGERED = {
  NOTHING: 0,
  /** Something may be there: poll. */
  SOMETHING: 1,
  /** Other work had the CPU for long: whoever polls loses there, whoever sleeps is woken. Poll all the same. */
  TAKEN: 2,
} as const;

/** Indexes in `counters`. All only grow, except `BACKLOG_BYTES`. */
export const COUNTER = {
  /** Cumulative position (bytes) up to which the arena is free again. */
  ARENA_FREED: 0,
  FRAMES_SENT: 1,
  FRAMES_RECEIVED: 2,
  RECORDS_RECEIVED: 3,
  /** Times that a peer's rows had to wait for a credit. */
  CREDIT_STALLS: 4,
  /** Frames that carried the WAIT bit (R12). */
  WAITS_SENT: 5,
  RECALLS: 6,
  DUPLICATES: 7,
  BAD_FRAMES: 8,
  ERROR_COMPLETIONS: 9,
  /** Lanes armed again after an error (R14). */
  REARMS: 10,
  RNR: 11,
  /** Bytes copied aside for peers without credit, now. */
  BACKLOG_BYTES: 12,
  POLLS: 13,
  WAKEUPS: 14,
  BYTES_SENT: 15,
  BYTES_RECEIVED: 16,
  /**
   * The one that JavaScript writes, before `flush`: the cumulative arena position below which nothing is needed any
   * more once this flush is done; usually the head. Negative, as at the start: the end of the last row seen, so that
   * all rows of one record must be in one flush.
   */
  ARENA_RELEASE: 17,
  DATAGRAMS_SENT: 18,
  DATAGRAMS_RECEIVED: 19,
  /** Datagrams of ours that were not sent: too many were under way, or an error. */
  DATAGRAMS_LOST: 20,
  /** Datagrams that came and were of no member, or of another group with this address. */
  DATAGRAMS_STRAY: 21,
} as const;
/** `counters`: length of the table. */
export const COUNTER_COUNT = 32;

/** `peers`: float64 numbers a row. */
export const PEER_STRIDE = 8;
/** `peers`: rows in the table, hence the most peers that a member can have. */
export const PEER_ROWS = 1024;

/** Columns of a row in `peers`. */
export const PEER = {
  /** Cumulative rows, all of them up to this count are in this peer's inbox (a prefix, over all lanes). */
  COMPLETED: 0,
  /** Cumulative rows for this peer that were handed to `flush`. */
  ACCEPTED: 1,
  BACKLOG_BYTES: 2,
  /** Credits that we hold at its inbox. */
  CREDITS: 3,
  /** Credits that we granted to it. */
  GRANTED: 4,
  FRAMES_RECEIVED: 5,
  FRAMES_LOST: 6,
} as const;

/**
 * The memory that both sides see, the same objects at every call. They stay valid until `close(handle)`, which detaches
 * them (their `byteLength` becomes 0), or until the environment ends.
 */
export interface NativeBuffers {
  /** The send arena: records are encoded here. A ring, see `flush`. */
  arena: ArrayBuffer;
  /** Rows of {@link SEND_STRIDE} numbers, read by `flush`. */
  sends: Int32Array;
  /** Rows of {@link EVENT_STRIDE} numbers, written by `poll`. */
  events: Int32Array;
  /** See {@link COUNTER}; brought up to date by `flush` and `poll`. */
  counters: Float64Array;
  /** Rows of {@link PEER_STRIDE} numbers, indexed by peer; brought up to date by `flush` and `poll`. */
  peers: Float64Array;
}
