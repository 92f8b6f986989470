import { invalidArgument } from '../suggest.js';
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

/** A set of rules is an array, whatever is in it. @throws MillraceTypeError ERR_INVALID_ARGUMENT */
export function checkList(call: string, inputs: unknown): void {
  if (!Array.isArray(inputs)) invalidArgument(call, 'the rules', inputs, 'an array');
}

/**
 * Checks rules without a device, as {@link Steering.replace} would.
 * @returns the rules, and warnings
 * @throws MillraceTypeError ERR_STEERING_RULE with all problems in `details.problems`, ERR_INVALID_ARGUMENT
 */
export function checkRules(inputs: readonly RuleInput[]): RuleSet {
  checkList('checkRules()', inputs);
  const set = readRules(inputs);
  if (errorsOf(set.problems).length > 0) throw rulesError('checkRules()', set.problems);
  return set;
}
