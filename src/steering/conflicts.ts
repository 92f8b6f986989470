import { HEADER_BYTES } from './fields.js';
import { implied, sameMatch } from './overlap.js';
import { at, type Problem } from './problem.js';
import { called, type Rule, receiver } from './rule.js';

/**
 * Looks at rules together, the oldest first: names that are there twice, contradictions, rules that never get a packet, and
 * overlaps that only age decides. Rules are compared two by two: one that several others cover only together is not found.
 * Pure. The cost grows with the number of rules times that of different masks among them.
 */
export function findConflicts(rules: readonly Rule[]): Problem[] {
  const normal = rules.filter(({ type }) => type === 'normal');
  const told = new Set<Rule>();
  const problems = [
    ...names(rules),
    ...identical(normal, told),
    ...shadows(normal, told),
    ...defaults(rules),
  ];
  return problems.sort((a, b) => (a.line ?? 0) - (b.line ?? 0));
}

function problem(
  severity: Problem['severity'],
  kind: Problem['kind'],
  rule: Rule,
  other: Rule,
  message: string,
  remedy: string,
): Problem {
  return {
    severity,
    kind,
    rule: rule.name,
    other: other.name,
    errno: 'EINVAL',
    message,
    remedy,
    ...at(rule.position),
    ...(other.position === undefined ? {} : { otherLine: other.position.line }),
  };
}

const contradiction = (rule: Rule, drop: Rule): Problem =>
  problem(
    'error',
    'contradiction',
    rule,
    drop,
    `${called(rule)} takes what ${called(drop)} drops: both match the same at priority ${rule.priority}`,
    'Remove one of them, or give them different priorities.',
  );

function* names(rules: readonly Rule[]): Generator<Problem> {
  const known = new Map<string, Rule>();
  for (const rule of rules) {
    const other = known.get(rule.name);
    if (other === undefined) known.set(rule.name, rule);
    else {
      yield problem(
        'error',
        'duplicate-name',
        rule,
        other,
        `${called(rule)} has the name of another${other.position === undefined ? '' : `, in line ${other.position.line}`}`,
        'Give each rule a name of its own.',
      );
    }
  }
}

const bytesKey = (value: Uint8Array, mask: Uint8Array): string => {
  const key = Buffer.alloc(HEADER_BYTES);
  for (let i = 0; i < HEADER_BYTES; i++) key[i] = value[i]! & mask[i]!;
  return key.toString('latin1');
};

/** What happens to a packet, as one word: between rules with the same it makes no difference which one wins. */
const outcome = (rule: Rule): string => `${receiver(rule)} ${rule.tag ?? ''} ${rule.dontTrap}`;

/** Rules with the identical match at one priority: they share packets, which not all can. */
function* identical(rules: readonly Rule[], skip: Set<Rule>): Generator<Problem> {
  const runs = groupBy(rules, ({ match, priority }) =>
    [
      priority,
      match.interface ?? '*',
      bytesKey(match.mask, match.mask),
      bytesKey(match.value, match.mask),
    ].join(' '),
  );
  for (const run of runs.values()) {
    const drop = run.find(({ action }) => action === 'drop');
    const keeps = run.find(({ dontTrap }) => !dontTrap);
    const served = new Map<string, Rule>();
    for (const rule of run) {
      const key = receiver(rule);
      const twin = served.get(key);
      if (twin === undefined) served.set(key, rule);
      if (drop !== undefined && rule.action !== 'drop') {
        skip.add(rule);
        yield contradiction(rule, drop);
      } else if (twin !== undefined) {
        skip.add(rule);
        yield problem(
          'warning',
          'duplicate',
          rule,
          twin,
          `${called(rule)} does what ${called(twin)} does already: a channel gets one copy of a packet`,
          'Remove one of them.',
        );
      } else if (rule.dontTrap && keeps !== undefined) {
        yield problem(
          'warning',
          'without-effect',
          rule,
          keeps,
          `the packets of ${called(rule)} go no further: ${called(keeps)} matches the same at priority ${rule.priority} and keeps them`,
          'Set dontTrap on both, or give them different priorities.',
        );
      }
    }
  }
}

function groupBy<T>(items: Iterable<T>, key: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const name = key(item);
    const group = groups.get(name);
    if (group === undefined) groups.set(name, [item]);
    else group.push(item);
  }
  return groups;
}

/** A rule with its age and all that its packets have. */
interface Aged {
  readonly rule: Rule;
  readonly age: number;
  readonly value: Uint8Array;
}

/** Rules that look at the same bits. */
interface Group {
  readonly members: readonly Aged[];
  readonly mask: Uint8Array;
  readonly implied: Uint8Array;
  /** Whether they name an interface. */
  readonly named: boolean;
}

const stronger = (a: Aged, b: Aged): boolean =>
  a.rule.priority < b.rule.priority || (a.rule.priority === b.rule.priority && a.age < b.age);

