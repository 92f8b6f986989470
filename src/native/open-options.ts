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
