import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { compile, readMatch } from '../../src/steering/compile.js';
import { findConflicts } from '../../src/steering/conflicts.js';
import { explain } from '../../src/steering/explain.js';
import { steer } from '../../src/steering/match.js';
import { covers, overlaps } from '../../src/steering/overlap.js';
import { decodePacket } from '../../src/steering/packet.js';
import { errorsOf } from '../../src/steering/problem.js';
import { readRules } from '../../src/steering/set.js';
import { RuleTable } from '../../src/steering/table.js';
import { frames, ruleInputs } from '../support/steering.js';

const numRuns = Number(process.env.MILLRACE_PROPERTY_RUNS ?? 150);
const interfaces = fc.constantFrom('eth0', 'eth1', undefined);

describe('random rules and packets', () => {
  test('the plain matcher and the compiled table agree, and explain() says the same', () => {
    fc.assert(
      fc.property(
        ruleInputs(8),
        interfaces,
        fc.array(frames, { minLength: 1, maxLength: 8 }),
        interfaces,
        (inputs, named, list, port) => {
          // Some rules of one interface only.
          const withPort = inputs.map((input, i) =>
            named === undefined || i % 3 !== 0
              ? input
              : { ...input, match: { ...input.match, interface: named } },
          );
          const { rules } = readRules(withPort);
          expect(rules).toHaveLength(inputs.length);
          const table = new RuleTable(rules);
          for (const frame of list) {
            const packet = decodePacket(frame, port)!;
            const plain = steer(rules, packet);
            expect(table.steer(packet)).toEqual(plain);
            const { verdicts } = explain(rules, packet);
            const said = (...outcomes: string[]) =>
              new Set(verdicts.filter(({ outcome }) => outcomes.includes(outcome)).map(({ rule }) => rule));
            expect(said('taken', 'counted')).toEqual(new Set([...plain.takers, ...plain.sniffers]));
            expect([...said('dropped')]).toEqual(plain.droppedBy === undefined ? [] : [plain.droppedBy]);
            expect(said('lost')).toEqual(new Set(plain.losers.keys()));
            for (const { why } of verdicts) expect(why).not.toBe('');
          }
        },
      ),
      { numRuns },
    );
  });

  test('a compiled rule matches by the bits that the plain one has', () => {
    fc.assert(
      fc.property(ruleInputs(4), (inputs) => {
        for (const rule of readRules(inputs).rules) {
          const { value, mask } = readMatch(compile(rule));
          expect({ value, mask }).toEqual({ value: rule.match.value, mask: rule.match.mask });
        }
      }),
      { numRuns },
    );
  });

  test('what covers() and overlaps() say of two rules holds for every packet', () => {
    fc.assert(
      fc.property(ruleInputs(6), fc.array(frames, { minLength: 5, maxLength: 30 }), (inputs, list) => {
        const { rules } = readRules(inputs);
        const normal = rules.filter(({ type }) => type === 'normal');
        const matched = normal.map((rule) =>
          list.map((frame) => {
            const { takers, droppedBy } = steer([rule], decodePacket(frame)!);
            return takers.length > 0 || droppedBy !== undefined;
          }),
        );
        for (const [i, a] of normal.entries()) {
          for (const [j, b] of normal.entries()) {
            const both = matched[i]!.some((yes, k) => yes && matched[j]![k]);
            if (both) expect(overlaps(a.match, b.match)).toBe(true);
            const outside = matched[j]!.some((yes, k) => yes && !matched[i]![k]);
            if (outside) expect(covers(a.match, b.match)).toBe(false);
            if (covers(a.match, b.match)) expect(overlaps(a.match, b.match)).toBe(true);
          }
        }
      }),
      { numRuns },
    );
  });

  test('a rule that is said to be shadowed never gets a packet; without a warning the order makes no difference', () => {
    fc.assert(
      fc.property(ruleInputs(6), fc.array(frames, { minLength: 5, maxLength: 30 }), (inputs, list) => {
        const { rules } = readRules(inputs);
        const problems = findConflicts(rules);
        const never = problems.filter(({ kind }) => kind === 'shadowed').map(({ rule }) => rule);
        const packets = list.map((frame) => decodePacket(frame)!);
        for (const packet of packets) {
          const { takers, droppedBy } = steer(rules, packet);
          for (const { name } of droppedBy === undefined ? takers : [...takers, droppedBy])
            expect(never).not.toContain(name);
        }
        if (problems.length > 0) return;
        const reverse = [...rules].reverse();
        for (const packet of packets) {
          const result = (order: typeof rules) => {
            const { takers, sniffers, droppedBy } = steer(order, packet);
            const to = [...takers, ...sniffers].map(({ action, name }) =>
              typeof action === 'object' ? action.to.name : name,
            );
            return { to: to.sort(), dropped: droppedBy !== undefined };
          };
          expect(result(reverse)).toEqual(result(rules));
        }
      }),
      { numRuns },
    );
  });

  test('the tables of findConflicts() find what comparing each with each does', () => {
    fc.assert(
      fc.property(ruleInputs(8), (inputs) => {
        const rules = readRules(inputs).rules.filter(({ type }) => type === 'normal');
        const found = findConflicts(rules);
        const told = new Set(
          found
            .filter(({ kind }) => kind === 'contradiction' || kind === 'duplicate')
            .map(({ rule }) => rule),
        );
        const shadowed = rules.filter((rule, i) => {
          if (told.has(rule.name)) return false;
          return rules.some((other, k) => {
            const level = other.priority === rule.priority;
            const before = other.priority < rule.priority || (level && k < i);
            const same =
              level &&
              covers(other.match, rule.match) &&
              Buffer.compare(other.match.mask, rule.match.mask) === 0;
            return before && !other.dontTrap && !same && covers(other.match, rule.match);
          });
        });
        expect(new Set(found.filter(({ kind }) => kind === 'shadowed').map(({ rule }) => rule))).toEqual(
          new Set(shadowed.map(({ name }) => name)),
        );
        expect(errorsOf(found).every(({ kind }) => kind === 'contradiction')).toBe(true);
      }),
      { numRuns },
    );
  });
});
