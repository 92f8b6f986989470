import { describe, expect, test } from 'vitest';
import { explain } from '../../src/steering/explain.js';
import { readRuleText } from '../../src/steering/file.js';
import { decodePacket } from '../../src/steering/packet.js';
import type { RuleInput } from '../../src/steering/rule.js';
import { readRules } from '../../src/steering/set.js';
import { type FrameParts, frame } from '../support/frames.js';

const group = { dst: '239.1.1.7' };
const port = { protocol: 'udp', port: 5001 } as const;
const block = { dst: '239.1.0.0/16' };

describe('rules together', () => {
  test.each<[string, RuleInput[], string[]]>([
    [
      'rules that have nothing to do with each other',
      [
        { match: group, to: 'a' },
        { match: { dst: '239.1.1.8' }, to: 'b' },
      ],
      [],
    ],
    [
      'IPv4 and IPv6',
      [
        { match: { dst: '0.0.0.0/0' }, to: 'a' },
        { match: { dst: '::/0' }, to: 'b' },
      ],
      [],
    ],
    [
      'UDP and TCP',
      [
        { match: { protocol: 'udp' }, to: 'a' },
        { match: { protocol: 'tcp' }, to: 'b' },
      ],
      [],
    ],
    [
      'fan-out',
      [
        { match: group, to: 'a' },
        { match: group, to: 'b' },
      ],
      [],
    ],
    [
      'a special rule before a general one',
      [
        { match: group, priority: 1, to: 'a' },
        { match: block, priority: 2, to: 'b' },
      ],
      [],
    ],
    [
      'two names',
      [
        { name: 'x', match: group, to: 'a' },
        { name: 'x', match: block, priority: 9, to: 'b' },
      ],
      ['error duplicate-name x x'],
    ],
    [
      'taken and dropped',
      [
        { match: group, to: 'a' },
        { match: group, drop: true },
      ],
      ['error contradiction #1 #2'],
    ],
    [
      'a duplicate',
      [
        { match: group, to: 'a' },
        { match: group, to: 'a' },
      ],
      ['warning duplicate #2 #1'],
    ],
    [
      'two drops',
      [
        { match: group, drop: true },
        { match: group, drop: true },
      ],
      ['warning duplicate #2 #1'],
    ],
    [
      'shadowed by priority',
      [
        { match: block, priority: 1, to: 'a' },
        { match: group, priority: 2, to: 'b' },
      ],
      ['warning shadowed #2 #1'],
    ],
    [
      'shadowed by age',
      [
        { match: block, to: 'a' },
        { match: group, to: 'b' },
      ],
      ['warning shadowed #2 #1'],
    ],
    [
      'shadowed by a match for everything',
      [{ to: 'a' }, { match: port, priority: 1, drop: true }],
      ['warning shadowed #2 #1'],
    ],
    [
      'shadowed on an interface',
      [
        { match: group, to: 'a' },
        { match: { ...group, interface: 'eth0' }, priority: 1, to: 'b' },
      ],
      ['warning shadowed #2 #1'],
    ],
    [
      'not from one interface to all',
      [
        { match: { ...group, interface: 'eth0' }, to: 'a' },
        { match: group, priority: 1, to: 'b' },
      ],
      [],
    ],
    [
      'not from one interface to another',
      [
        { match: { ...group, interface: 'eth0' }, to: 'a' },
        { match: { ...group, interface: 'eth1' }, priority: 1, to: 'b' },
      ],
      [],
    ],
    [
      'one interface before all of them',
      [
        { match: { ...group, interface: 'eth0' }, to: 'a' },
        { match: group, drop: true },
      ],
      ['warning ambiguous #2 #1'],
    ],
    [
      'all interfaces before one',
      [
        { match: group, drop: true },
        { match: { ...group, interface: 'eth0' }, to: 'a' },
      ],
      ['warning shadowed #2 #1'],
    ],
    [
      'dontTrap shadows nothing',
      [
        { match: block, priority: 1, to: 'a', dontTrap: true },
        { match: group, priority: 2, to: 'b' },
      ],
      [],
    ],
    [
      'an overlap',
      [
        { match: port, to: 'a' },
        { match: group, to: 'b' },
      ],
      ['warning ambiguous #2 #1'],
    ],
    [
      'an overlap, the general rule last',
      [
        { match: group, to: 'a' },
        { match: block, to: 'b' },
      ],
      ['warning ambiguous #2 #1'],
    ],
    [
      'an overlap to one channel',
      [
        { match: port, to: 'a' },
        { match: group, to: 'a' },
      ],
      [],
    ],
    [
      'dontTrap beside a rule that keeps',
      [
        { match: group, to: 'a', dontTrap: true },
        { match: group, to: 'b' },
      ],
      ['warning without-effect #1 #2'],
    ],
    [
      'a default after everything',
      [{ to: 'a' }, { type: 'all-default', to: 'b' }],
      ['warning shadowed #2 #1'],
    ],
    [
      'a default after a default',
      [
        { type: 'all-default', to: 'a' },
        { type: 'multicast-default', priority: 1, to: 'b' },
      ],
      ['warning shadowed #2 #1'],
    ],
    [
      'defaults that share',
      [
        { type: 'all-default', to: 'a' },
        { type: 'multicast-default', to: 'b' },
      ],
      [],
    ],
    [
      'a default that takes what another drops',
      [
        { type: 'multicast-default', to: 'a' },
        { type: 'all-default', drop: true },
      ],
      ['error contradiction #1 #2'],
    ],
    [
      'a default that takes what is left of another',
      [
        { type: 'all-default', to: 'a' },
        { type: 'multicast-default', drop: true },
      ],
      [],
    ],
  ])('%s', (_title, inputs, wanted) => {
    const { problems } = readRules(inputs);
    expect(problems.map(({ severity, kind, rule, other }) => `${severity} ${kind} ${rule} ${other}`)).toEqual(
      wanted,
    );
    for (const { message, remedy } of problems) {
      expect(message).toMatch(/rule/);
      expect(remedy).not.toBe('');
    }
  });

  test('10,000 rules', () => {
    const inputs = Array.from({ length: 10_000 }, (_, i): RuleInput => {
      const dst = `239.${i >> 8}.${i & 0xff}.1`;
      return { match: { dst, protocol: 'udp', port: 5000 + (i % 7) }, priority: i % 3, to: `c${i}` };
    });
    expect(
      readRules([
        ...inputs,
        {
          name: 'late',
          match: { dst: '239.5.5.1', protocol: 'udp', port: 5000 + (1285 % 7), vlan: 3 },
          priority: 5,
          to: 'x',
        },
      ]).problems,
    ).toEqual([expect.objectContaining({ kind: 'shadowed', rule: 'late', other: '#1286' })]);
  });
});

