import { MillraceTypeError } from '../../errors.js';
import { bytes } from './bytes.js';
import { type Codec, type CodecOption, kindOf } from './codec.js';
import { json } from './json.js';
import { msgpackr } from './msgpack.js';

const BUILT_IN: ReadonlyMap<string, Codec<unknown>> = new Map([
  ['msgpackr', msgpackr],
  ['bytes', bytes as Codec<unknown>],
  ['json', json],
]);

const NAMES = "'msgpackr', 'bytes', 'json', struct({...}) and custom({...})";

/** What people write for a codec that has another name here. */
const MEANT: Readonly<Record<string, string>> = {
  msgpack: 'msgpackr',
  messagepack: 'msgpackr',
  byte: 'bytes',
  buffer: 'bytes',
  binary: 'bytes',
  raw: 'bytes',
};

/**
 * The codec that an option means; msgpackr where there is none.
 *
 * @throws MillraceTypeError (ERR_CODEC_UNKNOWN) for anything else, naming what was probably meant
 */
export function resolveCodec<T>(option: CodecOption<T> | undefined): Codec<T> {
  if (option === undefined) return msgpackr as Codec<T>;
  if (typeof option === 'string') {
    const found = BUILT_IN.get(option);
    if (found !== undefined) return found as Codec<T>;
    const plain = (option as string).toLowerCase().replace(/[^a-z]/g, '');
    const meant = MEANT[plain] ?? (BUILT_IN.has(plain) ? plain : undefined);
    const help =
      plain === 'struct' || plain === 'custom'
        ? `; ${plain} is a function: pass what ${plain}({...}) returns`
        : meant === undefined
          ? ''
          : `; did you mean '${meant}'?`;
    throw new MillraceTypeError(
      'ERR_CODEC_UNKNOWN',
      `There is no codec '${option}'${help} Codecs are ${NAMES}.`.replace("' Codecs", "'. Codecs"),
    );
  }
  const given = option as Partial<Codec<T>> & { encode?: unknown; decode?: unknown };
  if (typeof given === 'object' && given !== null) {
    const whole = typeof given.name === 'string' && given.name !== '' && given.name.length <= 64 * 1024;
    if (whole && typeof given.encoder === 'function' && typeof given.decoder === 'function')
      return given as Codec<T>;
    if (typeof given.encode === 'function' || typeof given.decode === 'function') {
      throw new MillraceTypeError(
        'ERR_CODEC_UNKNOWN',
        'An object with encode() and decode() must be wrapped: custom({ name, encode, decode }).',
      );
    }
  }
  throw new MillraceTypeError(
    'ERR_CODEC_UNKNOWN',
    `A codec is a name, or an object with a name, encoder() and decoder(), not ${kindOf(option)}. Codecs are ${NAMES}.`,
  );
}
