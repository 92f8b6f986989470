import { overlaps, sameMatch } from './overlap.js';
import { type Rule, receiver } from './rule.js';

/** A rule that is in force. */
export interface Flow {
  readonly rule: Rule;
  /** What was compiled: two flows with the same do the same. */
  readonly attr: Uint8Array;
  readonly handle: number;
}

/** Flows that do the same for the same receiver. */
const keyOf = (rule: Rule, attr: Uint8Array): string =>
  `${Buffer.from(attr).toString('latin1')} ${rule.match.interface ?? '*'} ${receiver(rule)}`;

/** Whether it makes a difference which of two rules is the older. */
const ageMatters = (a: Rule, b: Rule): boolean =>
  a.type === 'normal' &&
  b.type === 'normal' &&
  a.priority === b.priority &&
  !sameMatch(a.match, b.match) &&
  overlaps(a.match, b.match);

/**
 * Which flows can stay when a set of rules takes the place of another: those that are in both, and whose age is still right
 * among the rules that they overlap with at one priority. A flow that stays loses no packet. Pure.
 * @param old in the order of age
 * @returns for each rule of `next` that has one, its flow
 */
export function keepFlows(
  old: readonly Flow[],
  next: readonly { readonly rule: Rule; readonly attr: Uint8Array }[],
): Map<Rule, Flow> {
  const free = new Map<string, Flow[]>();
  for (const flow of old) {
    const key = keyOf(flow.rule, flow.attr);
    const list = free.get(key);
    if (list === undefined) free.set(key, [flow]);
    else list.push(flow);
  }
  const age = new Map(old.map((flow, i) => [flow, i]));
  const kept = new Map<Rule, Flow>();
  const made: Rule[] = [];
  let newest = -1;
  for (const { rule, attr } of next) {
    const list = free.get(keyOf(rule, attr)) ?? [];
    const same = list.findIndex((flow) => flow.rule.name === rule.name);
    const flow = list[Math.max(same, 0)];
    const own = flow === undefined ? -1 : age.get(flow)!;
    // Rules before it in the set that would be younger than it.
    const younger =
      own > newest
        ? made
        : [...made, ...[...kept].filter(([, one]) => age.get(one)! > own).map(([one]) => one)];
    if (flow === undefined || younger.some((one) => ageMatters(one, rule))) {
      made.push(rule);
      continue;
    }
    list.splice(list.indexOf(flow), 1);
    kept.set(rule, flow);
    newest = Math.max(newest, own);
  }
  return kept;
}
