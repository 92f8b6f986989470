import { type Command, InvalidArgumentError, Option } from 'commander';
import { DEFAULT_DOMAIN } from '../cluster/paths.js';

/** Options that every command has. */
export interface CommonOptions {
  readonly domain: string;
  /** In ms. */
  readonly timeout?: number;
  readonly json?: boolean;
}

/** Adds the common options. `timeout` says what it bounds. */
export function common(command: Command, env: NodeJS.ProcessEnv, timeout: string): Command {
  // An empty variable is none, as for join(); so commander's own env() will not do.
  return command
    .addOption(
      new Option('-d, --domain <name>', 'the domain; MILLRACE_DOMAIN sets the default')
        .default(env.MILLRACE_DOMAIN || DEFAULT_DOMAIN)
        .argParser(notEmpty),
    )
    .addOption(new Option('-t, --timeout <time>', `${timeout}, such as 500ms, 5s or 2m`).argParser(duration))
    .option('--json', 'print JSON, for programs');
}

/** A time: a number of seconds, or with a unit. @returns ms */
export function duration(text: string): number {
  const match = /^(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h)?$/.exec(text.trim());
  const unit = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[match?.[2] ?? 's'];
  const time = Number(match?.[1]) * (unit ?? 1);
  if (match === null || !Number.isFinite(time) || time > 2 ** 31 - 1) {
    throw new InvalidArgumentError(
      'It must be a time such as 500ms, 5s, 2m or 1h (a bare number is seconds).',
    );
  }
  return time;
}

/** A whole number of at least `least`. */
export function whole(least: number, most = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^\d+$/.test(text) || value < least || value > most) {
      throw new InvalidArgumentError(
        `It must be a whole number ${most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`}.`,
      );
    }
    return value;
  };
}

/** A name of a fabric, as the software device takes it. */
export function fabricName(text: string): string {
  if (text === '' || text === '.' || text === '..' || text.includes('/') || Buffer.byteLength(text) > 64) {
    throw new InvalidArgumentError('It must be a file name of at most 64 bytes.');
  }
  return text;
}

function notEmpty(text: string): string {
  if (text === '') throw new InvalidArgumentError('It must not be empty.');
  return text;
}
