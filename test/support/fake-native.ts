/**
 * The addon's surface in memory: frames, credits, backlogs and wake-ups of several members, without a device. It keeps the
 * rules of src/native/binding.ts and checks that its callers keep theirs.
 */

import { NATIVE_ABI, type Native, type NativeResources } from '../../src/native/binding.js';
import type { OpenOptions } from '../../src/native/open-options.js';
import {
  COUNTER,
  COUNTER_COUNT,
  EVENT,
  EVENT_ROWS,
  EVENT_STRIDE,
  FLUSH,
  GROUP_PEER,
  PEER,
  PEER_ROWS,
  PEER_STRIDE,
  SEND_ROWS,
  SEND_STRIDE,
} from '../../src/native/tables.js';
import { noLending } from './no-lending.js';
import { NoPorts } from './no-ports.js';
import { noRegions } from './no-regions.js';
import type { Life } from './world.js';

const RELEASE = COUNTER.ARENA_RELEASE;
const FRAME_HEADER = 64;
const RECORD_HEADER = 32;

const NO_BLOCKS = {
  pools: 0,
  poolBytes: 0,
  blocks: 0,
  blocksInUse: 0,
  blockBytesInUse: 0,
  holds: 0,
  leases: 0,
  leasedBytes: 0,
  mappedPoolFiles: 0,
  copies: 0,
  copiedBytes: 0,
};

interface Frame {
  readonly from: FakeHandle;
  readonly bytes: Uint8Array;
  readonly rows: number;
  readonly lane: number;
  /** The listening end of a multicast group whose slot it takes. */
  readonly group?: { waiting: number };
}

interface FakePeer {
  readonly index: number;
  incarnation: number;
  other: FakeHandle | null;
  /** Frames that may be in its inbox at once, and those that are. */
  credits: number;
  backlog: Frame[];
  /** Frames are held back, as if its slots were all in use. */
  blocked: boolean;
}

/** One open member. */
export class FakeHandle {
  readonly arena: ArrayBuffer;
  readonly sends = new Int32Array(SEND_ROWS * SEND_STRIDE);
  readonly events = new Int32Array(EVENT_ROWS * EVENT_STRIDE);
  readonly counters = new Float64Array(COUNTER_COUNT);
  readonly peerRows = new Float64Array(PEER_ROWS * PEER_STRIDE);
  readonly peers = new Map<number, FakePeer>();
  readonly inbox: Frame[] = [];
  readonly faults: { peer: number; status: number; reason: number }[] = [];
  readonly lanes = new Set([0]);
  /** Ends of multicast groups, by number: the group's key, and the slots of one that listens. */
  readonly groups = new Map<number, { key: string; slots: number; waiting: number }>();
  nextGroup = 0;
  closed = false;
  armed = false;
  sleeping = false;
  refs = false;
  /** The descriptor is readable. */
  signalled = false;
  readable: (() => void) | null = null;
  nextPeer = 0;
  nextLane = 1;
  /** Arena space is given back only after so many polls: a device whose completions are late. */
  lateBy = 0;
  readonly late: { position: number; polls: number }[] = [];
  /** Calls with something to send. */
  flushes = 0;

  constructor(
    readonly life: Life,
    readonly options: OpenOptions,
  ) {
    this.arena = new ArrayBuffer(options.arenaBytes);
    this.counters[RELEASE] = -1;
  }
}

const backlogOf = (peer: FakePeer): number => peer.backlog.reduce((sum, one) => sum + one.bytes.length, 0);

function fail(code: string, what: string): never {
  throw Object.assign(new Error(`${what}: ${code}`), { code, what, detail: '' });
}

export class FakeFabric {
  readonly handles: FakeHandle[] = [];
  /** Set to make the next open fail. */
  openError: Error | null = null;

  /** What opening a multicast group fails with. */
  groupError: Error | null = null;
  /** Makes the next lanes of their own fail. */
  laneError: Error | null = null;
  /** Bytes of records that a datagram takes. */
  room = 4096 - FRAME_HEADER;
  /** Whether a datagram from one member to another gets lost. */
  loses: (from: number, to: number, bytes: Uint8Array) => boolean = () => false;

  constructor(
    readonly schedule: (owner: Life, run: () => void) => void,
    readonly slotsPerPeer: number,
  ) {}

