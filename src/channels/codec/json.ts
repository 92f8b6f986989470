import { isUtf8 } from 'node:buffer';
import {
  type Codec,
  CodecError,
  checkPayload,
  checkTarget,
  type DecodeLimits,
  kindOf,
  standalone,
} from './codec.js';
import { sources, targets } from './view.js';

/** JSON.stringify, with its own refusals told apart from what the value's code throws; null if no string is that long. */
function textOf(value: unknown): string | null {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    if (
      error instanceof TypeError &&
      /^(Converting circular structure|Do not know how to serialize a BigInt)/.test(error.message)
    ) {
      throw new CodecError('ERR_CODEC_VALUE', `json: ${error.message.split('\n', 1)[0]}`, { cause: error });
    }
    if (error instanceof RangeError && /call stack/.test(error.message)) {
      throw new CodecError('ERR_CODEC_LIMIT', 'json: the value is nested too deeply', { cause: error });
    }
    if (error instanceof RangeError && /Invalid string length/.test(error.message)) return null;
    throw error;
  }
  if (text === undefined) {
    throw new CodecError(
      'ERR_CODEC_VALUE',
      `json: ${kindOf(value)} has no form in JSON; publish null instead`,
    );
  }
  return text;
}

/** Refuses nesting beyond the limit before the parser builds anything. Strings are skipped, so their brackets don't count. */
function checkDepth(source: Uint8Array, start: number, end: number, limits: DecodeLimits): void {
  // A nesting of n needs n brackets, so short payloads need no look.
  if (end - start <= limits.depth) return;
  let depth = 0;
  let quoted = false;
  for (let i = start; i < end; i++) {
    const byte = source[i]!;
    if (quoted) {
      if (byte === 0x5c) i++;
      else if (byte === 0x22) quoted = false;
    } else if (byte === 0x22) quoted = true;
    else if (byte === 0x5b || byte === 0x7b) {
      if (++depth > limits.depth) {
        throw new CodecError('ERR_CODEC_LIMIT', `json: nesting exceeds the limit of ${limits.depth}`, {
          details: { limit: limits.depth },
        });
      }
    } else if (byte === 0x5d || byte === 0x7d) depth--;
  }
}

/** JSON as UTF-8. What JSON has no form for is lost or refused as JSON.stringify does it. */
export const json: Codec<unknown> = standalone(
  'json',
  'json',
  (value, target, start, end) => {
    checkTarget('json', target, start, end);
    const text = textOf(value);
    if (text === null) return -1;
    const room = end - start;
    // A UTF-16 unit becomes at most three bytes; only a text that might not fit is measured.
    if (text.length > room || (text.length * 3 > room && Buffer.byteLength(text) > room)) return -1;
    return start + targets.buffer(target).write(text, start, room, 'utf8');
  },
  (source, start, end, limits) => {
    checkPayload('json', source, start, end, limits);
    checkDepth(source, start, end, limits);
    const view = sources.buffer(source);
    const text = view.toString('utf8', start, end);
    // What is not UTF-8 turns into U+FFFD, which a text may also have by right.
    if (text.includes('\ufffd') && !isUtf8(view.subarray(start, end))) {
      throw new CodecError('ERR_CODEC_MALFORMED', 'json: the payload is not UTF-8');
    }
    try {
      return JSON.parse(text) as unknown;
    } catch (error) {
      throw new CodecError('ERR_CODEC_MALFORMED', `json: ${(error as Error).message}`, { cause: error });
    }
  },
);
