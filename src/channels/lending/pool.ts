import { MillraceError } from '../../errors.js';
import type { Native } from '../../native/binding.js';
import { nativeError } from '../../native/faults.js';
import { DESCRIPTOR_BYTES } from '../../native/lending-calls.js';
import type { Arena } from '../arena.js';
import type { Peer } from '../peer.js';
import { FLAG, WORD } from '../wire.js';
import type { Copies } from './copies.js';
import { untransferable } from './untransferable.js';

/** One block of this member's pool, from its loan until nobody here refers to it. Holds of receivers are counted natively. */
export class Block {
  /** Who refers to it: the loan, queues, the replay store. */
  refs = 1;
  /** Its memory while it is written to: from `open` to `seal`. Asking the view for its buffer is a call into V8. */
  buffer: ArrayBuffer | null = null;
  view: Uint8Array | null = null;
  /** Which opening of the block this is; see {@link Pool.lost}. */
  opening = 0;
  constructor(
    readonly id: number,
    /** Bytes that are in use; what a receiver maps. */
    readonly bytes: number,
  ) {}
}

/** This member's pool as channels use it. All calls are of its own thread (I6). */
export class Pool {
  constructor(
    private readonly native: Native,
    private readonly handle: number,
    /** Bytes that its blocks may have together. */
    readonly limit: number,
    readonly copies: Copies,
    /** A block could not be offered to that peer, which is told that the message is not available. */
    private readonly failed: (peer: Peer, error: MillraceError) => void,
    /** A block is free again, and nobody called who would look. */
    private readonly freed: () => void,
  ) {}

  /** Whether anything was ever lent: without it there is nothing to look after. */
  used = false;
  /** Some peer is elsewhere: blocks are registered for its reading, or not lent. */
  #remote = false;
  #closed = false;
  /** The last opening of each block, by its number, or the loss of its memory; null before the first. */
  #openings: number[] | null = null;
  #wants = false;
  #returned = 0;
  /** Bytes of the latest block; and of the next one, most likely, since the two before it were of that size. */
  #latest = 0;
  #next = 0;
  /** A block that stands ready for whoever asks for as many bytes next. */
  #ready: Block | null = null;

