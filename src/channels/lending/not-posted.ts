import { MillraceError } from '../../errors.js';

/**
 * A property of a lease or loan that nobody reads but a structured clone: postMessage() and structuredClone() say what to do
 * instead. One for all of a kind: an accessor of each would make it ten times as expensive.
 */
export class NotPosted {
  /** `what` can't be posted, and why. */
  constructor(what: string) {
    Object.defineProperty(this, 'reason', {
      enumerable: true,
      get() {
        throw new MillraceError(
          'ERR_LEASE_POSTED',
          `${what}. Post a copy of its bytes, let the worker join and use the channel itself, or share memory with a region: ` +
            'post region.handle, and open it there.',
        );
      },
    });
  }
}

export const leaseNotPosted = (channel: string): NotPosted =>
  new NotPosted(
    `A lease of ${JSON.stringify(channel)} can't be posted to another thread, or copied: it belongs to the member that received it`,
  );

export const LOAN_NOT_POSTED = new NotPosted(
  "A loan can't be posted to another thread, or copied: it is published by the member that lent it",
);
