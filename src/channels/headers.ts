import { MillraceTypeError } from '../errors.js';
import type { MessageAt } from './subscription.js';
import type { Headers } from './types.js';

/** Headers travel as JSON in front of the payload, padded with spaces to a multiple of 8 so that the payload stays aligned. */

const NO_HEADERS: Headers = Object.freeze({});
const utf8 = new TextEncoder();

/** Checks what a caller gave. @throws MillraceTypeError ERR_INVALID_OPTION */
export function checkHeaders(call: string, headers: unknown): Headers | undefined {
  if (headers === undefined) return undefined;
  if (typeof headers !== 'object' || headers === null) {
    throw new MillraceTypeError('ERR_INVALID_OPTION', `${call}: headers must be an object of strings.`);
  }
  for (const [name, value] of Object.entries(headers)) {
    if (typeof value === 'string') continue;
    throw new MillraceTypeError(
      'ERR_INVALID_OPTION',
      `${call}: header ${JSON.stringify(name)} must be a string, not ${typeof value}.`,
    );
  }
  return headers as Headers;
}

/** Writes headers. @returns their bytes, or -1 if they do not fit */
export function writeHeaders(headers: Headers, target: Uint8Array, start: number, limit: number): number {
  const bytes = utf8.encode(JSON.stringify(headers));
  const padded = (bytes.length + 7) & ~7;
  if (padded > limit || padded > 0xffff) return -1;
  target.set(bytes, start);
  target.fill(0x20, start + bytes.length, start + padded);
  return padded;
}

/** Reads headers; what a peer sends that is not an object of strings counts as none (I9). */
export function readHeaders(at: MessageAt): Headers {
  if (at.headersEnd === at.headersStart) return NO_HEADERS;
  try {
    const text = Buffer.from(at.bytes.buffer, at.headersStart, at.headersEnd - at.headersStart).toString(
      'utf8',
    );
    const parsed = JSON.parse(text) as unknown;
    if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return NO_HEADERS;
    const entries = Object.entries(parsed).filter(
      (entry): entry is [string, string] => typeof entry[1] === 'string',
    );
    return Object.freeze(Object.fromEntries(entries));
  } catch {
    return NO_HEADERS;
  }
}
