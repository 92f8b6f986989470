/** Real senders in network namespaces, steered into streams by rules. */
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import type { NativePortCounters } from '../../src/native/port-calls.js';
import type { RuleInput } from '../../src/steering/rule.js';
import type { RuleStats } from '../../src/steering/steering.js';
import { Asked } from '../support/asked.js';
import { frame } from '../support/frames.js';
import { canMakeNetworks, Network, NOBODY } from '../support/network.js';

interface Kept {
  readonly payload: string;
  readonly source: string;
  readonly destination: string;
  readonly sourcePort: number;
  readonly port: number;
  readonly rule: string;
  readonly frame: number;
}
type Report = Record<string, { count: number; gaps: number; kept: Kept[] }>;
interface Stats {
  readonly rules: RuleStats[];
  readonly ports: Record<string, NativePortCounters>;
  readonly warnings: string[];
}

let network: Network | undefined;
afterEach(async () => {
  await network?.remove();
  network = undefined;
});

const member = (net: Network, k: number, as?: string[]) =>
  Asked.start(net.node(net.host(k), 'steer-member.mjs', as));
/** A rule for UDP that comes in at `eth0`. */
const udp = (name: string, dst: string, port: number, to = name, more: object = {}): RuleInput => ({
  name,
  match: { dst, protocol: 'udp', port, interface: 'eth0', ...more },
  to,
});
const sender = (net: Network, k: number) => Asked.start(net.node(net.host(k), 'udp-sender.mjs'));

/** With the right checksum of the IPv4 header; UDP's is 0, for none. */
function withChecksum(bytes: Uint8Array): Uint8Array {
  const at = 14 + (bytes[12] === 0x81 ? 4 : 0);
  let sum = 0;
  bytes.fill(0, at + 10, at + 12);
  for (let i = at; i < at + 20; i += 2) sum += (bytes[i]! << 8) | bytes[i + 1]!;
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  new DataView(bytes.buffer).setUint16(at + 10, ~sum & 0xffff);
  return bytes;
}

