import { CACHED_BYTES, textAt } from './texts.js';
import { sources } from './view.js';

/** The payload is none that this reader takes: it must be looked at by the scanner and msgpackr. */
export const NOT_READ = Symbol('not read');
/** Deeper nesting is left to them, who have the limit. */
const DEEPEST = 32;
/** A position that no payload reaches: whoever reads on from there fails at once, and so does the whole. */
const BEYOND = 0x3fff_ffff;

type Make = (cursor: Cursor) => unknown;
type Makers = (Make | undefined)[];

/**
 * Reads plain data (numbers, texts, booleans, null, undefined, arrays, records that are defined) in one pass, with the same
 * result as msgpackr. A payload with anything else, or with anything wrong, is not read at all: the caller then has it
 * scanned and unpacked, which also finds out what is wrong with it. So what is accepted here is a part of what is accepted
 * there, and no bound is lost: a value costs at least a byte, nothing is read beyond the end, and nesting is bounded.
 */
export class PlainReader {
  readonly #makers: Makers = [];
  readonly #deepest: number;

  /** @param depth the decoder's limit of nesting */
  constructor(depth: number) {
    this.#deepest = Math.min(depth, DEEPEST);
  }

  /** Record `number` has these keys. */
  learn(number: number, keys: readonly string[]): void {
    // As a literal's key it would be the prototype.
    if (!keys.includes('__proto__')) this.#makers[number] = maker(keys);
  }

  /** @returns the value, which takes exactly `source[start..end)`, or NOT_READ */
  read(source: Uint8Array, start: number, end: number): unknown {
    return cursor.read(this.#makers, this.#deepest, source, start, end);
  }
}

const NOTHING = new Uint8Array(0);
const NO_VIEW = new DataView(new ArrayBuffer(0));

/** Lets go of the memory that was read last, where somebody else wants to use it again. */
export const forgetSource = (): void => cursor.forget();

/** The place in what is being read. One for the environment: each holds on to the batch that it read last. */
class Cursor {
  #makers: Makers = [];
  #source: Uint8Array = NOTHING;
  #view: DataView = NO_VIEW;
  #base = 0;
  #at = 0;
  #end = 0;
  #depth = 0;
  #deepest = 0;

  read(makers: Makers, deepest: number, source: Uint8Array, start: number, end: number): unknown {
    if (source !== this.#source) {
      this.#source = source;
      this.#base = source.byteOffset;
    }
    this.#view = sources.data(source);
    this.#makers = makers;
    this.#deepest = deepest;
    this.#at = start;
    this.#end = end;
    this.#depth = 0;
    const value = this.next();
    return this.#at === end ? value : NOT_READ;
  }

  /** Lets go of what was read. */
  forget(): void {
    this.#source = NOTHING;
    this.#view = NO_VIEW;
  }

