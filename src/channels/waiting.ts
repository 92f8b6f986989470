import { MillraceError } from '../errors.js';
import { aborted } from './calls.js';
import type { Engine } from './engine.js';
import type { AnyOutChannel } from './sending/outbound.js';
import { memberLeft } from './sending/refusals.js';

/** A promise that holds the event loop, with a time-out and a signal; `check` is called at each sign and at once. */
export function until<V>(
  engine: Engine,
  what: string,
  options: { timeout: number; signal: AbortSignal | undefined },
  watch: (sign: () => void) => () => void,
  check: () => { value: V } | null,
  missing: () => string,
): Promise<V> {
  return new Promise((resolve, reject) => {
    const { timeout, signal } = options;
    if (signal?.aborted === true) return reject(aborted(what, signal));
    const first = check();
    if (first !== null) return resolve(first.value);
    const release = engine.keepalive.hold();
    let over = false;
    const end = () => {
      over = true;
      unwatch();
      if (timer !== null) engine.clock.clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      release();
    };
    const fail = (error: Error) => {
      end();
      reject(error);
    };
    const onAbort = () => fail(aborted(what, signal!));
    const timer = Number.isFinite(timeout)
      ? engine.clock.setTimeout(
          () =>
            fail(
              new MillraceError('ERR_TIMEOUT', `${what} did not finish within ${timeout} ms: ${missing()}.`),
            ),
          timeout,
        )
      : null;
    signal?.addEventListener('abort', onAbort, { once: true });
    const unwatch = watch(() => {
      if (over) return;
      try {
        const found = check();
        if (found === null) return;
        end();
        resolve(found.value);
      } catch (error) {
        fail(error as Error);
      }
    });
  });
}

/** Resolves when that publisher would take a message. @throws MillraceError (rejects) ERR_ABORTED; what ended the publishing */
export function whenWritable(engine: Engine, out: AnyOutChannel, signal?: AbortSignal): Promise<void> {
  return until(
    engine,
    `whenWritable() of ${JSON.stringify(out.name)}`,
    { timeout: Number.POSITIVE_INFINITY, signal },
    (sign) => {
      let over = false;
      let stop = () => {};
      const again = () => {
        stop = out.room.onOpen(() => {
          sign();
          if (!over) again();
        });
      };
      again();
      return () => {
        over = true;
        stop();
      };
    },
    () => {
      if (out.writable) return { value: undefined };
      if (out.ended !== null) throw engine.closed ? memberLeft(out.name) : out.endError;
      return null;
    },
    () => '',
  );
}

/** How many subscribers and publishers a channel has, or is to have. */
export interface Present {
  readonly subscribers: number;
  readonly publishers: number;
}

/**
 * Resolves when there are as many as wanted.
 * @param watch calls at each change, until the returned function is called
 * @throws MillraceError (rejects) ERR_TIMEOUT, ERR_ABORTED, and what `closed` says
 */
export function whenPresent(
  engine: Engine,
  name: string,
  wanted: Present,
  options: { timeout: number; signal: AbortSignal | undefined },
  watch: (sign: () => void) => () => void,
  now: () => Present,
  /** Why there will be no more, or null. */
  closed: () => Error | null,
): Promise<Present> {
  const enough = (found: Present) =>
    found.subscribers >= wanted.subscribers && found.publishers >= wanted.publishers;
  return until(
    engine,
    `ready() of ${JSON.stringify(name)}`,
    options,
    watch,
    () => {
      const found = now();
      if (enough(found)) return { value: found };
      const error = closed();
      if (error !== null) throw error;
      return null;
    },
    () => {
      const found = now();
      const parts = [];
      if (wanted.subscribers > 0)
        parts.push(`${found.subscribers} of ${wanted.subscribers} subscribers are there`);
      if (wanted.publishers > 0)
        parts.push(`${found.publishers} of ${wanted.publishers} publishers have answered`);
      return parts.join(', ');
    },
  );
}
