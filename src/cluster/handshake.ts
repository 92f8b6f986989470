import { type ControlMessage, MalformedFrame } from './framing.js';
import { isIncarnation } from './paths.js';

/**
 * The first messages of a control connection, and the rule that tells which of two connections between the same members
 * stays. Pure.
 *
 * A *session* is what two members share from one `peerUp` to its `peerDown`. It outlives connections: each side numbers the
 * sessions that it begins, and a hello names both numbers, so that a connection is made anew for the session it belongs to
 * and what was not received is sent again. `established` counts the connections of a session, which tells a connection
 * that was lost on one side only from a second attempt that is late.
 */

/** Version of the control protocol. */
export const PROTOCOL = 1;
/** The longest member name, in UTF-16 units. */
export const MAX_NAME = 256;
/** The longest offer, in characters of base64. */
const MAX_OFFER = 64 * 1024;

/** What both sides say of themselves. */
export interface Greeting {
  readonly incarnation: number;
  readonly name: string;
  readonly pid: number;
  /** What the transport of the other one needs to connect; opaque here. */
  readonly offer: Uint8Array;
  /** The sender's number of the session. */
  readonly session: number;
  /** Connections that this session has had. */
  readonly established: number;
  /** Messages of the session that the sender of this greeting has received. */
  readonly received: number;
}

/** The first message of whoever connects. */
export interface Hello extends Greeting {
  /** The receiver's number of the session; 0 for a new one. */
  readonly yourSession: number;
}

/** Why a connection is not made. */
export const REFUSAL = {
  /** Another connection between the two stays. */
  DUPLICATE: 'duplicate',
  /** The session that the hello names is over. */
  SESSION: 'session',
  /** Whoever says hello has no presence lock here. */
  UNREGISTERED: 'unregistered',
  /** Other version of the protocol. */
  VERSION: 'version',
  /** This member has no room for a further peer now. */
  RESOURCES: 'resources',
  /** The transport cannot use the offer, or the peer sent malformed messages again and again. */
  PROTOCOL: 'protocol',
} as const;

/** The message that ends a connection with a reason. */
export interface Refusal {
  readonly code: string;
  readonly message: string;
}

/** Encodes a greeting as a message. */
export function greet(type: 'hello', hello: Hello): ControlMessage;
export function greet(type: 'welcome', welcome: Greeting): ControlMessage;
export function greet(type: string, greeting: Greeting): ControlMessage {
  return { type, v: PROTOCOL, ...greeting, offer: Buffer.from(greeting.offer).toString('base64') };
}

/** The version that a hello or welcome states. It is looked at before anything else of it. */
export function versionOf(message: ControlMessage): number {
  return count(message, 'v');
}

/** Checks a hello of this version. @throws MalformedFrame */
export function parseHello(message: ControlMessage): Hello {
  return { ...parseGreeting(message), yourSession: count(message, 'yourSession') };
}

/** Checks a hello or welcome of this version. @throws MalformedFrame */
export function parseGreeting(message: ControlMessage): Greeting {
  const { incarnation, name } = message;
  if (!isIncarnation(incarnation))
    throw new MalformedFrame(`the incarnation of a ${message.type} is not one`);
  if (typeof name !== 'string' || name.length > MAX_NAME) {
    throw new MalformedFrame(`the name in a ${message.type} is not a string of at most ${MAX_NAME}`);
  }
  const session = count(message, 'session');
  if (session === 0) throw new MalformedFrame(`a ${message.type} has session 0`);
  return {
    incarnation,
    name,
    pid: count(message, 'pid'),
    offer: bytes(message, 'offer', MAX_OFFER),
    session,
    established: count(message, 'established'),
    received: count(message, 'received'),
  };
}

/** Checks a refusal. Never throws: the connection is over anyway. */
export function parseRefusal(message: ControlMessage): Refusal {
  const text = (value: unknown, limit: number) => (typeof value === 'string' ? value.slice(0, limit) : '?');
  return { code: text(message.code, 64), message: text(message.message, 1000) };
}

/** A field that is a whole number >= 0. @throws MalformedFrame */
export function count(message: ControlMessage, field: string): number {
  const value = message[field];
  if (!Number.isSafeInteger(value) || (value as number) < 0) {
    throw new MalformedFrame(`the field ${field} of a ${message.type} is not a whole number`);
  }
  return value as number;
}

/** A field that holds bytes as base64, strictly. @throws MalformedFrame */
export function bytes(message: ControlMessage, field: string, limit: number): Buffer {
  const value = message[field];
  if (
    typeof value !== 'string' ||
    value.length > limit ||
    value.length % 4 !== 0 ||
    !/^[A-Za-z0-9+/]*={0,2}$/.test(value)
  ) {
    throw new MalformedFrame(
      `the field ${field} of a ${message.type} is not base64 of at most ${limit} characters`,
    );
  }
  return Buffer.from(value, 'base64');
}

/** What is known of the peer that says hello. */
export interface Known {
  readonly session: number;
  /** Its number of the session; 0 until it has said one. */
  readonly theirSession: number;
  readonly established: number;
  /** There is a connection that works, as far as we know. */
  readonly connected: boolean;
  /** We are connecting to it ourselves. */
  readonly attempting: boolean;
}

/**
 * What to do with a hello:
 * - `accept`: it is the connection of the session (a new session, if nothing is known of the peer)
 * - `replace`: so it is, and the one we have is a dead end that we have not noticed yet
 * - `renew`: the peer has ended the session that we know; end it here as well, then accept
 * - `duplicate`: refuse it, another connection stays. Of two attempts at once, that of the lower incarnation does.
 * - `session`: refuse it, it belongs to a session that we have ended
 */
export type Verdict = 'accept' | 'replace' | 'renew' | 'duplicate' | 'session';

/** See {@link Verdict}. */
export function judge(own: number, hello: Hello, known: Known | undefined): Verdict {
  if (known === undefined) return hello.yourSession === 0 ? 'accept' : 'session';
  if (hello.yourSession !== 0 && hello.yourSession !== known.session) return 'session';
  if (known.theirSession !== 0 && hello.session !== known.theirSession) {
    // Sessions are numbered upwards, so a lower number is a connection that was made before, and is late.
    return hello.session > known.theirSession ? 'renew' : 'duplicate';
  }
  if (known.connected) return hello.established >= known.established ? 'replace' : 'duplicate';
  if (known.attempting && own < hello.incarnation) return 'duplicate';
  return 'accept';
}
