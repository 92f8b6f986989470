import { systemClock } from './channels/clock.js';
import { joinWith } from './channels/join.js';
import type { JoinOptions } from './channels/options.js';
import { Cluster } from './cluster/cluster.js';
import { Member } from './member.js';
import { loadNative } from './native/load.js';

/**
 * Joins a domain and becomes a member of it.
 *
 * @param domain its name; MILLRACE_DOMAIN or `'default'` unless given
 * @returns the member, which the caller owns: leave(), close(), or `await using`. If the event loop runs empty, the member
 *   drains and leaves by itself.
 * @throws MillraceError (rejects) with the exact cause, nothing left behind; MillraceTypeError and MillraceRangeError for
 *   options
 */
export function join<C = undefined>(domain?: string, options?: JoinOptions): Promise<Member<C>> {
  const parts = () => ({
    native: loadNative(),
    clock: systemClock(),
    dice: Math.random,
    Member,
    joinCluster: (given: Parameters<typeof Cluster.join>[0]) => Cluster.join(given),
  });
  // The class is the one in `parts`.
  return joinWith<C>(parts, domain, options) as Promise<Member<C>>;
}
