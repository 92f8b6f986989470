import { MillraceTypeError } from '../errors.js';
import { describe } from '../suggest.js';

/** Longest channel name or pattern, in bytes of UTF-8. */
export const MAX_NAME_BYTES = 255;

// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is looked for
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/;
// A lone surrogate has no UTF-8 form, so two different names would become one on the wire.
const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

/** Whether a text can be shown in a line of a terminal, and has a form in UTF-8. */
export const isPrintable = (text: string): boolean => !CONTROL.test(text) && !LONE_SURROGATE.test(text);

function shown(text: string): string {
  const short = text.length > 60 ? `${text.slice(0, 57)}…` : text;
  return JSON.stringify(short);
}

function refuse(what: 'channel name' | 'pattern', text: unknown, why: string, remedy: string): never {
  const code = what === 'pattern' ? 'ERR_PATTERN' : 'ERR_CHANNEL_NAME';
  const subject = typeof text === 'string' ? `${what} ${shown(text)}` : what;
  throw new MillraceTypeError(code, `Invalid ${subject}: ${why}. ${remedy}`, { details: { name: text } });
}

function checkTokens(what: 'channel name' | 'pattern', text: unknown): asserts text is string {
  if (typeof text !== 'string') {
    refuse(what, text, `it is ${describe(text)}`, 'Pass a string.');
  }
  if (text.length === 0)
    refuse(what, text, 'it is empty', 'Use dot-separated tokens, such as "ticks.eurusd".');
  const bytes = Buffer.byteLength(text);
  if (bytes > MAX_NAME_BYTES) {
    refuse(
      what,
      text,
      `it has ${bytes} bytes of UTF-8, the limit is ${MAX_NAME_BYTES}`,
      'Use a shorter name.',
    );
  }
  if (CONTROL.test(text)) refuse(what, text, 'it contains a control character', 'Remove it.');
  if (LONE_SURROGATE.test(text))
    refuse(what, text, 'it is not well-formed Unicode', 'Remove the lone surrogate.');
  if (text.trim() !== text) refuse(what, text, 'it starts or ends with white space', 'Trim it.');
  if (text.startsWith('.')) refuse(what, text, 'it starts with a dot', 'Remove the empty token.');
  if (text.endsWith('.')) refuse(what, text, 'it ends with a dot', 'Remove the empty token.');
  if (text.includes('..')) refuse(what, text, 'it has an empty token (two dots)', 'Remove one dot.');
}

/**
 * Checks a channel's name: dot-separated non-empty tokens, at most 255 bytes of UTF-8, no control character, no white
 * space at its ends, no wildcard.
 * @throws MillraceTypeError ERR_CHANNEL_NAME
 */
export function checkChannelName(name: unknown): asserts name is string {
  checkTokens('channel name', name);
  if (name.includes('*') || name.includes('>')) {
    refuse(
      'channel name',
      name,
      'it contains a wildcard (* or >)',
      'Use member.pattern() to subscribe to many channels.',
    );
  }
}

/** A pattern, ready to be asked. Immutable. */
export interface NamePattern {
  readonly text: string;
  matches(name: string): boolean;
}

/**
 * Reads a pattern: `*` stands for exactly one token, `>` (only as the last token) for one or more.
 * @throws MillraceTypeError ERR_PATTERN
 */
export function parsePattern(text: unknown): NamePattern {
  checkTokens('pattern', text);
  const tokens = text.split('.');
  tokens.forEach((token, at) => {
    if (token === '*' || token === '>') {
      if (token === '>' && at !== tokens.length - 1) {
        refuse('pattern', text, '> is not its last token', 'Use * for a single token in the middle.');
      }
    } else if (token.includes('*') || token.includes('>')) {
      refuse(
        'pattern',
        text,
        `the token ${shown(token)} mixes a wildcard with other characters`,
        'A wildcard is a whole token.',
      );
    }
  });
  const tail = tokens[tokens.length - 1] === '>';
  const fixed = tail ? tokens.length - 1 : tokens.length;
  return {
    text,
    matches(name) {
      const parts = name.split('.');
      if (tail ? parts.length <= fixed : parts.length !== fixed) return false;
      for (let i = 0; i < fixed; i++) if (tokens[i] !== '*' && tokens[i] !== parts[i]) return false;
      return true;
    },
  };
}
