import type { StandardSchemaV1 } from '@standard-schema/spec';
import type { Observable } from 'rxjs';
import { MillraceError } from '../errors.js';
import type { NativeResources } from '../native/binding.js';
import { COUNTER } from '../native/tables.js';
import {
  type FetchOptions,
  fetchSettings,
  type OpenRegionOptions,
  type RegionOffer,
  type RegionOptions,
} from '../regions/options.js';
import { Region } from '../regions/region.js';
import { Regions } from '../regions/regions.js';
import { checkNames, invalidArgument } from '../suggest.js';
import { type DrainOptions, drainOptions, type FlushOptions } from './calls.js';
import { Channel } from './channel.js';
import type { Codec } from './codec/index.js';
import type { ClusterPort, Engine } from './engine.js';
import { leaveBeforeExit } from './exit.js';
import { checkChannelName, parsePattern } from './names.js';
import {
  abortSignal,
  type ChannelOptions,
  channelSettings,
  checkSame,
  type PatternOptions,
  patternSettings,
} from './options.js';
import { Pattern } from './pattern.js';
import { type MemberReport, reportMember } from './report.js';
import type { InferInput, InferOutput } from './schema.js';
import { whenDelivered } from './settle.js';
import type { DrainReport, Publisher, StatusEvent } from './types.js';
import { until } from './waiting.js';

/** leave() waits for so long at most for credits of what was sent. */
const LAST_FLUSH_MS = 250;

/** Names that a contract allows; none without a contract. */
export type ContractName<C> = [C] extends [undefined] ? never : keyof C & string;
/** Any name without a contract, none with one. */
export type FreeName<C> = [C] extends [undefined] ? string : never;
/** What a pattern may carry: `unknown`, or any payload of the contract. */
export type ContractValue<C> = [C] extends [undefined] ? unknown : C[keyof C];

/** What a member holds, counted: native objects, slots, bytes, and what the channels hold above. */
export interface MemberResources extends NativeResources {
  /** Channels that are open. */
  readonly channels: number;
  /** Patterns that are open. */
  readonly patterns: number;
  /** Shared regions that are open. */
  readonly regions: number;
  /** Subscriptions of this member on the wire. */
  readonly subscriptions: number;
  /** Bytes queued for slow subscribers. */
  readonly queuedBytes: number;
  /** Frames sent so far, each with one message or many. */
  readonly framesSent: number;
  readonly framesReceived: number;
  /** Times that a frame had to wait for a credit. */
  readonly creditStalls: number;
  /** Times that it was woken from its sleep. */
  readonly wakeups: number;
  /** Of multicast channels. Lost are those that this member did not send: too many were under way, or an error. */
  readonly datagramsSent: number;
  readonly datagramsReceived: number;
  readonly datagramsLost: number;
  /** Datagrams that were of no member, or of another group with the same address. */
  readonly datagramsStray: number;
}

/**
 * One environment (main thread or worker) in a domain.
 *
 * `C` maps channel names to payload types (`join<Contract>()`); without it any name goes and payloads are `unknown` unless a
 * type argument, a schema or a codec says more.
 */
export class Member<C = undefined> implements AsyncDisposable {
  /** This member's name, for people. */
  readonly name: string;
  /** The domain's name. */
  readonly domain: string;
  /** Never used again by any member. */
  readonly incarnation: number;
  /** Peers that come and go, faults, and the status of all its channels. */
  readonly status$: Observable<StatusEvent>;
  readonly #engine: Engine;
  readonly #cluster: ClusterPort;
  readonly #channels = new Map<string, Channel<unknown, never>>();
  readonly #patterns = new Map<string, Pattern<unknown>>();
  readonly #regions: Regions;
  readonly #forgetExit: () => void;
  #left: Promise<void> | null = null;
  #failure: MillraceError | null = null;

  /** @internal A member of the class that this is called on; only join() makes members. */
  static of<C>(domain: string, name: string, engine: Engine, cluster: ClusterPort): Member<C> {
    return new this<C>(domain, name, engine, cluster);
  }

