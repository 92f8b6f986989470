import { type Options, Packr, Unpackr } from 'msgpackr';
import {
  type Codec,
  CodecError,
  checkPayload,
  checkTarget,
  DEFAULT_LIMITS,
  type DecodeLimits,
  type Decoder,
  type Encoder,
  limitsOf,
  MAX_DEFINITION_BYTES,
} from './codec.js';
import {
  type Definition,
  definitionBytes,
  definitionPayloads,
  parseDefinitions,
  SHARED_RECORDS,
} from './definitions.js';
import { NOT_READ, PlainReader } from './plain-read.js';
import { NOT_PLAIN, PlainWriter } from './plain-write.js';
import { INLINE_RECORDS, Scanner } from './scan.js';
import { packInto } from './shared-target.js';
import { sources } from './view.js';

/** An object shape whose definition would be larger than this is defined inside each message instead. */
const LARGEST_DEFINITION = 1024;

/** msgpackr's table of record definitions, with the properties that it keeps on it. */
type Structure = string[] & { isShared?: boolean; highByte?: number };
type Structures = Structure[] & { sharedLength?: number; transitions?: object | null };

const OPTIONS: Options = {
  // Map, Set, Error, RegExp, typed arrays and integers of any size, each as itself.
  moreTypes: true,
  maxSharedStructures: SHARED_RECORDS,
};

/** After so many tries in vain one in so many messages is tried: data that is not plain should not be looked at twice. */
const PATIENCE = 4;
const RETRY = 64;

/** Decides whether the quick way is tried, by what became of the last tries. */
class Tries {
  #vain = 0;
  #skipped = 0;

  get worth(): boolean {
    return this.#vain < PATIENCE || ++this.#skipped % RETRY === 0;
  }
  paid(did: boolean): void {
    this.#vain = did ? 0 : this.#vain + 1;
  }
}

/**
 * Records: an object's keys are sent once, as a definition, and each message then has a number and the values. The
 * first SHARED_RECORDS shapes of a channel get a number that never changes its meaning and is announced out of band;
 * shapes beyond that, and very wide ones, are defined inside each message that has them. So nothing grows without
 * bound, and objects stay objects (as plain MessagePack maps they could not be told from a Map).
 */
class RecordEncoder implements Encoder<unknown> {
  readonly #structures: Structures = [];
  readonly #packr: Packr;
  readonly #scanner = new Scanner(DEFAULT_LIMITS);
  readonly #plain = new PlainWriter();
  readonly #tries = new Tries();
  /** Definitions before this have been taken. */
  #taken = 0;
  /** Bytes of the definitions that have not. */
  #pending = 0;
  #encoding = false;
  /** Set once a shape was kept out of the table in this message: msgpackr numbers both kinds from one range. */
  #inlineOnly = false;

