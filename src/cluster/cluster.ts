import * as net from 'node:net';
import { MillraceError, MillraceTypeError } from '../errors.js';
import type { Native } from '../native/binding.js';
import { nativeError, systemError } from '../native/faults.js';
import type { OpenOptions } from '../native/open-options.js';
import { type Clock, systemClock } from './clock.js';
import type { ControlConnection } from './connection.js';
import { Connector } from './connector.js';
import { type ClusterLimits, type Context, LIMITS } from './context.js';
import { Announcer, type ClusterEvents } from './events.js';
import { atExit } from './exit.js';
import { encodeFrame } from './framing.js';
import { MAX_NAME } from './handshake.js';
import { otherLayouts } from './layouts.js';
import { Mail } from './mail.js';
import { baseFolder } from './paths.js';
import type { PeerInfo } from './peer.js';
import { Registration, scan, sweep } from './registry.js';
import { Sessions } from './sessions.js';
import { Strangers } from './strangers.js';

export type { ClusterLimits } from './context.js';
export type { ClusterEvents, DownReason } from './events.js';
export type { PeerInfo } from './peer.js';

/** What the transport is opened with; folder and incarnation are the cluster's to choose. */
export type HandleOptions = Omit<OpenOptions, 'folder' | 'incarnation'>;

