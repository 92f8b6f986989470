import type { Overflow } from './overflow/index.js';
import { RecordQueue } from './record-queue.js';
import type { PeerInfo, Publisher } from './types.js';
import type { Delivery } from './wire.js';

/** The index of this member among its own peers: echoes travel the same way as everything, only not through the device. */
export const SELF = -1;

/** Why a peer is gone. */
export type PeerEnd = 'left' | 'died' | 'refused';

/** A subscription that a peer told us, checked. */
export interface PeerSubscription {
  readonly id: number;
  readonly peer: Peer;
  /** Given by name; such a subscription's options win over a pattern's. */
  readonly exact: boolean;
  matches(channel: string): boolean;
  readonly overflow: Overflow;
  /** How it listens; null: either way. */
  readonly delivery: Delivery | null;
  /** Byte window. */
  readonly window: number;
  /** The codec it will decode with; null: any built-in one. */
  readonly codec: string | null;
  readonly schema: string | null;
  /** Kept messages that it wants, and their bytes at most. */
  readonly replay: number;
  readonly replayBytes: number;
  /** Largest record, header included, that fits its slots. */
  readonly maxRecord: number;
}

/** Waits until a row is in a peer's inbox, or the peer is gone. */
export interface RowWaiter {
  arrived(): void;
  lost(why: PeerEnd | 'closed', ambiguous: boolean): void;
}

/** Something at this peer that ends with it. */
export interface PeerPart {
  /** The lane that it sends on. */
  readonly lane: number;
  peerGone(why: PeerEnd): void;
}

/** Another member: what we send to it and what came from it. */
export class Peer {
  readonly index: number;
  readonly info: PeerInfo;
  /** The same as data for events. */
  readonly identity: Publisher;
  gone = false;
  /** On another port: nothing of it can be mapped here, and nothing of ours there. */
  elsewhere = false;

  // ---- towards it ----
  /** A block of ours was offered to it. */
  lent = false;
  /** Large messages that were offered to it there, and that it has not said are over. */
  offers = 0;
  /** Bytes of our pool that it may hold besides what it was offered; more by now, if it gave back. */
  room = 0;
  /** Rows for it, cumulative: those in the send table included. */
  rows = 0;
  /** Its last row in the send table, valid while `rowEpoch` is the table's. */
  lastRow = 0;
  rowEpoch = -1;
  /** Rows whose arrival somebody waits for, oldest first. */
  readonly awaiting: { row: number; waiter: RowWaiter }[] = [];
  /** Records that found no room in the arena; until they are sent nothing may overtake them. */
  readonly deferred = new RecordQueue();
  readonly deferredLanes: number[] = [];
  stalled = false;
  readonly subscriptions = new Map<number, PeerSubscription>();
  readonly destinations = new Set<PeerPart>();
  /** Subscriptions that it was told of on the control connection. */
  told = 0;
  /** How many of them the last AFTER record on each lane names. */
  readonly sealed = new Map<number, number>();

  // ---- from it ----
  /** Bytes of large messages that are being read from it, on another port. */
  reading = 0;
  /** Subscriptions of it that have arrived. */
  heard = 0;
  /** AFTER records up to this count are not waited for any more. */
  excused = 0;
  /** Frames of it wait in the gate for subscriptions of it. */
  held = false;
  /** What it published to the last, by channel number, told when it leaves. */
  readonly lasts = new Map<number, { readonly name: string; readonly from: number; readonly to: number }>();
  /** Input of it that was wrong. */
  faults = 0;

  constructor(info: PeerInfo) {
    this.index = info.index;
    this.info = info;
    this.identity = Object.freeze({ incarnation: info.incarnation, name: info.name, pid: info.pid });
  }
}