  /** The next value, for the makers of records. */
  next(): unknown {
    const at = this.#at;
    if (at >= this.#end) return this.#fail();
    const token = this.#source[at]!;
    if (token === 0xcb) {
      if (at + 9 > this.#end) return this.#fail();
      this.#at = at + 9;
      return this.#view.getFloat64(this.#base + at + 1);
    }
    if (token < 0x40) {
      this.#at = at + 1;
      return token;
    }
    if (token >= 0xa0 && token < 0xc0) return this.#text(at + 1, token - 0xa0);
    return this.#other(token, at);
  }

  #fail(): undefined {
    this.#at = BEYOND;
    return undefined;
  }

  #text(from: number, bytes: number): string | undefined {
    const to = from + bytes;
    if (to > this.#end) return this.#fail();
    this.#at = to;
    const source = this.#source;
    const text = bytes <= CACHED_BYTES ? textAt(source, from, bytes) : undefined;
    if (text !== undefined) return text;
    return (sources.buffer(source) as Utf8Buffer).utf8Slice(from, to);
  }

  #other(token: number, at: number): unknown {
    const view = this.#view;
    const data = this.#base + at + 1;
    if (token < 0x80) return this.#record(token - 0x40, at + 1);
    if (token >= 0x90 && token < 0xa0) return this.#array(token - 0x90, at + 1);
    if (token >= 0xe0) {
      this.#at = at + 1;
      return token - 0x100;
    }
    const room = this.#end - at;
    switch (token) {
      case 0xc0:
        this.#at = at + 1;
        return null;
      case 0xc2:
      case 0xc3:
        this.#at = at + 1;
        return token === 0xc3;
      case 0xcc:
        if (room < 2) break;
        this.#at = at + 2;
        return view.getUint8(data);
      case 0xcd:
        if (room < 3) break;
        this.#at = at + 3;
        return view.getUint16(data);
      case 0xce:
        if (room < 5) break;
        this.#at = at + 5;
        return view.getUint32(data);
      case 0xd0:
        if (room < 2) break;
        this.#at = at + 2;
        return view.getInt8(data);
      case 0xd1:
        if (room < 3) break;
        this.#at = at + 3;
        return view.getInt16(data);
      case 0xd2:
        if (room < 5) break;
        this.#at = at + 5;
        return view.getInt32(data);
      case 0xd4: // undefined; all else that begins so is not plain
        if (room < 3 || view.getUint16(data) !== 0) break;
        this.#at = at + 3;
        return undefined;
      case 0xd9:
        if (room < 2) break;
        return this.#text(at + 2, view.getUint8(data));
      case 0xda:
        if (room < 3) break;
        return this.#text(at + 3, view.getUint16(data));
      case 0xdb:
        if (room < 5) break;
        return this.#text(at + 5, view.getUint32(data));
      case 0xdc:
        if (room < 3) break;
        return this.#array(view.getUint16(data), at + 3);
    }
    return this.#fail();
  }

  #record(low: number, at: number): unknown {
    let number = low;
    if (low >= 32) {
      if (at >= this.#end) return this.#fail();
      number += this.#source[at]! << 5;
      at++;
    }
    const make = this.#makers[number];
    if (make === undefined || this.#depth === this.#deepest) return this.#fail();
    this.#at = at;
    this.#depth++;
    const value = make(this);
    this.#depth--;
    return value;
  }

  #array(count: number, at: number): unknown {
    // Each value takes at least a byte; checked before anything is allocated for them.
    if (count > this.#end - at || this.#depth === this.#deepest) return this.#fail();
    this.#at = at;
    this.#depth++;
    const values = new Array<unknown>(count);
    for (let i = 0; i < count; i++) values[i] = this.next();
    this.#depth--;
    return values;
  }
}

const cursor = new Cursor();

/** Messages of a shape that come before it is worth an object literal of its own. */
const WORTH = 8;

/**
 * Makes the objects of one shape. A literal gives them their hidden class at once; where code may not be generated
 * (`--disallow-code-generation-from-strings`) the keys are set one by one. All that enters the code are the keys, as JSON
 * strings.
 */
function maker(keys: readonly string[]): Make {
  const oneByOne: Make = (from) => {
    const made: Record<string, unknown> = {};
    for (let i = 0; i < keys.length; i++) made[keys[i]!] = from.next();
    return made;
  };
  let make: Make | null = null;
  let seen = 0;
  return (from) => {
    if (make !== null) return make(from);
    if (++seen < WORTH) return oneByOne(from);
    make = literal(keys) ?? oneByOne;
    return make(from);
  };
}

function literal(keys: readonly string[]): Make | null {
  const fields = keys.map((key) => `${JSON.stringify(key)}:r.next()`);
  try {
    return new Function('r', `'use strict';return {${fields.join(',')}}`) as Make;
  } catch {
    return null;
  }
}

/** Node's own: decodes as TextDecoder does, from positions and without a view. */
type Utf8Buffer = Buffer & { utf8Slice(from: number, to: number): string };
