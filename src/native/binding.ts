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

/** The layout of the tables below. The addon states the same number; `load.ts` refuses another one. */
export const NATIVE_ABI = 1;

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
/** Stands for the peer where the records are one datagram to a multicast group; see {@link Native.openGroup}. */
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

/** Faults that the device is told to make, all from one seed. Probabilities are 0..1 per work request. For tests. */
export interface FaultOptions {
  seed: number;
  /** An error completion; nothing was delivered. */
  error?: number;
  /** An error completion although it was delivered. */
  ambiguous?: number;
  /** Held back for up to `maxDelayPolls` polls, order kept. */
  delay?: number;
  /** Reposted receives are withheld for some polls. */
  rnr?: number;
  /** Sent to an SRQ number that does not exist. */
  deadSrq?: number;
  /** A datagram to a multicast group that gets lost. */
  drop?: number;
  maxDelayPolls?: number;
  /** Registering more bytes than this at once fails, as a device does that locks memory; 0: none. */
  lockLimit?: number;
}

/** What `open` needs. */
export interface OpenOptions {
  /** `'soft'`, `'auto'` or the name of an RDMA device. */
  device: string;
  /** Registry folder of the domain: the key of the XRC domain. Inbox files are made there too. */
  folder: string;
  /** The member's incarnation: an integer in 1..2^53-1 that is never used again. */
  incarnation: number;
  /** Bytes of an inbox slot, a multiple of 8 in 256..1 MiB: the limit of a frame. */
  slotBytes: number;
  /** Slots to start with. */
  slots: number;
  /** Slots that the inbox may grow to. */
  maxSlots: number;
  /** Bytes of the send arena, a multiple of the page size. */
  arenaBytes: number;
  /** Bytes of the pool of blocks at most; 1 GiB unless given. */
  poolBytes?: number;
  /** Bytes of it that one receiver may hold; 1 GiB unless given. */
  heldBytes?: number;
  /** 1: blocks are filled with 0xdb when they become free. */
  poison?: 0 | 1;
  faults?: FaultOptions;
}