  /** The open member with that incarnation. */
  handleOf(incarnation: number): FakeHandle {
    const found = this.handles.find((one) => one.options.incarnation === incarnation && !one.closed);
    if (found === undefined) throw new Error(`no open handle of ${incarnation}`);
    return found;
  }

  /** Frames from one member to another stay in its backlog while on. */
  block(from: number, to: number, on: boolean): void {
    const sender = this.handleOf(from);
    for (const peer of sender.peers.values()) {
      if (peer.incarnation !== to) continue;
      peer.blocked = on;
      if (!on) this.#sendBacklog(sender, peer);
    }
    if (!on) this.#wake(sender);
  }

  killed(life: Life): void {
    for (const handle of this.handles) if (handle.life === life) handle.closed = true;
  }

  nativeFor(life: Life): Native {
    const own = new Map<number, FakeHandle>();
    const get = (handle: number): FakeHandle => {
      const found = own.get(handle);
      if (found === undefined || found.closed) return fail('ECLOSED', 'handle');
      return found;
    };
    const fabric = this;
    return {
      ...noLending,
      abi: NATIVE_ABI,
      fabricLayout: '1.0',
      open(options) {
        if (fabric.openError !== null) {
          const error = fabric.openError;
          fabric.openError = null;
          throw error;
        }
        const handle = new FakeHandle(life, options);
        fabric.handles.push(handle);
        own.set(own.size + 1, handle);
        return own.size;
      },
      close(handle) {
        const found = own.get(handle);
        if (found === undefined || found.closed) return;
        found.closed = true;
        found.peers.clear();
      },
      buffers(handle) {
        const { arena, sends, events, counters, peerRows: peers } = get(handle);
        return { arena, sends, events, counters, peers };
      },
      offer(handle) {
        const found = get(handle);
        const index = found.nextPeer++;
        found.peers.set(index, {
          index,
          incarnation: 0,
          other: null,
          credits: fabric.slotsPerPeer,
          backlog: [],
          blocked: false,
        });
        found.peerRows.fill(0, index * PEER_STRIDE, (index + 1) * PEER_STRIDE);
        found.peerRows[index * PEER_STRIDE + PEER.CREDITS] = fabric.slotsPerPeer;
        return { peer: index, offer: new Uint8Array(64) };
      },
      connect(handle, peer, incarnation) {
        const found = get(handle).peers.get(peer);
        if (found === undefined) fail('EINVAL', 'connect');
        found!.incarnation = incarnation;
        found!.other = fabric.handleOf(incarnation);
      },
      disconnect(handle, peer) {
        const found = own.get(handle);
        const gone = found?.peers.get(peer);
        if (found === undefined || gone === undefined) return;
        found.peers.delete(peer);
        for (let i = found.inbox.length - 1; i >= 0; i--) {
          if (found.inbox[i]!.from === gone.other) found.inbox.splice(i, 1);
        }
      },
      openLane(handle) {
        const found = get(handle);
        if (fabric.laneError !== null) throw fabric.laneError;
        found.lanes.add(found.nextLane);
        return found.nextLane++;
      },
      closeLane(handle, lane) {
        get(handle).lanes.delete(lane);
      },
      openGroup(handle, key, slots) {
        const found = get(handle);
        if (fabric.groupError !== null) throw fabric.groupError;
        found.groups.set(found.nextGroup, { key: key.join(), slots, waiting: 0 });
        return { group: found.nextGroup++, room: fabric.room };
      },
      closeGroup(handle, group) {
        get(handle).groups.delete(group);
      },
      flush: (handle, rows) => fabric.#flush(get(handle), rows),
      poll: (handle, target, offset, maxFrames) => fabric.#poll(get(handle), target, offset, maxFrames),
      linger: (handle) => Number(get(handle).inbox.length > 0),
      arm(handle) {
        const found = get(handle);
        if (found.inbox.length > 0 || found.faults.length > 0) return false;
        found.armed = true;
        return true;
      },
      watch(handle, onReadable) {
        get(handle).readable = onReadable;
      },
      sleep(handle, on) {
        get(handle).sleeping = on;
      },
      ref(handle, on) {
        get(handle).refs = on;
      },
      tunnel() {},
      resources(handle): NativeResources {
        const { lanes, options, peers, groups } = get(handle);
        return {
          device: 'soft0',
          deviceNote: '',
          laneKind: 'xrc' as const,
          gidIndex: 0,
          pds: 1,
          xrcds: 1,
          srqs: 1,
          cqs: 2,
          qps: 2 * lanes.size,
          mrs: 3,
          lanes: lanes.size,
          slots: options.slots,
          slotBytes: options.slotBytes,
          inboxBytes: options.slots * options.slotBytes,
          arenaBytes: options.arenaBytes,
          backlogBytes: [...peers.values()].reduce((sum, peer) => sum + backlogOf(peer), 0),
          peers: peers.size,
          ...NO_BLOCKS,
          groups: groups.size,
          groupSlots: [...groups.values()].reduce((sum, { slots }) => sum + slots, 0),
          groupBytes: 0,
        };
      },
      ...noRegions,
      ...new NoPorts(),
      lockPresence: () => 1,
      isPresent: () => true,
      unlockPresence() {},
      memlockLimit: () => Number.POSITIVE_INFINITY,
      cleanFabric: () => ({ reaped: 0, bytes: 0 }),
      probe: () => ({ library: '', libraryProblem: '', noSystemDevice: '', memlock: Infinity, devices: [] }),
    };
  }

