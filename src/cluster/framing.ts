import { MillraceError } from '../errors.js';

/**
 * The frames of a control connection: a length (u32, little endian), then that many bytes of UTF-8 JSON, one object with
 * a `type`. Everything here is pure; what comes from a peer is checked before it is used (I9).
 */

/** The largest body of a frame, in bytes. */
export const MAX_FRAME = 1024 * 1024;
/** How deeply the JSON of a frame may nest. */
export const MAX_DEPTH = 64;
/** The longest `type`. */
const MAX_TYPE = 64;
/** Bytes in front of a body. */
const HEADER = 4;

/** One message: a `type` and whatever else belongs to it, all of it unchecked. */
export interface ControlMessage {
  readonly type: string;
  readonly [field: string]: unknown;
}

/**
 * Encodes a message.
 * @returns a buffer that the caller owns
 * @throws MillraceError `ERR_CONTROL_TOO_LARGE` when its JSON exceeds {@link MAX_FRAME}
 */
export function encodeFrame(message: ControlMessage): Buffer {
  const text = JSON.stringify(message);
  const length = Buffer.byteLength(text, 'utf8');
  if (length > MAX_FRAME) {
    throw new MillraceError(
      'ERR_CONTROL_TOO_LARGE',
      `A control message of type ${JSON.stringify(message.type)} takes ${length} bytes, and the limit is ${MAX_FRAME}. ` +
        'Make what it carries smaller (a schema or a list of options, most likely).',
      { details: { type: message.type, bytes: length, limit: MAX_FRAME } },
    );
  }
  const frame = Buffer.allocUnsafe(HEADER + length);
  frame.writeUInt32LE(length, 0);
  frame.write(text, HEADER, 'utf8');
  return frame;
}

/** What is wrong with the bytes of a peer. */
export class MalformedFrame extends Error {
  override readonly name = 'MalformedFrame';
}

/**
 * Cuts a stream of bytes into messages. Holds at most one unfinished frame, hence at most {@link MAX_FRAME} bytes. After
 * the first malformed byte it takes nothing more: what follows has no meaning.
 */
export class FrameDecoder {
  /** The bytes of the unfinished frame: its header as far as it came, or its body. */
  private readonly header = Buffer.alloc(HEADER);
  private headerLength = 0;
  private body: Buffer | undefined;
  private bodyLength = 0;
  private stopped = false;
  private readonly utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

  /** Whether the stream ended at a frame's end. */
  get idle(): boolean {
    return this.headerLength === 0 && this.body === undefined;
  }

  /** Takes nothing more, also within a running {@link push}. */
  stop(): void {
    this.stopped = true;
    this.body = undefined;
  }

  /**
   * Takes the next bytes, and calls `emit` for each message that they complete (and the size of its body), in order.
   * @throws MalformedFrame once; messages before the malformed one were emitted. Also what `emit` throws.
   */
  push(chunk: Uint8Array, emit: (message: ControlMessage, size: number) => void): void {
    let at = 0;
    while (at < chunk.length && !this.stopped) {
      if (this.body === undefined) {
        const taken = Math.min(HEADER - this.headerLength, chunk.length - at);
        this.header.set(chunk.subarray(at, at + taken), this.headerLength);
        this.headerLength += taken;
        at += taken;
        if (this.headerLength < HEADER) return;
        const length = this.header.readUInt32LE(0);
        // Before a single byte is reserved: the length is only a claim.
        if (length === 0 || length > MAX_FRAME) {
          this.refuse(`a frame states ${length} bytes; the limits are 1 and ${MAX_FRAME}`);
        }
        if (chunk.length - at >= length) {
          const whole = chunk.subarray(at, at + length);
          at += length;
          this.headerLength = 0;
          emit(this.parse(whole), whole.length);
          continue;
        }
        this.body = Buffer.allocUnsafe(length);
        this.bodyLength = 0;
      }
      const taken = Math.min(this.body.length - this.bodyLength, chunk.length - at);
      this.body.set(chunk.subarray(at, at + taken), this.bodyLength);
      this.bodyLength += taken;
      at += taken;
      if (this.bodyLength < this.body.length) return;
      const whole = this.body;
      this.body = undefined;
      this.headerLength = 0;
      emit(this.parse(whole), whole.length);
    }
  }

  private refuse(why: string): never {
    this.stop();
    throw new MalformedFrame(why);
  }

  private parse(bytes: Uint8Array): ControlMessage {
    const depth = nesting(bytes);
    if (depth > MAX_DEPTH) this.refuse(`a message nests deeper than ${MAX_DEPTH}`);
    let value: unknown;
    try {
      value = JSON.parse(this.utf8.decode(bytes));
    } catch (error) {
      this.refuse(`a message is not JSON in UTF-8: ${(error as Error).message.slice(0, 80)}`);
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      this.refuse('a message is not an object');
    }
    const { type } = value as { type?: unknown };
    if (!Object.hasOwn(value, 'type') || typeof type !== 'string' || type === '' || type.length > MAX_TYPE) {
      this.refuse(`a message has no type (a string of 1 to ${MAX_TYPE} characters)`);
    }
    if (hasProto(value)) this.refuse('a message has a property named __proto__');
    return value as ControlMessage;
  }
}

/** How deeply brackets nest outside of strings; the bytes need not be JSON. Stops counting beyond the limit. */
function nesting(bytes: Uint8Array): number {
  let depth = 0;
  let most = 0;
  let quoted = false;
  for (let i = 0; i < bytes.length; i += 1) {
    const byte = bytes[i];
    if (quoted) {
      if (byte === 0x5c) i += 1;
      else if (byte === 0x22) quoted = false;
    } else if (byte === 0x22) quoted = true;
    else if (byte === 0x5b || byte === 0x7b) {
      depth += 1;
      if (depth > most) most = depth;
      if (most > MAX_DEPTH) return most;
    } else if (byte === 0x5d || byte === 0x7d) depth -= 1;
  }
  return most;
}

/** Whether a property is named `__proto__`: harmless as parsed, but a later copy by assignment would change a prototype. */
function hasProto(value: object): boolean {
  const open: object[] = [value];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    if (!Array.isArray(next) && Object.hasOwn(next, '__proto__')) return true;
    for (const inner of Object.values(next))
      if (typeof inner === 'object' && inner !== null) open.push(inner);
  }
  return false;
}
