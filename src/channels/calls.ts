import { MillraceError } from '../errors.js';
import { checkNames } from '../suggest.js';
import { checkHeaders } from './headers.js';
import { abortSignal, milliseconds } from './options.js';
import type { Headers } from './types.js';

/** What the methods of channels and members take, and how it is read. */

/** drain() waits for so long unless told otherwise. */
export const DRAIN_MS = 5000;
/** ready() waits for so long unless told otherwise. */
export const READY_MS = 30_000;

/** What offer() and publish() take besides the value. */
export interface SendOptions {
  /** Short strings that travel with the message; subscribers see them on `messages$`. */
  readonly headers?: Headers;
}

/** What ready() takes. */
export interface ReadyOptions {
  /** Subscribers (members) that this publisher must have; 1 unless `publishers` is given. */
  readonly subscribers?: number;
  /** Publishers that must have acknowledged this subscriber. */
  readonly publishers?: number;
  /** In ms; 30 s unless given. */
  readonly timeout?: number;
  readonly signal?: AbortSignal;
}

/** What flush() takes. */
export interface FlushOptions {
  /** Stops waiting; the report then says what is not known to be delivered. */
  readonly signal?: AbortSignal;
}

/** What drain() takes. */
export interface DrainOptions extends FlushOptions {
  /** In ms; 5 s unless given. */
  readonly timeout?: number;
}

/** Reads drain's argument: a time or an object. */
export function drainOptions(given: number | DrainOptions | undefined): {
  timeout: number;
  signal: AbortSignal | undefined;
} {
  if (typeof given === 'object' && given !== null) {
    checkNames('drain()', given, ['timeout', 'signal']);
    return {
      timeout: milliseconds('drain()', 'timeout', given.timeout, DRAIN_MS),
      signal: abortSignal('drain()', given.signal),
    };
  }
  return { timeout: milliseconds('drain()', 'timeout', given, DRAIN_MS), signal: undefined };
}

/** Reads the options of offer() and publish(). */
export function headersOf(call: string, options: SendOptions | undefined): Headers | undefined {
  if (options === undefined) return undefined;
  checkNames(call, options, ['headers']);
  return checkHeaders(call, options.headers);
}

/** The error of a call whose signal fired. */
export function aborted(what: string, signal: AbortSignal): MillraceError {
  return new MillraceError('ERR_ABORTED', `${what} was aborted by its signal.`, { cause: signal.reason });
}
