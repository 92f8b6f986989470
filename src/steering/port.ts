import type { Native } from '../native/binding.js';
import { type NativePortCounters, PORT_ROW, PORT_STRIDE } from '../native/port-calls.js';
import { Turn } from '../turn.js';
import { compile } from './compile.js';
import { Datagram } from './datagram.js';
import type { Datagrams } from './datagrams.js';
import type { FlowCounters } from './flow-table.js';
import { type Rule, receiver } from './rule.js';

const CHUNK_BYTES = 64 * 1024;
/** The longest frame: a poll stops where less room is left. */
const LARGEST = 9216;
const ROWS = 512;
/** A turn delivers for about this long, or so many datagrams; then the event loop has its turn. */
const TURN_MS = 1;
const TURN_DATAGRAMS = 4096;
/**
 * Moderation: while datagrams come closer together than this on average, the next look is REST_US later, and until then
 * nobody is woken. Waking costs a sender on this host as much as sending, and us as much as three datagrams.
 */
const BUSY_MS = 0.015;
const REST_US = 100;

interface Queue {
  readonly number: number;
  /** Who gets what comes in; undefined for rules that drop or count. */
  readonly stream: Datagrams | undefined;
  flows: number;
  /** Rules that carry no tag, the strongest first: which one has taken a frame shows in the frame. */
  readonly untagged: PortFlow[];
  /** The newest flow of each name. */
  readonly named: Map<string, PortFlow>;
}

/** A rule in a port. */
export interface PortFlow {
  readonly rule: Rule;
  readonly flow: number;
  readonly tag: number;
  readonly queue: Queue;
  /** Datagrams that were handed on, and the bytes of their frames. */
  taken: number;
  bytes: number;
  drops: number;
}

/**
 * The Ethernet port of one network interface: a queue pair for each receiver of rules, and a flow for each rule. What comes
 * in is taken out in batches, copied once into memory of its own, and handed to the streams.
 */
export class Port {
  readonly #native: Native;
  readonly #handle: number;
  readonly #queues = new Map<string, Queue>();
  readonly #byNumber: (Queue | undefined)[] = [];
  readonly #byTag = new Map<number, PortFlow>();
  /** Tags of rules that were made anew: their frames that are under way are not lost. */
  #leaving: number[] = [];
  readonly #rows = new Int32Array(ROWS * PORT_STRIDE);
  #chunk = fresh();
  #at = 0;
  #nextTag = 1;
  #turn: Turn | undefined;
  /** The last poll found nothing: whatever was counted and not taken is lost. */
  #empty = true;
  #watching = false;
  /** When the last turn began. */
  #looked = 0;
  #held = false;
  #closed = false;