describe('a file of rules', () => {
  const yaml = `# two groups
rules:
  - name: a
    match: { dst: 239.1.1.7, protocol: udp, port: 5001 }
    priority: 10
    to: feed.a
  - name: b
    match:
      dst: ff02::1
      vlan: 0x7
    to: feed.b
`;
  test('YAML, JSON, and a bare list', () => {
    const { rules, problems } = readRuleText(yaml, 'rules.yaml');
    expect(problems).toEqual([]);
    expect(
      rules.map(({ name, priority, action, position }) => ({ name, priority, action, line: position?.line })),
    ).toEqual([
      { name: 'a', priority: 10, action: { to: { name: 'feed.a' } }, line: 3 },
      { name: 'b', priority: 0, action: { to: { name: 'feed.b' } }, line: 7 },
    ]);
    expect(
      readRuleText('{"rules": [{"match": {"dst": "239.1.1.7"}, "to": "x"}]}', 'rules.yaml').rules,
    ).toHaveLength(1);
    expect(readRuleText('- to: x\n- drop: true\n  match: {vlan: 1}\n', 'rules.yaml').rules).toHaveLength(2);
    expect(readRuleText('rules: []', 'rules.yaml').rules).toEqual([]);
  });

  test.each<[string, string, string, RegExp]>([
    ['a field', yaml.replace('5001', '65536'), '4:51', /rule a: match\.port: 65536 is not/],
    [
      'what is missing: where it is missing',
      '- name: x\n  match: { port: 5 }\n  to: y\n',
      '2:18',
      /match\.port/,
    ],
    ['a rule', 'rules:\n  - 7\n', '2:5', /must be an object/],
    ['a word', yaml.replace('port:', 'prot:'), '4:51', /no field "prot"/],
    ['YAML', 'rules:\n  - name: [\n', '3:1', /./],
    ['a key twice', 'rules:\n  - to: a\n    to: b\n', '3:5', /unique/],
    ['no list', 'rule: 5\n', '1:1', /no list of rules/],
    ['nothing', '', '1:1', /no list of rules/],
    ['two documents', '- {to: a}\n---\n- {to: b}\n', '2:1', /several documents/],
    ['another field', 'rules: []\nversion: 2\n', '2:1', /"version" beside rules/],
    ['aliases without end', `a: &a [1,1,1,1,1,1,1,1,1]\n`, '1:1', /no list/],
    [
      'two rules',
      'rules:\n  - {name: x, match: {dst: 239.1.1.7}, to: a}\n  - {name: y, match: {dst: 239.1.1.7}, drop: true}\n',
      '2:5',
      /rule x \(line 2\) takes what rule y \(line 3\) drops/,
    ],
  ])('%s is wrong: the line is told', (_title, text, place, message) => {
    const [problem] = readRuleText(text, 'rules.yaml').problems;
    expect(`${problem?.line}:${problem?.column}`).toBe(place);
    expect(problem!.message).toMatch(message);
    expect(problem!.severity).toBe('error');
  });

  test('aliases that make a small file huge are refused', () => {
    const nested = [
      '&a [x,x,x,x,x,x,x,x,x]',
      ...Array.from(
        { length: 8 },
        (_, i) => `&${'bcdefghi'[i]} [${Array(9).fill(`*${'abcdefgh'[i]}`).join(',')}]`,
      ),
    ];
    const [problem] = readRuleText(
      `rules:\n${nested.map((one) => `  - ${one}\n`).join('')}`,
      'rules.yaml',
    ).problems;
    expect(problem).toMatchObject({ kind: 'syntax', message: expect.stringMatching(/alias/i) });
  });
});

