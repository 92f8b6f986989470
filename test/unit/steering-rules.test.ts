import { describe, expect, expectTypeOf, test } from 'vitest';
import type { Channel, Datagrams } from '../../src/index.js';
import { explain } from '../../src/steering/explain.js';
import { steer } from '../../src/steering/match.js';
import { decodePacket } from '../../src/steering/packet.js';
import { parseRule } from '../../src/steering/parse.js';
import type { RuleInput } from '../../src/steering/rule.js';
import { checkRules, readRules } from '../../src/steering/set.js';
import { type FrameParts, frame } from '../support/frames.js';

const rulesOf = (...inputs: RuleInput[]) => {
  const { rules, problems } = readRules(inputs);
  expect(problems.filter(({ severity }) => severity === 'error')).toEqual([]);
  return rules;
};
/** Names of the channels that get a frame. */
const channels = (inputs: RuleInput[], parts: FrameParts, port?: string) => {
  const { takers, sniffers } = steer(rulesOf(...inputs), decodePacket(frame(parts), port)!);
  return [...takers, ...sniffers].map(({ action, name }) =>
    typeof action === 'object' ? action.to.name : name,
  );
};
const takes = (match: RuleInput['match'], parts: FrameParts) =>
  channels([{ to: 'a', ...(match === undefined ? {} : { match }) }], parts).length === 1;

describe('arguments of the wrong kind are a TypeError with a code', () => {
  const refusal = { code: 'ERR_INVALID_ARGUMENT', name: 'MillraceTypeError' };
  const packet = decodePacket(frame({}))!;
  test.each<[string, () => unknown, string]>([
    ['checkRules', () => checkRules(5 as never), 'checkRules(): the rules must be an array, not 5.'],
    ['checkRules', () => checkRules({} as never), 'checkRules(): the rules must be an array, not an object.'],
    [
      'decodePacket',
      () => decodePacket('00' as never),
      'decodePacket(): the frame must be a Uint8Array, not "00".',
    ],
    ['explain', () => explain(5 as never, packet), 'explain(): the rules must be an array, not 5.'],
    [
      'explain',
      () => explain([], undefined as never),
      'explain(): the packet must be what decodePacket() returns, not undefined.',
    ],
  ])('%s', (_, call, message) => {
    expect(call).toThrow(expect.objectContaining({ ...refusal, message }));
    expect(call).toThrow(TypeError);
  });
});