  constructor(private readonly selfContained: boolean) {
    this.#packr = new Packr({
      ...OPTIONS,
      structures: this.#structures,
      maxOwnStructures: INLINE_RECORDS,
      shouldShareStructure: (keys) => this.#mayShare(keys),
    });
  }

  encode(value: unknown, target: Uint8Array, start: number, end: number): number {
    checkTarget('msgpackr', target, start, end);
    if (this.#encoding) {
      throw new CodecError(
        'ERR_CODEC_REENTRANT',
        'msgpackr: the value encodes with the same encoder while it is being encoded',
      );
    }
    this.#encoding = true;
    try {
      if (this.#tries.worth) {
        const finish = this.#plain.write(value, target, start, end);
        this.#tries.paid(finish !== NOT_PLAIN);
        if (finish !== NOT_PLAIN) return finish;
      }
      return this.#pack(value, target, start, end);
    } finally {
      this.#encoding = false;
    }
  }

  #pack(value: unknown, target: Uint8Array, start: number, end: number): number {
    const known = this.#structures.sharedLength ?? 0;
    const pending = this.#pending;
    let finish = -1;
    this.#inlineOnly = false;
    try {
      finish = packInto(this.#packr, value, target, start, end);
      if (finish >= 0) {
        this.#learn(known);
        this.#scanner.scan(target, start, finish);
      }
      return finish;
    } catch (error) {
      finish = -1;
      throw refusal(error);
    } finally {
      if (finish < 0) this.#rewind(known, pending);
    }
  }

  takeDefinitions(): Uint8Array | null {
    const to = this.#structures.sharedLength ?? 0;
    if (this.#taken === to) return null;
    // Only now: until they are taken a failure may take them back.
    for (let number = this.#taken; number < to; number++)
      this.#plain.learn(number, this.#structures[number]!);
    const payloads = definitionPayloads(this.#from(this.#taken, to));
    this.#taken = to;
    this.#pending = 0;
    // #mayShare keeps what is pending within one payload.
    return payloads[0]!;
  }

  allDefinitions(): Uint8Array[] {
    return definitionPayloads(this.#from(0, this.#structures.sharedLength ?? 0));
  }

  *#from(from: number, to: number): Generator<Definition> {
    for (let number = from; number < to; number++) yield [number, [...this.#structures[number]!]];
  }

  #mayShare(keys: readonly string[]): boolean {
    if (this.#inlineOnly || this.selfContained) return false;
    const bytes = definitionBytes(SHARED_RECORDS, keys);
    // Half a surrogate pair has no UTF-8. Inside a message it becomes U+FFFD, as in values; so it must not be kept here.
    const exact = !keys.some((key) => /\p{Surrogate}/u.test(key));
    if (!exact || bytes > LARGEST_DEFINITION || this.#pending + bytes > MAX_DEFINITION_BYTES - 2) {
      this.#inlineOnly = true;
      return false;
    }
    this.#pending += bytes;
    return true;
  }

  #learn(from: number): void {
    const to = this.#structures.sharedLength ?? 0;
    for (let number = from; number < to; number++)
      this.#scanner.fields[number] = this.#structures[number]!.length;
  }

  /** Takes back what the failed attempt learned: its numbers were never announced and can have another meaning. */
  #rewind(known: number, pending: number): void {
    this.#pending = pending;
    const structures = this.#structures;
    if ((structures.sharedLength ?? 0) === known) return;
    structures.length = known;
    structures.sharedLength = known;
    // msgpackr builds its index of shapes anew from what is left.
    structures.transitions = null;
    this.#scanner.fields.fill(-1, known, SHARED_RECORDS);
  }
}

/** Turns what msgpackr itself refuses into a typed error; what the value's own code threw stays what it is. */
function refusal(error: unknown): unknown {
  if (!(error instanceof Error) || error instanceof CodecError) {
    if (error instanceof CodecError && error.code === 'ERR_CODEC_MALFORMED') {
      return new CodecError(
        'ERR_CODEC_VALUE',
        `msgpackr: the value cannot be read back: ${error.message.replace('msgpackr: ', '')}. It changed while it was being encoded, or has a type that was registered with msgpackr itself; use custom() for such types.`,
        { cause: error },
      );
    }
    return error;
  }
  if (error instanceof RangeError && error.message.includes('call stack')) {
    return new CodecError('ERR_CODEC_LIMIT', 'msgpackr: the value is cyclic or nested too deeply', {
      cause: error,
    });
  }
  const unknown = /^Unknown type: (\w+)$/.exec(error.message);
  if (unknown !== null) {
    return new CodecError('ERR_CODEC_VALUE', `msgpackr: a ${unknown[1]} cannot be encoded`, { cause: error });
  }
  return error;
}

class RecordDecoder implements Decoder<unknown> {
  readonly #limits: DecodeLimits;
  readonly #structures: Structures = [];
  readonly #keys: (string | undefined)[] = [];
  readonly #unpackr: Unpackr;
  readonly #scanner: Scanner;
  readonly #plain: PlainReader;
  readonly #tries = new Tries();
  readonly #range = { start: 0, end: 0 };

  constructor(limits: DecodeLimits) {
    this.#limits = limits;
    this.#scanner = new Scanner(limits);
    this.#plain = new PlainReader(limits.depth);
    // Numbers from 32 on take two bytes, and msgpackr looks for the second only if the first one's record exists.
    for (let number = 32; number < 64; number++) this.#structures[number] = structureOf(number, []);
    this.#unpackr = new Unpackr({ ...OPTIONS, structures: this.#structures });
    this.#structures.sharedLength = SHARED_RECORDS;
    this.#structures.length = SHARED_RECORDS;
  }

  define(payload: Uint8Array): void {
    const definitions = parseDefinitions(payload, this.#limits);
    // All are checked before the first is used, so that a bad payload changes nothing.
    const seen = new Map<number, string>();
    for (const [number, keys] of definitions) {
      const text = JSON.stringify(keys);
      const earlier = this.#keys[number] ?? seen.get(number);
      if (earlier !== undefined && earlier !== text) {
        throw new CodecError(
          'ERR_CODEC_DEFINITION',
          `msgpackr: record ${number} is defined a second time as ${cut(text)}; it is ${cut(earlier)}`,
          { details: { record: number } },
        );
      }
      seen.set(number, text);
    }
    for (const [number, keys] of definitions) {
      if (this.#keys[number] !== undefined) continue;
      this.#keys[number] = seen.get(number);
      this.#structures[number] = structureOf(number, keys);
      this.#scanner.fields[number] = keys.length;
      this.#plain.learn(number, keys);
    }
  }

  decode(source: Uint8Array, start: number, end: number): unknown {
    checkPayload('msgpackr', source, start, end, this.#limits);
    if (this.#tries.worth) {
      const value = this.#plain.read(source, start, end);
      this.#tries.paid(value !== NOT_READ);
      if (value !== NOT_READ) return value;
    }
    this.#scanner.scan(source, start, end);
    const range = this.#range;
    range.start = start;
    range.end = end;
    try {
      return this.#unpackr.unpack(sources.buffer(source), range);
    } catch (error) {
      throw new CodecError('ERR_CODEC_MALFORMED', `msgpackr: ${(error as Error).message}`, { cause: error });
    }
  }
}

function structureOf(number: number, keys: readonly string[]): Structure {
  const structure: Structure = [...keys];
  structure.isShared = true;
  if (number >= 32) structure.highByte = (number - 32) >> 5;
  return structure;
}

const cut = (text: string): string => (text.length > 200 ? `${text.slice(0, 200)}…` : text);

/**
 * The default codec: MessagePack with msgpackr's records. JavaScript values in, equal values out; docs/codecs.md has the
 * table of what survives. Nothing is registered with msgpackr, and an application's own use of it is not disturbed.
 */
export const msgpackr: Codec<unknown> = Object.freeze({
  name: 'msgpackr',
  encoder: (options?: { readonly selfContained?: boolean }) =>
    new RecordEncoder(options?.selfContained === true),
  decoder: (limits?: Partial<DecodeLimits>) => new RecordDecoder(limitsOf(limits)),
});
