/**
 * What the addon offers to TypeScript: the only description of the boundary. `native/addon/` implements it, `load.ts`
 * checks at load time that both sides agree (`abi`, and the layout of the tables).
 *
 * Rules that hold for every call:
 * - A handle is a small integer that belongs to one environment (main thread or worker). It is never reused within the
 *   environment. After `close` every call with it throws an Error with `code: 'ECLOSED'`; it never crashes (I6).
 * - Arguments of a wrong type, or missing ones, throw a TypeError before anything is done.
 * - What the device or the kernel refuses throws a {@link NativeError}. Faults of one peer never throw: they are rows in
 *   `events` (I9).
 * - Every call returns at once (no waiting), except `open` and `close`, which may wait for the lock of the fabric's
 *   folder for a bounded time.
 */
import type { NativeProbe } from './devices.js';
import type { NativeLending } from './lending-calls.js';
import type { OpenOptions } from './open-options.js';
import type { NativePorts } from './port-calls.js';
import type { NativeRegions } from './region-calls.js';
import type { FLUSH, LINGERED, NativeBuffers } from './tables.js';

/** The layout of the tables (tables.ts). The addon states the same number; `load.ts` refuses another one. */
export const NATIVE_ABI = 1;

/** What a member holds, counted. */
export interface NativeResources {
  /** The RDMA device in use. */
  device: string;
  /** What choosing it had to say: why `'auto'` took the software device. Empty if nothing. */
  deviceNote: string;
  /** The kind of lanes: XRC (one QP pair to a host), or RC (two QPs for each peer and lane). */
  laneKind: 'xrc' | 'rc';
  /** Index of the port's GID in use. */
  gidIndex: number;
  pds: number;
  xrcds: number;
  srqs: number;
  cqs: number;
  qps: number;
  mrs: number;
  /** Open lanes, the shared one included. */
  lanes: number;
  slots: number;
  slotBytes: number;
  inboxBytes: number;
  arenaBytes: number;
  backlogBytes: number;
  peers: number;
  /** 1 once there is a pool of blocks. */
  pools: number;
  /** Bytes of its blocks. */
  poolBytes: number;
  blocks: number;
  /** Blocks that are lent, kept for replay, or held by a receiver. */
  blocksInUse: number;
  blockBytesInUse: number;
  /** Holds of receivers on blocks of this member. */
  holds: number;
  /** Holds of this member on blocks of others. */
  leases: number;
  leasedBytes: number;
  /** Mappings of others' pool files. */
  mappedPoolFiles: number;
  /**
   * Payloads of large messages and of leases that this member has copied, ever, and their bytes: a value put into the pool, a
   * lease of a message that lay in a slot, what was kept and moved out of a publisher's pool, what is read from another port,
   * and every payload on hosts without external ArrayBuffers. What travels as a loan and a lease on one host is in neither.
   */
  copies: number;
  copiedBytes: number;
  /** Ends of multicast groups, each with a UD queue pair and a CQ; those that listen have slots. */
  groups: number;
  groupSlots: number;
  groupBytes: number;
}

/** What the addon throws when the device or the kernel refuses. */
export interface NativeError extends Error {
  /** `ECLOSED`, or the errno's name (`ENOSPC`). */
  code: string;
  /** Negative, as Node has it; absent for `ECLOSED`. */
  errno?: number;
  /** What failed, like a system call's name: `ibv_create_qp`, `posix_fallocate`. */
  what: string;
  /** Cause, measured limit and remedy in words; may be empty. */
  detail: string;
}

/** The addon. */
export interface Native extends NativeRegions, NativeLending, NativePorts {
  /** The layout of the tables: {@link NATIVE_ABI}. */
  readonly abi: number;

  /** The layout of the software device's shared memory: `major.minor`, see native/soft/layout.h. */
  readonly fabricLayout: string;

  /**
   * Opens a member: device, protection domain, XRC domain, inbox, the shared lane, the arena.
   * @returns a handle (a small integer > 0) that the caller owns until `close`.
   * @throws NativeError
   */
  open(options: OpenOptions): number;

  /**
   * Takes the QPs to ERR, drains them, destroys all and unlinks the member's inbox files. Detaches the buffers.
   * Idempotent: closing a closed handle does nothing. Also done for every open handle when the environment ends.
   */
  close(handle: number): void;