/** The rules of one group, found by a rule of another: those that overlap with it, the strongest first. */
class Pair {
  /** Whether those match all that a rule of the other group does. */
  readonly covering: boolean;
  private readonly common: Uint8Array;
  private readonly named: boolean;
  private readonly table: ReadonlyMap<string, readonly Aged[]>;

  constructor(group: Group, own: Group) {
    this.common = group.implied.map((bits, i) => bits & own.implied[i]!);
    this.named = group.named && own.named;
    this.covering =
      group.mask.every((bits, i) => (bits & ~own.implied[i]!) === 0) && (!group.named || own.named);
    const strongestFirst = [...group.members].sort((a, b) => (stronger(a, b) ? -1 : 1));
    this.table = groupBy(strongestFirst, (one) => this.key(one));
  }

  find(one: Aged): readonly Aged[] {
    return this.table.get(this.key(one)) ?? [];
  }

  private key({ rule, value }: Aged): string {
    return `${this.named ? rule.match.interface : ''} ${bytesKey(value, this.common)}`;
  }
}

/**
 * Rules that never get a packet since a stronger one takes all of them, and overlaps at one priority. Each rule is told
 * with one other, the strongest, so that there are not more problems than rules.
 */
function* shadows(rules: readonly Rule[], skip: ReadonlySet<Rule>): Generator<Problem> {
  const aged = rules.map((rule, age): Aged => ({ rule, age, value: implied(rule.match).value }));
  const byMask = groupBy(
    aged,
    ({ rule: { match } }) => `${match.interface === undefined}${bytesKey(match.mask, match.mask)}`,
  );
  const groups = [...byMask.values()].map((members): Group => {
    const { match } = members[0]!.rule;
    return { members, mask: match.mask, implied: implied(match).mask, named: match.interface !== undefined };
  });
  for (const own of groups) {
    const pairs = groups.map((group) => new Pair(group, own));
    for (const one of own.members) {
      if (skip.has(one.rule)) continue;
      let cover: Aged | undefined;
      let rival: Aged | undefined;
      for (const pair of pairs) {
        for (const other of pair.find(one)) {
          if (!stronger(other, one)) break;
          const level = other.rule.priority === one.rule.priority;
          // With the identical match packets are shared.
          if (level && sameMatch(other.rule.match, one.rule.match)) continue;
          if (pair.covering && !other.rule.dontTrap) {
            if (cover === undefined || stronger(other, cover)) cover = other;
            break;
          }
          if (level && orderMatters(other.rule, one.rule)) {
            if (rival === undefined || stronger(other, rival)) rival = other;
            if (!pair.covering) break;
          }
        }
      }
      if (cover !== undefined) yield shadowedBy(one.rule, cover.rule);
      else if (rival !== undefined) yield ambiguous(one.rule, rival.rule);
    }
  }
}

/** Whether it makes a difference which of two rules sees a packet first. */
const orderMatters = (a: Rule, b: Rule): boolean => outcome(a) !== outcome(b) && !(a.dontTrap && b.dontTrap);

function shadowedBy(rule: Rule, other: Rule): Problem {
  const why =
    other.priority === rule.priority
      ? `at the same priority ${rule.priority} it comes first`
      : `its priority ${other.priority} is stronger than ${rule.priority}`;
  return problem(
    'warning',
    'shadowed',
    rule,
    other,
    `${called(rule)} never gets a packet: ${called(other)} matches all that it matches, and ${why}`,
    `Give ${rule.name} a lower priority number than ${other.priority}, or remove it.`,
  );
}

function ambiguous(rule: Rule, other: Rule): Problem {
  return problem(
    'warning',
    'ambiguous',
    rule,
    other,
    `${called(other)} and ${called(rule)} both match some packets, differently, at priority ${rule.priority}: ${other.name} ` +
      `comes first and ${other.dontTrap ? 'lets them go on' : 'keeps those'}`,
    'Give them different priorities, so that the order does not matter.',
  );
}

/** Default rules that are never reached, or take what another one drops. */
function* defaults(rules: readonly Rule[]): Generator<Problem> {
  const all = rules.filter(({ type }) => type === 'all-default' || type === 'multicast-default');
  for (const rule of all) {
    const here = ({ match }: Rule) =>
      match.interface === undefined || match.interface === rule.match.interface;
    const drop = all.find(
      (one) =>
        one.action === 'drop' &&
        one.priority === rule.priority &&
        (one.type === 'all-default' || one.type === rule.type) &&
        here(one),
    );
    if (drop !== undefined && rule.action !== 'drop') {
      yield contradiction(rule, drop);
      continue;
    }
    const every = rules.find(
      (one) => one.type === 'normal' && one.match.fields.length === 0 && !one.dontTrap && here(one),
    );
    const before = all.find((one) => one.type === 'all-default' && one.priority < rule.priority && here(one));
    const other = every ?? before;
    if (other !== undefined) {
      yield problem(
        'warning',
        'shadowed',
        rule,
        other,
        `${called(rule)} never gets a packet: ${called(other)} comes before it and takes every packet`,
        'Remove it, or the other one.',
      );
    }
  }
}
