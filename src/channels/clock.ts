import { Turn } from '../turn.js';

/**
 * Time and turns, as one object, so that tests run with a clock of their own: nothing in src/channels calls a timer, a
 * clock or setImmediate by any other way.
 */

/** A handle of a timer or of an immediate; only the clock that made it understands it. */
export interface Scheduled {
  /** Lets the event loop end although this is pending. */
  unref?(): unknown;
  /** Holds the event loop again. */
  ref?(): unknown;
}

/** What the channels need of time. All methods run on the environment's own thread. */
export interface Clock {
  /** Milliseconds since the epoch, with fractions: what is written into records. */
  epoch(): number;
  /** Monotonic milliseconds, with fractions: for spans. */
  now(): number;
  setTimeout(run: () => void, ms: number): Scheduled;
  clearTimeout(timer: Scheduled): void;
  setImmediate(run: () => void): Scheduled;
  clearImmediate(immediate: Scheduled): void;
  microtask(run: () => void): void;
}

/** How far the two clocks may part (an adjustment of the system's time) before the offset is taken anew. */
const DRIFT_MS = 2;
const RECHECK_MS = 1000;

/**
 * The system's clock. `epoch()` counts in microseconds although `Date.now()` does not: it is the monotonic clock plus an
 * offset, which is taken again when the system's time was adjusted.
 */
export function systemClock(): Clock {
  let offset = performance.timeOrigin;
  let checked = performance.now();
  return {
    epoch() {
      const now = performance.now();
      if (now - checked > RECHECK_MS) {
        checked = now;
        const off = Date.now() - (offset + now);
        if (off > DRIFT_MS || off < -DRIFT_MS) offset += off;
      }
      return offset + now;
    },
    now: () => performance.now(),
    setTimeout: (run, ms) => setTimeout(run, ms),
    clearTimeout: (timer) => clearTimeout(timer as NodeJS.Timeout),
    setImmediate: (run) => new Turn(run),
    clearImmediate: (immediate) => (immediate as Turn).cancel(),
    microtask: queueMicrotask,
  };
}
