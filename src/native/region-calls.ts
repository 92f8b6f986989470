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
