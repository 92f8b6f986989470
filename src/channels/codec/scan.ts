import { CodecError, type DecodeLimits } from './codec.js';
import { SHARED_RECORDS } from './definitions.js';

/** Record numbers of definitions that stand inside a message follow the shared ones. */
export const INLINE_RECORDS = 64;

/** Element sizes of msgpackr's typed-array codes 0 to 10; 16 and 17 are ArrayBuffer and DataView. */
const ELEMENT_BYTES = [1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8];
const PLAIN: readonly string[] = Object.getOwnPropertyNames(Object.prototype);

const truncated = (at: number) =>
  new CodecError('ERR_CODEC_MALFORMED', `msgpackr: the payload ends inside a value (byte ${at})`);
const malformed = (what: string, at: number) =>
  new CodecError('ERR_CODEC_MALFORMED', `msgpackr: ${what} (byte ${at})`);

/**
 * Walks over one MessagePack value without building anything, and accepts exactly what our encoder writes: a payload
 * that passes cannot make the unpacker read outside of it, recurse deeper than the limit, allocate more than in
 * proportion to its bytes, or meet a record that is not defined. It costs a few nanoseconds a value, and the
 * unpacker has no such bounds of its own: an undefined record, for example, silently becomes a small number.
 *
 * The same walk runs over what the encoder wrote, so that what is sent can be decoded: a getter that changes its
 * object between the keys and the values, say, is noticed by the publisher and not by every subscriber.
 */
export class Scanner {
  /** Number of fields of each record, -1 where there is no definition. The first SHARED_RECORDS are the owner's to set. */
  readonly fields = new Int32Array(SHARED_RECORDS + INLINE_RECORDS).fill(-1);
  readonly #limits: DecodeLimits;
  readonly #stack: Int32Array;
  #inline = 0;

  constructor(limits: DecodeLimits) {
    this.#limits = limits;
    this.#stack = new Int32Array(limits.depth);
  }

  /** @throws CodecError unless `bytes[start..end)` is exactly one value within the limits. */
  scan(bytes: Uint8Array, start: number, end: number): void {
    if (this.#inline > 0) this.#forgetInline();
    const stack = this.#stack;
    const fields = this.fields;
    let at = start;
    let depth = 0;
    // Values still to come at this level.
    let left = 1;
    for (;;) {
      while (left === 0) {
        if (depth === 0) {
          if (at !== end) throw malformed('something follows the value', at);
          return;
        }
        left = stack[--depth]!;
      }
      if (at >= end) throw truncated(at);
      left--;
      const token = bytes[at++]!;
      // Numbers of one byte.
      if (token < 0x40 || token >= 0xe0) continue;
      let children = 0;
      if (token < 0x80) {
        let number = token - 0x40;
        if (number >= 32) {
          if (at >= end) throw truncated(at);
          number += bytes[at++]! << 5;
        }
        const count = number < fields.length ? fields[number]! : -1;
        if (count < 0) {
          throw new CodecError(
            'ERR_CODEC_DEFINITION',
            `msgpackr: the payload uses record ${number}, which its publisher has not defined`,
            { details: { record: number } },
          );
        }
        children = count;
      } else if (token < 0x90) children = (token - 0x80) * 2;
      else if (token < 0xa0) children = token - 0x90;
      else if (token < 0xc0) {
        at += token - 0xa0;
        if (at > end) throw truncated(end);
        continue;
      } else {
        switch (token) {
          case 0xc0:
          case 0xc2:
          case 0xc3:
            continue;
          case 0xcc:
          case 0xd0:
            at += 1;
            break;
          case 0xcd:
          case 0xd1:
            at += 2;
            break;
          case 0xca:
          case 0xce:
          case 0xd2:
            at += 4;
            break;
          case 0xcb:
          case 0xcf:
          case 0xd3:
            at += 8;
            break;
          case 0xc4:
          case 0xd9:
            if (at >= end) throw truncated(at);
            at += 1 + bytes[at]!;
            break;
          case 0xc5:
          case 0xda:
            if (at + 2 > end) throw truncated(at);
            at += 2 + ((bytes[at]! << 8) | bytes[at + 1]!);
            break;
          case 0xc6:
          case 0xdb:
            if (at + 4 > end) throw truncated(at);
            at += 4 + u32(bytes, at);
            break;
          case 0xdc:
          case 0xde:
            if (at + 2 > end) throw truncated(at);
            children = ((bytes[at]! << 8) | bytes[at + 1]!) << (token - 0xdc === 0 ? 0 : 1);
            at += 2;
            break;
          case 0xdd:
          case 0xdf:
            if (at + 4 > end) throw truncated(at);
            children = u32(bytes, at) * (token === 0xdd ? 1 : 2);
            at += 4;
            break;
          case 0xc7:
            if (at + 2 > end) throw truncated(at);
            at = this.#extension(bytes, at + 1, bytes[at]!, end);
            break;
          case 0xc8:
            if (at + 3 > end) throw truncated(at);
            at = this.#extension(bytes, at + 2, (bytes[at]! << 8) | bytes[at + 1]!, end);
            break;
          case 0xc9:
            if (at + 5 > end) throw truncated(at);
            at = this.#extension(bytes, at + 4, u32(bytes, at), end);
            break;
          case 0xd4: {
            if (at + 2 > end) throw truncated(at);
            const type = bytes[at]!;
            if (type === 0x00) at += 2;
            else if (type === 0x65 || type === 0x73 || type === 0x78) {
              // Error, Set, RegExp: an array with their content follows.
              at += 2;
              left++;
              this.#content(bytes, at, end, type);
            } else at = this.#extension(bytes, at, 1, end);
            break;
          }
          case 0xd5:
            if (at + 3 > end) throw truncated(at);
            if (bytes[at] === 0x72) {
              at = this.#definition(bytes, at + 1, end);
              children = this.#defined;
            } else at = this.#extension(bytes, at, 2, end);
            break;
          case 0xd6:
          case 0xd7:
          case 0xd8:
            if (at >= end) throw truncated(at);
            at = this.#extension(bytes, at, 4 << (token - 0xd6), end);
            break;
          default:
            throw malformed(`a value cannot begin with 0x${token.toString(16)}`, at - 1);
        }
        if (at > end) throw truncated(end);
        if (children === 0) continue;
      }
      if (children > 0) {
        // Each value takes at least a byte; checked before the unpacker allocates for them.
        if (children > end - at) throw truncated(end);
        if (depth === stack.length) {
          throw new CodecError('ERR_CODEC_LIMIT', `msgpackr: nesting exceeds the limit of ${stack.length}`, {
            details: { limit: stack.length },
          });
        }
        stack[depth++] = left;
        left = children;
      }
    }
  }

  /** `at` is at the type byte, `length` bytes follow it. @returns the position after them */
  #extension(bytes: Uint8Array, at: number, length: number, end: number): number {
    const next = at + 1 + length;
    if (next > end) throw truncated(end);
    const type = bytes[at]!;
    switch (type) {
      case 0xff: // a time; one byte is the invalid date
        if (length === 1 || length === 4 || length === 8 || length === 12) return next;
        break;
      case 0x42: // a big integer
        if (length > 0) return next;
        break;
      case 0x74: {
        if (length === 0) break;
        const code = bytes[at + 1]!;
        const size = code === 16 || code === 17 ? 1 : ELEMENT_BYTES[code];
        if (size !== undefined && (length - 1) % size === 0) return next;
        throw malformed(`a typed array of kind ${code} and ${length - 1} bytes`, at);
      }
    }
    throw malformed(
      `an extension of type ${type} and ${length} bytes is not among those that this codec has`,
      at,
    );
  }

