import { sameMatch } from './overlap.js';
import { type Rule, receiver } from './rule.js';

/** Who gets a packet, and who would have. */
export interface Verdict {
  /** The rules that take a copy, strongest first; of those with one receiver only the first. */
  readonly takers: readonly Rule[];
  /** Sniffers, which always get a copy, strongest first. */
  readonly sniffers: readonly Rule[];
  /** The rule that dropped it. */
  readonly droppedBy: Rule | undefined;
  /** Of the rules that match and take nothing, the one in whose favour. */
  readonly losers: ReadonlyMap<Rule, Rule>;
}

/**
 * Decides among the rules that match a packet (VERBS 3, and FlowIndex in native/soft/flow_index.h): normal rules before
 * default ones; the lower priority number first; all with the identical match at that priority share; of others the oldest;
 * with dontTrap the packet goes on, if all that share have it; a rule that drops leaves nothing to anybody but sniffers.
 * @param matching in the order of age
 */
export function decide(matching: readonly Rule[]): Verdict {
  const sniffers = matching.filter(({ type }) => type === 'sniffer').sort((a, b) => a.priority - b.priority);
  const rank = ({ type }: Rule) => (type === 'normal' ? 0 : 1);
  // The sort is stable: of equal ones the older stays first.
  const left = matching
    .filter(({ type }) => type !== 'sniffer')
    .sort((a, b) => rank(a) - rank(b) || a.priority - b.priority);
  let takers: Rule[] = [];
  let droppedBy: Rule | undefined;
  const losers = new Map<Rule, Rule>();
  while (left.length > 0) {
    const first = left[0]!;
    const shares = (one: Rule) =>
      rank(one) === rank(first) &&
      one.priority === first.priority &&
      // MC_DEFAULT, and ALL_DEFAULT for a multicast packet, are the identical match.
      (one.type !== 'normal' || sameMatch(one.match, first.match));
    const run = left.filter(shares);
    for (const one of run) left.splice(left.indexOf(one), 1);
    if (run.some(({ action }) => action === 'drop')) {
      droppedBy = run.find(({ action }) => action === 'drop');
      for (const one of [...takers, ...run, ...left]) if (one !== droppedBy) losers.set(one, droppedBy!);
      takers = [];
      break;
    }
    for (const one of run) {
      const same = takers.find((other) => receiver(other) === receiver(one));
      if (same === undefined) takers.push(one);
      else losers.set(one, same);
    }
    if (!run.every(({ dontTrap }) => dontTrap)) {
      const winner = run.find(({ dontTrap }) => !dontTrap)!;
      for (const one of left) losers.set(one, winner);
      break;
    }
  }
  return { takers, sniffers, droppedBy, losers };
}
