import type { Socket } from 'node:net';
import { ControlConnection } from './connection.js';
import type { Connector } from './connector.js';
import type { Context } from './context.js';
import { encodeFrame, MalformedFrame } from './framing.js';
import type { Mail } from './mail.js';
import type { Peer } from './peer.js';

/** Connections that have not said who they are; one more, and the oldest is dropped. */
const MAX_STRANGERS = 256;
/** Bytes waiting for an inspector that does not read. */
const MAX_UNREAD = 4 * 1024 * 1024;

/** Whoever connects to this member. The first message tells who it is: a member, or an inspector (`millrace ls`). */
export class Strangers {
  /** Oldest first. */
  readonly #connections = new Set<ControlConnection>();

  constructor(
    private readonly context: Context,
    private readonly connector: Connector,
    private readonly mail: Mail,
    /** What `millrace ls` shows of this member. */
    private readonly inspect: (() => unknown) | undefined,
  ) {}

  get connections(): Iterable<ControlConnection> {
    return this.#connections;
  }

  /** Somebody connected. `hold`: its connection holds the event loop. */
  greet(socket: Socket, hold: boolean): void {
    let peer: Peer | undefined;
    const connection: ControlConnection = new ControlConnection(socket, {
      message: (_, message, size) => {
        if (peer !== undefined) {
          if (peer.connection === connection) this.mail.receive(peer, message, size);
        } else if (message.type === 'inspect') this.#answer(connection);
        else if (message.type === 'hello') {
          this.#connections.delete(connection);
          peer = this.connector.helloed(connection, message);
        } else throw new MalformedFrame(`the first message is a ${message.type}`);
      },
      closed: (_, reason) => {
        this.#connections.delete(connection);
        if (peer !== undefined) this.connector.closed(peer, connection, reason);
        else if (reason instanceof MalformedFrame)
          this.context.announcer.malformed('Somebody unknown', reason);
      },
    });
    connection.ref(hold);
    const [oldest] = this.#connections;
    if (oldest !== undefined && this.#connections.size >= MAX_STRANGERS) this.#drop(oldest);
    this.#connections.add(connection);
  }

  /** Drops them all. */
  clear(): void {
    for (const connection of this.#connections) this.#drop(connection);
  }

  #drop(connection: ControlConnection): void {
    this.#connections.delete(connection);
    connection.destroy();
  }

  /** Answers `millrace ls`. */
  #answer(connection: ControlConnection): void {
    if (connection.unsent > MAX_UNREAD) {
      this.#drop(connection);
      return;
    }
    const { name, registration } = this.context;
    const member = { incarnation: registration.incarnation, name, pid: process.pid };
    try {
      connection.send(encodeFrame({ type: 'inspected', member, body: this.inspect?.() ?? null }));
    } catch (thrown) {
      const error = (thrown instanceof Error ? thrown.message : String(thrown)).slice(0, 1000);
      connection.send(encodeFrame({ type: 'inspected', member, body: null, error }));
    }
  }
}
