/** Random rules and frames from a small world, in which they meet often. */
import fc from 'fast-check';
import type { MatchInput, RuleInput } from '../../src/steering/rule.js';
import { type FrameParts, frame } from './frames.js';

const of = <T>(...values: T[]) => fc.constantFrom(...values);
/** Mostly left out. */
const seldom = <T>(arbitrary: fc.Arbitrary<T>, freq = 4) =>
  fc.option(arbitrary, { nil: undefined, freq: 5 - freq });

function without<T extends object>(value: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(value).filter(([, one]) => one !== undefined)) as never;
}

const FOUR = ['239.1.1.7', '239.1.1.8', '10.0.0.1', '10.0.0.2'];
const SIX = ['ff02::1', 'ff02::2', 'fd00::1', 'fd00::2'];
const four = of<string | { value: string; mask: string }>(
  ...FOUR,
  '239.1.0.0/16',
  '10.0.0.0/31',
  '0.0.0.0/0',
  {
    value: '239.0.0.7',
    mask: '255.0.0.255',
  },
);
const six = of(...SIX, 'ff00::/8', 'fd00::/127', '::/0');
const number = (...values: number[]) =>
  fc.oneof(
    of(...values),
    fc.tuple(of(...values), of(1, 3, 7)).map(([value, mask]) => ({ value: value & mask, mask })),
  );

const match: fc.Arbitrary<MatchInput> = fc
  .record({
    family: of('ipv4' as const, 'ipv6' as const, undefined),
    transport: of('udp', 'tcp', 'raw', undefined),
    typed: fc.boolean(),
    four: fc.record({ dst: seldom(four, 2), source: seldom(four) }),
    six: fc.record({ dst: seldom(six, 2), source: seldom(six) }),
    ports: fc.record({ port: seldom(number(5001, 5002), 2), sourcePort: seldom(number(4000, 4001)) }),
    ip: fc.record({ trafficClass: seldom(number(0, 8)), hopLimit: seldom(number(1, 64)) }),
    ipFlags: seldom(number(0, 2)),
    flowLabel: seldom(number(1, 0x12345)),
    vlan: seldom(number(7, 8)),
    vlanPriority: seldom(number(3)),
    ethernetDst: seldom(
      of<string | { value: string; mask: string }>('01:00:5e:01:01:07', {
        value: '01:00:00:00:00:00',
        mask: '01:00:00:00:00:00',
      }),
    ),
    ethernetSource: seldom(of('02:00:00:00:00:0a')),
    other: of(0x0806, 0x88f7, undefined),
  })
  .map((all) => {
    const ethernet = {
      vlan: all.vlan,
      vlanPriority: all.vlanPriority,
      ethernetDst: all.ethernetDst,
      ethernetSource: all.ethernetSource,
    };
    if (all.family === undefined) {
      if (all.transport === 'udp' || all.transport === 'tcp')
        return without({ ...ethernet, ...all.ports, protocol: all.transport });
      return without({ ...ethernet, etherType: all.other });
    }
    const version =
      all.family === 'ipv4'
        ? { ...all.four, ipFlags: all.ipFlags }
        : { ...all.six, flowLabel: all.flowLabel };
    const layered = { ...ethernet, ...version, ...all.ip, etherType: all.family };
    if (all.transport === 'raw') return without({ ...layered, protocol: { value: 17, mask: 255 } });
    return without(
      all.transport === undefined ? layered : { ...layered, ...all.ports, protocol: all.transport },
    );
  });

const normal = fc
  .record({
    match,
    priority: fc.integer({ min: 0, max: 3 }),
    action: of('to', 'to', 'to', 'drop', 'count'),
    to: of('a', 'b', 'c'),
    tag: seldom(of(0, 7, 0xffffffff)),
    dontTrap: of(true, undefined, undefined),
  })
  .map(({ match, priority, action, to, tag, dontTrap }): RuleInput => {
    if (action === 'drop') return { match, priority, drop: true };
    if (action === 'count') return { match, priority, count: true };
    return without({ match, priority, to, tag, dontTrap });
  });
const others = fc
  .record({
    type: of('all-default' as const, 'multicast-default' as const, 'sniffer' as const),
    priority: fc.integer({ min: 0, max: 2 }),
    to: of('a', 'd', 's'),
  })
  .map((rule): RuleInput => rule);

/** Up to so many rules, each valid by itself. */
export const ruleInputs = (maxLength: number): fc.Arbitrary<RuleInput[]> =>
  fc.array(fc.oneof({ weight: 5, arbitrary: normal }, { weight: 1, arbitrary: others }), {
    minLength: 1,
    maxLength,
  });

const parts: fc.Arbitrary<FrameParts> = fc
  .record({
    addresses: fc.oneof(
      fc.record({ dst: of(...FOUR), source: of(...FOUR), fragment: seldom(of(0x2000, 0x4000, 185)) }),
      fc.record({
        dst: of(...SIX),
        source: of(...SIX),
        fragment: seldom(of(0, 1, 8)),
        flowLabel: of(0, 1, 0x12345),
      }),
    ),
    protocol: of(17, 17, 17, 6, 2),
    port: of(5001, 5002, 5003),
    sourcePort: of(4000, 4001),
    trafficClass: of(0, 8),
    hopLimit: of(1, 64),
    vlans: of<number[]>([], [], [], [7], [0x6007], [8, 7], [1, 2, 3]),
    dstMac: seldom(of('01:00:5e:01:01:07', '02:00:00:00:00:0b')),
    etherType: seldom(of(0x0806, 0x88f7)),
    options: of(0, 0, 0, 8),
  })
  .map(({ addresses, ...rest }) => without({ ...addresses, ...rest }) as FrameParts);

/** Frames, some of them cut off somewhere. */
export const frames: fc.Arbitrary<Uint8Array> = fc
  .tuple(parts, fc.option(fc.nat(80), { freq: 8 }))
  .map(([given, cut]) => (cut === null ? frame(given) : frame(given).slice(0, Math.max(14, cut))));