  /**
   * Lends a block of so many bytes.
   * @returns null when all are lent or held and the pool may not grow
   * @throws MillraceError ERR_MESSAGE_TOO_LARGE, ERR_SHM_FULL and what else the system says
   */
  lend(bytes: number): Block | null {
    this.#next = bytes === this.#latest ? bytes : 0;
    this.#latest = bytes;
    const ready = this.#ready;
    if (ready !== null && ready.bytes === bytes) {
      this.#ready = null;
      return ready;
    }
    this.rest();
    let id: number;
    try {
      id = this.native.lend(this.handle, bytes, this.#remote);
    } catch (error) {
      const known = nativeError(`lend a block of ${bytes} bytes`, this.native, error);
      if (known.errnoName !== 'E2BIG') throw known;
      throw new MillraceError('ERR_MESSAGE_TOO_LARGE', known.message, {
        cause: error,
        details: known.details,
      });
    }
    this.used = true;
    return id < 0 ? null : new Block(id, bytes);
  }

  /** The block's memory, to be written to until `seal`. */
  open(block: Block): Uint8Array {
    if (block.view !== null) return block.view;
    block.buffer = untransferable(this.native.loanBuffer(this.handle, block.id, block.bytes));
    block.view = new Uint8Array(block.buffer);
    if (this.#openings === null) {
      this.#openings = [];
      this.native.onLoanCollected(this.handle, this.#forgotten);
    }
    block.opening = this.#openings[block.id] = (this.#openings[block.id] ?? 0) + 1;
    return block.view;
  }

  /** Whether the memory of a block that was opened was moved to another ArrayBuffer, and collected: it is lent anew. */
  lost(block: Block): boolean {
    return block.opening !== this.#openings![block.id];
  }

  /** Nobody can reach the memory of a loan any more, and it was not sealed. */
  readonly #forgotten = (id: number): void => {
    this.#openings![id]!++;
    process.emitWarning(
      'A loan was collected, and neither published nor discarded. Use publish(), discard() or using.',
      { type: 'MillraceWarning', code: 'loan-forgotten' },
    );
    this.native.retireBlock(this.handle, id);
    this.freed();
  };

  /**
   * Makes the next block ready, if one is free and it is known what will be asked for: when what was published is on its
   * way, which is when a publisher that waits for an answer has nothing to do. It costs as much as all the rest of a loan.
   */
  prepare(): void {
    const bytes = this.#next;
    if (bytes === 0) return;
    this.#next = 0;
    if (this.#ready !== null || this.#remote) return;
    const id = this.native.lendFree(this.handle, bytes);
    if (id < 0) return;
    const block = new Block(id, bytes);
    try {
      this.open(block);
      this.#ready = block;
    } catch {
      this.unref(block); // nobody has asked for it
    }
  }

  /** Gives back what stands ready. */
  rest(): void {
    const block = this.#ready;
    if (block === null) return;
    this.#ready = null;
    this.seal(block);
    this.unref(block);
  }

  /** From now on some peer is elsewhere: what is lent has to be registered. */
  serveElsewhere(): void {
    this.#remote = true;
    this.rest();
  }

  /** Nothing is written any more: all views are empty. @returns false if its memory was moved elsewhere before */
  seal(block: Block): boolean {
    const buffer = block.buffer!;
    block.buffer = null;
    block.view = null;
    if (this.#closed) {
      this.native.detachBuffer(buffer);
      return true;
    }
    return this.native.endLoan(this.handle, block.id, buffer);
  }

  /** One reference less; the block is lent anew when the last is gone and no receiver holds it. */
  unref(block: Block): void {
    block.refs--;
    if (block.refs === 0 && !this.#closed) this.native.retireBlock(this.handle, block.id);
  }

  /** Whether that peer may hold so many bytes more: `offer` will do. */
  room(peer: Peer, bytes: number): boolean {
    peer.room = this.native.holdRoom(this.handle, peer.info.incarnation, bytes);
    return bytes <= peer.room;
  }

  /** The same by what was known last. */
  fits(peer: Peer, bytes: number): boolean {
    return bytes <= peer.room || this.room(peer, bytes);
  }

  /** Offers the block to a peer: writes the hold, and the descriptor into the record at `start` of the arena (R15). */
  offer(block: Block, peer: Peer, arena: Arena, start: number): boolean {
    const at = descriptorAt(arena.u32, start);
    const { elsewhere } = peer;
    if (elsewhere) arena.u32[(start >>> 2) + WORD.BITS]! |= FLAG.REMOTE << 8;
    try {
      const offered = this.native.offerHold(
        this.handle,
        block.id,
        peer.info.incarnation,
        block.bytes,
        at,
        elsewhere,
      );
      peer.room = offered ? peer.room - block.bytes : 0;
      if (!offered) return false;
      peer.lent = true;
      if (elsewhere) peer.offers++;
    } catch (error) {
      // A block that was lent before there was anybody elsewhere. The descriptor says that there is nothing.
      arena.bytes.fill(0, at, at + DESCRIPTOR_BYTES);
      this.failed(peer, nativeError(`offer ${block.bytes} bytes to ${peer.info.name}`, this.native, error));
    }
    return true;
  }

  /** That peer says that an offer to it is over. What it says of others is ignored (I9). */
  landed(peer: Peer, serial: number): void {
    if (this.native.landedHold(this.handle, peer.info.incarnation, serial)) peer.offers--;
  }

  /**
   * Takes back what was released, and asks receivers to tell of releases while `want`.
   * @returns whether anything came back since the last call
   */
  collect(want: boolean): boolean {
    if (!this.used || (!want && !this.#wants)) return false;
    this.#wants = want;
    const returned = this.native.collectHolds(this.handle, want);
    const some = returned !== this.#returned;
    this.#returned = returned;
    return some;
  }

  /** The member leaves: the native side gives up all blocks. Loans may end later. */
  close(): void {
    this.rest();
    this.#closed = true;
  }

  /** That peer is gone (`dead`), or nothing more is sent to it. */
  peerGone(peer: Peer, dead: boolean): void {
    if (this.used) this.native.receiverGone(this.handle, peer.info.incarnation, dead);
  }
}

const RECORD_BYTES = 32;
/** Where a record's descriptor lies, which is where its payload begins. */
export const descriptorAt = (u32: Uint32Array, start: number): number =>
  start + RECORD_BYTES + (u32[(start >>> 2) + WORD.BITS]! >>> 16);

/** Bytes of a large message's payload besides its fields: the descriptor, and where the encoded value lies in the block. */
export const LARGE_BYTES = DESCRIPTOR_BYTES + 16;

/** Where the encoded value lies in a block, and the fields that lie beside it. */
export interface Body {
  readonly start: number;
  readonly end: number;
  /** JSON of {@link FieldPlace}s, or empty. */
  readonly fields: Uint8Array;
}

/** Where the payload of a large message lies. */
export interface Place {
  readonly bytes: Uint8Array;
  readonly view: DataView;
  readonly headersEnd: number;
  readonly payloadEnd: number;
}

/** The fields of a value without any. */
export const NO_FIELDS = new Uint8Array(0);

const START = DESCRIPTOR_BYTES;
const END = START + 8;

/** Writes the payload of a large message at `at`; the descriptor stays empty until it is offered to somebody. */
export function writeLarge(target: DataView, at: number, body: Body): void {
  for (let i = at; i < at + DESCRIPTOR_BYTES; i += 8) target.setFloat64(i, 0);
  target.setFloat64(at + START, body.start, true);
  target.setFloat64(at + END, body.end, true);
  const { fields } = body;
  if (fields.length > 0)
    new Uint8Array(target.buffer, target.byteOffset + at + LARGE_BYTES, fields.length).set(fields);
}

/** What the descriptor of an offer says, of another process: native code checks it before it is used (I9). */
export function readOffer(source: DataView, at: number): { form: number; serial: number; bytes: number } {
  return { form: source.getUint32(at, true), serial: long(source, at + 8), bytes: long(source, at + 24) };
}

const long = (source: DataView, at: number): number =>
  source.getUint32(at, true) + source.getUint32(at + 4, true) * 2 ** 32;

/** Reads what {@link writeLarge} wrote, of another process: the numbers are checked (I9). @returns null if they are wrong */
export function readLarge(place: Place): (Body & { bytes: number }) | null {
  const { view, headersEnd: at, payloadEnd: end } = place;
  if (end - at < LARGE_BYTES) return null;
  const bytes = long(view, at + 24);
  const start = view.getFloat64(at + START, true);
  const stop = view.getFloat64(at + END, true);
  if (!(Number.isSafeInteger(start) && Number.isSafeInteger(stop))) return null;
  if (!(start >= 0 && stop >= start && stop <= bytes)) return null;
  // The message goes on in a batch that a lease should not keep.
  const fields = end === at + LARGE_BYTES ? NO_FIELDS : place.bytes.slice(at + LARGE_BYTES, end);
  return { bytes, start, end: stop, fields };
}
