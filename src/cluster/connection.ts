import type { Socket } from 'node:net';
import { type ControlMessage, FrameDecoder } from './framing.js';

/** What a connection tells its owner. Neither is called after {@link ControlConnection.destroy}. */
export interface ConnectionEvents {
  /** A message arrived, of `size` bytes. What this throws ends the connection, with that as its reason. */
  message(connection: ControlConnection, message: ControlMessage, size: number): void;
  /** It is over. `reason`: a MalformedFrame, an error of the system, or nothing when the other side ended it. */
  closed(connection: ControlConnection, reason: unknown): void;
}

/**
 * A control connection: a Unix stream socket with frames on it. Frames of one tick leave in one system call.
 *
 * What the other side has sent is always read to its end, also when writing to it fails: a peer that says goodbye and
 * closes is written to by whoever has not read that yet, and a failed write would take the socket away together with the
 * goodbye. Then a peer that left would pass for dead.
 */
export class ControlConnection {
  private readonly decoder = new FrameDecoder();
  private corked = false;
  private deaf = false;
  private over = false;
  private reason: unknown;

  /** Takes over a socket, connected or not yet. */
  constructor(
    private readonly socket: Socket,
    private readonly events: ConnectionEvents,
  ) {
    readToTheEnd(socket, (error) => {
      this.deaf = true;
      this.reason ??= error;
    });
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

  /** Sends a frame at the end of this tick; it must not be changed afterwards. Does nothing once nobody reads it any more. */
  send(frame: Buffer): void {
    if (this.over || this.deaf || !this.socket.writable) return;
    if (!this.corked) {
      this.corked = true;
      this.socket.cork();
      process.nextTick(this.uncork);
    }
    this.socket.write(frame);
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

/** The other side has closed, or has ended reading. Its own end can then be read, behind all that it has sent. */
const HUNG_UP: readonly unknown[] = ['EPIPE', 'ECONNRESET'];

/**
 * A write that fails since the other side has closed is told, and does not destroy the socket as it usually does: reading
 * goes on, and its end or its error ends the socket. Any other failure to write destroys it.
 */
function readToTheEnd(socket: Socket, failed: (error: Error) => void): void {
  const settle = (done: (error?: Error | null) => void) => (error?: Error | null) => {
    if (!HUNG_UP.includes((error as NodeJS.ErrnoException | null | undefined)?.code)) return done(error);
    failed(error!);
    done();
  };
  const { _write: write, _writev: writev } = socket;
  socket._write = (chunk, encoding, done) => write.call(socket, chunk, encoding, settle(done));
  if (writev !== undefined) socket._writev = (chunks, done) => writev.call(socket, chunks, settle(done));
}
