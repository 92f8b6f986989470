import * as net from 'node:net';
import { MillraceError } from '../errors.js';
import { nativeError } from '../native/faults.js';
import { ControlConnection } from './connection.js';
import type { Context } from './context.js';
import { type ControlMessage, encodeFrame, MalformedFrame } from './framing.js';
import {
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
import type { Mail } from './mail.js';
import type { Peer } from './peer.js';
import { isAlive } from './registry.js';
import type { Sessions } from './sessions.js';

/** Malformed messages in a session, each on a new connection, until a peer is given up. */
const MAX_MALFORMED = 3;

/** Makes the connections of sessions: ours to others, and others' to us, so that one of them stays. */
export class Connector {
  constructor(
    private readonly context: Context,
    private readonly sessions: Sessions,
    private readonly mail: Mail,
    /** Whether connections hold the event loop. */
    private readonly referenced: () => boolean,
  ) {}

  /** Connects to a peer that is not connected. */
  attempt(peer: Peer): void {
    if (this.sessions.ended || !peer.idle) return;
    let path: string;
    try {
      this.#reserve(peer);
      path = this.context.registration.socketAddress(peer.incarnation);
    } catch (error) {
      this.context.announcer.faultOf(peer, 'ERR_PEER_REFUSED', (error as Error).message, error);
      this.sessions.settle(peer);
      this.sessions.examine(peer);
      return;
    }
    const connection = new ControlConnection(net.connect({ path }), {
      message: (_, message, size) => this.#answered(peer, connection, message, size),
      closed: (_, reason) => this.closed(peer, connection, reason),
    });
    connection.ref(this.referenced());
    peer.attempt = connection;
    connection.send(encodeFrame(greet('hello', { ...this.#greeting(peer), yourSession: peer.theirSession })));
  }

  /** A hello arrived. @returns the peer if the connection is now its own @throws MalformedFrame */
  helloed(connection: ControlConnection, message: ControlMessage): Peer | undefined {
    const { native, registration, announcer } = this.context;
    if (versionOf(message) !== PROTOCOL) {
      const text = `this member speaks version ${PROTOCOL} of the control protocol, the hello is of version ${versionOf(message)}`;
      refuse(connection, REFUSAL.VERSION, text);
      const name = String(message.name).slice(0, MAX_NAME);
      const words = `The member ${JSON.stringify(name)} was refused: ${text}.`;
      announcer.fault(new MillraceError('ERR_PROTOCOL_VERSION', words));
      return undefined;
    }
    const hello = parseHello(message);
    const { folder, incarnation } = registration;
    let peer = this.sessions.known(hello.incarnation);
    if (hello.incarnation === incarnation || !isAlive(native, folder, hello.incarnation)) {
      const text = `the member ${hello.incarnation} holds no presence lock in ${folder}`;
      refuse(connection, REFUSAL.UNREGISTERED, text);
      return undefined;
    }
    if (peer?.blocked === true) {
      refuse(connection, REFUSAL.PROTOCOL, 'it was given up after what it sent');
      return undefined;
    }
    const verdict = judge(incarnation, hello, peer);
    if (verdict === 'duplicate') {
      refuse(connection, REFUSAL.DUPLICATE, 'another connection between the two stays');
      return undefined;
    }
    if (verdict === 'session') {
      refuse(connection, REFUSAL.SESSION, 'that session is over');
      return undefined;
    }
    if (verdict === 'renew' && peer !== undefined) {
      this.sessions.drop(peer, 'refused', 'it disconnected this member and begins anew');
      peer = undefined;
    }
    peer ??= this.sessions.begin(hello.incarnation);
    if (!peer.outbox.acknowledge(hello.received)) throw wrongCount(hello, peer);
    peer.attempt?.destroy();
    peer.attempt = undefined;
    peer.connection?.destroy();
    peer.connection = undefined;
    try {
      this.#reserve(peer);
    } catch (error) {
      const text = (error as Error).message;
      refuse(connection, REFUSAL.RESOURCES, text);
      const words = `The member ${JSON.stringify(hello.name)} was refused: ${text}`;
      announcer.faultOf(peer, 'ERR_PEER_REFUSED', words, error);
      this.sessions.examine(peer);
      return undefined;
    }
    peer.established = Math.max(peer.established, hello.established) + 1;
    return this.#establish(peer, connection, hello, true) ? peer : undefined;
  }

  /** A connection of a peer is over. */
  closed(peer: Peer, connection: ControlConnection, reason: unknown): void {
    if (peer.gone || (peer.connection !== connection && peer.attempt !== connection)) return;
    if (peer.connection === connection) peer.connection = undefined;
    else peer.attempt = undefined;
    if (reason instanceof MalformedFrame) {
      peer.malformed += 1;
      const { info, incarnation } = peer;
      const name = `The member ${info === undefined ? incarnation : JSON.stringify(info.name)}`;
      this.context.announcer.malformed(name, reason);
      if (peer.malformed >= MAX_MALFORMED) {
        const text = `it sent malformed messages ${MAX_MALFORMED} times: ${reason.message}`;
        this.sessions.block(peer, text);
        return;
      }
    } else if (reason instanceof MillraceError) this.context.announcer.fault(reason as MillraceError);
    this.sessions.examine(peer);
  }

  /** A message on a connection that we made. @throws MalformedFrame */
  #answered(peer: Peer, connection: ControlConnection, message: ControlMessage, size: number): void {
    if (peer.connection === connection) {
      this.mail.receive(peer, message, size);
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

  /** Both have greeted each other: the connection is the session's. @returns false when the transport refused the peer */
  #establish(peer: Peer, connection: ControlConnection, greeting: Greeting, answer: boolean): boolean {
    const { native, handle, announcer } = this.context;
    if (peer.info === undefined) {
      try {
        native.connect(handle, peer.index, peer.incarnation, greeting.offer);
      } catch (thrown) {
        const error = nativeError(`connect to the member ${JSON.stringify(greeting.name)}`, native, thrown);
        refuse(connection, REFUSAL.PROTOCOL, error.message);
        announcer.faultOf(peer, 'ERR_PEER_REFUSED', error.message, error);
        this.sessions.block(peer, error.message);
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
    this.sessions.settle(peer);
    if (answer) connection.send(encodeFrame(greet('welcome', this.#greeting(peer))));
    for (const frame of peer.outbox.unacknowledged()) connection.send(frame);
    this.sessions.established(peer, greeting);
    return true;
  }

  /** Reserves what the transport needs for a peer. @throws MillraceError */
  #reserve(peer: Peer): void {
    if (peer.index >= 0) return;
    const { native, handle } = this.context;
    try {
      const { peer: index, offer } = native.offer(handle);
      peer.index = index;
      peer.offer = offer;
    } catch (error) {
      throw nativeError(`make room for the member ${peer.incarnation}`, native, error);
    }
  }

  #greeting(peer: Peer): Greeting {
    return {
      incarnation: this.context.registration.incarnation,
      name: this.context.name,
      pid: process.pid,
      offer: peer.offer,
      session: peer.session,
      established: peer.established,
      received: peer.received,
    };
  }

  /** A peer refused us. */
  #refused(peer: Peer, message: ControlMessage): void {
    const { code, message: text } = parseRefusal(message);
    const words = `The member ${peer.incarnation} refused this one: ${text}.`;
    switch (code) {
      case REFUSAL.DUPLICATE:
        break;
      case REFUSAL.SESSION:
        this.sessions.drop(peer, 'refused', 'it disconnected this member');
        this.attempt(this.sessions.begin(peer.incarnation));
        return;
      case REFUSAL.VERSION:
      case REFUSAL.PROTOCOL:
        this.context.announcer.faultOf(peer, 'ERR_PEER_REFUSED', words);
        this.sessions.block(peer, text);
        return;
      default:
        this.context.announcer.faultOf(peer, 'ERR_PEER_REFUSED', words);
        this.sessions.settle(peer);
    }
    this.sessions.examine(peer);
  }

  #otherVersion(peer: Peer, version: number): void {
    const text = `it speaks version ${version} of the control protocol, and this member version ${PROTOCOL}`;
    const words = `The member ${peer.incarnation} cannot be used: ${text}.`;
    this.context.announcer.faultOf(peer, 'ERR_PROTOCOL_VERSION', words);
    this.sessions.block(peer, text);
  }
}

function refuse(connection: ControlConnection, code: string, message: string): void {
  connection.finish(encodeFrame({ type: 'refuse', code, message }));
}

function wrongCount(greeting: Greeting, peer: Peer): MalformedFrame {
  return new MalformedFrame(`it states ${greeting.received} received messages, of ${peer.outbox.sent}`);
}
