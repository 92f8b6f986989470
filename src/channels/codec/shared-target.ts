import { Packr, RESET_BUFFER_MODE, REUSE_BUFFER_MODE } from 'msgpackr';

/**
 * msgpackr has one buffer and one position for all its Packr instances, those of the application included. This file
 * is the only place that touches them. It lends msgpackr a view of the send arena for the time of one `pack`, and
 * afterwards the state is such that an application's own Packr behaves as if this library were not there:
 *
 * - While nobody else uses msgpackr, its buffer is our `parking` buffer and its position is PARKED, far beyond every
 *   buffer, so that a foreign `pack` finds no room and makes itself a new buffer, exactly as it does at first.
 * - Once a foreign `pack` has run, buffer and position are read before our turn (by packing one number) and put back.
 * - Inside a running `pack` (a getter or toJSON publishes) the buffer cannot be lent; msgpackr then saves its own
 *   state and packs into a fresh one, from which the bytes are copied.
 *
 * What is lent ends where the caller's room ends, so a write beyond is impossible. When msgpackr needs more, it makes
 * a larger buffer and copies with `target.copy`: ours throws NO_ROOM there, so that a value far too large (or a cycle)
 * costs no more than the room, instead of being written to the end first.
 */
type Lent = Buffer & { dataView: DataView; start: number; end: number };
type Packing = Omit<Packr, 'pack'> & { pack(value: unknown, mode: number): Lent };

const NO_ROOM = new Error('msgpackr needs more room than there is');
const PARKED = 0x3ffffff0;
/** msgpackr starts a new buffer when less than this is left, and writes up to 10 bytes beyond what it checks. */
const LEAST = 0x800 + 16;
/** A view with less room than this is not worth making: the scratch buffer and a copy are cheaper. */
const WORTH = 2 * LEAST;
/** A larger scratch buffer is not kept. */
const KEEP = 256 * 1024;

const refuse = (): never => {
  throw NO_ROOM;
};

/** All views get their properties in one order, so that msgpackr's writes see one kind of object. */
function lend(memory: ArrayBufferLike, offset: number, length: number): Lent {
  const view = Buffer.from(memory as ArrayBuffer, offset, length) as Lent;
  view.copy = refuse;
  view.dataView = new DataView(memory as ArrayBuffer, offset, length);
  view.start = 0;
  view.end = 0;
  return view;
}

const probe = new Packr({ useRecords: false }) as unknown as Packing;
const parking = Buffer.allocUnsafeSlow(8192);
let scratch = lend(new ArrayBuffer(8192), 0, 8192);
/** The view of the caller's memory that was lent last. It pins that memory until another is lent. */
let view: Lent | undefined;
let viewOf: Uint8Array | undefined;
let viewFrom = 0;
let viewTo = 0;
/** Bytes of the last message, to tell whether the rest of the view is likely to do. */
let lastSize = 0;
let touched = false;

/** Parks at the first use, if nobody has used msgpackr in this environment yet. */
function parkOnce(): void {
  touched = true;
  if (probe.position !== 0) return;
  const found = probe.pack(0, REUSE_BUFFER_MODE);
  // Unmoved: a pack is running. Not of the default size: somebody's own buffer.
  if (probe.position !== 0 && found.length === 8192 && found.byteOffset === 0) park(parking, PARKED);
}

function park(buffer: Buffer, position: number): void {
  probe.useBuffer(buffer);
  probe.position = position;
}

/**
 * Packs `value` into `target[start..end)`.
 *
 * @returns the end position, or -1 if there is not enough room. Throws what the value's own code or msgpackr threw.
 */
export function packInto(
  packr: Packr,
  value: unknown,
  target: Uint8Array,
  start: number,
  end: number,
): number {
  if (!touched) parkOnce();
  const position = probe.position;
  if (position === PARKED) {
    try {
      return packLent(packr as unknown as Packing, value, target, start, end);
    } finally {
      park(parking, PARKED);
    }
  }
  const found = probe.pack(0, REUSE_BUFFER_MODE);
  const after = probe.position;
  if (after === position) return packNested(packr as unknown as Packing, value, target, start, end);
  try {
    return packLent(packr as unknown as Packing, value, target, start, end);
  } finally {
    park(found, after);
  }
}

function packLent(packr: Packing, value: unknown, target: Uint8Array, start: number, end: number): number {
  const room = end - start;
  if (room >= WORTH) {
    const wanted = Math.min(room, WORTH + 2 * lastSize);
    if (
      view === undefined ||
      viewOf !== target ||
      start < viewFrom ||
      viewTo > end ||
      viewTo - start < wanted ||
      view.length === 0
    ) {
      viewOf = target;
      viewFrom = start;
      viewTo = Math.min(end, start + 0x10000);
      view = lend(target.buffer, target.byteOffset + start, viewTo - start);
    }
    const made = tryPack(packr, value, view, start - viewFrom);
    if (made !== undefined) {
      const size = made.end - made.start;
      lastSize = size;
      // A view other than ours: msgpackr found another way to grow than the one that we refuse.
      if (made !== view) return copyOut(made, target, start, end);
      // msgpackr begins at a multiple of eight.
      if (made.start !== start - viewFrom) made.copyWithin(start - viewFrom, made.start, made.end);
      return start + size;
    }
  }
  // Exact room: msgpackr asks for three bytes a character and a margin, so it is given that, and the result is measured.
  const needed = 3 * room + 2 * LEAST;
  if (scratch.length < needed) scratch = lend(new ArrayBuffer(needed), 0, needed);
  const made = tryPack(packr, value, scratch, 0);
  if (scratch.length > KEEP) scratch = lend(new ArrayBuffer(8192), 0, 8192);
  return made === undefined ? -1 : copyOut(made, target, start, end);
}

function tryPack(packr: Packing, value: unknown, buffer: Lent, at: number): Lent | undefined {
  probe.useBuffer(buffer);
  probe.position = at;
  try {
    return packr.pack(value, REUSE_BUFFER_MODE);
  } catch (error) {
    if (error === NO_ROOM) return undefined;
    throw error;
  }
}

function packNested(packr: Packing, value: unknown, target: Uint8Array, start: number, end: number): number {
  return copyOut(packr.pack(value, REUSE_BUFFER_MODE | RESET_BUFFER_MODE), target, start, end);
}

function copyOut(made: Lent, target: Uint8Array, start: number, end: number): number {
  const size = made.end - made.start;
  if (size > end - start) return -1;
  if (size > 64) target.set(new Uint8Array(made.buffer, made.byteOffset + made.start, size), start);
  else for (let i = made.start, to = start; i < made.end; ) target[to++] = made[i++]!;
  return start + size;
}