/** Attempts to begin again when a sweeper took the staged file away. */
const JOIN_ATTEMPTS = 16;
/** Types that the cluster itself sends. */
const RESERVED = new Set(['hello', 'welcome', 'refuse', 'ack', 'tunnel', 'goodbye', 'inspect', 'inspected']);

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
  readonly #context: Context;
  readonly #sessions: Sessions;
  readonly #mail: Mail;
  readonly #connector: Connector;
  readonly #strangers: Strangers;
  readonly #server: net.Server;
  /** Sockets hold the event loop; they do while we join. */
  #referenced = true;
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
    const { native, name, events } = options;
    this.#context = {
      ...{ native, handle, registration, name },
      clock: options.clock ?? systemClock,
      limits: { ...LIMITS, ...options.limits },
      announcer: new Announcer(events),
    };
    this.#sessions = new Sessions(this.#context, (peer) => this.#connector.attempt(peer));
    this.#mail = new Mail(this.#context, this.#sessions);
    this.#connector = new Connector(this.#context, this.#sessions, this.#mail, () => this.#referenced);
    this.#strangers = new Strangers(this.#context, this.#connector, this.#mail, () => events.onInspect?.());
    this.#server = net.createServer((socket) => {
      if (this.#sessions.ended) socket.destroy();
      else this.#strangers.greet(socket, this.#referenced);
    });
    this.#forgetExit = atExit(() => this.#vanish());
  }

  /** This member's incarnation: never used again. */
  get incarnation(): number {
    return this.#context.registration.incarnation;
  }

  /** The native member. The cluster closes it in `leave()`. */
  get handle(): number {
    return this.#context.handle;
  }

  /** The members that are up, by index. */
  get peers(): ReadonlyMap<number, PeerInfo> {
    return this.#sessions.infos;
  }

  /** The folder whose inode is the domain's identity on this host. */
  get folder(): string {
    return this.#context.registration.folder;
  }

  /**
   * Sends a message to a peer: reliably and in order for as long as both live, across reconnections. Does nothing when the
   * peer is not up any more. A peer that does not read until `limits.backlog` bytes wait for it is
   * disconnected (`refused`), and is connected again as a newcomer.
   * @throws MillraceError `ERR_CONTROL_TOO_LARGE`: nothing was sent. MillraceTypeError for a type of the cluster's own.
   */
  send(peerIndex: number, type: string, body: unknown): void {
    if (RESERVED.has(type)) {
      throw new MillraceTypeError('ERR_INVALID_ARGUMENT', `The message type ${type} is the cluster's own.`);
    }
    const peer = this.#sessions.up(peerIndex);
    if (peer !== undefined) this.#mail.post(peer, encodeFrame({ type, body }));
  }

  /** Carries bytes of the transport to the same peer's transport, as {@link send} does. */
  tunnel(peerIndex: number, data: Uint8Array): void {
    const peer = this.#sessions.up(peerIndex);
    if (peer === undefined) return;
    const text = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString('base64');
    this.#mail.post(peer, encodeFrame({ type: 'tunnel', data: text }));
  }

  /** Whether the control connections hold the event loop. They do not at first. */
  ref(on: boolean): void {
    this.#referenced = on;
    if (on) this.#server.ref();
    else this.#server.unref();
    for (const connection of this.#strangers.connections) connection.ref(on);
    for (const connection of this.#sessions.connections()) connection.ref(on);
  }

  /**
   * Leaves the domain: tells the others, waits (a second at most) until they have let go, closes the native member, removes
   * its files, and the folder if nobody is left. No event is delivered any more. Idempotent; never rejects.
   */
  leave(): Promise<void> {
    this.#left ??= this.#leave();
    return this.#left;
  }

  // ---- joining -----------------------------------------------------------------------------------------------------------

  #listen(base: string): Promise<void> {
    const path = this.#context.registration.socketAddress(this.incarnation);
    return new Promise((resolve, reject) => {
      this.#server.once('error', (error) =>
        reject(systemError('listen on the control socket', path, base, error)),
      );
      // `exclusive`: under node:cluster it would otherwise be the primary that listens.
      this.#server.listen({ path, exclusive: true }, () => {
        this.#server.removeAllListeners('error');
        this.#server.on('error', (error) =>
          this.#context.announcer.fault(systemError('accept a connection on', path, base, error)),
        );
        resolve();
      });
    });
  }

  /** Connects to everybody who is visible, and waits for their answers. */
  async #connectAll(signal: AbortSignal | undefined): Promise<void> {
    const { native, clock, limits } = this.#context;
    for (const { incarnation, alive, staged } of scan(native, this.folder)) {
      // One that is still staged will see us, since we are visible.
      if (incarnation === this.incarnation || !alive || staged) continue;
      if (this.#sessions.known(incarnation) !== undefined) continue;
      this.#sessions.awaited.add(incarnation);
      this.#connector.attempt(this.#sessions.begin(incarnation));
    }
    await this.#sessions.awaited.wait(clock, limits.joinWait, signal);
  }

  /** From now on events are delivered, beginning with those of the join. */
  #start(base: string, domain: string): void {
    const { native, announcer } = this.#context;
    this.ref(false);
    for (const { folder, layout, members } of otherLayouts(native, base, domain)) {
      const many = members !== 1;
      announcer.fault(
        new MillraceError(
          'ERR_LAYOUT_VERSION',
          `${members} member${many ? 's' : ''} of the domain ${JSON.stringify(domain)} use${many ? '' : 's'} another version of ` +
            `millrace (layout ${layout}, in ${folder}). They and this one cannot see each other; use one version.`,
          { details: { folder, layout, members } },
        ),
      );
    }
    announcer.open();
  }

  // ---- leaving -----------------------------------------------------------------------------------------------------------

  async #leave(): Promise<void> {
    this.#context.announcer.end();
    this.#strangers.clear();
    this.#server.close();
    await this.#farewell(this.#sessions.end());
    this.#vanish();
  }

  /**
   * Says goodbye, and waits until each peer has ended its side: then our SRQ is out of its destination lists, so that closing
   * it costs nobody a lane.
   */
  #farewell(open: readonly ControlConnection[]): Promise<void> {
    if (open.length === 0) return Promise.resolve();
    const { clock, limits } = this.#context;
    const goodbye = encodeFrame({ type: 'goodbye' });
    return new Promise((resolve) => {
      const waiting = new Set(open);
      // A peer that is stopped does not answer; it finds our lock free when it goes on.
      const cancel = clock.after(limits.leaveWait, resolve);
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
    const { native, handle, registration, announcer } = this.#context;
    announcer.end();
    this.#forgetExit();
    this.#strangers.clear();
    this.#sessions.clear();
    this.#server.removeAllListeners('error').on('error', () => {});
    this.#server.close();
    try {
      native.close(handle);
    } catch {
      // Nothing of it can be used any more, whatever the reason.
    }
    registration.remove();
  }
}

function removed(folder: string, attempts: number): MillraceError {
  return new MillraceError(
    'ERR_REGISTRY',
    `Could not join in ${folder}: its files were removed ${attempts} times while they were made. ` +
      'Look for a program that deletes them.',
  );
}
