import { MillraceTypeError } from '../errors.js';
import type { Position } from './rule.js';

/** What is wrong with a rule or with a set of rules. An error keeps the set out; a warning is worth a look. */
export interface Problem {
  readonly severity: 'error' | 'warning';
  readonly kind:
    | 'syntax'
    | 'invalid'
    | 'duplicate-name'
    | 'contradiction'
    | 'shadowed'
    | 'ambiguous'
    | 'duplicate'
    | 'without-effect';
  /** The rule that it is about. */
  readonly rule: string;
  /** The other one, where two don't go together. */
  readonly other?: string;
  /** The field, such as `match.port`. */
  readonly field?: string;
  /** What a device answers to such a rule. */
  readonly errno: 'EINVAL';
  /** What is wrong, with both rules and their lines. */
  readonly message: string;
  readonly remedy: string;
  /** Where it is, for rules from a file. */
  readonly file?: string;
  readonly line?: number;
  readonly column?: number;
  readonly otherLine?: number;
}

/** A problem as one line. */
export function problemText({ severity, file, line, column, message, errno, remedy }: Problem): string {
  const place = [file, line, column].filter((part) => part !== undefined).join(':');
  const where = place === '' ? '' : `${file === undefined ? 'line ' : ''}${place}: `;
  return `${where}${severity === 'warning' ? 'warning: ' : ''}${message}${severity === 'error' ? ` (${errno})` : ''}. ${remedy}`;
}

/** Where a problem shows. */
export const at = (position: Position | undefined): { line?: number; column?: number } =>
  position === undefined ? {} : { line: position.line, column: position.column };

/** Problems that keep rules out. */
export const errorsOf = (problems: readonly Problem[]): Problem[] =>
  problems.filter(({ severity }) => severity === 'error');

/** ERR_STEERING_RULE with all problems in `details.problems`. */
export function rulesError(call: string, problems: readonly Problem[]): MillraceTypeError {
  const errors = errorsOf(problems);
  const more = errors.length > 1 ? ` And ${errors.length - 1} more.` : '';
  return new MillraceTypeError('ERR_STEERING_RULE', `${call}: ${problemText(errors[0]!)}${more}`, {
    errno: 22,
    errnoName: errors[0]!.errno,
    details: { problems },
  });
}
