import type { Native } from '../native/binding.js';
import {
  COUNTER,
  EVENT,
  EVENT_STRIDE,
  FLUSH,
  GROUP_PEER,
  LINGERED,
  type NativeBuffers,
  PEER,
  PEER_STRIDE,
  SEND_LANE,
  SEND_LENGTH,
  SEND_OFFSET,
  SEND_PEER,
  SEND_ROWS,
  SEND_STRIDE,
} from '../native/tables.js';
import { Arena } from './arena.js';
import { Batch, FrameQueue } from './frames.js';
import { type Peer, SELF } from './peer.js';
import { FRAME_BYTES, sizeAt } from './wire.js';

const BATCH_BYTES = 64 * 1024;
const FRAMES_A_POLL = 64;
/** As many polls empty the largest inbox. */
const MAX_POLLS = 16384 / FRAMES_A_POLL + 1;

/** Who is told what polling finds besides frames. */
export interface TransportEvents {
  peerAt(index: number): Peer | undefined;
  /** Frames of a peer that is not known (yet). */
  early(index: number, batch: Batch, start: number, end: number): void;
  peerFault(index: number, wcStatus: number, reason: number): void;
  lane(lane: number, state: number): void;
  fetched(number: number, end: number, done: number, wcStatus: number): void;
  tunnel(index: number, bytes: Uint8Array): void;
  /** A native call threw: the member cannot go on. Told on a microtask of its own, never from within next(). */
  failed(error: unknown): void;
}

/**
 * One member's native handle as the channels use it: a table of rows to send, and a queue of frames that came.
 *
 * Rows `[peer, offset, length, lane]` point into the arena; neighbours for the same peer become one row of at most a slot.
 * Nothing here knows what a record means.
 */
export class Transport {
  readonly arena: Arena;
  readonly frames = new FrameQueue();
  readonly counters: Float64Array;
  readonly peers: Float64Array;
  /** Native code holds something back (no credit, lane down). */
  unsent = false;
  closed = false;
  /** Rows in the table, and its number: both change at each flush. */
  rows = 0;
  epoch = 0;
  /** Bytes that one row may have: what a slot takes besides the frame's header. */
  readonly maxRow: number;
  readonly #sends: Int32Array;
  readonly #events: Int32Array;
  readonly #selfRuns: number[] = [];
  #batch: Batch;
  #at = 0;

  constructor(
    readonly native: Native,
    readonly handle: number,
    readonly slotBytes: number,
    readonly self: Peer,
    private readonly listener: TransportEvents,
  ) {
    const buffers: NativeBuffers = native.buffers(handle);
    this.counters = buffers.counters;
    this.peers = buffers.peers;
    this.#sends = buffers.sends;
    this.#events = buffers.events;
    this.arena = new Arena(buffers.arena, this.counters);
    this.maxRow = (slotBytes - FRAME_BYTES) & ~7;
    this.#batch = new Batch(Math.max(BATCH_BYTES, slotBytes));
  }

  /** Adds records at `start` in the arena to what the next flush sends to `peer`. May flush what is there already. */
  add(peer: Peer, lane: number, start: number, length: number): void {
    const sends = this.#sends;
    if (peer.rowEpoch === this.epoch) {
      const row = peer.lastRow;
      const had = sends[row + SEND_LENGTH]!;
      if (had + length > this.maxRow) {
        // A slot's worth: it goes now, and this record starts the next frame.
        this.flush();
      } else if (sends[row + SEND_OFFSET]! + had === start && sends[row + SEND_LANE] === lane) {
        sends[row + SEND_LENGTH] = had + length;
        return;
      }
    }
    if (peer.index === SELF) {
      const runs = this.#selfRuns;
      const last = runs.length - 2;
      if (last >= 0 && runs[last]! + runs[last + 1]! === start) {
        runs[last + 1]! += length;
      } else {
        peer.rows++;
        runs.push(start, length);
      }
      return;
    }
    if (this.rows === SEND_ROWS) this.flush();
    const row = this.rows++ * SEND_STRIDE;
    sends[row + SEND_PEER] = peer.index;
    sends[row + SEND_OFFSET] = start;
    sends[row + SEND_LENGTH] = length;
    sends[row + SEND_LANE] = lane;
    peer.lastRow = row;
    peer.rowEpoch = this.epoch;
    peer.rows++;
  }

