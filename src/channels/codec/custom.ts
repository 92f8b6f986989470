import { MillraceTypeError } from '../../errors.js';
import { type Codec, CodecError, checkPayload, checkTarget, kindOf, standalone } from './codec.js';
import { sources } from './view.js';

/** What custom() takes. */
export interface CustomCodec<T> {
  /** The name that both sides announce; put a version into it. At most 255 characters. */
  readonly name: string;
  /** Turns a value into bytes. The result is copied at once and may be reused. */
  encode(value: T): Uint8Array;
  /**
   * Turns bytes into a value. The bytes are a view of memory that the subscriber owns: keeping them is allowed. They
   * come from another process: what is not as expected must throw.
   */
  decode(bytes: Uint8Array): T;
}

const RESERVED = /^(msgpackr|bytes|json|struct:.*)$/s;

const isPromise = (value: unknown): value is PromiseLike<unknown> =>
  typeof value === 'object' && value !== null && typeof (value as { then?: unknown }).then === 'function';

/**
 * A codec of your own.
 *
 * @throws MillraceTypeError (ERR_INVALID_OPTION) if the name is empty, too long or a built-in's, or a function is missing
 */
export function custom<T>(given: CustomCodec<T>): Codec<T> {
  if (typeof given !== 'object' || given === null) {
    throw new MillraceTypeError(
      'ERR_INVALID_OPTION',
      `custom() takes { name, encode, decode }, not ${kindOf(given)}`,
    );
  }
  const known = ['name', 'encode', 'decode'];
  for (const key of Object.keys(given)) {
    if (!known.includes(key)) {
      throw new MillraceTypeError(
        'ERR_UNKNOWN_OPTION',
        `custom(): unknown option '${key}'; it takes name, encode and decode`,
      );
    }
  }
  const { name } = given;
  if (typeof name !== 'string' || name === '' || name.length > 255) {
    throw new MillraceTypeError(
      'ERR_INVALID_OPTION',
      'custom(): name must be a string of 1 to 255 characters',
    );
  }
  if (RESERVED.test(name)) {
    throw new MillraceTypeError(
      'ERR_INVALID_OPTION',
      `custom(): the name '${name}' belongs to a built-in codec; choose another`,
    );
  }
  for (const key of ['encode', 'decode'] as const) {
    if (typeof given[key] !== 'function') {
      throw new MillraceTypeError(
        'ERR_INVALID_OPTION',
        `custom(): ${key} must be a function, not ${kindOf(given[key])}`,
      );
    }
  }
  return standalone<T>(
    name,
    name,
    (value, target, start, end) => {
      checkTarget(name, target, start, end);
      const made: unknown = given.encode(value);
      if (!(made instanceof Uint8Array)) {
        if (isPromise(made)) made.then(undefined, () => {});
        const help = isPromise(made) ? ' Codecs are synchronous, since messages keep their order.' : '';
        throw new CodecError(
          'ERR_CODEC_VALUE',
          `${name}: encode() must return a Uint8Array, not ${kindOf(made)}.${help}`,
        );
      }
      if (made.length > end - start) return -1;
      target.set(made, start);
      return start + made.length;
    },
    (source, start, end, limits) => {
      checkPayload(name, source, start, end, limits);
      try {
        return given.decode(new Uint8Array(sources.memory(source), source.byteOffset + start, end - start));
      } catch (error) {
        const what = error instanceof Error ? error.message : String(error);
        throw new CodecError('ERR_CODEC_MALFORMED', `${name}: decode() threw: ${what}`, { cause: error });
      }
    },
  );
}
