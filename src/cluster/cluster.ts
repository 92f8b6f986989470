import * as net from 'node:net';
import { MillraceError, MillraceTypeError } from '../errors.js';
import type { Native, OpenOptions } from '../native/binding.js';
import { nativeError, systemError } from '../native/faults.js';
import { type Clock, systemClock } from './clock.js';
import { ControlConnection } from './connection.js';
import { atExit } from './exit.js';
import { type ControlMessage, encodeFrame, MalformedFrame } from './framing.js';
import {
  bytes,
  count,
  type Greeting,
  greet,
  judge,
  MAX_NAME,
  PROTOCOL,
  parseGreeting,
  parseHello,
  parseRefusal,
  REFUSAL,
  versionOf,
} from './handshake.js';
import { otherLayouts } from './layouts.js';
import { baseFolder } from './paths.js';
import { Peer, type PeerInfo } from './peer.js';
import { isAlive, Registration, removeMember, scan, sweep } from './registry.js';

export type { PeerInfo } from './peer.js';

/** Why a peer is down. */
export type DownReason = 'left' | 'died' | 'refused';

/**
 * What happens to the other members. Each is called on the environment's own thread, from the event loop, never from within a
 * call of the cluster, and never before the promise of {@link Cluster.join} has resolved. What a handler throws is reported
 * to `fault` and goes no further.
 */
export interface ClusterEvents {
  /** A member can be sent to. The same incarnation again is a new session: nothing of the earlier one is left. */
  peerUp(peer: PeerInfo): void;
  /**
   * A member is gone: it `left`, it `died` (end of its connection and a free presence lock, R5; never by time), or one side
   * `refused` the other. Called *before* the transport lets go of the peer, so the handler can take out of the inbox what
   * the peer still sent. Afterwards its index can be given to another one.
   */
  peerDown(peer: PeerInfo, why: DownReason, detail?: string): void;
  /** The connection to a living member broke and is being made again. Nothing is lost: what was sent waits. */
  peerSuspect?(peer: PeerInfo, on: boolean): void;
  /** A message of a type that the cluster does not know. `body` was parsed from JSON, and is otherwise unchecked (I9). */
  message(peer: PeerInfo, type: string, body: unknown): void;
  /** Something went wrong that concerns one peer or is worth a notice; the member goes on. */
  fault(error: Error): void;
  /** What `millrace ls` shows of this member: plain data for JSON. */
  onInspect?(): unknown;
}

/** What the transport is opened with; folder and incarnation are the cluster's to choose. */
export type HandleOptions = Omit<OpenOptions, 'folder' | 'incarnation'>;

/** Bounds and times; the defaults suit everything but tests. */
export interface ClusterLimits {
  /** Unacknowledged bytes of control messages a peer, beyond which it is disconnected. */
  backlog: number;
  /** How long join() waits for members that do not answer, in ms. They are connected later. */
  joinWait: number;
  /** How long leave() waits for the others to take note, in ms. */
  leaveWait: number;
  /** The longest pause between two attempts to connect, in ms. */
  pause: number;
}

const LIMITS: ClusterLimits = { backlog: 32 * 1024 * 1024, joinWait: 1000, leaveWait: 1000, pause: 1000 };

/** An acknowledgement is due after so many messages, or so many bytes. */
const ACK_MESSAGES = 32;
const ACK_BYTES = 64 * 1024;
/** Connections that have not said who they are; one more, and the oldest is dropped. */
const MAX_STRANGERS = 256;
/** Bytes waiting for an inspector that does not read. */
const MAX_UNREAD = 4 * 1024 * 1024;
/** Malformed messages in a session, each on a new connection, until a peer is given up. */
const MAX_MALFORMED = 3;
/** Attempts to begin again when a sweeper took the staged file away. */
const JOIN_ATTEMPTS = 16;
/** Types that the cluster itself sends. */
const RESERVED = new Set(['hello', 'welcome', 'refuse', 'ack', 'tunnel', 'goodbye', 'inspect', 'inspected']);
/** Characters of base64 in a tunnel message; a frame's limit is what counts. */
const MAX_TUNNEL = 1024 * 1024;

/** What {@link Cluster.join} takes. */
export interface JoinOptions {
  readonly domain: string;
  /** For people: shown to the others and by `millrace ls`. At most 256 characters. */
  readonly name: string;
  readonly native: Native;
  readonly handleOptions: HandleOptions;
  readonly events: ClusterEvents;
  readonly clock?: Clock;
  /** Aborts the join; ignored once it has resolved. */
  readonly signal?: AbortSignal;
  readonly limits?: Partial<ClusterLimits>;
  /** The folder for shared memory; MILLRACE_SHM_DIR or /dev/shm unless given. */
  readonly base?: string;
}

