import type { Peer, PeerEnd } from './peer.js';
import type { RecordSource } from './wire.js';

/**
 * Memory that frames are received into: owned by the garbage collector, never used again once it is full, so views of it
 * may be kept for ever (I5).
 */
export class Batch implements RecordSource {
  readonly bytes: Uint8Array;
  readonly u32: Uint32Array;
  readonly f64: Float64Array;
  readonly view: DataView;
  readonly buffer: ArrayBuffer;

  constructor(size: number) {
    // allocUnsafeSlow: memory of its own that nobody zeroes first.
    const buffer = Buffer.allocUnsafeSlow(size);
    this.buffer = buffer.buffer as ArrayBuffer;
    this.bytes = new Uint8Array(this.buffer);
    this.u32 = new Uint32Array(this.buffer);
    this.f64 = new Float64Array(this.buffer);
    this.view = new DataView(this.buffer);
  }
}

/** The end of a peer, queued behind its last frame so that it is told in order. */
export interface EndMark {
  readonly why: PeerEnd;
  readonly detail: string | undefined;
}

/**
 * Frames that were received and not yet delivered, oldest first. Polling adds to it at any time, also from within `next()`
 * under a full arena; only the delivery takes from it, never inside `next()`. Grows by doubling and never shrinks: no
 * allocation per frame.
 */
export class FrameQueue {
  #peers: (Peer | null)[] = new Array(64).fill(null);
  #batches: (Batch | EndMark | null)[] = new Array(64).fill(null);
  #spans = new Float64Array(128);
  #head = 0;
  #tail = 0;
  /** Frames before this index were looked through for CONSUMED records. */
  #scanned = 0;

  get empty(): boolean {
    return this.#head === this.#tail;
  }

  push(peer: Peer, what: Batch | EndMark, start: number, end: number): void {
    if (this.#tail === this.#peers.length) this.#makeRoom();
    const at = this.#tail++;
    this.#peers[at] = peer;
    this.#batches[at] = what;
    this.#spans[at * 2] = start;
    this.#spans[at * 2 + 1] = end;
  }

  /** The oldest entry's parts; the queue must not be empty. */
  get peer(): Peer {
    return this.#peers[this.#head]!;
  }
  get what(): Batch | EndMark {
    return this.#batches[this.#head]!;
  }
  get start(): number {
    return this.#spans[this.#head * 2]!;
  }
  get end(): number {
    return this.#spans[this.#head * 2 + 1]!;
  }

  /** Delivery stops within the oldest frame, to go on at `start` later. */
  resumeAt(start: number): void {
    this.#spans[this.#head * 2] = start;
  }

  shift(): void {
    this.#peers[this.#head] = null;
    this.#batches[this.#head] = null;
    this.#head++;
    if (this.#scanned < this.#head) this.#scanned = this.#head;
    if (this.#head === this.#tail) {
      this.#head = 0;
      this.#tail = 0;
      this.#scanned = 0;
    }
  }

  /** Visits frames that were not visited yet, in order, without taking them. */
  scan(visit: (peer: Peer, batch: Batch, start: number, end: number) => void): void {
    while (this.#scanned < this.#tail) {
      const at = this.#scanned++;
      const what = this.#batches[at]!;
      if (what instanceof Batch)
        visit(this.#peers[at]!, what, this.#spans[at * 2]!, this.#spans[at * 2 + 1]!);
    }
  }

  clear(): void {
    while (!this.empty) this.shift();
  }

  #makeRoom(): void {
    const live = this.#tail - this.#head;
    if (this.#head > 0 && live < this.#peers.length / 2) {
      this.#peers.copyWithin(0, this.#head, this.#tail).fill(null, live, this.#tail);
      this.#batches.copyWithin(0, this.#head, this.#tail).fill(null, live, this.#tail);
      this.#spans.copyWithin(0, this.#head * 2, this.#tail * 2);
    } else {
      const spans = new Float64Array(this.#spans.length * 2);
      spans.set(this.#spans.subarray(this.#head * 2, this.#tail * 2));
      this.#spans = spans;
      const size = this.#peers.length * 2;
      this.#peers = this.#peers.slice(this.#head, this.#tail);
      this.#batches = this.#batches.slice(this.#head, this.#tail);
      while (this.#peers.length < size) {
        this.#peers.push(null);
        this.#batches.push(null);
      }
    }
    this.#scanned -= this.#head;
    this.#head = 0;
    this.#tail = live;
  }
}