  /** Adds records at `start` in the arena as (part of) a datagram of at most `room` bytes to a group. */
  addDatagram(group: number, room: number, start: number, length: number): void {
    const sends = this.#sends;
    if (this.rows > 0) {
      const last = (this.rows - 1) * SEND_STRIDE;
      const had = sends[last + SEND_LENGTH]!;
      if (
        sends[last + SEND_PEER] === GROUP_PEER &&
        sends[last + SEND_LANE] === group &&
        sends[last + SEND_OFFSET]! + had === start &&
        had + length <= room
      ) {
        sends[last + SEND_LENGTH] = had + length;
        return;
      }
    }
    if (this.rows === SEND_ROWS) this.flush();
    const row = this.rows++ * SEND_STRIDE;
    sends[row + SEND_PEER] = GROUP_PEER;
    sends[row + SEND_OFFSET] = start;
    sends[row + SEND_LENGTH] = length;
    sends[row + SEND_LANE] = group;
  }

  /** Whether a flush has anything to do. */
  get pending(): boolean {
    return this.rows > 0 || this.#selfRuns.length > 0;
  }

  /** Hands all rows to native code in one call. @returns whether something moved. */
  flush(): boolean {
    if (this.closed) return false;
    if (this.#selfRuns.length > 0) this.#loopBack();
    // In the middle of a record for several peers the record is still needed: `release` stops before it.
    this.counters[COUNTER.ARENA_RELEASE] = this.arena.release;
    const rows = this.rows;
    this.rows = 0;
    this.epoch++;
    try {
      const bits = this.native.flush(this.handle, rows);
      this.unsent = (bits & FLUSH.UNSENT) !== 0;
      return (bits & FLUSH.PROGRESS) !== 0;
    } catch (error) {
      return this.#broken(error);
    }
  }

  /**
   * Takes what arrived into the queue of frames; delivers nothing.
   * @returns whether there was anything
   */
  poll(): boolean {
    if (this.closed) return false;
    let any = false;
    try {
      for (;;) {
        const rows = this.native.poll(this.handle, this.#batch.bytes, this.#at, FRAMES_A_POLL);
        if (rows === 0) return any;
        any = true;
        // Fewer than were asked for: at this moment there are no more.
        if (!this.#take(rows) && rows < FRAMES_A_POLL) return true;
      }
    } catch (error) {
      return this.#broken(error);
    }
  }

  /** Takes all that has arrived by now: a single poll takes only so many frames. */
  drain(): void {
    // Bounded, since others go on sending meanwhile: an inbox never holds more than its slots.
    for (let polls = 0; polls < MAX_POLLS && this.poll(); polls++);
  }

  /**
   * Waits natively for something to poll, for at most so many microseconds. The event loop waits, too.
   * @returns one of LINGERED
   */
  linger(micros: number): number {
    if (this.closed) return LINGERED.NOTHING;
    try {
      return this.native.linger(this.handle, micros);
    } catch (error) {
      this.#broken(error);
      return LINGERED.NOTHING;
    }
  }

  // ---- sleeping ------------------------------------------------------------------------------------------------------

  /** Arms the completion channel and looks again (R7). @returns whether one may sleep */
  arm(): boolean {
    return this.#call(() => this.native.arm(this.handle));
  }
  sleep(on: boolean): void {
    this.#call(() => this.native.sleep(this.handle, on));
  }
  ref(on: boolean): void {
    this.#call(() => this.native.ref(this.handle, on));
  }
  watch(onReadable: () => void): void {
    this.#call(() => this.native.watch(this.handle, onReadable));
  }

  #call(run: () => unknown): boolean {
    if (this.closed) return false;
    try {
      return run() === true;
    } catch (error) {
      return this.#broken(error);
    }
  }

  #broken(error: unknown): false {
    this.closed = true;
    queueMicrotask(() => this.listener.failed(error));
    return false;
  }

  /** Offset in the arena of `need` free contiguous bytes, after a flush if need be; -1 if that was not enough. */
  reserve(need: number): number {
    const offset = this.arena.reserve(need);
    if (offset >= 0) return offset;
    this.flush();
    return this.arena.reserve(need);
  }

  /** Rows for this peer that are in its inbox, cumulative. */
  arrived(peer: Peer): number {
    if (peer.index === SELF) return peer.rows - this.#selfRuns.length / 2;
    return this.peers[peer.index * PEER_STRIDE + PEER.COMPLETED]!;
  }

  /** Frames that may be sent to this peer now; null for ourselves. */
  credits(peer: Peer): number | null {
    return peer.index === SELF ? null : this.peers[peer.index * PEER_STRIDE + PEER.CREDITS]!;
  }

  /** Bytes that wait natively for this peer's credits. */
  backlog(peer: Peer): number {
    return peer.index === SELF ? 0 : this.peers[peer.index * PEER_STRIDE + PEER.BACKLOG_BYTES]!;
  }

  /** The counter's value now. */
  counter(index: (typeof COUNTER)[keyof typeof COUNTER]): number {
    return this.counters[index]!;
  }

  close(): void {
    if (this.closed) return;
    this.closed = true;
    this.rows = 0;
    this.#selfRuns.length = 0;
    this.frames.clear();
  }

  /** @returns true if the target had too little room, so that there is more to poll at once */
  #take(rows: number): boolean {
    const events = this.#events;
    let again = false;
    let at = this.#at;
    for (let i = 0; i < rows; i++) {
      const row = i * EVENT_STRIDE;
      const peer = events[row + 1]!;
      const a = events[row + 2]!;
      const b = events[row + 3]!;
      switch (events[row]) {
        case EVENT.DATAGRAM:
          at = Math.max(at, a + b);
          // Of a peer that is not known yet nothing is kept that it would have to send again anyway.
          if (this.listener.peerAt(peer) !== undefined) this.#frame(peer, a, b);
          break;
        case EVENT.FRAME:
          at = Math.max(at, a + b);
          this.#frame(peer, a, b);
          break;
        case EVENT.NEED_ROOM:
          again = true;
          break;
        case EVENT.TUNNEL:
          at = Math.max(at, a + b);
          this.listener.tunnel(peer, this.#batch.bytes.slice(a, a + b));
          break;
        case EVENT.PEER_FAULT:
          this.listener.peerFault(peer, a, b);
          break;
        case EVENT.LANE:
          this.listener.lane(a, b);
          break;
        case EVENT.FETCH:
          this.listener.fetched(
            a,
            b,
            events[row + 5]! * 2 ** 32 + (events[row + 4]! >>> 0),
            events[row + 6]!,
          );
          break;
        default: // DRAINED, and what a newer addon may add
      }
    }
    this.#at = (at + 7) & ~7;
    if (again || this.#batch.bytes.length - this.#at < this.slotBytes) {
      this.#batch = new Batch(Math.max(BATCH_BYTES, this.slotBytes));
      this.#at = 0;
    }
    return again;
  }

  #frame(index: number, start: number, length: number): void {
    let batch = this.#batch;
    let from = start;
    if ((start & 7) !== 0) {
      // Records are read through aligned views.
      batch = new Batch((length + 7) & ~7);
      batch.bytes.set(this.#batch.bytes.subarray(start, start + length));
      from = 0;
    }
    const peer = this.listener.peerAt(index);
    if (peer !== undefined) this.frames.push(peer, batch, from, from + length);
    else this.listener.early(index, batch, from, from + length);
  }

  /** Our own subscribers hear us through the same queue and the same records as everybody (never inside next()). */
  #loopBack(): void {
    const runs = this.#selfRuns;
    const { bytes, u32 } = this.arena;
    for (let i = 0; i < runs.length; i += 2) {
      let start = runs[i]!;
      const end = start + runs[i + 1]!;
      while (start < end) {
        let stop = start;
        while (stop < end) {
          const size = sizeAt(u32, stop >>> 2);
          if (stop > start && stop + size - start > this.maxRow) break;
          stop += size;
        }
        const length = stop - start;
        if (this.#batch.bytes.length - this.#at < length) {
          this.#batch = new Batch(Math.max(BATCH_BYTES, length));
          this.#at = 0;
        }
        this.#batch.bytes.set(bytes.subarray(start, stop), this.#at);
        this.frames.push(this.self, this.#batch, this.#at, this.#at + length);
        this.#at += length;
        start = stop;
      }
    }
    runs.length = 0;
  }
}
