import { MillraceError } from '../errors.js';
import { nativeError } from '../native/faults.js';
import type { Context } from './context.js';
import { type ControlMessage, encodeFrame, MalformedFrame } from './framing.js';
import { bytes, count, parseRefusal } from './handshake.js';
import type { Peer } from './peer.js';
import type { Sessions } from './sessions.js';

/** An acknowledgement is due after so many messages, or so many bytes. */
const ACK_MESSAGES = 32;
const ACK_BYTES = 64 * 1024;
/** Characters of base64 in a tunnel message; a frame's limit is what counts. */
const MAX_TUNNEL = 1024 * 1024;

/** The messages of sessions: sent again after a reconnection until they are acknowledged, each taken once, in order. */
export class Mail {
  constructor(
    private readonly context: Context,
    private readonly sessions: Sessions,
  ) {}

  /** Sends a message of the session, and keeps it until it is acknowledged. */
  post(peer: Peer, frame: Buffer): void {
    if (peer.gone) return;
    peer.outbox.push(frame);
    if (peer.outbox.bytes > this.context.limits.backlog) {
      // Not from within the caller's send(): it may be walking over its peers.
      setImmediate(() => this.#overflowed(peer));
    }
    peer.connection?.send(frame);
  }

  /** A message of an established connection, of `size` bytes. @throws MalformedFrame */
  receive(peer: Peer, message: ControlMessage, size: number): void {
    if (peer.gone || this.sessions.ended) return;
    switch (message.type) {
      case 'ack':
        if (!peer.outbox.acknowledge(count(message, 'received'))) {
          throw new MalformedFrame('it acknowledges what was not sent');
        }
        return;
      case 'refuse': {
        const { message: text } = parseRefusal(message);
        const words = `The member ${JSON.stringify(peer.info?.name)} refused this one: ${text}.`;
        this.context.announcer.faultOf(peer, 'ERR_PEER_REFUSED', words);
        this.sessions.block(peer, text);
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
      this.sessions.goodbye(peer);
      return;
    }
    this.#acknowledge(peer);
    const { info } = peer;
    if (data !== undefined) this.#tunnelled(peer, data);
    else if (info !== undefined) {
      this.context.announcer.emit((events) => events.message(info, message.type, message.body));
    }
  }

  #tunnelled(peer: Peer, data: Uint8Array): void {
    const { native, handle, announcer } = this.context;
    try {
      native.tunnel(handle, peer.index, data);
    } catch (error) {
      announcer.fault(nativeError('take a message of the transport', native, error));
    }
  }

  /** Says how much was received, now and then. */
  #acknowledge(peer: Peer): void {
    if (peer.received - peer.acknowledged < ACK_MESSAGES && peer.unacknowledgedBytes < ACK_BYTES) return;
    peer.acknowledged = peer.received;
    peer.unacknowledgedBytes = 0;
    peer.connection?.send(encodeFrame({ type: 'ack', received: peer.received }));
  }

  #overflowed(peer: Peer): void {
    const { announcer, limits } = this.context;
    if (peer.gone || this.sessions.ended || peer.outbox.bytes <= limits.backlog) return;
    const text = `${peer.outbox.bytes} bytes of control messages wait for it, the limit is ${limits.backlog}: it does not read`;
    const message = `The member ${JSON.stringify(peer.info?.name)} was disconnected: ${text}. It is connected again when it reads.`;
    announcer.fault(
      new MillraceError('ERR_CONTROL_BACKLOG', message, { details: { bytes: peer.outbox.bytes } }),
    );
    this.sessions.drop(peer, 'refused', text);
    this.sessions.examine(this.sessions.begin(peer.incarnation));
  }
}
