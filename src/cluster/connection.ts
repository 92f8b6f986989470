import type { Socket } from 'node:net';
import { type ControlMessage, FrameDecoder } from './framing.js';

/** What a connection tells its owner. Neither is called after {@link ControlConnection.destroy}. */
export interface ConnectionEvents {
  /** A message arrived, of `size` bytes. What this throws ends the connection, with that as its reason. */
  message(connection: ControlConnection, message: ControlMessage, size: number): void;
  /** It is over. `reason`: a MalformedFrame, an error of the system, or nothing when the other side ended it. */
  closed(connection: ControlConnection, reason: unknown): void;
}

/** A control connection: a Unix stream socket with frames on it. Frames of one turn leave in one system call. */
export class ControlConnection {
  private readonly decoder = new FrameDecoder();
  private corked = false;
  private over = false;
  private reason: unknown;

  /** Takes over a socket, connected or not yet. */
  constructor(
    private readonly socket: Socket,
    private readonly events: ConnectionEvents,
  ) {
    socket.on('data', (chunk: Buffer) => this.receive(chunk));
    socket.on('error', (error) => {
      this.reason ??= error;
    });
    socket.on('close', () => this.close());
  }

  /** Calls `action` when it is over, whatever the owner was told. At once when it is over already. */
  whenClosed(action: () => void): void {
    if (this.socket.closed) action();
    else this.socket.once('close', action);
  }

  /** Bytes that were sent and that the kernel has not taken yet. */
  get unsent(): number {
    return this.socket.writableLength;
  }

  /**
   * Sends a frame; it must not be changed afterwards. Does nothing once the connection is over.
   *
   * What has arrived is read first: writing to a peer that has said goodbye and closed fails, and a failed write takes the
   * socket away together with the goodbye that nobody has read yet. Then a peer that left would pass for dead. Only what is
   * `prompt` goes at the end of this tick.
   */
  send(frame: Buffer, prompt = false): void {
    if (this.over || !this.socket.writable) return;
    if (!this.corked) {
      this.corked = true;
      this.socket.cork();
      // Two turns: whatever phase of the event loop this is, it looks for what has arrived in between.
      setImmediate(setImmediate, this.uncork);
    }
    this.socket.write(frame);
    if (prompt) process.nextTick(this.uncork);
  }

  /** Sends what is waiting, then says that nothing more comes. `closed` follows when the other side has ended as well. */
  end(): void {
    if (!this.over) this.socket.end();
  }

  /** Ends it at once, without a further event. Frames that the kernel has taken still arrive. Idempotent. */
  destroy(): void {
    this.over = true;
    this.decoder.stop();
    this.socket.destroy();
  }

  /** Sends what the kernel takes of a last frame, then ends it without a further event. */
  finish(frame: Buffer): void {
    this.send(frame);
    this.over = true;
    this.decoder.stop();
    // The other side ends as well when it reads the end; one that does not read must not keep the descriptor for ever.
    this.socket.end(() => this.socket.destroy());
  }

  /** Whether it holds the event loop. */
  ref(on: boolean): void {
    if (on) this.socket.ref();
    else this.socket.unref();
  }

  private readonly uncork = (): void => {
    if (!this.corked) return;
    this.corked = false;
    this.socket.uncork();
  };

  private receive(chunk: Buffer): void {
    try {
      this.decoder.push(chunk, (message, size) => this.events.message(this, message, size));
    } catch (error) {
      this.decoder.stop();
      this.reason ??= error;
      this.socket.destroy();
    }
  }

  private close(): void {
    if (this.over) return;
    this.over = true;
    this.decoder.stop();
    this.events.closed(this, this.reason);
  }
}