/** Through which mapping a held block is used: leased until it is given back, or kept until it is collected. */
export const USE = {
  LEASED: 0,
  OWNED: 1,
  /** Neither: the taking itself, which is given back once everyone has what he wants. */
  TAKEN: 2,
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

/**
 * The memory that both sides see, the same objects at every call. They stay valid until `close(handle)`, which detaches
 * them (their `byteLength` becomes 0), or until the environment ends.
 */
export interface NativeBuffers {
  /** The send arena: records are encoded here. A ring, see {@link Native.flush}. */
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

/** A port of an RDMA device. */
export interface NativePort {
  number: number;
  /** In words; `active` is what counts. */
  state: string;
  active: boolean;
  link: 'ethernet' | 'infiniband';
  lid: number;
  /** Active and possible MTU, bytes. */
  mtu: number;
  maxMtu: number;
  /** Index of the GID that lanes use; -1: none. */
  gid: number;
  gids: { index: number; gid: string; kind: string }[];
}

/** An RDMA device, looked at. */
export interface NativeDevice {
  name: string;
  /** `soft` is the software device, `system` a device of the system's libibverbs. */
  provider: 'soft' | 'system';
  /** Why no lanes can be made on it now; empty when they can. */
  missing: string;
  /** Whether it could be opened: otherwise there is only the name. */
  opened: boolean;
  guid: string;
  firmware: string;
  vendor: number;
  part: number;
  /** The kind of lanes that it would have. */
  lanes: 'xrc' | 'rc' | 'none';
  can: {
    rc: boolean;
    xrc: boolean;
    basicSrq: boolean;
    udMulticast: boolean;
    rawPacket: boolean;
    flowSteering: boolean;
    memoryWindows: boolean;
    atomics: boolean;
  };
  limits: {
    qp: number;
    qpWr: number;
    sge: number;
    cq: number;
    cqe: number;
    mr: number;
    /** Infinity: none. */
    mrBytes: number;
    pd: number;
    srq: number;
    srqWr: number;
    multicastGroups: number;
    rdAtomic: number;
  };
  ports: NativePort[];
}

/** An open region, as it was made or opened. */
export interface NativeRegion {
  /** What the other calls name it with; not used again by this member. */
  region: number;
  /** What others ask with; empty for one that was opened. */
  handle: string;
  bytes: number;
  /** Where it is mapped. */
  address: bigint;
  /** What peers name it with in READs. */
  rkey: number;
}

/** What a handle leads to. */
export interface NativeRegionInfo {
  /** The granted rights, as a file's mode. */
  mode: number;
  user: number;
  group: number;
  bytes: number;
}

/** What {@link Native.probe} finds. */
export interface NativeProbe {
  /** File of the system's libibverbs; empty without one. */
  library: string;
  /** Why it is not used; empty when it is. */
  libraryProblem: string;
  /** Why there is no device of the system, and what to do; empty when there is one. */
  noSystemDevice: string;
  /** Soft limit of RLIMIT_MEMLOCK, bytes; Infinity: none. */
  memlock: number;
  /** The software devices first. */
  devices: NativeDevice[];
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

/** The addon's calls for shared regions. */
export interface NativeRegions {
  /**
   * Makes a region, registered with the member's device. `mode` is the granted rights; with `hugePages` 1 its pages are
   * collapsed into huge ones in the background, if the system can.
   * @throws NativeError `ENOSPC`, `EFBIG`, `ENOMEM` with the limit that was measured; nothing is left behind then
   */
  createRegion(handle: number, options: { bytes: number; mode: number; hugePages: 0 | 1 }): NativeRegion;

  /**
   * Opens a region by its handle, for reading or for both, at `address` (a multiple of 4 MiB) if nothing is there.
   * @throws NativeError `EINVAL` (no handle), `ENOENT` (gone), `EACCES` (not granted; the words name both)
   */
  openRegion(handle: number, text: string, write: boolean, address?: bigint): NativeRegion;

  /** The ArrayBuffer over a region's bytes, the same at each call. @throws NativeError `EOPNOTSUPP` */
  regionBuffer(handle: number, region: number): ArrayBuffer;

  /** Whether all pages are present here, bytes in huge pages, and why there are none though they were wanted. Slow. */
  regionState(handle: number, region: number): { populated: boolean; hugeBytes: number; note: string };

  /**
   * Detaches its buffer, ends registration and hold. Idempotent. Done for all when the member closes.
   * @returns pages that were written to though it was opened for reading; nobody else saw that
   */
  closeRegion(handle: number, region: number): number;

  /** Whether that peer is on another port: nothing of it can be mapped here. */
  isElsewhere(handle: number, peer: number): boolean;

  /**
   * Reads a peer's memory into a region that is open for writing, from `offset` on, by RDMA READ in pieces with a bounded number of
   * bytes in flight. FETCH rows tell how far it is and how it ended; until the last one the region's bytes may change.
   * @returns the fetch's number, not used again. @throws NativeError `ENOTCONN`, `EINVAL`, `EAGAIN`
   */
  fetch(
    handle: number,
    peer: number,
    from: { address: number; bytes: number; rkey: number },
    region: number,
    offset: number,
  ): number;

  /** Reads no more; the last row comes all the same. Without effect when it is over. */
  cancelFetch(handle: number, fetch: number): void;

  /** Rights and size of a region, for whoever may not open it. @throws NativeError `EINVAL`, `ENOENT` */
  inspectRegion(text: string): NativeRegionInfo;

  /** Removes regions of this user (as root: of all users) that nobody holds. */
  sweepRegions(): { regions: number; bytes: number };
}

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
  /** An ArrayBuffer over a lent block, once; it stays valid until `endLoan`. */
  loanBuffer(handle: number, block: number, bytes: number): ArrayBuffer;
  /**
   * Detaches a loan's ArrayBuffer, which had its last write.
   * @returns false if it was detached already: its memory was moved elsewhere, and may still be written to
   */
  endLoan(handle: number, block: number, buffer: ArrayBuffer): boolean;
  /** Nothing more is offered of it; it is free again with its last hold. */
  retireBlock(handle: number, block: number): void;
  /** Whether a receiver may have a hold on so many bytes more. */
  holdRoom(handle: number, receiver: number, bytes: number): boolean;
  /**
   * Records a hold on a lent block and writes the descriptor to `target[offset..]` (R15): for a receiver that maps the block,
   * or (`remote`) for one on another port, which reads it and says when that is over (`landedHold`).
   * @returns false if the receiver has no room
   * @throws NativeError: why the block can't be registered
   */
  offerHold(
    handle: number,
    block: number,
    receiver: number,
    bytes: number,
    target: Uint8Array,
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
   * Detaches the ArrayBuffer and gives that use back; without one, the taking. Where somebody else has
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

/** Int32 numbers of a row of `pollPort`. */
export const PORT_ROW = {
  QUEUE: 0,
  /** Of the rule that matched; 0: it has none. */
  TAG: 1,
  /** Where in the target the payload of UDP is, or the whole frame if it is something else. */
  OFFSET: 2,
  LENGTH: 3,
  /** Where the Ethernet frame is. */
  FRAME: 4,
  FRAME_LENGTH: 5,
  /** Where its IP header is; 0: it has none. */
  NETWORK: 6,
  /** Source port in the upper 16 bits, destination port in the lower ones; 0: neither UDP nor TCP. */
  PORTS: 7,
} as const;
export const PORT_STRIDE = 8;

/** What a port has seen since it was opened. All only grow. */
export interface NativePortCounters {
  /** Frames taken from the network interface, the four kinds below included. */
  frames: number;
  /** Lost by the kernel since nobody polled in time. */
  ringDrops: number;
  /** Looked at and of no rule. */
  unmatched: number;
  /** The same, of IP fragments: they have no ports to match. */
  fragments: number;
  /** Longer than a port carries (9216 bytes), or TCP that nobody has cut into segments. */
  oversized: number;
  /** Shorter than they were, for lack of the socket's memory. */
  cutOff: number;
  /** Not delivered, for a shortage of this process or since they were too long. */
  failed: number;
  /** UDP whose checksum is wrong, or that says it is longer than its frame. */
  malformed: number;
  /** Without CAP_NET_RAW: UDP sockets stand in, for the flows that those can serve. */
  unprivileged: boolean;
}

/**
 * The addon's calls for flow steering. A port is a handle like a member's: `close`, `watch`, `sleep` and `ref` take it too.
 * Frames that a flow matches come into the queue that it leads to.
 */
export interface NativePorts {
  /**
   * Opens the Ethernet port of an RDMA device; `soft` is fed by the network interface of that name, or by all of them if it
   * is empty. Without CAP_NET_RAW `soft` reads UDP sockets in its place, and `createFlow` is `EPERM` for what those can't
   * serve. @throws NativeError `EPERM` (an adapter), `ENODEV`, `ENOMEM`
   */
  openPort(options: { device: string; interface: string }): number;

  /** Opens a queue: a RAW_PACKET queue pair with its receives. @returns its number */
  openQueue(handle: number): number;

  /** Closes a queue; what it holds is lost. @throws NativeError `EBUSY` while flows lead there */
  closeQueue(handle: number, queue: number): void;

  /**
   * Makes a flow from the bytes of an `ibv_flow_attr`. A group that it names as destination is joined, a UDP port of this
   * host is held. @returns its number @throws NativeError of ibv_create_flow, `ENODEV` where a group can't be joined
   */
  createFlow(handle: number, queue: number, attr: Uint8Array): number;

  /** Idempotent. */
  destroyFlow(handle: number, flow: number): void;

  /** What a flow has matched. Zero for one that is gone. */
  readFlow(handle: number, flow: number): { packets: number; bytes: number };

  portCounters(handle: number): NativePortCounters;

  /**
   * Takes frames: copies them to `target` from `offset` on, each at a multiple of 8, and writes a row of
   * {@link PORT_STRIDE} numbers for each. Stops where the target may be too small for one more (9216 bytes).
   * @returns the number of rows
   */
  pollPort(handle: number, target: Uint8Array, offset: number, rows: Int32Array): number;

  /** Before sleeping on the port's descriptor (R7). @returns false: poll and call it once more first */
  armPort(handle: number): boolean;
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
