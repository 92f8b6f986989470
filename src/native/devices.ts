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

/** What `probe` finds. */
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
