import { targets } from './view.js';

/** The value, or something in it, is not plain, is not known yet, or may not fit: msgpackr's turn. */
export const NOT_PLAIN = -1;
/** Another shape than was guessed. */
const OTHER_SHAPE = -2;
/** Deeper nesting is left to msgpackr. */
const DEEPEST = 32;
/** Longer texts are written by the engine's own encoder, which a call costs more than so many characters. */
const LONG_TEXT = 48;
/** The most bytes that a token and a number take. */
const NUMBER_BYTES = 9;

/** An object shape that has a number: the keys in their order. */
interface Shape {
  readonly keys: readonly string[];
  /** The one or two bytes that stand for it. */
  readonly first: number;
  readonly second: number;
  /** For each field, the shape of the object that was there last. */
  readonly sites: Site[];
}

/** A place in the data where objects stand: most of the time they have the shape that was there before. */
interface Site {
  shape: Shape | null;
}

/** The shapes by their keys, one key a level. */
interface Branch {
  readonly next: Map<string, Branch>;
  shape: Shape | null;
}

const newBranch = (): Branch => ({ next: new Map(), shape: null });

/**
 * Writes plain data (numbers, texts, booleans, null, undefined, arrays, plain objects of known shapes) as msgpackr writes
 * it, byte for byte, straight into the target. Everything else it leaves to msgpackr, which also makes the shapes known.
 *
 * Why: msgpackr reaches its buffer, its position and its table of shapes through state that all its instances share, and
 * looks a shape up key by key. Here the position is a local variable, and the shape that a place had last is compared with
 * the keys while the values are written.
 */
export class PlainWriter {
  readonly #root: Branch = newBranch();
  readonly #site: Site = { shape: null };
  readonly #shapes: Shape[] = [];
  #target: Uint8Array = new Uint8Array(0);
  #view: DataView = new DataView(new ArrayBuffer(0));
  #base = 0;
  #end = 0;
  #depth = 0;

  /** Record `number` has these keys from now on. */
  learn(number: number, keys: readonly string[]): void {
    let branch = this.#root;
    for (const key of keys) {
      let next = branch.next.get(key);
      if (next === undefined) {
        next = newBranch();
        branch.next.set(key, next);
      }
      branch = next;
    }
    const shape: Shape = {
      keys: [...keys],
      first: number < 32 ? 0x40 + number : 0x60 + (number & 0x1f),
      second: number < 32 ? -1 : (number - 32) >> 5,
      sites: keys.map(() => ({ shape: null })),
    };
    branch.shape = shape;
    this.#shapes[number] = shape;
  }

  /**
   * Writes `value` to `target[start..end)`. What the value's own code (a getter) throws passes through.
   * @returns the end position, or NOT_PLAIN; then bytes of the room may have been scribbled on
   */
  write(value: unknown, target: Uint8Array, start: number, end: number): number {
    if (target !== this.#target) {
      this.#target = target;
      this.#base = target.byteOffset;
    }
    this.#view = targets.data(target);
    this.#end = end;
    this.#depth = 0;
    const at = this.#put(value, start, this.#site);
    return at < 0 ? NOT_PLAIN : at;
  }