  #flush(handle: FakeHandle, rows: number): number {
    if (rows > 0) handle.flushes++;
    const bytes = new Uint8Array(handle.arena);
    const words = new Uint32Array(handle.arena);
    const limit = handle.options.slotBytes - FRAME_HEADER;
    const touched = new Set<FakePeer>();
    const datagrams: [number, Uint8Array][] = [];
    for (let i = 0; i < rows; i++) {
      const [index, offset, length, lane] = handle.sends.subarray(
        i * SEND_STRIDE,
        (i + 1) * SEND_STRIDE,
      ) as unknown as number[];
      const peer = handle.peers.get(index!);
      if (
        offset! < 0 ||
        length! <= 0 ||
        offset! % 8 !== 0 ||
        length! % 8 !== 0 ||
        offset! + length! > bytes.length
      ) {
        throw new Error(`bad row ${index} ${offset} ${length} ${lane}`);
      }
      if (index === GROUP_PEER) {
        datagrams.push([lane!, bytes.slice(offset!, offset! + length!)]);
        continue;
      }
      if (length! > limit)
        throw new Error(`a row of ${length} bytes does not fit a slot of ${handle.options.slotBytes}`);
      if (!handle.lanes.has(lane!)) throw new Error(`no lane ${lane}`);
      let at = offset!;
      while (at < offset! + length!) {
        const size = (RECORD_HEADER + (words[(at >> 2) + 4]! >>> 16) + words[(at >> 2) + 1]! + 7) & ~7;
        at += size;
      }
      if (at !== offset! + length!) throw new Error(`records of row [${offset}, ${length}] don't add up`);
      if (peer === undefined) continue;
      handle.peerRows[index! * PEER_STRIDE + PEER.ACCEPTED]!++;
      touched.add(peer);
      const last = peer.backlog[peer.backlog.length - 1];
      const copy = bytes.slice(offset!, offset! + length!);
      if (last !== undefined && last.lane === lane && last.bytes.length + copy.length <= limit) {
        const joined = new Uint8Array(last.bytes.length + copy.length);
        joined.set(last.bytes);
        joined.set(copy, last.bytes.length);
        peer.backlog[peer.backlog.length - 1] = {
          from: handle,
          bytes: joined,
          rows: last.rows + 1,
          lane: lane!,
        };
      } else {
        peer.backlog.push({ from: handle, bytes: copy, rows: 1, lane: lane! });
      }
    }
    const release = handle.counters[RELEASE]!;
    if (release >= 0) {
      if (handle.lateBy > 0) handle.late.push({ position: release, polls: handle.lateBy });
      else handle.counters[COUNTER.ARENA_FREED] = release;
    }
    let bits = 0;
    for (const peer of rows === 0 ? handle.peers.values() : touched) {
      if (this.#sendBacklog(handle, peer)) bits |= FLUSH.PROGRESS;
    }
    for (const peer of handle.peers.values()) if (peer.backlog.length > 0) bits |= FLUSH.UNSENT;
    for (const [group, datagram] of datagrams) this.#sendDatagram(handle, group, datagram);
    return bits;
  }