describe('what a match means', () => {
  test.each<[string, RuleInput['match'], FrameParts, boolean]>([
    ['a group and a port', { dst: '239.1.1.7', protocol: 'udp', port: 5001 }, {}, true],
    ['another port', { dst: '239.1.1.7', protocol: 'udp', port: 5002 }, {}, false],
    ['another group', { dst: '239.1.1.8', protocol: 'udp', port: 5001 }, {}, false],
    ['TCP is not UDP', { protocol: 'tcp', port: 5001 }, {}, false],
    ['TCP', { protocol: 'tcp', port: 5001 }, { protocol: 6, dst: '10.0.0.2' }, true],
    ['protocol as a number', { protocol: 17, port: 5001 }, {}, true],
    ['UDP of both IP versions', { protocol: 'udp', port: 5001 }, { dst: 'ff02::1' }, true],
    ['a CIDR block', { dst: '239.1.0.0/16' }, {}, true],
    ['outside the block', { dst: '239.2.0.0/16' }, {}, false],
    ['every IPv4 address', { dst: '0.0.0.0/0' }, {}, true],
    ['every IPv4 address is not IPv6', { dst: '0.0.0.0/0' }, { dst: 'fd00::2' }, false],
    ['an odd prefix', { source: '10.0.0.0/31' }, {}, true],
    ['the other side of an odd prefix', { source: '10.0.0.2/31' }, {}, false],
    ['a mask that is no prefix', { dst: { value: '239.0.0.7', mask: '255.0.0.255' } }, {}, true],
    ['IPv6', { dst: 'ff02::1', source: 'fd00::/8' }, { dst: 'ff02::1' }, true],
    ['IPv6 in another form', { dst: 'FF02:0:0:0:0:0:0:1' }, { dst: 'ff02::1' }, true],
    ['a source', { source: '10.0.0.1' }, {}, true],
    ['a source port', { protocol: 'udp', sourcePort: 4000 }, {}, true],
    ['ports by mask', { protocol: 'udp', port: { value: 5000, mask: 0xfff8 } }, {}, true],
    [
      'ports beyond the mask',
      { protocol: 'udp', port: { value: 5000, mask: 0xfff8 } },
      { port: 5008 },
      false,
    ],
    ['a VLAN', { vlan: 7 }, { vlans: [0x6007] }, true],
    ['the outer VLAN of two', { vlan: 7 }, { vlans: [7, 8] }, true],
    ['not the inner one', { vlan: 8 }, { vlans: [7, 8] }, false],
    ['a VLAN is asked for', { vlan: 0 }, {}, false],
    ['a VLAN priority', { vlan: 7, vlanPriority: 3 }, { vlans: [0x6007] }, true],
    ['another VLAN priority', { vlanPriority: 2 }, { vlans: [0x6007] }, false],
    ['no VLAN asked for', { protocol: 'udp' }, { vlans: [7] }, true],
    ['a MAC address', { ethernetDst: '01:00:5E:01:01:07' }, {}, true],
    [
      'multicast frames',
      { ethernetDst: { value: '01:00:00:00:00:00', mask: '01:00:00:00:00:00' } },
      {},
      true,
    ],
    ['a MAC address of the sender', { ethernetSource: '02-00-00-00-00-0a' }, {}, true],
    ['an ether type', { etherType: 'arp' }, { etherType: 0x0806 }, true],
    ['an ether type by number', { etherType: 0x88f7 }, { etherType: 0x88f7 }, true],
    ['IPv4 by ether type', { etherType: 'ipv4', protocol: 'udp' }, {}, true],
    ['a protocol without ports', { protocol: 'igmp' }, { protocol: 2 }, true],
    [
      'TTL and TOS',
      { dst: '239.1.1.7', hopLimit: 1, trafficClass: 0xb8 },
      { hopLimit: 1, trafficClass: 0xb8 },
      true,
    ],
    ['a flow label', { flowLabel: 0x12345 }, { dst: 'ff02::1', flowLabel: 0x12345 }, true],
    ['IPv4 options in between', { protocol: 'udp', port: 5001 }, { options: 8 }, true],
    ['IPv6 options in between', { protocol: 'udp', port: 5001 }, { dst: 'ff02::1', options: 16 }, true],
    ['a first fragment is not UDP', { protocol: 'udp' }, { fragment: 0x2000 }, false],
    ['a later fragment is not UDP', { protocol: 'udp' }, { fragment: 185 }, false],
    ['an IPv6 fragment is not UDP', { protocol: 'udp' }, { dst: 'ff02::1', fragment: 1 }, false],
    [
      'fragments by the number',
      { etherType: 'ipv4', protocol: { value: 17, mask: 255 } },
      { fragment: 0x2000 },
      true,
    ],
    ['fragments by the flag', { ipFlags: { value: 4, mask: 4 } }, { fragment: 0x2000 }, true],
    ['no match is every packet', undefined, { etherType: 0x1234 }, true],
  ])('%s', (_title, match, parts, wanted) => {
    expect(takes(match, parts)).toBe(wanted);
  });

  test('an interface, where it is known', () => {
    const rules: RuleInput[] = [{ to: 'a', match: { interface: 'eth0' } }];
    expect(channels(rules, {}, 'eth0')).toEqual(['a']);
    expect(channels(rules, {}, 'eth1')).toEqual([]);
    expect(channels(rules, {})).toEqual(['a']);
  });
});