/**
 * A member's place among the members of its domain on this host: its registration, the control connections, and the
 * native member behind them. One thread uses it (I6).
 */
export class Cluster {
  readonly #native: Native;
  readonly #events: ClusterEvents;
  readonly #clock: Clock;
  readonly #limits: ClusterLimits;
  readonly #name: string;
  readonly #registration: Registration;
  readonly #handle: number;
  readonly #server: net.Server;
  /** By incarnation: everybody that we know of. */
  readonly #known = new Map<number, Peer>();
  /** By index: those that are up. */
  readonly #byIndex = new Map<number, Peer>();
  readonly #infos = new Map<number, PeerInfo>();
  /** Connections that have not said who they are, oldest first. */
  readonly #strangers = new Set<ControlConnection>();
  /** Timers that look after members that have left. */
  readonly #departed = new Map<number, () => void>();
  /** Members that were there when we joined, and that join() waits for. */
  readonly #awaited = new Set<number>();
  #settled: () => void = () => {};
  /** Events of the time before join() has resolved. */
  #held: (() => void)[] | undefined = [];
  #sessions = 0;
  /** Sockets hold the event loop; they do while we join. */
  #referenced = true;
  #leaving = false;
  #left: Promise<void> | undefined;
  readonly #forgetExit: () => void;

  /**
   * Joins a domain on this host.
   *
   * The promise resolves when every member that was there is connected, or after a second if one does not answer (it may be
   * stopped; it is connected as soon as it goes on).
   * @returns the cluster, which the caller owns until `leave()`
   * @throws MillraceError with the cause; nothing is left behind then. When aborted: the signal's reason.
   */
  static async join(options: JoinOptions): Promise<Cluster> {
    const { native, domain, name, signal } = options;
    signal?.throwIfAborted();
    if (typeof name !== 'string' || name.length > MAX_NAME) {
      throw new MillraceTypeError(
        'ERR_INVALID_OPTION',
        `A member's name must be a string of at most ${MAX_NAME} characters.`,
      );
    }
    const base = options.base ?? baseFolder();
    for (let attempt = 1; ; attempt += 1) {
      const note = { pid: process.pid, name, started: Date.now() };
      const registration = Registration.stage(native, base, domain, note);
      let cluster: Cluster | undefined;
      try {
        cluster = Cluster.#make(options, registration);
        await cluster.#listen(base);
        signal?.throwIfAborted();
        if (!registration.publish()) throw removed(registration.folder, attempt);
        await cluster.#connectAll(signal);
        cluster.#start(base, domain);
        return cluster;
      } catch (error) {
        // A sweeper may have looked at our staged file just before it was locked, and have taken it away later, with the folder
        // even: whatever failed then is no reason to give up (R30).
        const again = attempt < JOIN_ATTEMPTS && signal?.aborted !== true && !registration.isIntact();
        if (cluster === undefined) registration.remove();
        else cluster.#vanish();
        if (!again) throw error;
      }
    }
  }