  /** What follows the marks of Error, Set and RegExp must be an array, or the unpacker would misread it. */
  #content(bytes: Uint8Array, at: number, end: number, type: number): void {
    const token = at < end ? bytes[at]! : -1;
    const isArray = (token >= 0x90 && token < 0xa0) || token === 0xdc || token === 0xdd;
    if (!isArray) throw malformed('the content of a Set, Error or RegExp is not an array', at);
    if (type !== 0x65) return;
    // The unpacker looks an Error's name up in a plain object of its own, which must not be handed out.
    const from = at + 1;
    const to = token > 0x90 && token < 0xa0 && from < end ? skipText(bytes, from, end) : -1;
    if (to < 0 || to > end) throw malformed("an Error's name is not a string", at);
    if (to - from <= 32) {
      const text = String.fromCharCode(...bytes.subarray(from, to));
      if (PLAIN.some((name) => text.endsWith(name)))
        throw malformed('an Error has the name of a property of every object', at);
    }
  }

  /** Fields of the definition that #definition just read. */
  #defined = 0;

  /** A definition inside the message: two bytes of number, then an array of keys. @returns the position after the keys */
  #definition(bytes: Uint8Array, from: number, end: number): number {
    const low = bytes[from]!;
    const number = (low & 0x3f) + (bytes[from + 1]! << 5);
    // Shared numbers are immutable, and a message may not touch them.
    if (low < 0x60 || low > 0x7f || number < SHARED_RECORDS || number >= this.fields.length) {
      throw malformed(`a record definition inside a message has the number ${number}`, from);
    }
    if (++this.#inline > this.#limits.records) {
      throw new CodecError(
        'ERR_CODEC_LIMIT',
        `msgpackr: more than ${this.#limits.records} record definitions in one payload`,
        {
          details: { limit: this.#limits.records },
        },
      );
    }
    let at = from + 2;
    if (at >= end) throw truncated(at);
    const token = bytes[at++]!;
    let count: number;
    if (token >= 0x90 && token < 0xa0) count = token - 0x90;
    else if (token === 0xdc && at + 2 <= end) {
      count = (bytes[at]! << 8) | bytes[at + 1]!;
      at += 2;
    } else if (token === 0xdd && at + 4 <= end) {
      count = u32(bytes, at);
      at += 4;
    } else throw malformed("a record definition's keys are not an array", at - 1);
    // Ends at the latest with the payload: each turn takes a byte.
    for (let i = 0; i < count; i++) {
      const next = at < end ? skipText(bytes, at, end) : end + 1;
      if (next < 0) throw malformed("a record definition's key is not a string", at);
      if (next > end) throw truncated(end);
      at = next;
    }
    this.fields[number] = count;
    this.#defined = count;
    return at;
  }

  #forgetInline(): void {
    this.fields.fill(-1, SHARED_RECORDS);
    this.#inline = 0;
  }
}

/** `at` is at the token of a string. @returns the position after the string, which may lie beyond `end`; -1: no string */
function skipText(bytes: Uint8Array, at: number, end: number): number {
  const token = bytes[at]!;
  if (token >= 0xa0 && token < 0xc0) return at + 1 + token - 0xa0;
  if (token === 0xd9) return at + 2 > end ? end + 1 : at + 2 + bytes[at + 1]!;
  if (token === 0xda) return at + 3 > end ? end + 1 : at + 3 + ((bytes[at + 1]! << 8) | bytes[at + 2]!);
  if (token === 0xdb) return at + 5 > end ? end + 1 : at + 5 + u32(bytes, at + 1);
  return -1;
}

const u32 = (bytes: Uint8Array, at: number): number =>
  bytes[at]! * 0x1000000 + ((bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!);