  /** @throws NativeError */
  constructor(native: Native, device: string, networkInterface: string) {
    this.#native = native;
    this.#handle = native.openPort({ device, interface: networkInterface });
    const { unprivileged, socketLimit } = this.counters();
    if (unprivileged) warnOnce(socketLimit);
    native.watch(this.#handle, () => this.#wake());
    this.#run();
  }

  get flows(): number {
    return [...this.#queues.values()].reduce((sum, { flows }) => sum + flows, 0);
  }

  /** @throws NativeError; then nothing was made */
  create(rule: Rule, attr: Uint8Array, stream: Datagrams | undefined): PortFlow {
    const key = queueKey(rule);
    let queue = this.#queues.get(key);
    if (queue === undefined) {
      const number = this.#native.openQueue(this.#handle, stream !== undefined);
      queue = { number, stream, flows: 0, untagged: [], named: new Map() };
      this.#queues.set(key, queue);
      this.#byNumber[queue.number] = queue;
    }
    // A rule that drops can't have one, and default ones and sniffers neither.
    const tag = rule.type === 'normal' && stream !== undefined ? this.#nextTag++ : 0;
    const bytes = tag === 0 ? attr : compile({ ...rule, tag });
    let number: number;
    try {
      number = this.#native.createFlow(this.#handle, queue.number, bytes);
    } catch (error) {
      this.#forget(key, queue);
      throw error;
    }
    const flow: PortFlow = { rule, flow: number, tag, queue, taken: 0, bytes: 0, drops: 0 };
    queue.flows++;
    queue.named.set(rule.name, flow);
    if (tag !== 0) this.#byTag.set(tag, flow);
    else {
      queue.untagged.push(flow);
      queue.untagged.sort((a, b) => a.rule.priority - b.rule.priority);
    }
    return flow;
  }

  destroy(flow: PortFlow): void {
    const { queue } = flow;
    this.#native.destroyFlow(this.#handle, flow.flow);
    queue.flows--;
    const anew = queue.named.get(flow.rule.name) !== flow;
    if (!anew) queue.named.delete(flow.rule.name);
    if (flow.tag === 0) queue.untagged.splice(queue.untagged.indexOf(flow), 1);
    else if (anew) this.#leaving.push(flow.tag);
    else this.#byTag.delete(flow.tag);
    this.#forget(queueKey(flow.rule), queue);
  }

  read(flow: PortFlow): FlowCounters {
    // A sniffer has no counter in the device (VERBS 3: it takes no specs).
    if (flow.rule.type === 'sniffer') return { packets: flow.taken, bytes: flow.bytes, drops: 0 };
    const { packets, bytes } = this.#native.readFlow(this.#handle, flow.flow);
    if (this.#empty && flow.queue.stream !== undefined)
      flow.drops = Math.max(flow.drops, packets - flow.taken);
    return { packets, bytes, drops: flow.drops };
  }

  counters(): NativePortCounters {
    return this.#native.portCounters(this.#handle);
  }

  /** Whether the port holds the event loop. */
  hold(on: boolean): void {
    if (this.#held === on || this.#closed) return;
    this.#held = on;
    this.#native.ref(this.#handle, on);
    if (this.#turn !== undefined) on ? this.#turn.ref() : this.#turn.unref();
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#turn?.cancel();
    this.#native.close(this.#handle);
  }

  #forget(key: string, queue: Queue): void {
    if (queue.flows > 0) return;
    this.#native.closeQueue(this.#handle, queue.number);
    this.#queues.delete(key);
    this.#byNumber[queue.number] = undefined;
  }

  #wake(): void {
    if (this.#turn === undefined && !this.#closed) this.#run();
  }

  #run(): void {
    this.#turn = undefined;
    const now = performance.now();
    const end = now + TURN_MS;
    const most = (now - this.#looked) / BUSY_MS;
    this.#looked = now;
    for (let taken = 0; taken < TURN_DATAGRAMS && performance.now() < end; ) {
      const rows = this.#poll();
      if (this.#closed) return;
      taken += rows;
      // Where there was room for more, nothing is left.
      if (rows === ROWS || this.#full) continue;
      if (this.#native.armPort(this.#handle, taken > most ? REST_US : 0)) return this.#watch(true);
    }
    this.#watch(false);
    this.#turn = new Turn(() => this.#run());
    if (!this.#held) this.#turn.unref();
  }

  /** Each change costs a system call. */
  #watch(on: boolean): void {
    if (this.#watching === on) return;
    this.#watching = on;
    this.#native.sleep(this.#handle, on);
  }

  /** The chunk has no room for one more frame of any length. */
  get #full(): boolean {
    return this.#chunk.length - this.#at < LARGEST;
  }

  /** Takes and hands on what is there. @returns how many */
  #poll(): number {
    if (this.#full) {
      this.#chunk = fresh();
      this.#at = 0;
    }
    const rows = this.#rows;
    const chunk = this.#chunk;
    const count = this.#native.pollPort(this.#handle, chunk, this.#at, rows);
    this.#empty = count === 0;
    if (count === 0) {
      for (const tag of this.#leaving) this.#byTag.delete(tag);
      this.#leaving = [];
      return 0;
    }
    const time = performance.timeOrigin + performance.now();
    const last = (count - 1) * PORT_STRIDE;
    this.#at = (rows[last + PORT_ROW.FRAME]! + rows[last + PORT_ROW.FRAME_LENGTH]! + 7) & ~7;
    for (let at = 0; at <= last; at += PORT_STRIDE) {
      const queue = this.#byNumber[rows[at + PORT_ROW.QUEUE]!];
      const tag = rows[at + PORT_ROW.TAG]!;
      const frame = rows[at + PORT_ROW.FRAME]!;
      const flow = tag === 0 ? untagged(queue, isMulticast(chunk[frame]!)) : this.#byTag.get(tag);
      // Of a rule that has gone meanwhile.
      if (queue === undefined || flow === undefined) continue;
      flow.taken++;
      flow.bytes += rows[at + PORT_ROW.FRAME_LENGTH]!;
      const { stream } = queue;
      if (stream === undefined || !stream.observed) continue;
      stream.deliver(
        new Datagram(
          new Uint8Array(chunk.buffer, rows[at + PORT_ROW.OFFSET], rows[at + PORT_ROW.LENGTH]),
          flow.rule,
          rows[at + PORT_ROW.PORTS]!,
          time,
          frame,
          rows[at + PORT_ROW.FRAME_LENGTH]!,
          rows[at + PORT_ROW.NETWORK]!,
        ),
      );
      if (this.#closed) return count;
    }
    this.#empty = count < ROWS && !this.#full;
    return count;
  }
}

/** A sniffer has a queue for itself: its copies look like any other's. */
const queueKey = (rule: Rule): string => (rule.type === 'sniffer' ? `sniffer ${rule.name}` : receiver(rule));

/** By the first byte of a frame. */
const isMulticast = (byte: number): boolean => (byte & 1) !== 0;

/** The rule without a tag that took a frame: a sniffer, or the strongest default that is for such frames. */
const untagged = (queue: Queue | undefined, multicast: boolean): PortFlow | undefined =>
  queue?.untagged.find(({ rule }) => multicast || rule.type !== 'multicast-default');

/** What the kernel charges for the smallest, with its own part. */
const SMALL_DATAGRAM = 768;

let warned = false;
function warnOnce(socketLimit: number): void {
  if (warned) return;
  warned = true;
  process.emitWarning(
    'Without CAP_NET_RAW steering reads ordinary UDP sockets: rules may name a UDP port and addresses, and nothing else. ' +
      'To grant it: setcap cap_net_raw+ep on the node binary, AmbientCapabilities=CAP_NET_RAW, or --cap-add NET_RAW.' +
      (socketLimit === 0
        ? ''
        : ` Only ${socketLimit >> 10} KiB can wait at each socket, some ${Math.floor(socketLimit / SMALL_DATAGRAM)} small datagrams: ` +
          'sysctl -w net.core.rmem_max=4194304 makes it 8 MiB.'),
    { code: 'MILLRACE_NO_CAP_NET_RAW' },
  );
}

/** Memory that nothing else is in. */
const fresh = (): Uint8Array<ArrayBuffer> => Buffer.allocUnsafeSlow(CHUNK_BYTES);
