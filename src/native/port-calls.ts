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
  /** The network interface has gone and there is another of its name: nothing comes any more. */
  stale: boolean;
  /** Without CAP_NET_RAW: UDP sockets stand in, for the flows that those can serve. */
  unprivileged: boolean;
  /** Of those sockets: how many bytes can wait at each, where the kernel allows less than 8 MiB; else 0. */
  socketLimit: number;
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

  /**
   * Opens a queue: a RAW_PACKET queue pair with its receives.
   * @param delivers false for rules that drop or count: without receives and memory for them
   * @returns its number
   */
  openQueue(handle: number, delivers: boolean): number;

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

  /**
   * Before sleeping on the port's descriptor (R7).
   * @param rest if not 0: for so many microseconds it does not become readable, and then it does
   * @returns false: poll and call it once more first
   */
  armPort(handle: number, rest: number): boolean;
}
