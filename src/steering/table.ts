import { compile, readMatch } from './compile.js';
import { HEADER_BYTES } from './fields.js';
import type { Packet } from './packet.js';
import type { Rule } from './rule.js';
import { decide, type Verdict } from './winners.js';

/** All rules with one mask, by their value. */
interface Group {
  readonly mask: Uint8Array;
  readonly rules: Map<string, Rule[]>;
}

/**
 * Rules as a device holds them: what was compiled, in one hash table for each mask that occurs. The cost of a packet grows
 * with the number of different masks, not with the number of rules.
 */
export class RuleTable {
  private readonly groups: Group[] = [];
  private readonly age: ReadonlyMap<Rule, number>;
  private readonly key = Buffer.alloc(HEADER_BYTES);

  constructor(rules: readonly Rule[]) {
    this.age = new Map(rules.map((rule, i) => [rule, i]));
    const byMask = new Map<string, Group>();
    for (const rule of rules) {
      const { value, mask } = readMatch(compile(rule));
      const name = Buffer.from(mask).toString('latin1');
      let group = byMask.get(name);
      if (group === undefined) {
        group = { mask, rules: new Map() };
        byMask.set(name, group);
        this.groups.push(group);
      }
      const key = Buffer.from(value).toString('latin1');
      const same = group.rules.get(key);
      if (same === undefined) group.rules.set(key, [rule]);
      else same.push(rule);
    }
  }

  /** Different masks: lookups for a packet. */
  get masks(): number {
    return this.groups.length;
  }

  /** Who gets the packet. */
  steer(packet: Packet): Verdict {
    const matching: Rule[] = [];
    for (const { mask, rules } of this.groups) {
      for (let i = 0; i < HEADER_BYTES; i++) this.key[i] = packet.headers[i]! & mask[i]!;
      for (const rule of rules.get(this.key.toString('latin1')) ?? []) {
        const { interface: port } = rule.match;
        const here = port === undefined || packet.interface === undefined || port === packet.interface;
        if (here && (rule.type !== 'multicast-default' || packet.multicast)) matching.push(rule);
      }
    }
    return decide(matching.sort((a, b) => this.age.get(a)! - this.age.get(b)!));
  }
}