  /** Members are made by join(). */
  protected constructor(domain: string, name: string, engine: Engine, cluster: ClusterPort) {
    this.domain = domain;
    this.name = name;
    this.incarnation = cluster.incarnation;
    this.status$ = engine.status.events$;
    this.#engine = engine;
    this.#cluster = cluster;
    this.#regions = new Regions(engine.transport.native, engine.transport.handle, cluster.incarnation);
    engine.onFailure = (error) => this.#fail(error);
    this.#forgetExit = leaveBeforeExit(this);
  }

  /** The other members that are up now. */
  get peers(): readonly Publisher[] {
    return [...this.#engine.peers.values()].map(({ identity }) => identity);
  }

  /** Whether leave() or close() was called, or the member failed. */
  get closed(): boolean {
    return this.#left !== null;
  }

  /**
   * Opens a channel, or returns the one that is open under that name.
   * @throws MillraceTypeError: ERR_CHANNEL_NAME, ERR_UNKNOWN_OPTION, ERR_INVALID_OPTION, ERR_CHANNEL_OPTIONS (open already
   *   with other options; both are shown), MillraceError ERR_MEMBER_CLOSED
   */
  channel<K extends ContractName<C>>(name: K, options?: ChannelOptions<C[K]>): Channel<C[K]>;
  channel<S extends StandardSchemaV1>(
    name: FreeName<C>,
    options: ChannelOptions & { readonly schema: S },
  ): Channel<InferOutput<S>, InferInput<S>>;
  channel(
    name: FreeName<C>,
    options: ChannelOptions<Uint8Array> & { readonly codec: 'bytes' },
  ): Channel<Uint8Array>;
  channel<T>(name: FreeName<C>, options: ChannelOptions<T> & { readonly codec: Codec<T> }): Channel<T>;
  channel<T = unknown>(name: FreeName<C>, options?: ChannelOptions<T>): Channel<T>;
  channel(name: string, options?: object): unknown {
    this.checkOpen();
    checkChannelName(name);
    const open = this.#channels.get(name);
    if (open !== undefined && options === undefined) return open;
    const settings = channelSettings(name, options);
    if (open !== undefined) {
      checkSame(`Channel ${JSON.stringify(name)}`, open.settings, settings);
      return open;
    }
    const host = {
      engine: this.#engine,
      forget: (channel: Channel<unknown, never>) => {
        if (this.#channels.get(name) === channel) this.#channels.delete(name);
      },
    };
    const channel = Channel.of<unknown, never>(host, name, settings);
    this.#channels.set(name, channel);
    return channel;
  }

  /**
   * Subscribes to all channels whose name matches: `*` is one token, `>` at the end one or more. Read-only.
   * @throws MillraceTypeError: ERR_PATTERN, ERR_UNKNOWN_OPTION, ERR_INVALID_OPTION, ERR_CHANNEL_OPTIONS; MillraceError
   *   ERR_MEMBER_CLOSED
   */
  pattern<T = ContractValue<C>>(text: string, options?: PatternOptions<T>): Pattern<T> {
    this.checkOpen();
    const parsed = parsePattern(text);
    const open = this.#patterns.get(text);
    if (open !== undefined && options === undefined) return open as Pattern<T>;
    const settings = patternSettings(text, options);
    if (open !== undefined) {
      checkSame(`Pattern ${JSON.stringify(text)}`, open.settings, settings);
      return open as Pattern<T>;
    }
    const host = {
      engine: this.#engine,
      forget: (pattern: Pattern<unknown>) => {
        if (this.#patterns.get(text) === pattern) this.#patterns.delete(text);
      },
    };
    const pattern = Pattern.of<T>(host, parsed, settings);
    this.#patterns.set(text, pattern as Pattern<unknown>);
    return pattern;
  }

  /**
   * Makes memory that other processes of this host can open by its `handle`: the same physical pages, zeroed, registered
   * with the member's device. It lives until close(), or until the member leaves; its pages until the last holder lets go.
   * @throws MillraceTypeError, MillraceRangeError: ERR_UNKNOWN_OPTION, ERR_INVALID_OPTION; MillraceError ERR_SHM_FULL,
   *   ERR_REGION_LIMIT, ERR_MEMLOCK, ERR_FOLDER_ACCESS, ERR_OUT_OF_FILES, ERR_MEMBER_CLOSED, and nothing is left behind then
   */
  region(options: RegionOptions): Region {
    this.checkOpen();
    this.#engine.pool.rest(); // the pool gives its idle memory up for it
    return this.#regions.create(options);
  }

  /**
   * Opens a region that any process of this host made, as often as one likes. The kernel compares the access that is asked
   * for with what the maker granted.
   * @throws MillraceTypeError: ERR_INVALID_ARGUMENT, ERR_UNKNOWN_OPTION, ERR_INVALID_OPTION; MillraceError ERR_REGION_ACCESS
   *   (names both), ERR_REGION_GONE, ERR_REGION_HANDLE, ERR_REGION_RESHARE, ERR_REGION_LIMIT, ERR_MEMLOCK, ERR_MEMBER_CLOSED
   */
  openRegion(handle: string, options?: OpenRegionOptions): Region {
    this.checkOpen();
    return this.#regions.open(handle, options);
  }

  /**
   * Reads bytes that another member offers (`region.offer()`) into a region that is open for writing: by RDMA READ, so it works from
   * host to host, and that member does nothing for it. In pieces, with 4 MiB in flight at most for all fetches of this member. The
   * region's bytes may change until the promise has settled.
   * @returns resolves when all bytes are here; the other member may then close its region or use it again
   * @throws (rejects) MillraceError ERR_PEER_LOST (it left or died), ERR_REGION_GONE (it closed its region), ERR_REGION_ACCESS (`into`
   *   is open for reading only), ERR_REGION_CLOSED, ERR_ABORTED, ERR_NATIVE, ERR_MEMBER_CLOSED; MillraceTypeError, MillraceRangeError: ERR_UNKNOWN_OPTION, ERR_INVALID_OPTION, ERR_INVALID_ARGUMENT
   */
  async fetch(offer: RegionOffer, into: Region, options: FetchOptions = {}): Promise<void> {
    this.checkOpen();
    if (!(into instanceof Region)) invalidArgument('fetch()', 'into', into, 'a region');
    if (!into.closed && !this.#regions.has(into))
      invalidArgument('fetch()', 'into', into, 'a region of this member: open it here by its handle');
    const at = fetchSettings(offer, into, options);
    abortSignal('fetch()', options.signal);
    return this.#engine.fetches.start(offer, into, options, at);
  }

  /** Channel.flush() for all channels. */
  async flush(options?: FlushOptions): Promise<DrainReport> {
    checkNames('flush()', options, ['signal']);
    return this.#drain(Number.POSITIVE_INFINITY, abortSignal('flush()', options?.signal));
  }

  /** Channel.drain() for all channels: what was not delivered, per channel and peer. Rejects only for wrong options. */
  async drain(options?: number | DrainOptions): Promise<DrainReport> {
    const { timeout, signal } = drainOptions(options);
    return this.#drain(timeout, signal);
  }

  /**
   * Leaves the domain: what was published and can be sent is sent, own streams complete, the others see a goodbye. Does not
   * wait for slow subscribers; drain() before, or `await using`, if that matters. Idempotent, never rejects.
   */
  leave(): Promise<void> {
    if (this.#left === null) {
      this.#left = this.#leave();
    }
    return this.#left;
  }

  /** leave() without waiting for its end. */
  close(): void {
    void this.leave();
  }

  /** What this member holds. */
  resources(): MemberResources {
    const { transport, publishers, inbound, copies, pool } = this.#engine;
    let queuedBytes = 0;
    if (!this.closed) pool.rest();
    for (const channel of publishers.channels.values()) queuedBytes += channel.queuedBytes;
    const native = this.closed ? NOTHING : transport.native.resources(transport.handle);
    return {
      ...native,
      copies: native.copies + copies.count,
      copiedBytes: native.copiedBytes + copies.bytes,
      channels: this.#channels.size,
      patterns: this.#patterns.size,
      regions: this.#regions.count,
      subscriptions: inbound.locals.size,
      queuedBytes,
      framesSent: transport.counter(COUNTER.FRAMES_SENT),
      framesReceived: transport.counter(COUNTER.FRAMES_RECEIVED),
      creditStalls: transport.counter(COUNTER.CREDIT_STALLS),
      wakeups: transport.counter(COUNTER.WAKEUPS),
      datagramsSent: transport.counter(COUNTER.DATAGRAMS_SENT),
      datagramsReceived: transport.counter(COUNTER.DATAGRAMS_RECEIVED),
      datagramsLost: transport.counter(COUNTER.DATAGRAMS_LOST),
      datagramsStray: transport.counter(COUNTER.DATAGRAMS_STRAY),
    };
  }

  /** Channels, their subscribers, and what was dropped, as plain data: what `millrace ls` shows. */
  inspect(): MemberReport {
    return reportMember(this.#engine, this.#channels.values(), this.#patterns.values());
  }

  /** The default: it holds the event loop while it has a subscriber, a pending promise or unsent data. */
  ref(): this {
    this.#engine.keepalive.ref(true);
    return this;
  }

  /** It never holds the event loop. */
  unref(): this {
    this.#engine.keepalive.ref(false);
    return this;
  }

  /** drain() and leave(). */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#left === null) await this.drain();
    await this.leave();
  }

  async #leave(): Promise<void> {
    this.#forgetExit();
    // What is with the transport and waits for a credit, or for its reader, gets a moment; a stopped peer no more.
    if (this.#failure === null && this.#engine.lastFlush()) {
      await until(
        this.#engine,
        'leave()',
        { timeout: LAST_FLUSH_MS, signal: undefined },
        (sign) => this.#engine.onTurn(sign),
        () => (this.#engine.lingers ? null : { value: undefined }),
        () => '',
      ).catch(() => {});
    }
    this.#engine.close();
    this.#regions.closeAll();
    const error = this.#failure ?? undefined;
    for (const one of [...this.#channels.values(), ...this.#patterns.values()]) one.end(error);
    this.#channels.clear();
    this.#patterns.clear();
    this.#engine.status.complete();
    await this.#cluster.leave();
  }

  /** A fatal local fault: the only thing that errors the streams. */
  #fail(error: MillraceError): void {
    if (this.#left !== null) return;
    this.#failure = error;
    this.#engine.status.emit({ type: 'fault', error });
    void this.leave();
  }

  #drain(timeout: number, signal: AbortSignal | undefined): Promise<DrainReport> {
    const channels = this.closed ? [] : [...this.#engine.publishers.channels.values()];
    return whenDelivered(this.#engine, channels, timeout, signal);
  }

  /** @internal @throws MillraceError ERR_MEMBER_CLOSED */
  protected checkOpen(): void {
    if (this.#left === null) return;
    throw new MillraceError(
      'ERR_MEMBER_CLOSED',
      `The member ${JSON.stringify(this.name)} has left the domain ${JSON.stringify(this.domain)}${
        this.#failure === null ? '' : ` because of a fault: ${this.#failure.message}`
      }. Join again.`,
      this.#failure === null ? {} : { cause: this.#failure },
    );
  }
}

const NOTHING: NativeResources = {
  device: '',
  deviceNote: '',
  laneKind: 'xrc',
  gidIndex: 0,
  pds: 0,
  xrcds: 0,
  srqs: 0,
  cqs: 0,
  qps: 0,
  mrs: 0,
  lanes: 0,
  slots: 0,
  slotBytes: 0,
  inboxBytes: 0,
  arenaBytes: 0,
  backlogBytes: 0,
  peers: 0,
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
  groups: 0,
  groupSlots: 0,
  groupBytes: 0,
};