/** Asks until the report is as wished; the test's own time limit ends it. */
async function until(receiver: Asked, done: (report: Report) => boolean): Promise<Report> {
  for (;;) {
    const report = await receiver.ask<Report>('report');
    if (done(report)) return report;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

describe.skipIf(!canMakeNetworks)('flows from a network interface', () => {
  test('UDP over IPv4 and IPv6, to a host and to groups', async () => {
    network = new Network(2);
    const [receiver, from] = [await member(network, 1), await sender(network, 2)];
    await receiver.ask('rules', [
      udp('four', '10.9.0.1', 5001, 'a'),
      udp('six', 'fd09::1', 5001, 'b'),
      udp('group4', '239.1.1.7', 5002, 'c'),
      udp('group6', 'ff05::7', 5002, 'c'),
    ]);
    const count = 500;
    await from.ask('send', { to: '10.9.0.1', port: 5001, count });
    await from.ask('send', { to: 'fd09::1', port: 5001, count, bytes: 1400 });
    await from.ask('send', { to: '239.1.1.7', port: 5002, count, from: '10.9.0.2' });
    await from.ask('send', { to: 'ff05::7', port: 5002, count, from: '10.9.0.2' });
    // Neither the port nor the group of a rule.
    await from.ask('send', { to: '10.9.0.1', port: 5003, count: 1 });
    const report = await until(receiver, ({ a, b, c }) => a!.count + b!.count + c!.count >= 4 * count);
    expect([report.a!.count, report.b!.count, report.c!.count]).toEqual([count, count, 2 * count]);
    expect([report.a!.gaps, report.b!.gaps, report.c!.gaps]).toEqual([0, 0, 0]);
    expect(report.a!.kept[0]).toMatchObject({
      source: '10.9.0.2',
      destination: '10.9.0.1',
      port: 5001,
      rule: 'four',
      frame: 14 + 20 + 8 + 64,
    });
    expect(report.b!.kept[0]).toMatchObject({ source: 'fd09::2', destination: 'fd09::1', rule: 'six' });
    expect(report.b!.kept[0]!.payload).toHaveLength(1400);
    expect(report.c!.kept.map(({ rule }) => rule)).toContain('group6');
    // The kernel answered for the port without a rule, and for no other.
    const snmp = network.run(network.host(1), 'cat', '/proc/net/snmp');
    const [names, numbers] = snmp.split('\n').filter((line) => line.startsWith('Icmp: ')) as [string, string];
    expect(numbers.split(' ')[names.split(' ').indexOf('OutDestUnreachs')]).toBe('1');
    const { rules: stats } = await receiver.ask<Stats>('stats');
    expect(stats.map(({ rule, packets, drops }) => [rule, packets, drops])).toEqual([
      ['four', count, 0],
      ['six', count, 0],
      ['group4', count, 0],
      ['group6', count, 0],
    ]);
  });

  test('VLAN tags, fragments, large datagrams', async () => {
    network = new Network(2);
    const [receiver, from] = [await member(network, 1), await sender(network, 2)];
    await receiver.ask('rules', [
      udp('tag', '10.7.0.1', 5001, 'tag', { vlan: 7 }),
      udp('other', '10.7.0.1', 5001, 'other', { vlan: 8 }),
      udp('plain', '10.9.0.1', 5001),
    ]);
    const tagged = frame({ dst: '10.7.0.1', source: '10.7.0.2', port: 5001, payload: 64, vlans: [0x6007] });
    await network.sendFrames(
      1,
      Array.from({ length: 10 }, () => withChecksum(tagged)),
    );
    await from.ask('send', { to: '10.9.0.1', port: 5001, count: 3, bytes: 4000 });
    await from.ask('send', { to: '10.9.0.1', port: 5001, count: 1, text: 'end' });
    const report = await until(receiver, ({ tag, plain }) => tag!.count >= 10 && plain!.count >= 1);
    expect(report.other!.count).toBe(0);
    expect(report.tag!.kept[0]!.frame).toBe(14 + 4 + 20 + 8 + 64);
    expect(report.plain!.kept.map(({ payload }) => payload)).toEqual(['end']);
    const { ports } = await receiver.ask<Stats>('stats');
    // 4,008 bytes in pieces of 1,480.
    expect(ports.eth0).toMatchObject({ fragments: 9, malformed: 0, ringDrops: 0 });
    // What the sender left to be cut on the way (UDP_SEGMENT) comes cut.
    const sendSegmented = (bytes: number, each: number, times: number) => {
      const program = [
        'import socket',
        's = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)',
        `s.setsockopt(17, 103, ${each})`,
        `for i in range(${times}): s.sendto(b"s" * ${bytes}, ("10.9.0.1", 5001))`,
      ];
      network!.run(network!.host(2), 'python3', '-c', program.join('\n'));
    };
    sendSegmented(4500, 1000, 1);
    const cut = await until(receiver, ({ plain }) => plain!.count >= 6);
    expect(cut.plain!.kept.slice(1).map(({ payload }) => payload.length)).toEqual([
      1000, 1000, 1000, 1000, 500,
    ]);
    // Without the limit of an MTU they come in one piece, larger than a slot of the ring.
    for (const host of [1, 2]) network.run(network.host(host), 'ip', 'link', 'set', 'eth0', 'mtu', '9200');
    network.run(network.host(0), 'ip', 'link', 'set', 'p1', 'mtu', '9200');
    network.run(network.host(0), 'ip', 'link', 'set', 'p2', 'mtu', '9200');
    network.run(network.host(0), 'ip', 'link', 'set', 'br0', 'mtu', '9200');
    await from.ask('send', { to: '10.9.0.1', port: 5001, count: 5, bytes: 8000 });
    const large = await until(receiver, ({ plain }) => plain!.count >= 11);
    expect(large.plain!.kept.at(-1)!.payload).toHaveLength(8000);
    // Many more at once than there are receives.
    sendSegmented(6400, 100, 30);
    const many = await until(receiver, ({ plain }) => plain!.count >= 11 + 30 * 64);
    expect(many.plain!.count).toBe(11 + 30 * 64);
  });

  test('a change of rules under load loses nothing for those that stay', async () => {
    network = new Network(3);
    const receiver = await member(network, 1);
    const senders = [await sender(network, 2), await sender(network, 3)];
    const stay = [udp('one', '239.1.1.1', 5001), udp('two', '239.1.1.2', 5001)];
    await receiver.ask('rules', stay);
    // In pieces, each of which has its change at least, however slow changes are. (All of it has room in the ring of frames.)
    const [pieces, each] = [20, 200];
    const count = pieces * each;
    for (let piece = 0, changes = 0; piece < pieces; piece++) {
      const sending = Promise.all(
        senders.map((from, i) =>
          from.ask('send', { to: `239.1.1.${i + 1}`, port: 5001, count: each, from: `10.9.0.${i + 2}` }),
        ),
      );
      let sent = false;
      sending.finally(() => (sent = true));
      for (; !sent; changes++) {
        const more = [udp('more', `239.1.2.${changes % 50}`, 5001), udp('host', '10.9.0.1', 6000 + changes)];
        await receiver.ask('rules', [...stay, ...(changes % 2 === 0 ? more : [])]);
      }
      await sending;
    }
    const report = await until(receiver, ({ one, two }) => one!.count + two!.count >= 2 * count);
    expect([report.one, report.two].map((one) => [one!.count, one!.gaps])).toEqual([
      [count, 0],
      [count, 0],
    ]);
    const { rules, ports } = await receiver.ask<Stats>('stats');
    expect(rules.slice(0, 2).map(({ packets, drops }) => [packets, drops])).toEqual([
      [count, 0],
      [count, 0],
    ]);
    expect(ports.eth0!.ringDrops).toBe(0);
  });

  test('frames that are cut off or lie about their lengths are counted and dropped', async () => {
    network = new Network(2);
    const receiver = await member(network, 1);
    await receiver.ask('rules', [udp('a', '10.9.0.1', 5001)]);
    const whole = withChecksum(frame({ dst: '10.9.0.1', source: '10.9.0.2', port: 5001, payload: 32 }));
    const cut = Array.from({ length: whole.length - 14 }, (_, i) => whole.subarray(0, 14 + i));
    const lies = ([at, value]: [number, number]) => {
      const bytes = Uint8Array.from(whole);
      bytes[at] = value;
      return bytes;
    };
    // IPv4's header and total length, UDP's length, its checksum.
    const liars = (
      [
        [14, 0x4f],
        [14, 0x41],
        [16, 0xff],
        [17, 0],
        [38, 0xff],
        [39, 7],
        [40, 1],
      ] as [number, number][]
    ).map(lies);
    const all = [...cut, ...liars, whole];
    await network.sendFrames(1, all);
    const { a } = await until(receiver, (report) => report.a!.count >= 1);
    expect(a!.count).toBe(1);
    const { rules, ports } = await receiver.ask<Stats>('stats');
    const { unmatched, malformed, frames } = ports.eth0!;
    expect(malformed).toBeGreaterThan(cut.length - 42);
    expect(unmatched + malformed + 1).toBe(all.length);
    expect(frames).toBe(all.length);
    expect(rules[0]).toMatchObject({ packets: malformed + 1, drops: malformed });
  });

  test('groups are joined and left as rules come and go', async () => {
    network = new Network(1);
    const receiver = await member(network, 1);
    const fields = [
      'igmp.record_type',
      'igmp.maddr',
      'igmp.saddr',
      'icmpv6.mldr.mar.record_type',
      'icmpv6.mldr.mar.multicast_address',
    ];
    const capture = network.start(
      network.host(1),
      'tshark',
      ...['-l', '-n', '-i', 'eth0', '-f', 'igmp or ip6', '-T', 'fields', '-E', 'separator=;'],
      ...fields.flatMap((field) => ['-e', field]),
    );
    let said = '';
    let lines = '';
    capture.stderr!.on('data', (chunk) => (said += chunk));
    capture.stdout!.on('data', (chunk) => (lines += chunk));
    /** `type group`, with the sources behind it in IGMP. */
    const records = () =>
      lines.split('\n').flatMap((line) => {
        const [types = '', groups = '', sources = '', types6 = '', groups6 = ''] = line.split(';');
        const pair = (kinds: string, names: string) =>
          names.split(',').map((name, i) => `${kinds.split(',')[i]} ${name}`);
        return [
          ...pair(types, groups),
          ...pair(types6, groups6),
          ...(sources === '' ? [] : [`from ${sources}`]),
        ];
      });
    const seen = async (...wanted: string[]) => {
      while (!wanted.every((one) => records().includes(one)))
        await new Promise((resolve) => setTimeout(resolve, 20));
    };
    while (!said.includes('Capturing')) await new Promise((resolve) => setTimeout(resolve, 20));
    // Two rules for one group join it once.
    const any = [udp('p', '239.1.1.1', 5001), udp('q', '239.1.1.1', 5002)];
    const source = udp('s', '239.1.1.2', 5001, 's', { source: '10.9.0.9' });
    await receiver.ask('rules', [...any, source, udp('six', 'ff05::77', 5001)]);
    // To exclude nothing; a new source; for MLD the same numbers.
    await seen('4 239.1.1.1', '5 239.1.1.2', 'from 10.9.0.9', '4 ff05::77');
    await receiver.ask('rules', [any[1]]);
    await seen('6 239.1.1.2', '3 ff05::77');
    expect(records()).not.toContain('3 239.1.1.1');
    await receiver.ask('rules', []);
    await seen('3 239.1.1.1');
  });

  test('an interface that is deleted, and is there again', async () => {
    network = new Network(2);
    const [receiver, from] = [await member(network, 1), await sender(network, 2)];
    await receiver.ask('rules', [udp('host', '10.9.0.1', 5001), udp('group', '239.1.1.7', 5002)]);
    network.run(network.host(1), 'ip', 'link', 'delete', 'eth0');
    expect((await receiver.ask<Stats>('stats')).rules.map(({ packets }) => packets)).toEqual([0, 0]);
    network.connect(1);
    for (let arrived = 0; arrived < 2; ) {
      await from.ask('send', { to: '10.9.0.1', port: 5001, count: 1 });
      await from.ask('send', { to: '239.1.1.7', port: 5002, count: 1, from: '10.9.0.2' });
      const { host, group } = await receiver.ask<Report>('report');
      arrived = Math.min(host!.count, 1) + Math.min(group!.count, 1);
    }
    const groups = network.run(network.host(1), 'ip', 'maddress', 'show', 'dev', 'eth0');
    expect(groups).toContain('239.1.1.7');
  });

  test('10,000 rules', async () => {
    network = new Network(2);
    const [receiver, from] = [await member(network, 1), await sender(network, 2)];
    const rules = Array.from({ length: 10_000 }, (_, i) => udp(`r${i}`, '10.9.0.1', 10_000 + i, 'all'));
    await receiver.ask('rules', rules);
    for (const port of [10_000, 14_321, 19_999]) await from.ask('send', { to: '10.9.0.1', port, count: 100 });
    const { all } = await until(receiver, (report) => report.all!.count >= 300);
    expect(new Set(all!.kept.map(({ rule }) => rule))).toEqual(new Set(['r0', 'r4321', 'r9999']));
    await receiver.ask('rules', rules.slice(0, 64));
    await from.ask('send', { to: '10.9.0.1', port: 10_063, count: 100 });
    await until(receiver, (report) => report.all!.count >= 400);
  });

  test('without CAP_NET_RAW, sockets serve what they can', async () => {
    network = new Network(2);
    const [receiver, from] = [await member(network, 1, NOBODY), await sender(network, 2)];
    await receiver.ask('rules', [
      udp('host', '10.9.0.1', 5001),
      udp('group', '239.1.1.7', 5002),
      { ...udp('none', '239.1.1.7', 5003), to: undefined, drop: true },
      udp('six', 'fd09::1', 5001),
    ] as RuleInput[]);
    for (const [to, port] of [
      ['10.9.0.1', 5001],
      ['239.1.1.7', 5002],
      ['239.1.1.7', 5003],
      ['fd09::1', 5001],
    ])
      await from.ask('send', { to, port, count: 200, from: '10.9.0.2' });
    const report = await until(
      receiver,
      ({ host, group, six }) => host!.count + group!.count + six!.count >= 600,
    );
    expect(report.group!.kept[0]).toMatchObject({
      source: '10.9.0.2',
      destination: '239.1.1.7',
      port: 5002,
      rule: 'group',
      frame: 14 + 20 + 8 + 64,
    });
    expect([report.host!.gaps, report.group!.gaps, report.six!.gaps]).toEqual([0, 0, 0]);
    const { rules, warnings, ports } = await receiver.ask<Stats>('stats');
    expect(rules.map(({ packets }) => packets)).toEqual([200, 200, 200, 200]);
    const largest = Number(readFileSync('/proc/sys/net/core/rmem_max', 'utf8'));
    const socketLimit = largest < 4 << 20 ? 2 * largest : 0;
    expect(ports.eth0).toMatchObject({ unprivileged: true, socketLimit });
    expect(warnings).toEqual(['MILLRACE_NO_CAP_NET_RAW']);
    // Of one port, a host's address, a group and all of them, in whatever order.
    const any: RuleInput = {
      name: 'any',
      match: { protocol: 'udp', port: 5004, interface: 'eth0' },
      to: 'any',
    };
    const one = [udp('one', '10.9.0.1', 5004), udp('many', '239.1.1.7', 5004)];
    for (const [times, list] of [[1, [any, ...one]] as const, [2, [...one, any]] as const]) {
      await receiver.ask('rules', []);
      await receiver.ask(
        'rules',
        list.map((rule) => ({ ...rule, priority: rule === any ? 1 : 0 })),
      );
      for (const to of ['10.9.0.1', '239.1.1.7', 'fd09::1'])
        await from.ask('send', { to, port: 5004, count: 10 });
      const shared = await until(receiver, (report) => report.any!.count >= 10 * times);
      expect([shared.one!.count, shared.many!.count]).toEqual([10 * times, 10 * times]);
    }
    await expect(receiver.ask('rules', [udp('none', '10.9.0.1', 0)])).rejects.toThrow(/\(EPERM\)/);
    await expect(receiver.ask('rules', [udp('tag', '10.9.0.1', 5001, 'x', { vlan: 7 })])).rejects.toThrow(
      /UDP sockets.*can't serve.*\(EPERM\).*setcap cap_net_raw/s,
    );
  });
});