  /** Lost where nobody has a slot for it, as with a device. */
  #sendDatagram(handle: FakeHandle, number: number, bytes: Uint8Array): void {
    const end = handle.groups.get(number);
    if (end === undefined) throw new Error(`no group ${number}`);
    if (bytes.length > this.room) throw new Error(`a datagram of ${bytes.length} bytes`);
    handle.counters[COUNTER.DATAGRAMS_SENT]!++;
    for (const other of this.handles) {
      if (other === handle || other.closed) continue;
      for (const group of other.groups.values()) {
        if (group.key !== end.key || group.waiting >= group.slots) continue;
        if (this.loses(handle.options.incarnation, other.options.incarnation, bytes)) continue;
        group.waiting++;
        other.inbox.push({ from: handle, bytes, rows: 0, lane: 0, group });
        this.#wake(other);
      }
    }
  }

  #sendBacklog(handle: FakeHandle, peer: FakePeer): boolean {
    let any = false;
    while (peer.backlog.length > 0 && peer.credits > 0 && !peer.blocked) {
      const frame = peer.backlog.shift()!;
      any = true;
      handle.counters[COUNTER.FRAMES_SENT]!++;
      handle.peerRows[peer.index * PEER_STRIDE + PEER.COMPLETED]! += frame.rows;
      const other = peer.other;
      if (other === null || other.closed) continue;
      peer.credits--;
      other.inbox.push(frame);
      this.#wake(other);
    }
    if (peer.backlog.length > 0) handle.counters[COUNTER.CREDIT_STALLS]!++;
    handle.peerRows[peer.index * PEER_STRIDE + PEER.CREDITS] = peer.credits;
    handle.peerRows[peer.index * PEER_STRIDE + PEER.BACKLOG_BYTES] = backlogOf(peer);
    return any;
  }

  #wake(handle: FakeHandle): void {
    if (!handle.armed || handle.closed) return;
    handle.armed = false;
    handle.signalled = true;
    this.schedule(handle.life, () => {
      if (handle.signalled && handle.sleeping && !handle.closed) handle.readable?.();
    });
  }

  #poll(handle: FakeHandle, target: Uint8Array, offset: number, maxFrames: number): number {
    handle.counters[COUNTER.POLLS]!++;
    // As the real one: polling drains the descriptor, so a wake-up that is under way is taken with it.
    handle.signalled = false;
    for (const one of handle.late) one.polls--;
    while (handle.late.length > 0 && handle.late[0]!.polls <= 0) {
      handle.counters[COUNTER.ARENA_FREED] = handle.late.shift()!.position;
    }
    for (const peer of handle.peers.values()) this.#sendBacklog(handle, peer);
    let rows = 0;
    const put = (...numbers: number[]) => {
      handle.events.fill(0, rows * EVENT_STRIDE, (rows + 1) * EVENT_STRIDE);
      handle.events.set(numbers, rows++ * EVENT_STRIDE);
    };
    for (const { peer, status, reason } of handle.faults.splice(0))
      put(EVENT.PEER_FAULT, peer, status, reason);
    let at = offset;
    while (handle.inbox.length > 0 && maxFrames-- > 0) {
      const frame = handle.inbox[0]!;
      if (target.length - at < frame.bytes.length) {
        put(EVENT.NEED_ROOM, -1, frame.bytes.length);
        break;
      }
      handle.inbox.shift();
      if (frame.group !== undefined) {
        frame.group.waiting--;
        const sender = [...handle.peers.values()].find((one) => one.other === frame.from);
        if (sender === undefined) continue;
        handle.counters[COUNTER.DATAGRAMS_RECEIVED]!++;
        target.set(frame.bytes, at);
        put(EVENT.DATAGRAM, sender.index, at, frame.bytes.length, 0, 0, 0, 0);
        at += frame.bytes.length;
        continue;
      }
      handle.counters[COUNTER.FRAMES_RECEIVED]!++;
      // The slot is free again as soon as the frame is demultiplexed: the credit goes back.
      for (const back of frame.from.peers.values()) {
        if (back.other === handle) {
          back.credits++;
          if (back.backlog.length > 0) {
            this.#sendBacklog(frame.from, back);
            this.#wake(frame.from);
          }
        }
      }
      const peer = [...handle.peers.values()].find((one) => one.other === frame.from);
      if (peer === undefined) continue;
      target.set(frame.bytes, at);
      put(EVENT.FRAME, peer.index, at, frame.bytes.length, 0, frame.lane, 0, 0);
      at += frame.bytes.length;
    }
    return rows;
  }
}