describe('why a rule takes a packet, or does not', () => {
  const whys = (inputs: RuleInput[], parts: FrameParts, name?: string) =>
    explain(readRules(inputs).rules, decodePacket(frame(parts), name)!).verdicts.map(
      ({ outcome, why }) => `${outcome}: ${why}`,
    );
  test.each<[string, RuleInput[], FrameParts, string[]]>([
    [
      'the strongest',
      [
        { match: port, priority: 3, to: 'a' },
        { match: group, priority: 5, to: 'b' },
      ],
      {},
      [
        'taken: the strongest that matches (priority 3)',
        'lost: rule #1 takes it first (priority 3 is stronger than 5)',
      ],
    ],
    [
      'the older',
      [
        { match: port, to: 'a' },
        { match: group, to: 'b' },
      ],
      {},
      [
        'taken: the strongest that matches (priority 0)',
        'lost: rule #1 matches at the same priority 0, differently, and comes first',
      ],
    ],
    [
      'fields',
      [{ match: { dst: '10.0.0.0/8', protocol: 'udp', port: { value: 2, mask: 2 } }, to: 'a' }],
      {},
      ['no-match: dst is 239.1.1.7, not 10.0.0.0/8; port is 5001, not 2 mask 2'],
    ],
    [
      'headers',
      [{ match: { dst: 'ff02::1', protocol: 'tcp' }, to: 'a' }],
      {},
      ['no-match: it is not IPv6; it is not TCP'],
    ],
    [
      'a fragment',
      [{ match: port, to: 'a' }],
      { fragment: 0x2000 },
      ['no-match: it is a fragment, which has no UDP header to match'],
    ],
    ['a VLAN', [{ match: { vlan: 7, vlanPriority: 1 }, to: 'a' }], {}, ['no-match: it has no VLAN tag']],
    ['another VLAN', [{ match: { vlan: 7 }, to: 'a' }], { vlans: [8] }, ['no-match: vlan is 8, not 7']],
    [
      'a MAC address',
      [{ match: { ethernetDst: '02:00:00:00:00:01' }, to: 'a' }],
      {},
      ['no-match: ethernetDst is 01:00:5e:01:01:07, not 02:00:00:00:00:01'],
    ],
    [
      'an ether type',
      [{ match: { etherType: 'arp' }, to: 'a' }],
      {},
      ['no-match: etherType is 0x0800, not 0x0806'],
    ],
    [
      'a drop',
      [
        { match: port, drop: true },
        { match: group, priority: 1, to: 'a' },
        { type: 'all-default', to: 'd' },
        { type: 'sniffer', to: 's' },
      ],
      {},
      [
        'dropped: it matches first, and drops',
        'lost: rule #1 drops it first (priority 0 is stronger than 1)',
        'lost: a default comes after every normal rule, and rule #1 drops it',
        'taken: a sniffer gets a copy of everything',
      ],
    ],
    [
      'copies',
      [
        { match: group, to: 'a' },
        { match: group, to: 'b' },
        { match: group, to: 'a' },
      ],
      {},
      [
        'taken: the strongest that matches (priority 0)',
        'taken: it matches the same as rule #1, so both get a copy',
        'lost: its channel has a copy already, by rule #1',
      ],
    ],
    [
      'what goes on',
      [
        { match: port, count: true },
        { match: group, priority: 1, to: 'a' },
      ],
      {},
      ['counted: it only counts; the packet goes on', 'taken: rule #1 lets it go on'],
    ],
    [
      'defaults',
      [
        { type: 'multicast-default', to: 'm' },
        { type: 'all-default', to: 'd' },
      ],
      { dst: '10.0.0.2' },
      ['no-match: its destination MAC address is not multicast', 'taken: no normal rule takes it'],
    ],
  ])('%s', (_title, inputs, parts, wanted) => {
    expect(whys(inputs, parts)).toEqual(wanted);
  });

  test('the interface', () => {
    expect(whys([{ match: { interface: 'eth0' }, to: 'a' }], {}, 'lo')).toEqual([
      'no-match: it came in on lo, not eth0',
    ]);
  });
});
