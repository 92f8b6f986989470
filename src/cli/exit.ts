import { CODES } from '../errors.js';

/** What the command ends with. A signal ends it with 128 plus its number. */
export const EXIT = { OK: 0, FAILED: 1, USAGE: 2, NOTHING: 3 } as const;

/** Ends a command with an exit code of its own; its message, if any, goes to standard error. */
export class Outcome extends Error {
  override readonly name = 'Outcome';
  constructor(
    readonly exit: number,
    message = '',
    readonly code?: string,
  ) {
    super(message);
  }
}

/** Wrong words on the command line. */
export const usage = (message: string, code = 'ERR_INVALID_ARGUMENT'): Outcome =>
  new Outcome(EXIT.USAGE, message, code);

/** Codes that say that what was typed is wrong, not that something failed. */
const USAGE_CODES = new Set([
  'ERR_CHANNEL_NAME',
  'ERR_PATTERN',
  'ERR_DOMAIN_NAME',
  'ERR_INVALID_ARGUMENT',
  'ERR_INVALID_OPTION',
  'ERR_UNKNOWN_OPTION',
  'ERR_CODEC_UNKNOWN',
]);

/** An error as it is shown: what happened, its code, and what to do. */
export interface Shown {
  readonly exit: number;
  readonly message: string;
  readonly code: string | undefined;
  remedy: string | undefined;
}

/** Reads any thrown value. */
export function show(error: unknown): Shown {
  const { message, code: given } = error as { message?: unknown; code?: unknown };
  const code = typeof given === 'string' ? given : undefined;
  const text = typeof message === 'string' ? message : String(error);
  const entry =
    code !== undefined && Object.hasOwn(CODES, code) ? CODES[code as keyof typeof CODES] : undefined;
  if (error instanceof Outcome) return { exit: error.exit, message: text, code, remedy: undefined };
  return {
    exit: code !== undefined && USAGE_CODES.has(code) ? EXIT.USAGE : EXIT.FAILED,
    message: text,
    code,
    remedy: entry?.remedy,
  };
}
