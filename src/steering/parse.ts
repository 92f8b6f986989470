import { closest, describe } from '../suggest.js';
import { HEADER_BYTES } from './fields.js';
import { parseMatch } from './parse-match.js';
import { at, type Problem } from './problem.js';
import type { Action, Match, Position, Rule, RuleType, Target } from './rule.js';

/** Finds a part of a rule in its file. */
export type Where = (path: readonly string[]) => Position | undefined;

const TYPES: readonly RuleType[] = ['normal', 'all-default', 'multicast-default', 'sniffer'];
const KNOWN = ['name', 'type', 'match', 'priority', 'to', 'drop', 'count', 'tag', 'dontTrap'];
const EVERYTHING: Match = {
  value: new Uint8Array(HEADER_BYTES),
  mask: new Uint8Array(HEADER_BYTES),
  fields: [],
  family: undefined,
  interface: undefined,
};

/** A rule that was read, or why it could not be. */
export interface Parsed {
  readonly rule: Rule | undefined;
  readonly problems: readonly Problem[];
}

/**
 * Reads one rule and checks it by itself (VERBS 3): all that is wrong is told at once. Pure; never throws.
 * @param input of any kind: it may come from a file
 * @param fallback its name, unless it has one
 * @param where finds its parts in the file that it is from
 */
export function parseRule(input: unknown, fallback: string, where: Where = () => undefined): Parsed {
  const reader = new RuleReader(input, fallback, where);
  const rule = reader.read();
  return { rule: reader.problems.length === 0 ? rule : undefined, problems: reader.problems };
}

class RuleReader {
  readonly problems: Problem[] = [];
  private name: string;

  constructor(
    private readonly given: unknown,
    fallback: string,
    private readonly where: Where,
  ) {
    this.name = fallback;
  }

  read(): Rule | undefined {
    const input = this.given;
    if (typeof input !== 'object' || input === null || Array.isArray(input)) {
      this.complain('', `a rule must be an object, not ${describe(input)}`, 'Write { match: …, to: … }.');
      return undefined;
    }
    const fields = input as Record<string, unknown>;
    const { name } = fields;
    if (name !== undefined) {
      // biome-ignore lint/suspicious/noControlCharactersInRegex: a name is printed
      if (typeof name === 'string' && /^[^\u0000-\u001f\u007f]{1,100}$/.test(name)) this.name = name;
      else
        this.complain(
          'name',
          `${describe(name)} is no name`,
          'Use a text of 1 to 100 characters in one line.',
        );
    }
    for (const key of Object.keys(fields)) {
      if (KNOWN.includes(key)) continue;
      const meant = closest(key, KNOWN);
      this.complain(
        key,
        `there is no field ${JSON.stringify(key)}`,
        meant === undefined ? `There are ${KNOWN.join(', ')}.` : `Did you mean ${JSON.stringify(meant)}?`,
      );
    }
    const type = this.type(fields.type);
    const match =
      fields.match === undefined
        ? EVERYTHING
        : parseMatch(fields.match, (field, message, remedy) => this.complain(field, message, remedy));
    const priority = this.whole('priority', fields.priority, 65_535) ?? 0;
    const tag = this.whole('tag', fields.tag, 2 ** 32 - 1);
    const dontTrap = this.flag('dontTrap', fields.dontTrap);
    const action = this.action(fields);
    if (type !== 'normal' && match !== undefined && match.fields.length > 0) {
      this.complain(
        'match',
        `a ${type} rule takes no match but an interface, and this one has ${match.fields.join(', ')}`,
        "Leave match out, or use type: 'normal'.",
      );
    }
    const only = (field: string, wanted: boolean, why: string) => {
      if (wanted && type !== 'normal')
        this.complain(field, `${field} needs a normal rule, and this one is ${type}`, why);
    };
    only('tag', tag !== undefined, 'Leave tag out: default rules and sniffers have none.');
    only('dontTrap', dontTrap, 'Leave dontTrap out.');
    if (action === 'count') only('count', true, 'Name the channel with to.');
    if (action === 'drop') {
      if (type === 'sniffer')
        this.complain(
          'drop',
          'a sniffer steals nothing, so it can not drop',
          "Use type: 'normal' or a default.",
        );
      if (tag !== undefined) this.complain('tag', 'what is dropped carries no tag', 'Leave out tag or drop.');
      if (dontTrap)
        this.complain('dontTrap', 'what is dropped does not go on', 'Leave out dontTrap or drop.');
    }
    if (match === undefined || action === undefined) return undefined;
    return {
      name: this.name,
      type,
      priority,
      match,
      action,
      tag,
      // Who only counts lets packets go on.
      dontTrap: dontTrap || action === 'count',
      position: this.where([]),
    };
  }

  private complain(field: string, message: string, remedy: string): void {
    const path = field === '' ? [] : field.split('.');
    let position = this.where(path);
    // What is missing has no place of its own: that of what it is missing in.
    for (let n = path.length - 1; position === undefined && n >= 0; n--)
      position = this.where(path.slice(0, n));
    this.problems.push({
      severity: 'error',
      kind: 'invalid',
      rule: this.name,
      ...(field === '' ? {} : { field }),
      errno: 'EINVAL',
      message: `rule ${this.name}: ${field === '' ? '' : `${field}: `}${message}`,
      remedy,
      ...at(position),
    });
  }

  private type(given: unknown): RuleType {
    if (given === undefined) return 'normal';
    if (TYPES.includes(given as RuleType)) return given as RuleType;
    const meant = typeof given === 'string' ? closest(given, TYPES) : undefined;
    this.complain(
      'type',
      `${describe(given)} is no type of rule`,
      meant === undefined ? `Use ${TYPES.join(', ')}.` : `Did you mean ${JSON.stringify(meant)}?`,
    );
    return 'normal';
  }

  private whole(field: string, given: unknown, most: number): number | undefined {
    if (given === undefined) return undefined;
    if (typeof given === 'number' && Number.isInteger(given) && given >= 0 && given <= most) return given;
    this.complain(field, `${describe(given)} is not a whole number from 0 to ${most}`, `Use 0 to ${most}.`);
    return undefined;
  }

  private flag(field: string, given: unknown): boolean {
    if (given === undefined || typeof given === 'boolean') return given === true;
    this.complain(field, `${describe(given)} is neither true nor false`, 'Use true or false.');
    return false;
  }

  private action({ to, drop, count }: Record<string, unknown>): Action | undefined {
    const drops = this.flag('drop', drop);
    const counts = this.flag('count', count);
    const target = to === undefined ? undefined : this.target(to);
    if (to !== undefined && drops) {
      this.complain('drop', 'a rule that drops has no channel', 'Leave out to or drop.');
      return undefined;
    }
    if (to !== undefined) return target === undefined ? undefined : { to: target };
    if (drops) return 'drop';
    if (counts) return 'count';
    this.complain('', 'it does nothing with the packets', 'Add to: (a channel), drop: true or count: true.');
    return undefined;
  }

  private target(to: unknown): Target | undefined {
    if (typeof to === 'string' && to !== '') return { name: to };
    if (
      typeof to === 'object' &&
      to !== null &&
      'name' in to &&
      typeof to.name === 'string' &&
      to.name !== ''
    )
      return to as Target;
    this.complain('to', `${describe(to)} is no channel`, 'Use a channel, or its name.');
    return undefined;
  }
}
