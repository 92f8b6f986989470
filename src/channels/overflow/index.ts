import { DropNewest } from './drop-newest.js';
import { DropOldest } from './drop-oldest.js';
import { Latest } from './latest.js';
import { LatestBy } from './latest-by.js';
import type { Backlog, Dropped, Overflow } from './policy.js';
import { Wait } from './wait.js';

export { keyAt } from './latest-by.js';
export type { Backlog, Dropped, Overflow } from './policy.js';

/** The policies without parameters. */
export const POLICIES = ['wait', 'drop-oldest', 'drop-newest', 'latest'] as const;

/** Whether a value, perhaps from a peer, names a policy. */
export function isOverflow(value: unknown): value is Overflow {
  if (typeof value === 'string') return (POLICIES as readonly string[]).includes(value);
  if (typeof value !== 'object' || value === null) return false;
  const { latestBy } = value as { latestBy?: unknown };
  return (
    typeof latestBy === 'string' &&
    latestBy.length > 0 &&
    latestBy.length <= 255 &&
    Object.keys(value).length === 1
  );
}

/** The queue of one subscriber under its policy. `dropped` is told of each message that goes. */
export function makeBacklog(overflow: Overflow, maxBytes: number, dropped: Dropped): Backlog {
  switch (overflow) {
    case 'wait':
      return new Wait(maxBytes, dropped);
    case 'drop-oldest':
      return new DropOldest(maxBytes, dropped);
    case 'drop-newest':
      return new DropNewest(maxBytes, dropped);
    case 'latest':
      return new Latest(maxBytes, dropped);
    default:
      return new LatestBy(overflow.latestBy, maxBytes, dropped);
  }
}