  /** Opens the native member of a registration. @throws MillraceError */
  static #make(options: JoinOptions, registration: Registration): Cluster {
    const { native, handleOptions } = options;
    const { folder, incarnation } = registration;
    // What the dead left takes room, which open() may need.
    sweep(native, folder);
    let handle: number;
    try {
      handle = native.open({ ...handleOptions, folder, incarnation });
    } catch (error) {
      throw nativeError(`open the device ${JSON.stringify(handleOptions.device)}`, native, error);
    }
    return new Cluster(options, registration, handle);
  }

  private constructor(options: JoinOptions, registration: Registration, handle: number) {
    this.#native = options.native;
    this.#events = options.events;
    this.#clock = options.clock ?? systemClock;
    this.#limits = { ...LIMITS, ...options.limits };
    this.#name = options.name;
    this.#registration = registration;
    this.#handle = handle;
    this.#server = net.createServer((socket) => this.#greetStranger(socket));
    this.#forgetExit = atExit(() => this.#vanish());
  }

  /** This member's incarnation: never used again. */
  get incarnation(): number {
    return this.#registration.incarnation;
  }

  /** The native member. The cluster closes it in `leave()`. */
  get handle(): number {
    return this.#handle;
  }

  /** The members that are up, by index. */
  get peers(): ReadonlyMap<number, PeerInfo> {
    return this.#infos;
  }

  /** The folder whose inode is the domain's identity on this host. */
  get folder(): string {
    return this.#registration.folder;
  }

  /**
   * Sends a message to a peer: reliably and in order for as long as both live, across reconnections. Does nothing when the
   * peer is not up any more. A peer that does not read until {@link ClusterLimits.backlog} bytes wait for it is
   * disconnected (`refused`), and is connected again as a newcomer.
   * @throws MillraceError `ERR_CONTROL_TOO_LARGE`: nothing was sent. MillraceTypeError for a type of the cluster's own.
   */
  send(peerIndex: number, type: string, body: unknown): void {
    if (RESERVED.has(type)) {
      throw new MillraceTypeError('ERR_INVALID_ARGUMENT', `The message type ${type} is the cluster's own.`);
    }
    const peer = this.#byIndex.get(peerIndex);
    if (peer !== undefined) this.#post(peer, encodeFrame({ type, body }));
  }

  /** Carries bytes of the transport to the same peer's transport, as {@link send} does. */
  tunnel(peerIndex: number, data: Uint8Array): void {
    const peer = this.#byIndex.get(peerIndex);
    if (peer === undefined) return;
    const text = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString('base64');
    this.#post(peer, encodeFrame({ type: 'tunnel', data: text }));
  }

  /** Whether the control connections hold the event loop. They do not at first. */
  ref(on: boolean): void {
    this.#referenced = on;
    if (on) this.#server.ref();
    else this.#server.unref();
    for (const connection of this.#connections()) connection.ref(on);
  }

  /**
   * Leaves the domain: tells the others, waits (a second at most) until they have let go, closes the native member, removes
   * its files, and the folder if nobody is left. No event is delivered any more. Idempotent; never rejects.
   */
  leave(): Promise<void> {
    this.#left ??= this.#leave();
    return this.#left;
  }

  // ---- joining ---------------------------------------------------------------------------------------------------------

  #listen(base: string): Promise<void> {
    const path = this.#registration.socketAddress(this.incarnation);
    return new Promise((resolve, reject) => {
      this.#server.once('error', (error) =>
        reject(systemError('listen on the control socket', path, base, error)),
      );
      // `exclusive`: under node:cluster it would otherwise be the primary that listens.
      this.#server.listen({ path, exclusive: true }, () => {
        this.#server.removeAllListeners('error');
        this.#server.on('error', (error) =>
          this.#fault(systemError('accept a connection on', path, base, error)),
        );
        resolve();
      });
    });
  }

  /** Connects to everybody who is visible, and waits for their answers. */
  async #connectAll(signal: AbortSignal | undefined): Promise<void> {
    for (const { incarnation, alive, staged } of scan(this.#native, this.#registration.folder)) {
      // One that is still staged will see us, since we are visible.
      if (incarnation === this.incarnation || !alive || staged || this.#known.has(incarnation)) continue;
      const peer = this.#newPeer(incarnation);
      this.#awaited.add(incarnation);
      this.#attempt(peer);
    }
    if (this.#awaited.size === 0) return;
    await new Promise<void>((resolve, reject) => {
      const abort = () => reject(signal?.reason);
      signal?.addEventListener('abort', abort, { once: true });
      const cancel = this.#clock.after(this.#limits.joinWait, () => this.#settled());
      this.#settled = () => {
        this.#settled = () => {};
        cancel();
        signal?.removeEventListener('abort', abort);
        resolve();
      };
      if (this.#awaited.size === 0) this.#settled();
    });
  }

  /** From now on events are delivered, beginning with those of the join: in a later turn, when the caller has the cluster. */
  #start(base: string, domain: string): void {
    this.#awaited.clear();
    this.ref(false);
    for (const { folder, layout, members } of otherLayouts(this.#native, base, domain)) {
      this.#fault(
        new MillraceError(
          'ERR_LAYOUT_VERSION',
          `${members} member${members === 1 ? '' : 's'} of the domain ${JSON.stringify(domain)} use${members === 1 ? 's' : ''} ` +
            `another version of millrace (layout ${layout}, in ${folder}). They and this one cannot see each other; use one version.`,
          { details: { folder, layout, members } },
        ),
      );
    }
    setImmediate(() => {
      const held = this.#held ?? [];
      // Those that these cause are called at once, hence after all of them only if they are taken one by one.
      for (let next = held.shift(); next !== undefined; next = held.shift()) next();
      this.#held = undefined;
    });
  }

  // ---- events ----------------------------------------------------------------------------------------------------------

  #emit(event: () => void): void {
    if (this.#held !== undefined) this.#held.push(() => this.#deliver(event));
    else this.#deliver(event);
  }

  #deliver(event: () => void): void {
    if (this.#leaving) return;
    try {
      event();
    } catch (error) {
      const message = `A handler of cluster events threw: ${error instanceof Error ? error.message : String(error)}`;
      this.#report(new MillraceError('ERR_INTERNAL', message, { cause: error }));
    }
  }

  #fault(error: Error): void {
    this.#emit(() => this.#report(error));
  }

  #report(error: Error): void {
    try {
      this.#events.fault(error);
    } catch (thrown) {
      process.emitWarning(`The handler of cluster faults threw: ${thrown}`, { code: 'ERR_INTERNAL' });
    }
  }

  /** Reports a fault of a peer once for each code. */
  #faultOf(
    peer: Peer,
    code: 'ERR_PEER_REFUSED' | 'ERR_PROTOCOL_VERSION',
    message: string,
    cause?: unknown,
  ): void {
    if (peer.reported.has(code)) return;
    peer.reported.add(code);
    const details = { incarnation: peer.incarnation, peer: peer.info?.name };
    this.#fault(new MillraceError(code, message, { details, ...(cause === undefined ? {} : { cause }) }));
  }

  // ---- connections -----------------------------------------------------------------------------------------------------

  *#connections(): Iterable<ControlConnection> {
    yield* this.#strangers;
    for (const { connection, attempt } of this.#known.values()) {
      if (connection !== undefined) yield connection;
      if (attempt !== undefined) yield attempt;
    }
  }

  #newPeer(incarnation: number): Peer {
    this.#sessions += 1;
    const peer = new Peer(incarnation, this.#sessions);
    this.#known.set(incarnation, peer);
    return peer;
  }

  /** Reserves what the transport needs for a peer. @throws MillraceError */
  #reserve(peer: Peer): void {
    if (peer.index >= 0) return;
    try {
      const { peer: index, offer } = this.#native.offer(this.#handle);
      peer.index = index;
      peer.offer = offer;
    } catch (error) {
      throw nativeError(`make room for the member ${peer.incarnation}`, this.#native, error);
    }
  }

  #greeting(peer: Peer): Greeting {
    return {
      incarnation: this.incarnation,
      name: this.#name,
      pid: process.pid,
      offer: peer.offer,
      session: peer.session,
      established: peer.established,
      received: peer.received,
    };
  }

  /** Connects to a peer that is not connected. */
  #attempt(peer: Peer): void {
    if (this.#leaving || peer.gone || peer.connected || peer.attempting || peer.blocked) return;
    let path: string;
    try {
      this.#reserve(peer);
      path = this.#registration.socketAddress(peer.incarnation);
    } catch (error) {
      this.#faultOf(peer, 'ERR_PEER_REFUSED', (error as Error).message, error);
      this.#settle(peer);
      this.#examine(peer);
      return;
    }
    const connection = new ControlConnection(net.connect({ path }), {
      message: (_, message, size) => this.#answered(peer, connection, message, size),
      closed: (_, reason) => this.#closed(peer, connection, reason),
    });
    connection.ref(this.#referenced);
    peer.attempt = connection;
    connection.send(encodeFrame(greet('hello', { ...this.#greeting(peer), yourSession: peer.theirSession })));
  }

  /** A message on a connection that we made. */
  #answered(peer: Peer, connection: ControlConnection, message: ControlMessage, size: number): void {
    if (peer.connection === connection) {
      this.#receive(peer, message, size);
      return;
    }
    if (peer.attempt !== connection) return;
    if (message.type === 'refuse') {
      peer.attempt = undefined;
      connection.destroy();
      this.#refused(peer, message);
      return;
    }
    if (message.type !== 'welcome') throw new MalformedFrame(`the answer to a hello is a ${message.type}`);
    if (versionOf(message) !== PROTOCOL) {
      peer.attempt = undefined;
      connection.destroy();
      this.#otherVersion(peer, versionOf(message));
      return;
    }
    const welcome = parseGreeting(message);
    if (welcome.incarnation !== peer.incarnation) {
      throw new MalformedFrame(`the member ${welcome.incarnation} answers in its place`);
    }
    if (peer.theirSession !== 0 && welcome.session !== peer.theirSession) {
      throw new MalformedFrame('it welcomes to a session that was not asked for');
    }
    if (!peer.outbox.acknowledge(welcome.received)) throw wrongCount(welcome, peer);
    peer.attempt = undefined;
    peer.established = welcome.established;
    this.#establish(peer, connection, welcome, false);
  }

  /** Somebody connected. The first message tells who. */
  #greetStranger(socket: net.Socket): void {
    let peer: Peer | undefined;
    const connection: ControlConnection = new ControlConnection(socket, {
      message: (_, message, size) => {
        if (peer !== undefined) {
          if (peer.connection === connection) this.#receive(peer, message, size);
        } else if (message.type === 'inspect') this.#inspect(connection);
        else if (message.type === 'hello') {
          this.#strangers.delete(connection);
          peer = this.#helloed(connection, message);
        } else throw new MalformedFrame(`the first message is a ${message.type}`);
      },
      closed: (_, reason) => {
        this.#strangers.delete(connection);
        if (peer !== undefined) this.#closed(peer, connection, reason);
        else if (reason instanceof MalformedFrame) this.#malformed('Somebody unknown', reason);
      },
    });
    if (this.#leaving) {
      connection.destroy();
      return;
    }
    connection.ref(this.#referenced);
    if (this.#strangers.size >= MAX_STRANGERS) {
      for (const oldest of this.#strangers) {
        this.#strangers.delete(oldest);
        oldest.destroy();
        break;
      }
    }
    this.#strangers.add(connection);
  }

  #refuse(connection: ControlConnection, code: string, message: string): void {
    connection.finish(encodeFrame({ type: 'refuse', code, message }));
  }

  /** A hello arrived. @returns the peer if the connection is now its own */
  #helloed(connection: ControlConnection, message: ControlMessage): Peer | undefined {
    if (versionOf(message) !== PROTOCOL) {
      const text = `this member speaks version ${PROTOCOL} of the control protocol, the hello is of version ${versionOf(message)}`;
      this.#refuse(connection, REFUSAL.VERSION, text);
      const name = String(message.name).slice(0, MAX_NAME);
      this.#fault(
        new MillraceError('ERR_PROTOCOL_VERSION', `The member ${JSON.stringify(name)} was refused: ${text}.`),
      );
      return undefined;
    }
    const hello = parseHello(message);
    let peer = this.#known.get(hello.incarnation);
    if (hello.incarnation === this.incarnation || !isAlive(this.#native, this.folder, hello.incarnation)) {
      const text = `the member ${hello.incarnation} holds no presence lock in ${this.folder}`;
      this.#refuse(connection, REFUSAL.UNREGISTERED, text);
      return undefined;
    }
    if (peer?.blocked === true) {
      this.#refuse(connection, REFUSAL.PROTOCOL, 'it was given up after what it sent');
      return undefined;
    }
    const verdict = judge(this.incarnation, hello, peer);
    if (verdict === 'duplicate') {
      this.#refuse(connection, REFUSAL.DUPLICATE, 'another connection between the two stays');
      return undefined;
    }
    if (verdict === 'session') {
      this.#refuse(connection, REFUSAL.SESSION, 'that session is over');
      return undefined;
    }
    if (verdict === 'renew' && peer !== undefined) {
      this.#drop(peer, 'refused', 'it disconnected this member and begins anew');
      peer = undefined;
    }
    peer ??= this.#newPeer(hello.incarnation);
    if (!peer.outbox.acknowledge(hello.received)) throw wrongCount(hello, peer);
    peer.attempt?.destroy();
    peer.attempt = undefined;
    peer.connection?.destroy();
    peer.connection = undefined;
    try {
      this.#reserve(peer);
    } catch (error) {
      const text = (error as Error).message;
      this.#refuse(connection, REFUSAL.RESOURCES, text);
      this.#faultOf(
        peer,
        'ERR_PEER_REFUSED',
        `The member ${JSON.stringify(hello.name)} was refused: ${text}`,
        error,
      );
      this.#examine(peer);
      return undefined;
    }
    peer.established = Math.max(peer.established, hello.established) + 1;
    return this.#establish(peer, connection, hello, true) ? peer : undefined;
  }

  /** Both have greeted each other: the connection is the session's. @returns false when the transport refused the peer */
  #establish(peer: Peer, connection: ControlConnection, greeting: Greeting, answer: boolean): boolean {
    if (peer.info === undefined) {
      try {
        this.#native.connect(this.#handle, peer.index, peer.incarnation, greeting.offer);
      } catch (thrown) {
        const error = nativeError(
          `connect to the member ${JSON.stringify(greeting.name)}`,
          this.#native,
          thrown,
        );
        this.#refuse(connection, REFUSAL.PROTOCOL, error.message);
        this.#faultOf(peer, 'ERR_PEER_REFUSED', error.message, error);
        this.#block(peer, error.message);
        return false;
      }
    }
    peer.cancelTimer?.();
    peer.cancelTimer = undefined;
    peer.theirSession = greeting.session;
    peer.acknowledged = peer.received;
    peer.unacknowledgedBytes = 0;
    peer.failures = 0;
    peer.connection = connection;
    this.#settle(peer);
    if (answer) connection.send(encodeFrame(greet('welcome', this.#greeting(peer))));
    for (const frame of peer.outbox.unacknowledged()) connection.send(frame);
    if (peer.info === undefined) {
      const { name, pid } = greeting;
      const info: PeerInfo = Object.freeze({ index: peer.index, incarnation: peer.incarnation, name, pid });
      peer.info = info;
      this.#byIndex.set(info.index, peer);
      this.#emit(() => {
        this.#infos.set(info.index, info);
        this.#events.peerUp(info);
      });
    } else this.#suspect(peer, false);
    return true;
  }

  /** join() need not wait for this one any longer. */
  #settle(peer: Peer): void {
    if (this.#awaited.delete(peer.incarnation) && this.#awaited.size === 0) this.#settled();
  }

  #suspect(peer: Peer, on: boolean): void {
    const { info } = peer;
    if (peer.suspect === on || info === undefined) return;
    peer.suspect = on;
    this.#emit(() => this.#events.peerSuspect?.(info, on));
  }

  /** A connection of a peer is over. */
  #closed(peer: Peer, connection: ControlConnection, reason: unknown): void {
    if (peer.gone || (peer.connection !== connection && peer.attempt !== connection)) return;
    if (peer.connection === connection) peer.connection = undefined;
    else peer.attempt = undefined;
    if (reason instanceof MalformedFrame) {
      peer.malformed += 1;
      const name =
        peer.info === undefined
          ? `The member ${peer.incarnation}`
          : `The member ${JSON.stringify(peer.info.name)}`;
      this.#malformed(name, reason);
      if (peer.malformed >= MAX_MALFORMED) {
        this.#block(peer, `it sent malformed messages ${MAX_MALFORMED} times: ${reason.message}`);
        return;
      }
    } else if (reason instanceof MillraceError) this.#fault(reason as MillraceError);
    this.#examine(peer);
  }

  #malformed(who: string, reason: MalformedFrame): void {
    this.#fault(
      new MillraceError(
        'ERR_CONTROL_MALFORMED',
        `${who} sent a malformed control message: ${reason.message}.`,
        {
          cause: reason,
        },
      ),
    );
  }

  /**
   * A peer has no connection: it is dead if its lock is free (R5), else it is tried again after a pause. Time alone decides
   * nothing.
   */
  #examine(peer: Peer): void {
    if (this.#leaving || peer.gone || peer.connected || peer.attempting || peer.blocked) return;
    if (peer.cancelTimer !== undefined) return;
    if (!isAlive(this.#native, this.folder, peer.incarnation)) {
      this.#lost(peer);
      return;
    }
    const pause = Math.min(2 ** peer.failures, this.#limits.pause);
    peer.failures = Math.min(peer.failures + 1, 30);
    peer.cancelTimer = this.#clock.after(pause, () => {
      peer.cancelTimer = undefined;
      if (!isAlive(this.#native, this.folder, peer.incarnation)) this.#lost(peer);
      else {
        this.#suspect(peer, true);
        this.#attempt(peer);
      }
    });
  }

  /** A peer is dead: what it left is removed, by every survivor. */
  #lost(peer: Peer): void {
    this.#drop(peer, 'died');
    removeMember(this.#native, this.folder, peer.incarnation);
  }

  /** Ends the session with a peer. */
  #drop(peer: Peer, why: DownReason, detail?: string): void {
    if (peer.gone) return;
    peer.gone = true;
    peer.cancelTimer?.();
    peer.cancelTimer = undefined;
    peer.connection?.destroy();
    peer.attempt?.destroy();
    peer.connection = undefined;
    peer.attempt = undefined;
    this.#known.delete(peer.incarnation);
    this.#settle(peer);
    const { info, index } = peer;
    if (info === undefined) {
      if (index >= 0) this.#native.disconnect(this.#handle, index);
      return;
    }
    this.#byIndex.delete(index);
    this.#emit(() => {
      this.#infos.delete(index);
      try {
        if (detail === undefined) this.#events.peerDown(info, why);
        else this.#events.peerDown(info, why, detail);
      } finally {
        // A handler may have left the domain, and with it closed the handle.
        if (!this.#leaving) this.#native.disconnect(this.#handle, index);
      }
    });
  }

  /** Ends the session with a peer, and begins no other with that incarnation. */
  #block(peer: Peer, detail: string): void {
    this.#drop(peer, 'refused', detail);
    if (this.#leaving) return;
    const blocked = this.#newPeer(peer.incarnation);
    blocked.blocked = true;
  }

  /** A peer refused us. */
  #refused(peer: Peer, message: ControlMessage): void {
    const { code, message: text } = parseRefusal(message);
    switch (code) {
      case REFUSAL.DUPLICATE:
        break;
      case REFUSAL.SESSION: {
        this.#drop(peer, 'refused', 'it disconnected this member');
        this.#attempt(this.#newPeer(peer.incarnation));
        return;
      }
      case REFUSAL.VERSION:
      case REFUSAL.PROTOCOL:
        this.#faultOf(peer, 'ERR_PEER_REFUSED', `The member ${peer.incarnation} refused this one: ${text}.`);
        this.#block(peer, text);
        return;
      default:
        this.#faultOf(peer, 'ERR_PEER_REFUSED', `The member ${peer.incarnation} refused this one: ${text}.`);
        this.#settle(peer);
    }
    this.#examine(peer);
  }

  #otherVersion(peer: Peer, version: number): void {
    const text = `it speaks version ${version} of the control protocol, and this member version ${PROTOCOL}`;
    this.#faultOf(peer, 'ERR_PROTOCOL_VERSION', `The member ${peer.incarnation} cannot be used: ${text}.`);
    this.#block(peer, text);
  }

  // ---- messages --------------------------------------------------------------------------------------------------------

  /** Sends a message of the session, and keeps it until it is acknowledged. */
  #post(peer: Peer, frame: Buffer): void {
    if (peer.gone) return;
    peer.outbox.push(frame);
    if (peer.outbox.bytes > this.#limits.backlog) {
      // Not from within the caller's send(): it may be walking over its peers.
      setImmediate(() => this.#overflowed(peer));
    }
    peer.connection?.send(frame);
  }

  #overflowed(peer: Peer): void {
    if (peer.gone || this.#leaving || peer.outbox.bytes <= this.#limits.backlog) return;
    const text = `${peer.outbox.bytes} bytes of control messages wait for it, the limit is ${this.#limits.backlog}: it does not read`;
    const message = `The member ${JSON.stringify(peer.info?.name)} was disconnected: ${text}. It is connected again when it reads.`;
    this.#fault(new MillraceError('ERR_CONTROL_BACKLOG', message, { details: { bytes: peer.outbox.bytes } }));
    this.#drop(peer, 'refused', text);
    this.#examine(this.#newPeer(peer.incarnation));
  }

  /** A message of an established connection. */
  #receive(peer: Peer, message: ControlMessage, size: number): void {
    if (peer.gone || this.#leaving) return;
    switch (message.type) {
      case 'ack':
        if (!peer.outbox.acknowledge(count(message, 'received'))) {
          throw new MalformedFrame('it acknowledges what was not sent');
        }
        return;
      case 'refuse': {
        const { message: text } = parseRefusal(message);
        this.#faultOf(
          peer,
          'ERR_PEER_REFUSED',
          `The member ${JSON.stringify(peer.info?.name)} refused this one: ${text}.`,
        );
        this.#block(peer, text);
        return;
      }
      case 'hello':
      case 'welcome':
      case 'inspect':
      case 'inspected':
        throw new MalformedFrame(`a ${message.type} came on a connection that is established`);
    }
    const data = message.type === 'tunnel' ? bytes(message, 'data', MAX_TUNNEL) : undefined;
    peer.received += 1;
    peer.unacknowledgedBytes += size;
    if (message.type === 'goodbye') {
      this.#goodbye(peer);
      return;
    }
    this.#acknowledge(peer);
    if (data !== undefined) {
      try {
        this.#native.tunnel(this.#handle, peer.index, data);
      } catch (error) {
        this.#fault(nativeError('take a message of the transport', this.#native, error));
      }
      return;
    }
    const { info } = peer;
    if (info !== undefined) this.#emit(() => this.#events.message(info, message.type, message.body));
  }

  /** Says how much was received, now and then. */
  #acknowledge(peer: Peer): void {
    if (peer.received - peer.acknowledged < ACK_MESSAGES && peer.unacknowledgedBytes < ACK_BYTES) return;
    peer.acknowledged = peer.received;
    peer.unacknowledgedBytes = 0;
    peer.connection?.send(encodeFrame({ type: 'ack', received: peer.received }));
  }

  /** A peer leaves. It waits until we have let go, and removes its files itself, unless it is killed before. */
  #goodbye(peer: Peer): void {
    const { connection, incarnation } = peer;
    peer.connection = undefined;
    this.#drop(peer, 'left');
    connection?.end();
    this.#lookAfter(incarnation, 0);
  }

  #lookAfter(incarnation: number, turn: number): void {
    const pause = Math.min(16 * 2 ** turn, this.#limits.pause);
    const cancel = this.#clock.after(pause, () => {
      this.#departed.delete(incarnation);
      if (isAlive(this.#native, this.folder, incarnation))
        this.#lookAfter(incarnation, Math.min(turn + 1, 20));
      else removeMember(this.#native, this.folder, incarnation);
    });
    this.#departed.set(incarnation, cancel);
  }

  /** Answers `millrace ls`. */
  #inspect(connection: ControlConnection): void {
    if (connection.unsent > MAX_UNREAD) {
      this.#strangers.delete(connection);
      connection.destroy();
      return;
    }
    const member = { incarnation: this.incarnation, name: this.#name, pid: process.pid };
    let body: unknown = null;
    let error: string | undefined;
    try {
      body = this.#events.onInspect?.() ?? null;
      connection.send(encodeFrame({ type: 'inspected', member, body }));
      return;
    } catch (thrown) {
      error = thrown instanceof Error ? thrown.message : String(thrown);
    }
    connection.send(encodeFrame({ type: 'inspected', member, body: null, error: error.slice(0, 1000) }));
  }

  // ---- leaving ---------------------------------------------------------------------------------------------------------

  async #leave(): Promise<void> {
    this.#leaving = true;
    for (const stranger of this.#strangers) stranger.destroy();
    this.#strangers.clear();
    this.#server.close();
    const open: ControlConnection[] = [];
    for (const peer of this.#known.values()) {
      peer.cancelTimer?.();
      peer.attempt?.destroy();
      if (peer.connection !== undefined) open.push(peer.connection);
    }
    await this.#farewell(open);
    this.#vanish();
  }

  /**
   * Says goodbye, and waits until each peer has ended its side: then our SRQ is out of its destination lists, so that closing
   * it costs nobody a lane.
   */
  #farewell(open: readonly ControlConnection[]): Promise<void> {
    if (open.length === 0) return Promise.resolve();
    const goodbye = encodeFrame({ type: 'goodbye' });
    return new Promise((resolve) => {
      const waiting = new Set(open);
      // A peer that is stopped does not answer; it finds our lock free when it goes on.
      const cancel = this.#clock.after(this.#limits.leaveWait, resolve);
      for (const connection of open) {
        connection.ref(true);
        connection.whenClosed(() => {
          waiting.delete(connection);
          if (waiting.size > 0) return;
          cancel();
          resolve();
        });
        connection.send(goodbye);
        connection.end();
      }
    });
  }

  /** Lets go of everything at once. Idempotent, synchronous, never throws. */
  #vanish(): void {
    this.#leaving = true;
    this.#held = undefined;
    this.#forgetExit();
    for (const cancel of this.#departed.values()) cancel();
    this.#departed.clear();
    for (const connection of this.#connections()) connection.destroy();
    for (const peer of this.#known.values()) {
      peer.gone = true;
      peer.cancelTimer?.();
    }
    this.#strangers.clear();
    this.#known.clear();
    this.#byIndex.clear();
    this.#infos.clear();
    this.#server.removeAllListeners('error').on('error', () => {});
    this.#server.close();
    try {
      this.#native.close(this.#handle);
    } catch {
      // Nothing of it can be used any more, whatever the reason.
    }
    this.#registration.remove();
  }
}

function removed(folder: string, attempts: number): MillraceError {
  return new MillraceError(
    'ERR_REGISTRY',
    `Could not join in ${folder}: its files were removed ${attempts} times while they were made. ` +
      'Look for a program that deletes them.',
  );
}

function wrongCount(greeting: Greeting, peer: Peer): MalformedFrame {
  return new MalformedFrame(`it states ${greeting.received} received messages, of ${peer.outbox.sent}`);
}
