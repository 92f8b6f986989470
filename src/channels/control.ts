import type { Peer } from './peer.js';
import type { Transport } from './transport.js';
import { RECORD_BYTES, recordSize, writeHeader } from './wire.js';

const NOTHING = new Uint8Array(0);
const scratch = new Float64Array(8);
const scratchBytes = new Uint8Array(scratch.buffer);

/**
 * Writes control records: exempt from windows, queues and drops, in order with what else goes to that peer on that lane.
 *
 * Where the arena has no room even after a flush (a lane is down), the record is put aside with its peer, and from then on
 * nothing may overtake it: the peer is stalled until `retry` has sent all of them.
 */
export class Control {
  readonly stalled = new Set<Peer>();

  constructor(
    private readonly transport: Transport,
    private readonly time: () => number,
    private readonly resumed: (peer: Peer) => void,
  ) {}

  /** Sends one record. `payload` is copied. */
  send(
    peer: Peer,
    lane: number,
    kind: number,
    channel: number,
    sequence: number,
    correlation: number,
    payload: Uint8Array,
  ): void {
    const size = recordSize(0, payload.length);
    const { arena } = this.transport;
    const start = peer.stalled ? -1 : this.transport.reserve(size);
    if (start < 0) return this.#defer(peer, lane, kind, channel, sequence, correlation, payload, size);
    arena.bytes.set(payload, start + RECORD_BYTES);
    arena.bytes.fill(0, start + RECORD_BYTES + payload.length, start + size);
    writeHeader(
      arena.u32,
      arena.f64,
      start,
      channel,
      payload.length,
      sequence,
      kind,
      correlation,
      this.time(),
    );
    arena.commit(size);
    this.transport.add(peer, lane, start, size);
  }

  /** The same for a record without payload that is of no channel, to a peer that is still there. */
  sendEmpty(peer: Peer, kind: number): void {
    if (!peer.gone) this.send(peer, 0, kind, 0, 0, 0, NOTHING);
  }

  /** The same for a payload of up to eight f64 values. */
  sendNumbers(
    peer: Peer,
    lane: number,
    kind: number,
    channel: number,
    sequence: number,
    correlation: number,
    a: number,
    b: number,
    c?: readonly [number, number],
  ): void {
    scratch[0] = a;
    scratch[1] = b;
    let bytes = 16;
    if (c !== undefined) {
      new Uint32Array(scratch.buffer, 16, 2).set(c);
      bytes = 24;
    }
    this.send(peer, lane, kind, channel, sequence, correlation, scratchBytes.subarray(0, bytes));
  }

  /** Tries again what was put aside; at the end of each turn. */
  retry(): void {
    for (const peer of this.stalled) {
      while (peer.deferred.count > 0) {
        const size = peer.deferred.headSize();
        const start = peer.gone ? -1 : this.transport.reserve(size);
        if (start < 0) break;
        const { arena } = this.transport;
        peer.deferred.take(arena.bytes, start, size);
        arena.commit(size);
        this.transport.add(peer, peer.deferredLanes.shift()!, start, size);
      }
      if (peer.gone) this.forget(peer);
      if (peer.deferred.count > 0) continue;
      peer.stalled = false;
      this.stalled.delete(peer);
      if (!peer.gone) this.resumed(peer);
    }
  }

  forget(peer: Peer): void {
    peer.deferred.clear();
    peer.deferredLanes.length = 0;
    peer.stalled = false;
    this.stalled.delete(peer);
  }

  #defer(
    peer: Peer,
    lane: number,
    kind: number,
    channel: number,
    sequence: number,
    correlation: number,
    payload: Uint8Array,
    size: number,
  ): void {
    const buffer = new ArrayBuffer(size);
    const bytes = new Uint8Array(buffer);
    const u32 = new Uint32Array(buffer);
    bytes.set(payload, RECORD_BYTES);
    writeHeader(
      u32,
      new Float64Array(buffer),
      0,
      channel,
      payload.length,
      sequence,
      kind,
      correlation,
      this.time(),
    );
    peer.deferred.push({ bytes, u32 }, 0, size);
    peer.deferredLanes.push(lane);
    peer.stalled = true;
    this.stalled.add(peer);
  }
}
