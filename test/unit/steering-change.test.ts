import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { steer } from '../../src/steering/match.js';
import { decodePacket } from '../../src/steering/packet.js';
import type { RuleInput } from '../../src/steering/rule.js';
import { Steering } from '../../src/steering/steering.js';
import { FakeFlowTable } from '../support/fake-flow-table.js';
import { frame } from '../support/frames.js';
import { frames, ruleInputs } from '../support/steering.js';

const made = () => {
  const table = new FakeFlowTable();
  return { table, steering: new Steering(table) };
};
const group = (last: number, more: Partial<RuleInput> = {}): RuleInput => ({
  name: `g${last}`,
  match: { dst: `239.1.1.${last}` },
  to: `c${last}`,
  ...more,
});
const port: RuleInput = { name: 'port', match: { protocol: 'udp', port: 5001 }, to: 'p' };
const errorOf = (body: () => unknown) => {
  try {
    body();
  } catch (error) {
    return error as { code: string; message: string; errnoName?: string; details: Record<string, unknown> };
  }
  throw new Error('nothing was thrown');
};

describe('adding and removing', () => {
  test('rules come into force in their order, and go', () => {
    const { table, steering } = made();
    steering.add(group(7));
    const [second] = steering.add([{ match: { dst: '239.1.1.8' }, to: { name: 'c8' } }]);
    expect(steering.rules.map(({ name }) => name)).toEqual(['g7', second!.name]);
    expect(table.deliver(frame())).toEqual(['g7']);
    for (const call of [
      () => steering.remove(5 as never),
      () => steering.remove([5] as never),
      () => steering.replace(5 as never),
    ])
      expect(call).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARGUMENT' }));
    steering.remove('g7');
    expect(table.deliver(frame())).toEqual([]);
    expect(table.names).toEqual([second!.name]);
  });

  test('rules without a name get one each', () => {
    const { steering } = made();
    for (const last of [1, 2, 3]) steering.add({ match: { dst: `239.1.1.${last}` }, to: 'c' });
    expect(new Set(steering.rules.map(({ name }) => name)).size).toBe(3);
  });

  test.each<[string, (steering: Steering) => unknown, string, RegExp]>([
    [
      'a wrong rule',
      (s) => s.add([group(8), { to: 'x', match: { port: 1 } }]),
      'ERR_STEERING_RULE',
      /match\.port.*EINVAL/,
    ],
    [
      'a name that is there',
      (s) => s.add(group(7, { match: { vlan: 1 } })),
      'ERR_STEERING_RULE',
      /has the name of another/,
    ],
    [
      'a contradiction to a rule that is there',
      (s) => s.add({ match: { dst: '239.1.1.7' }, drop: true }),
      'ERR_STEERING_RULE',
      /takes what rule #\d drops/,
    ],
    [
      'a name that is not there',
      (s) => s.remove(['g7', 'g8']),
      'ERR_STEERING_UNKNOWN',
      /no rule "g8"\. There are g7/,
    ],
    ['a wrong set', (s) => s.replace([group(8), group(8)]), 'ERR_STEERING_RULE', /has the name of another/],
  ])('%s changes nothing', (_title, body, code, message) => {
    const { table, steering } = made();
    steering.add(group(7));
    expect(errorOf(() => body(steering))).toMatchObject({ code, message: expect.stringMatching(message) });
    expect(table.log).toEqual(['+g7']);
    expect(steering.rules.map(({ name }) => name)).toEqual(['g7']);
  });

  test('warnings are those of the rules in force', () => {
    const { steering } = made();
    steering.add([port, group(7)]);
    expect(steering.warnings.map(({ kind }) => kind)).toEqual(['ambiguous']);
    steering.remove('port');
    expect(steering.warnings).toEqual([]);
  });
});

describe('a device that refuses', () => {
  test.each([
    ['EPERM', /CAP_NET_RAW.*setcap cap_net_raw/],
    ['ENOMEM', /table of the device is full.*CIDR/],
    ['ENXIO', /steering is off/],
    ['EINVAL', /match: the device does not take/],
    ['EOPNOTSUPP', /match: .*doctor/],
    ['EIO', /create a flow: EIO/],
  ])('%s: nothing is changed, and the error says which rule and what to do', (code, message) => {
    const { table, steering } = made();
    steering.replace([group(1), group(2)]);
    table.failure = { after: 1, code };
    const error = errorOf(() => steering.replace([group(2), group(3), group(4)]));
    expect(error).toMatchObject({ code: 'ERR_STEERING_REFUSED', errnoName: code, details: { rule: 'g4' } });
    expect(error.message).toMatch(message);
    expect(error.message).toMatch(/rule g4.*Nothing was changed/);
    expect(table.names).toEqual(['g1', 'g2']);
    expect(steering.rules.map(({ name }) => name)).toEqual(['g1', 'g2']);
    expect(table.log).toEqual(['+g1', '+g2', '+g3', '-g3']);
  });
});

