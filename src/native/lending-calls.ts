/** Through which mapping a held block is used: leased until it is given back, or kept until it is collected. */
export const USE = {
  LEASED: 0,
  OWNED: 1,
  /** Neither: the taking itself, which is given back once everyone has what he wants. */
  TAKEN: 2,
  /** In `endHold`: the lease, and with it the taking. */
  LAST: 3,
} as const;

/** What `endHold` returns: bits, and above them the count of pages that had been written to by mistake. */
export const ENDED = {
  /** The hold is given back. */
  LAST: 1,
  /** Its publisher waits for blocks. */
  WANTED: 2,
  STRAYS_SHIFT: 2,
} as const;
/** Bytes of a descriptor. */
export const DESCRIPTOR_BYTES = 32;

/** Blocks of shared memory: this member's pool, and what it holds of others'. */
export interface NativeLending {
  // ---- the pool: blocks of this member (native/transport/pool.h) ----

  /**
   * Lends a free block of at least so many bytes; the pool grows up to `poolBytes`. With `remote` it is registered with the
   * device, so that it can be offered to members on other ports.
   * @returns its number; -1 when all are lent or held and the pool may not grow
   * @throws NativeError: E2BIG (larger than the whole pool), ENOSPC, ENOMEM and others with what was measured
   */
  lend(handle: number, bytes: number, remote: boolean): number;
  /** Lends a block of so many bytes that is free already. @returns its number; -1: there is none, or a loan is a copy here */
  lendFree(handle: number, bytes: number): number;
  /** An ArrayBuffer over a lent block, once; it stays valid until `endLoan`. */
  loanBuffer(handle: number, block: number, bytes: number): ArrayBuffer;
  /**
   * Detaches a loan's ArrayBuffer, which had its last write.
   * @returns false if it was detached already: its memory was moved elsewhere, and may still be written to
   */
  endLoan(handle: number, block: number, buffer: ArrayBuffer): boolean;
  /** Called when the ArrayBuffer of a block that is lent still was collected without `endLoan`. */
  onLoanCollected(handle: number, callback: (block: number) => void): void;
  /** Nothing more is offered of it; it is free again with its last hold. */
  retireBlock(handle: number, block: number): void;
  /** So many bytes a receiver may have holds on besides, no fewer than `bytes` if those are possible. */
  holdRoom(handle: number, receiver: number, bytes: number): number;
  /**
   * Records a hold on a lent block and writes the descriptor at `offset` of the arena (R15): for a receiver that maps the block,
   * or (`remote`) for one on another port, which reads it and says when that is over (`landedHold`).
   * @returns false if the receiver has no room
   * @throws NativeError: why the block can't be registered
   */
  offerHold(
    handle: number,
    block: number,
    receiver: number,
    bytes: number,
    offset: number,
    remote: boolean,
  ): boolean;
  /** That receiver elsewhere says that an offer is over. @returns false when it has none with that serial */
  landedHold(handle: number, receiver: number, serial: number): boolean;
  /**
   * Takes back what receivers have released; `want` asks them to tell of further releases.
   * @returns holds taken back and blocks that became free, ever: other calls collect, too
   */
  collectHolds(handle: number, want: boolean): number;
  /** A receiver is gone (`dead`), or is given up: then it keeps what it has taken (R16). */
  receiverGone(handle: number, receiver: number, dead: boolean): void;

  // ---- leases: blocks of others (native/transport/leases.h) ----

  /**
   * Takes what the descriptor at `source[offset..]` offers.
   * @returns the hold's number, never used again; 0 if the offer was taken back
   * @throws NativeError: EPROTO (not valid), or why it cannot be mapped
   */
  takeHold(handle: number, publisher: number, source: Uint8Array, offset: number): number;
  /**
   * Takes a block of this member's pool and begins to read into it what the descriptor at `source[offset..]`, of a peer on another
   * port, offers. FETCH rows tell of `fetch`; its taking must not be given back before the last one.
   * @returns the hold on the block and the fetch; null: no room now
   * @throws NativeError: EPROTO (not valid), E2BIG (larger than the whole pool), ENOSPC, ENOMEM and others with what was measured
   */
  land(
    handle: number,
    peer: number,
    source: Uint8Array,
    offset: number,
  ): { hold: number; fetch: number } | null;
  /** Nobody wants what that descriptor offers. */
  revokeHold(handle: number, publisher: number, source: Uint8Array, offset: number): void;
  /** An ArrayBuffer over a held block, read-only pages; at most one for each {@link USE}. */
  holdBuffer(handle: number, hold: number, use: number): ArrayBuffer;
  /**
   * Detaches the ArrayBuffer and gives that use back; without one, the taking alone. Where somebody else has
   * detached it the memory lives on elsewhere, and is given back when it is collected.
   * @returns bits of {@link ENDED}
   */
  endHold(handle: number, hold: number, use: number, buffer?: ArrayBuffer): number;
  /** That publisher is gone and all that it sent is taken (R16, R17). */
  publisherGone(handle: number, publisher: number): void;
  /** Gives back what is kept, not leased, of one publisher; memory in use keeps its content. @returns how many holds */
  vacate(handle: number, publisher: number): number;
  /** Gives everything back; memory in use keeps its content. Nothing is taken after it. */
  closeLeases(handle: number): void;
  /** Called when a hold's ArrayBuffer was collected without `endHold`. */
  onCollected(
    handle: number,
    callback: (hold: number, use: number, last: boolean, wanted: boolean, strays: number) => void,
  ): void;
  /** Empties all views of an ArrayBuffer. */
  detachBuffer(buffer: ArrayBuffer): void;
  /**
   * Does for a publisher that may be dead what survivors and joiners do: clears holds of dead receivers, and removes the
   * pool's files when none is left (R16, R17). Without effect while it lives.
   * @returns holds that are left
   */
  sweepPool(folder: string, publisher: number): number;
}
