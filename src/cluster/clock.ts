/** Time as the cluster sees it, so that tests can hold it in their hands. */
export interface Clock {
  /** Milliseconds since an arbitrary start; never goes back. */
  now(): number;
  /**
   * Calls `action` once, after `delay` milliseconds. The timer does not hold the event loop.
   * @returns a function that cancels it; calling it later, or twice, does nothing
   */
  after(delay: number, action: () => void): () => void;
}

/** The real clock. */
export const systemClock: Clock = {
  now: () => performance.now(),
  after(delay, action) {
    const timer = setTimeout(action, delay);
    timer.unref();
    return () => clearTimeout(timer);
  },
};