  #put(value: unknown, at: number, site: Site): number {
    const target = this.#target;
    if (typeof value === 'number') {
      if (at + NUMBER_BYTES > this.#end) return NOT_PLAIN;
      if (value >>> 0 === value) {
        if (value < 0x40) {
          target[at] = value;
          return at + 1;
        }
        if (value < 0x100) {
          target[at] = 0xcc;
          target[at + 1] = value;
          return at + 2;
        }
        if (value < 0x10000) {
          target[at] = 0xcd;
          target[at + 1] = value >> 8;
          target[at + 2] = value;
          return at + 3;
        }
        target[at] = 0xce;
        this.#view.setUint32(this.#base + at + 1, value);
        return at + 5;
      }
      if (value >> 0 === value) return this.#negative(value, at);
      target[at] = 0xcb;
      this.#view.setFloat64(this.#base + at + 1, value);
      return at + 9;
    }
    if (typeof value === 'string') {
      const length = value.length;
      if (length >= 32) return this.#text(value, at);
      if (at + 1 + length > this.#end) return NOT_PLAIN;
      for (let i = 0; i < length; i++) {
        const unit = value.charCodeAt(i);
        if (unit > 0x7f) return this.#text(value, at);
        target[at + 1 + i] = unit;
      }
      target[at] = 0xa0 | length;
      return at + 1 + length;
    }
    if (typeof value === 'object') {
      if (value === null) return this.#byte(0xc0, at);
      const prototype = Object.getPrototypeOf(value);
      if (prototype === Object.prototype) return this.#object(value as Record<string, unknown>, at, site);
      if (prototype === Array.prototype && Array.isArray(value)) return this.#array(value, at, site);
      return NOT_PLAIN;
    }
    if (typeof value === 'boolean') return this.#byte(value ? 0xc3 : 0xc2, at);
    if (value === undefined) {
      if (at + 3 > this.#end) return NOT_PLAIN;
      target[at] = 0xd4;
      target[at + 1] = 0;
      target[at + 2] = 0;
      return at + 3;
    }
    return NOT_PLAIN;
  }

  #byte(token: number, at: number): number {
    if (at >= this.#end) return NOT_PLAIN;
    this.#target[at] = token;
    return at + 1;
  }

  #negative(value: number, at: number): number {
    const target = this.#target;
    if (value >= -0x20) {
      target[at] = 0x100 + value;
      return at + 1;
    }
    if (value >= -0x80) {
      target[at] = 0xd0;
      target[at + 1] = value;
      return at + 2;
    }
    if (value >= -0x8000) {
      target[at] = 0xd1;
      target[at + 1] = value >> 8;
      target[at + 2] = value;
      return at + 3;
    }
    target[at] = 0xd2;
    this.#view.setInt32(this.#base + at + 1, value);
    return at + 5;
  }

  /** A text that is long or not only ASCII. */
  #text(value: string, at: number): number {
    const { length } = value;
    if (at + 5 + 3 * length > this.#end) return NOT_PLAIN;
    const target = this.#target;
    const from = at + 5;
    let to = from;
    if (length <= LONG_TEXT) {
      for (let i = 0; i < length; i++) {
        const unit = value.charCodeAt(i);
        if (unit < 0x80) target[to++] = unit;
        else if (unit < 0x800) {
          target[to++] = (unit >> 6) | 0xc0;
          target[to++] = (unit & 0x3f) | 0x80;
        } else if ((unit & 0xf800) === 0xd800) return NOT_PLAIN;
        else {
          target[to++] = (unit >> 12) | 0xe0;
          target[to++] = ((unit >> 6) & 0x3f) | 0x80;
          target[to++] = (unit & 0x3f) | 0x80;
        }
      }
    } else {
      to += (targets.buffer(target) as Utf8Buffer).utf8Write(value, from, 3 * length);
    }
    // The header is as short as the bytes allow; they were written behind the longest one.
    const bytes = to - from;
    let head: number;
    if (bytes < 0x20) {
      target[at] = 0xa0 | bytes;
      head = 1;
    } else if (bytes < 0x100) {
      target[at] = 0xd9;
      target[at + 1] = bytes;
      head = 2;
    } else if (bytes < 0x10000) {
      target[at] = 0xda;
      target[at + 1] = bytes >> 8;
      target[at + 2] = bytes;
      head = 3;
    } else {
      target[at] = 0xdb;
      this.#view.setUint32(this.#base + at + 1, bytes);
      head = 5;
    }
    if (bytes <= LONG_TEXT) for (let i = 0; i < bytes; i++) target[at + head + i] = target[from + i]!;
    else if (head < 5) target.copyWithin(at + head, from, to);
    return at + head + bytes;
  }

  #array(value: unknown[], at: number, site: Site): number {
    const { length } = value;
    if (at + 3 > this.#end || length >= 0x10000 || this.#depth === DEEPEST) return NOT_PLAIN;
    const target = this.#target;
    if (length < 0x10) target[at++] = 0x90 | length;
    else {
      target[at] = 0xdc;
      target[at + 1] = length >> 8;
      target[at + 2] = length;
      at += 3;
    }
    this.#depth++;
    for (let i = 0; i < length; i++) {
      at = this.#put(value[i], at, site);
      if (at < 0) return NOT_PLAIN;
    }
    this.#depth--;
    return at;
  }

  #object(value: Record<string, unknown>, at: number, site: Site): number {
    if (this.#depth === DEEPEST || value.toJSON !== undefined) return NOT_PLAIN;
    let end = OTHER_SHAPE;
    this.#depth++;
    if (site.shape !== null) end = this.#record(value, site.shape, at);
    if (end === OTHER_SHAPE) {
      site.shape = this.#find(value);
      if (site.shape === null) return NOT_PLAIN;
      end = this.#record(value, site.shape, at);
    }
    this.#depth--;
    return end < 0 ? NOT_PLAIN : end;
  }

  #find(value: Record<string, unknown>): Shape | null {
    let branch: Branch | undefined = this.#root;
    for (const key in value) {
      branch = branch.next.get(key);
      if (branch === undefined) return null;
    }
    return branch.shape;
  }

  /** @returns the end, NOT_PLAIN, or OTHER_SHAPE when the keys differ, also when that shows only in the end */
  #record(value: Record<string, unknown>, shape: Shape, at: number): number {
    const { keys, sites, second } = shape;
    const count = keys.length;
    if (at + 2 > this.#end) return NOT_PLAIN;
    this.#target[at++] = shape.first;
    if (second >= 0) this.#target[at++] = second;
    let i = 0;
    for (const key in value) {
      if (i === count || keys[i] !== key) return OTHER_SHAPE;
      at = this.#put(value[key], at, sites[i]!);
      if (at < 0) return NOT_PLAIN;
      i++;
    }
    return i === count ? at : OTHER_SHAPE;
  }
}

/** Node's own, faster than TextEncoder.encodeInto, which wants a subarray. */
type Utf8Buffer = Buffer & { utf8Write(text: string, at: number, most: number): number };
