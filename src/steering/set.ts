import { findConflicts } from './conflicts.js';
import { parseRule, type Where } from './parse.js';
import { errorsOf, type Problem, rulesError } from './problem.js';
import type { Rule, RuleInput } from './rule.js';

/** Rules that go together, the oldest first, and what is to be said about them. */
export interface RuleSet {
  readonly rules: readonly Rule[];
  /** Warnings, and the errors that kept rules out of `rules`. */
  readonly problems: readonly Problem[];
}

/**
 * Reads rules and checks each by itself and all together. Pure; never throws. Rules with errors are left out.
 * @param inputs of any kind: they may come from a file
 * @param where finds a rule's parts in the file that it is from
 */
export function readRules(
  inputs: readonly unknown[],
  where: (rule: number) => Where = () => () => undefined,
): RuleSet {
  const rules: Rule[] = [];
  const problems: Problem[] = [];
  for (const [i, input] of inputs.entries()) {
    const parsed = parseRule(input, `#${i + 1}`, where(i));
    if (parsed.rule !== undefined) rules.push(parsed.rule);
    problems.push(...parsed.problems);
  }
  return { rules, problems: [...problems, ...findConflicts(rules)] };
}

/**
 * Checks rules without a device, as {@link Steering.replace} would.
 * @returns the rules, and warnings
 * @throws MillraceTypeError ERR_STEERING_RULE with all problems in `details.problems`
 */
export function checkRules(inputs: readonly RuleInput[]): RuleSet {
  const set = readRules(inputs);
  if (errorsOf(set.problems).length > 0) throw rulesError('checkRules()', set.problems);
  return set;
}