describe('who wins (VERBS 3)', () => {
  const group = { dst: '239.1.1.7' };
  const port = { protocol: 'udp', port: 5001 } as const;
  test.each<[string, RuleInput[], string[], FrameParts?]>([
    [
      'the lower priority number',
      [
        { match: port, priority: 5, to: 'p' },
        { match: group, priority: 3, to: 'g' },
      ],
      ['g'],
    ],
    [
      'of differing ones at one priority the first',
      [
        { match: port, to: 'p' },
        { match: group, to: 'g' },
      ],
      ['p'],
    ],
    [
      'all with the identical match',
      [
        { match: group, to: 'a' },
        { match: group, to: 'b' },
      ],
      ['a', 'b'],
    ],
    [
      'a channel once',
      [
        { match: group, to: 'a' },
        { match: group, to: 'a', name: 'x' },
      ],
      ['a'],
    ],
    [
      'dontTrap lets it go on, once',
      [
        { match: port, priority: 1, to: 'w', dontTrap: true },
        { match: group, priority: 2, to: 't' },
        { match: group, priority: 3, to: 'never' },
      ],
      ['w', 't'],
    ],
    [
      'a drop',
      [
        { match: port, drop: true },
        { match: group, priority: 1, to: 'a' },
        { type: 'sniffer', to: 's' },
      ],
      ['s'],
    ],
    [
      'a drop takes back what went on',
      [
        { match: port, to: 'w', dontTrap: true },
        { match: group, priority: 1, drop: true },
      ],
      [],
    ],
    [
      'counting lets it go on',
      [
        { match: port, count: true, name: 'c' },
        { match: group, priority: 1, to: 'a' },
      ],
      ['c', 'a'],
    ],
    [
      'defaults come last',
      [
        { type: 'all-default', to: 'd' },
        { match: group, priority: 9, to: 'a' },
      ],
      ['a'],
    ],
    [
      'a default takes what is left',
      [
        { type: 'all-default', to: 'd' },
        { match: port, to: 'a' },
      ],
      ['d'],
      { port: 9 },
    ],
    [
      'both defaults share multicast',
      [
        { type: 'multicast-default', to: 'm' },
        { type: 'all-default', to: 'd' },
      ],
      ['m', 'd'],
    ],
    [
      'the multicast default leaves unicast',
      [
        { type: 'multicast-default', to: 'm' },
        { type: 'all-default', to: 'd' },
      ],
      ['d'],
      { dst: '10.0.0.2' },
    ],
    [
      'a sniffer gets a copy',
      [
        { type: 'sniffer', to: 's' },
        { match: group, to: 'a' },
      ],
      ['a', 's'],
    ],
  ])('%s', (_title, rules, wanted, parts = {}) => {
    expect(channels(rules, parts)).toEqual(wanted);
  });
});