describe('a set in the place of another', () => {
  test('what is in both stays; the new comes before the old goes', () => {
    const { table, steering } = made();
    steering.replace([group(1), group(2)]);
    steering.replace([group(3), group(2)]);
    expect(table.log).toEqual(['+g1', '+g2', '+g3', '-g1']);
    expect(steering.rules.map(({ name }) => name)).toEqual(['g3', 'g2']);
    expect(steering.stats().map(({ rule }) => rule)).toEqual(['g3', 'g2']);
  });

  test('another name, match, action, tag or target is another rule', () => {
    const { table, steering } = made();
    const target = { name: 'c1', next: () => {} };
    const others: Partial<RuleInput>[] = [
      { name: 'x' },
      { tag: 1 },
      { to: 'c2' },
      { to: target },
      { to: { ...target } },
      { dontTrap: true },
    ];
    for (const other of [{}, ...others]) steering.replace([group(1, other)]);
    expect(table.log.filter((one) => one.startsWith('+'))).toHaveLength(1 + others.length);
    steering.replace([group(1, others.at(-1))]);
    steering.replace([group(1, { ...others.at(-1), to: { name: 'c1' } })]);
    expect(table.log.filter((one) => one.startsWith('+'))).toHaveLength(1 + others.length);
  });

  test('where age decides, a rule that stays is made anew behind the one that is now before it', () => {
    const { table, steering } = made();
    steering.replace([group(7), group(8)]);
    expect(table.deliver(frame())).toEqual(['g7']);
    steering.replace([port, group(7), group(8, { match: { dst: '239.1.1.8', protocol: 'tcp' } })]);
    expect(table.deliver(frame())).toEqual(['port']);
    steering.replace([group(7), port]);
    expect(table.deliver(frame())).toEqual(['g7']);
  });

  test('random changes, some refused: the table has the rules, in an order that does the same', () => {
    const change = fc.record({
      kind: fc.constantFrom('add', 'remove', 'replace', 'shuffle'),
      inputs: ruleInputs(5),
      pick: fc.nat(),
      failure: fc.option(fc.nat(4), { nil: undefined, freq: 3 }),
    });
    fc.assert(
      fc.property(
        fc.array(change, { minLength: 1, maxLength: 8 }),
        fc.array(frames, { minLength: 4, maxLength: 8 }),
        (changes, list) => {
          const { table, steering } = made();
          let inputs: RuleInput[] = [];
          let count = 0;
          for (const { kind, inputs: given, pick, failure } of changes) {
            const named = given.map((input) => ({ ...input, name: `r${count++}` }));
            const next = {
              add: [...inputs, ...named],
              remove: inputs.filter((_, i) => i !== pick % inputs.length),
              // Some of the old ones, in another place.
              replace: [...named, ...inputs.filter((_, i) => (pick >> i) % 2 === 0)],
              shuffle: [...inputs].sort(
                (a, b) =>
                  ((pick >> (Number(a.name!.slice(1)) % 16)) & 1) -
                  ((pick >> (Number(b.name!.slice(1)) % 16)) & 1),
              ),
            }[kind]!;
            table.failure = failure === undefined ? undefined : { after: failure, code: 'ENOMEM' };
            const before = [...table.flows.keys()];
            try {
              if (kind === 'add') steering.add(named);
              else if (kind === 'remove' && inputs.length > 0)
                steering.remove(inputs[pick % inputs.length]!.name!);
              else if (kind !== 'remove') steering.replace(next);
              inputs = next;
            } catch (error) {
              expect((error as { code: string }).code).toMatch(/^ERR_STEERING_(RULE|REFUSED)$/);
              expect([...table.flows.keys()]).toEqual(before);
            }
            expect(steering.rules.map(({ name }) => name)).toEqual(inputs.map(({ name }) => name));
            expect(table.flows.size).toBe(inputs.length);
            for (const one of list) {
              const { takers, sniffers, droppedBy } = steer(steering.rules, decodePacket(one)!);
              const to = (names: readonly string[]) =>
                names.map((name) => inputs.find((input) => input.name === name)!.to ?? name).sort();
              const wanted = [...takers, ...sniffers].map(({ name }) => name);
              // Of rules that drop the same, and of two to one channel, either may be the one.
              if (droppedBy === undefined) expect(to(table.deliver(one))).toEqual(to(wanted));
              else
                expect(
                  table.deliver(one).some((name) => inputs.find((input) => input.name === name)!.drop),
                ).toBe(true);
            }
          }
          steering.close();
          expect(table.flows.size).toBe(0);
        },
      ),
      { numRuns: Number(process.env.MILLRACE_PROPERTY_RUNS ?? 100) },
    );
  });

  test('10,000 rules, one of them changed', () => {
    const { table, steering } = made();
    const many = Array.from(
      { length: 10_000 },
      (_, i): RuleInput => ({ match: { dst: `239.2.${i >> 8}.${i & 255}`, protocol: 'udp' }, to: `c${i}` }),
    );
    steering.replace(many);
    table.log.length = 0;
    steering.replace(many.map((rule, i) => (i === 5000 ? { ...rule, tag: 1 } : rule)));
    expect(table.log).toEqual(['+#5001', '-#5001']);
  });
});

