import { type Codec, CodecError, checkPayload, checkTarget, kindOf, standalone } from './codec.js';
import { sources } from './view.js';

/** Up to this many bytes a loop is faster than a call of `set`. */
const SMALL = 48;

function viewOf(value: unknown): Uint8Array {
  if (value instanceof Uint8Array) return value;
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer || value instanceof SharedArrayBuffer) return new Uint8Array(value);
  const help =
    typeof value === 'string'
      ? `Encode it first: new TextEncoder().encode(text), or open the channel with codec: 'json'.`
      : `Pass a Uint8Array, a Buffer or another view of an ArrayBuffer, or open the channel without a codec option.`;
  throw new CodecError('ERR_CODEC_VALUE', `bytes: ${kindOf(value)} is not a byte array. ${help}`);
}

/**
 * Bytes as they are. Takes any ArrayBufferView or ArrayBuffer; gives a Uint8Array that is a view of the batch the
 * message came in, owned by whoever holds it.
 */
export const bytes: Codec<Uint8Array> = standalone(
  'bytes',
  'bytes',
  (value, target, start, end) => {
    checkTarget('bytes', target, start, end);
    const from = viewOf(value);
    const length = from.length;
    if (length > end - start) return -1;
    if (length > SMALL) target.set(from, start);
    else for (let i = 0, to = start; i < length; ) target[to++] = from[i++]!;
    return start + length;
  },
  (source, start, end, limits) => {
    checkPayload('bytes', source, start, end, limits);
    return new Uint8Array(sources.memory(source), source.byteOffset + start, end - start);
  },
);
