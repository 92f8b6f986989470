/** Real senders in network namespaces, steered into streams by rules. */
import { afterEach, describe, expect, test } from 'vitest';
import type { NativePortCounters } from '../../src/native/binding.js';
import type { RuleInput } from '../../src/steering/rule.js';
import type { RuleStats } from '../../src/steering/steering.js';
import { Asked } from '../support/asked.js';
import { canMakeNetworks, Network } from '../support/network.js';

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
}

let network: Network | undefined;
afterEach(async () => {
  await network?.remove();
  network = undefined;
});

const member = (net: Network, k: number) => Asked.start(net.node(net.host(k), 'steer-member.mjs'));
const sender = (net: Network, k: number) => Asked.start(net.node(net.host(k), 'udp-sender.mjs'));

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
    const rules: RuleInput[] = [
      { name: 'four', match: { dst: '10.9.0.1', protocol: 'udp', port: 5001 }, to: 'a' },
      { name: 'six', match: { dst: 'fd09::1', protocol: 'udp', port: 5001 }, to: 'b' },
      { name: 'group4', match: { dst: '239.1.1.7', protocol: 'udp', port: 5002 }, to: 'c' },
      { name: 'group6', match: { dst: 'ff05::7', protocol: 'udp', port: 5002 }, to: 'c' },
    ];
    await receiver.ask(
      'rules',
      rules.map((rule) => ({ ...rule, match: { ...rule.match, interface: 'eth0' } })),
    );
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
    const { rules: stats } = await receiver.ask<Stats>('stats');
    expect(stats.map(({ rule, packets, drops }) => [rule, packets, drops])).toEqual([
      ['four', count, 0],
      ['six', count, 0],
      ['group4', count, 0],
      ['group6', count, 0],
    ]);
  });
});
