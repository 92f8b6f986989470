import { overlaps, sameMatch } from './overlap.js';
import { isObserver, type Rule, receiver } from './rule.js';

/** A rule that is in force. */
export interface Flow {
  readonly rule: Rule;
  /** What was compiled: two flows with the same do the same. */
  readonly attr: Uint8Array;
  readonly handle: number;
}

/** Whether a flow does what a rule says, under its name. */
function isFlowOf(
  { rule: old, attr: bytes }: Flow,
  { rule, attr }: { rule: Rule; attr: Uint8Array },
): boolean {
  // Whoever is not only named is told apart: what a rule leads to may have been made anew under the same name.
  const target = ({ action }: Rule) =>
    typeof action === 'object' && isObserver(action.to) ? action.to : undefined;
  return (
    Buffer.compare(bytes, attr) === 0 &&
    old.tag === rule.tag &&
    old.match.interface === rule.match.interface &&
    receiver(old) === receiver(rule) &&
    target(old) === target(rule)
  );
}

/** Whether it makes a difference which of two rules is the older. */
const ageMatters = (a: Rule, b: Rule): boolean =>
  a.type === 'normal' &&
  b.type === 'normal' &&
  a.priority === b.priority &&
  !sameMatch(a.match, b.match) &&
  overlaps(a.match, b.match);

/**
 * Which flows can stay when a set of rules takes the place of another: those that are in both under one name, and whose age
 * is still right among the rules that they overlap with at one priority. A flow that stays loses no packet. Pure.
 * @param old in the order of age
 * @returns for each rule of `next` that has one, its flow
 */
export function keepFlows(
  old: readonly Flow[],
  next: readonly { readonly rule: Rule; readonly attr: Uint8Array }[],
): Map<Rule, Flow> {
  const byName = new Map(old.map((flow, age) => [flow.rule.name, { flow, age }]));
  const kept = new Map<Rule, Flow>();
  const ages = new Map<Rule, number>();
  const made: Rule[] = [];
  let newest = -1;
  for (const wanted of next) {
    const { rule } = wanted;
    const known = byName.get(rule.name);
    if (known === undefined || !isFlowOf(known.flow, wanted)) {
      made.push(rule);
      continue;
    }
    const { flow, age } = known;
    // Rules before it in the set that would be younger than it.
    const passed = age > newest ? [] : [...ages].filter(([, other]) => other > age).map(([other]) => other);
    if ([...passed, ...made].some((other) => ageMatters(other, rule))) {
      made.push(rule);
      continue;
    }
    kept.set(rule, flow);
    ages.set(rule, age);
    newest = Math.max(newest, age);
  }
  return kept;
}