describe('what is wrong with a rule', () => {
  const ok = { to: 'a' };
  test.each<[string, unknown, string, RegExp]>([
    ['no object', 7, '', /must be an object/],
    ['nothing to do', {}, '', /does nothing/],
    ['a field that is not there', { ...ok, macth: {} }, 'macth', /Did you mean "match"/],
    [
      'a match field that is not there',
      { ...ok, match: { prot: 5 } },
      'match.prot',
      /no field "prot".*Did you mean/,
    ],
    ['no match', { ...ok, match: 'udp' }, 'match', /must be an object/],
    ['no address', { ...ok, match: { dst: '239.1.1' } }, 'match.dst', /no IPv4 or IPv6 address/],
    ['a number for an address', { ...ok, match: { dst: 239.1 } }, 'match.dst', /no IPv4 or IPv6 address/],
    [
      'bits beyond the prefix',
      { ...ok, match: { dst: '10.1.2.3/8' } },
      'match.dst',
      /the block is 10\.0\.0\.0\/8/,
    ],
    ['a prefix that is too long', { ...ok, match: { dst: '10.0.0.0/33' } }, 'match.dst', /0 to 32/],
    [
      'a mask of the other version',
      { ...ok, match: { dst: { value: '::1', mask: '255.0.0.0' } } },
      'match.dst',
      /two addresses/,
    ],
    [
      'bits outside a mask',
      { ...ok, match: { protocol: 'udp', port: { value: 7, mask: 6 } } },
      'match.port',
      /outside its mask/,
    ],
    [
      'half a mask',
      { ...ok, match: { protocol: 'udp', port: { value: 7 } } },
      'match.port',
      /value and mask/,
    ],
    ['a port too high', { ...ok, match: { protocol: 'udp', port: 65536 } }, 'match.port', /0 to 65535/],
    ['a port without a protocol', { ...ok, match: { port: 5 } }, 'match.port', /Add protocol/],
    ['a port of ICMP', { ...ok, match: { protocol: 'icmp', port: 5 } }, 'match.port', /UDP and TCP/],
    ['an unknown protocol', { ...ok, match: { protocol: 'upd' } }, 'match.protocol', /did you mean "udp"/],
    [
      'a protocol of either version',
      { ...ok, match: { protocol: 'ospf' } },
      'match.protocol',
      /Add etherType/,
    ],
    [
      'IPv4 and IPv6',
      { ...ok, match: { dst: '10.0.0.1', source: '::1' } },
      'match.source',
      /no packet is at once/,
    ],
    [
      'ICMPv6 over IPv4',
      { ...ok, match: { dst: '10.0.0.1', protocol: 'icmpv6' } },
      'match.protocol',
      /no packet is at once/,
    ],
    [
      'an ether type against the address',
      { ...ok, match: { dst: '10.0.0.1', etherType: 'ipv6' } },
      'match.etherType',
      /contradicts dst/,
    ],
    [
      'an ether type against UDP',
      { ...ok, match: { etherType: 'arp', protocol: 'udp' } },
      'match.etherType',
      /no IP/,
    ],
    [
      'fragments with ports',
      { ...ok, match: { protocol: 'udp', port: 1, ipFlags: 4 } },
      'match.ipFlags',
      /never matches/,
    ],
    ['no MAC address', { ...ok, match: { ethernetDst: '1:2:3' } }, 'match.ethernetDst', /no MAC/],
    ['any VLAN', { ...ok, match: { vlan: { value: 0, mask: 0 } } }, 'match.vlan', /without a tag/],
    ['a zone', { ...ok, match: { dst: 'fe80::1%eth0' } }, 'match.dst', /has a zone.*interface/],
    ['a VLAN too high', { ...ok, match: { vlan: 4096 } }, 'match.vlan', /0 to 4095/],
    ['no interface', { ...ok, match: { interface: 'a/b' } }, 'match.interface', /network interface/],
    ['a priority too high', { ...ok, priority: 65536 }, 'priority', /0 to 65535/],
    ['a priority that is a text', { ...ok, priority: '1' }, 'priority', /whole number/],
    ['no type', { ...ok, type: 'snifer' }, 'type', /Did you mean "sniffer"/],
    ['a default with a match', { ...ok, type: 'all-default', match: { vlan: 1 } }, 'match', /takes no match/],
    ['a tag on a default', { ...ok, type: 'all-default', tag: 1 }, 'tag', /needs a normal rule/],
    ['dontTrap on a sniffer', { ...ok, type: 'sniffer', dontTrap: true }, 'dontTrap', /needs a normal rule/],
    ['a sniffer that drops', { type: 'sniffer', drop: true }, 'drop', /steals nothing/],
    ['a tag on what is dropped', { drop: true, tag: 1 }, 'tag', /no tag/],
    ['dontTrap on what is dropped', { drop: true, dontTrap: true }, 'dontTrap', /does not go on/],
    ['a channel and a drop', { ...ok, drop: true }, 'drop', /no channel/],
    ['no channel', { to: 7 }, 'to', /no channel/],
    ['a channel without a name', { to: { name: '' } }, 'to', /no channel/],
    [
      'a word that every object has',
      { ...ok, match: { protocol: 'constructor' } },
      'match.protocol',
      /not known/,
    ],
    ['no flag', { ...ok, count: 1 }, 'count', /true nor false/],
    ['no name', { ...ok, name: 'a\nb' }, 'name', /one line/],
  ])('%s', (_title, input, field, message) => {
    const { rule, problems } = parseRule(input, '#1');
    expect(rule).toBeUndefined();
    expect(problems).toHaveLength(1);
    const [problem] = problems;
    expect(problem).toMatchObject({ severity: 'error', errno: 'EINVAL', ...(field === '' ? {} : { field }) });
    expect(`${problem!.message} ${problem!.remedy}`).toMatch(message);
    expect(problem!.message).toContain('rule ');
    expect(problem!.remedy).not.toBe('');
  });

  test('all that is wrong is told at once', () => {
    const { problems } = parseRule({ match: { dst: 'x', vlan: -1, prt: 1 }, priority: 1.5 }, 'r');
    expect(problems.map(({ field }) => field)).toEqual([
      'match.prt',
      'match.vlan',
      'match.dst',
      'priority',
      undefined,
    ]);
  });

  test('checkRules() throws a TypeError with all problems', () => {
    expect(() => checkRules([{ to: 'a', match: { port: 1 } }])).toThrow(
      expect.objectContaining({ code: 'ERR_STEERING_RULE', errnoName: 'EINVAL', errno: -22 }),
    );
    expect(checkRules([{ to: 'a' }]).rules).toHaveLength(1);
  });
});

test('a rule may lead to a stream, to a channel of bytes, and not to a channel of something else', () => {
  type Wanted = NonNullable<RuleInput['to']>;
  expectTypeOf<Datagrams>().toExtend<Wanted>();
  expectTypeOf<Channel<Uint8Array>>().toExtend<Wanted>();
  expectTypeOf<Channel<{ bid: number }>>().not.toExtend<Wanted>();
});