  /** The tables and the arena; see {@link NativeBuffers}. */
  buffers(handle: number): NativeBuffers;

  /** Reserves a peer index and makes the blob (bounded, opaque) that this peer's `connect` takes. */
  offer(handle: number): { peer: number; offer: Uint8Array };

  /** Connects a reserved peer with what it offered. @throws NativeError `EPROTO` when the blob is bad. */
  connect(handle: number, peer: number, incarnation: number, offer: Uint8Array): void;

  /** The peer left or died: out of all lists, its backlog dropped, its credits reclaimed (R12). Idempotent. */
  disconnect(handle: number, peer: number): void;

  /** Opens a further lane. @returns its number, >= 1. */
  openLane(handle: number): number;

  /** Closes a lane that `openLane` returned. Idempotent. */
  closeLane(handle: number, lane: number): void;

  /**
   * Opens an end of the multicast group that follows from `key` (16 bytes): with `slots` it listens, with 0 it sends.
   * Datagrams get lost where a receiver has no slot posted, or on the way.
   * @returns its number, and the bytes of records that a datagram takes @throws NativeError
   */
  openGroup(handle: number, key: Uint8Array, slots: number): { group: number; room: number };

  /** Closes an end of a group. Idempotent. */
  closeGroup(handle: number, group: number): void;

  /**
   * Posts the first `rows` rows of `sends`. With 0 rows: tries again what is unsent.
   *
   * Arena: JavaScript owns a head (a cumulative position); a record must be contiguous (skip to the start at the ring's
   * end; the offset is the position modulo `arenaBytes`). Room is `arenaBytes - (head - counters[ARENA_FREED])`. The rows
   * of one flush are taken entirely: whoever lacks credit gets a copy in its backlog, so a slow peer never holds the arena.
   * @returns bits of {@link FLUSH}. Never throws for faults of a peer.
   */
  flush(handle: number, rows: number): number;

  /**
   * Takes what arrived: copies whole frames to `target` from `offset` on, and writes rows to `events`.
   * @returns the number of rows written; 0 when there was nothing.
   */
  poll(handle: number, target: Uint8Array, offset: number, maxFrames: number): number;

  /**
   * Looks for completions for at most `micros` microseconds (1000 at most) while the event loop waits, and gives the CPU
   * away in between. @returns one of {@link LINGERED}
   */
  linger(handle: number, micros: number): number;

  /** Arms the completion channel, fences and looks again (R7). @returns true: may sleep on the fd; false: poll again. */
  arm(handle: number): boolean;

  /**
   * Watches the completion channel's fd in this environment's event loop. Starts stopped and unreferenced.
   * `onReadable` runs on the environment's own thread; what it throws is an uncaught exception. Once per handle.
   */
  watch(handle: number, onReadable: () => void): void;

  /** Starts (`true`) or stops the watcher. */
  sleep(handle: number, on: boolean): void;

  /** Whether the watcher, while started, keeps the event loop alive. */
  ref(handle: number, on: boolean): void;

  /** Takes a message of that peer's transport which came over the control connection. Bad input is a PEER_FAULT row. */
  tunnel(handle: number, peer: number, message: Uint8Array): void;

  /** What the member holds now. */
  resources(handle: number): NativeResources;

  /**
   * Takes an OFD write lock on a file, which is created with mode 0600 if need be. The kernel drops it when the process
   * dies; a forked child does not have it.
   * @returns a token for `unlockPresence`. @throws NativeError `EAGAIN` when somebody holds it.
   */
  lockPresence(path: string): number;

  /** Whether somebody (this process included) holds the lock. False when there is no such file. */
  isPresent(path: string): boolean;

  /** Drops a lock. Idempotent. The file stays. */
  unlockPresence(token: number): void;

  /** The soft limit of RLIMIT_MEMLOCK in bytes; Infinity when there is none. */
  memlockLimit(): number;

  /** Reaps dead processes of the software device's fabric and removes the fabric when nobody is left in it. */
  cleanFabric(): { reaped: number; bytes: number };

  /**
   * Looks at all RDMA devices, the software device's and the system's: each is opened for the moment.
   * @throws NativeError when they cannot be listed
   */
  probe(): NativeProbe;
}