describe('an interface that is replaced by another of its name', () => {
  const [a, b] = [
    { name: 'a', match: { dst: '239.1.1.1', interface: 'eth0' }, to: 'a' },
    { name: 'b', match: { dst: '239.1.1.2', interface: 'eth1' }, to: 'b' },
  ];
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  test('its rules are made anew, when that is possible', () => {
    const { steering, table } = made();
    steering.add([a, b]);
    table.log.length = 0;
    vi.advanceTimersByTime(3000);
    expect(table.log).toEqual([]);
    table.stale.add(1);
    table.failure = { after: 0, code: 'ENODEV' };
    vi.advanceTimersByTime(1000);
    expect(table.log).toEqual([]);
    expect(steering.rules.map(({ name }) => name)).toEqual(['a', 'b']);
    vi.advanceTimersByTime(1000);
    expect(table.log).toEqual(['+a', '-a']);
    vi.advanceTimersByTime(3000);
    expect(table.log).toHaveLength(2);
    steering.close();
    expect(vi.getTimerCount()).toBe(0);
  });

  test('so they are when the same set is put in the place of itself', () => {
    const { steering, table } = made();
    steering.add([a, b]);
    table.log.length = 0;
    table.stale.add(2);
    steering.replace([a, b]);
    expect(table.log).toEqual(['+b', '-b']);
    steering.close();
  });
});

test('explain() says which of the rules in force takes a frame', () => {
  const { steering } = made();
  steering.add([group(7), group(8)]);
  const { text, verdicts } = steering.explain(frame());
  expect(text).toBe('UDP 10.0.0.1:4000 > 239.1.1.7:5001');
  expect(verdicts.map(({ rule, outcome }) => `${rule.name} ${outcome}`)).toEqual(['g7 taken', 'g8 no-match']);
  expect(errorOf(() => steering.explain(new Uint8Array(13))).code).toBe('ERR_INVALID_ARGUMENT');
});

describe('statistics, and the end', () => {
  afterEach(() => {
    vi.useRealTimers();
  });

  test('stats$ tells at once and every second, until the member leaves', () => {
    vi.useFakeTimers();
    const { table, steering } = made();
    steering.add([group(7), { name: 'off', match: { vlan: 1 }, drop: true }]);
    const seen: string[] = [];
    steering.stats$.subscribe({
      next: (stats) =>
        seen.push(
          stats
            .map(({ rule, to, packets, bytes, drops }) => `${rule} ${to} ${packets}/${bytes}/${drops}`)
            .join(', '),
        ),
      complete: () => seen.push('end'),
    });
    table.deliver(frame());
    vi.advanceTimersByTime(1000);
    steering.close();
    vi.advanceTimersByTime(5000);
    expect(seen).toEqual(['g7 c7 0/0/0, off null 0/0/0', 'g7 c7 1/46/0, off null 0/0/0', 'end']);
    expect(vi.getTimerCount()).toBe(0);
  });

  test('after the end all flows are gone, and nothing more is taken', () => {
    const { table, steering } = made();
    steering.add(group(7));
    steering.close();
    steering.close();
    expect(table.flows.size).toBe(0);
    expect(errorOf(() => steering.add(group(8))).code).toBe('ERR_MEMBER_CLOSED');
  });
});
