/** A capture does the same twice: explained, and sent frame by frame into a network interface that rules steer. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { expect, onTestFinished, test } from 'vitest';
import type { NativePortCounters } from '../../src/native/port-calls.js';
import type { RuleInput } from '../../src/steering/rule.js';
import type { RuleStats } from '../../src/steering/steering.js';
import { Asked } from '../support/asked.js';
import { pcap, pcapng } from '../support/captures.js';
import { command } from '../support/cli-command.js';
import { canMakeNetworks, Network } from '../support/network.js';
import { frames as anyFrames } from '../support/steering.js';

const on = { interface: 'eth0' };
/** One of each kind, over the addresses that the random frames have. A sniffer would also see what this host sends. */
const RULES: RuleInput[] = [
  { name: 'group', match: { dst: '239.1.1.7', protocol: 'udp', port: 5001, ...on }, priority: 10, to: 'a' },
  { name: 'block', match: { source: '10.0.0.0/31', protocol: 'udp', ...on }, priority: 20, to: 'b', tag: 7 },
  { name: 'tagged', match: { vlan: 7, ...on }, priority: 5, count: true },
  { name: 'quiet', match: { dst: 'ff00::/8', protocol: 'udp', port: 5002, ...on }, priority: 10, drop: true },
  {
    name: 'ports',
    match: { protocol: 'udp', port: { value: 5001, mask: 0xfffd }, ...on },
    priority: 15,
    to: 'a',
    dontTrap: true,
  },
  { name: 'six', match: { dst: 'fd00::/127', ...on }, priority: 30, to: 'c' },
  { name: 'tcp', match: { protocol: 'tcp', sourcePort: 4000, ...on }, priority: 30, to: 'b' },
  {
    name: 'pieces',
    match: { etherType: 'ipv4', protocol: { value: 17, mask: 255 }, hopLimit: 64, ...on },
    priority: 40,
    to: 'c',
  },
  { name: 'groups', type: 'multicast-default', match: on, to: 'd' },
  { name: 'rest', type: 'all-default', match: on, priority: 1, to: 'e' },
];
const COUNT = 400;

/** So many random frames. A kernel has no use for a frame that ends in its tag. */
const randomFrames = (seed: number): Uint8Array[] =>
  fc
    .sample(anyFrames, { seed, numRuns: COUNT })
    .filter((frame) => frame.length >= 20 || frame[12] !== 0x81 || frame[13] !== 0);

test.skipIf(!canMakeNetworks)('what explain says of a capture is what its frames do', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'replay-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const put = (name: string, content: string | Uint8Array): string => {
    writeFileSync(join(folder, name), content);
    return join(folder, name);
  };
  const rules = put('rules.json', JSON.stringify({ rules: RULES }));
  const network = new Network(1);
  onTestFinished(() => network.remove());
  // The switch is to say nothing itself.
  network.run(network.host(0), 'sysctl', '-qw', 'net.ipv6.conf.all.disable_ipv6=1');
  const receiver = await Asked.start(network.node(network.host(1), 'steer-member.mjs'));
  await receiver.ask('rules', RULES);

  const given = (frames: readonly Uint8Array[], from = 0) =>
    frames.map((frame, i) => ({ frame, time: from + i / 1000 }));
  const tool = (name: string, ...words: string[]) => execFileSync(name, words, { stdio: 'pipe' });
  const captures: Record<string, (frames: readonly Uint8Array[]) => string> = {
    classic: (frames) => put('classic.pcap', pcap(given(frames))),
    'the other byte order, in ns': (frames) =>
      put('nano.pcap', pcap(given(frames), { little: false, nano: true })),
    'the next generation': (frames) => put('ng.pcapng', pcapng([{ name: 'eth0' }], given(frames))),
    "as Wireshark's editcap writes it": (frames) => {
      tool('editcap', '-F', 'pcapng', put('plain.pcap', pcap(given(frames))), join(folder, 'edited.pcapng'));
      return join(folder, 'edited.pcapng');
    },
    'two of them merged': (frames) => {
      const half = frames.length / 2;
      const parts = [
        put('first.pcap', pcap(given(frames.slice(0, half)))),
        put('second.pcapng', pcapng([{ name: 'eth0' }], given(frames.slice(half), 1000))),
      ];
      tool('mergecap', '-w', join(folder, 'merged.pcap'), ...parts);
      return join(folder, 'merged.pcap');
    },
  };

  let before = new Map(RULES.map(({ name }) => [name!, { packets: 0, bytes: 0 }]));
  let seen = 0;
  for (const [seed, [name, write]] of Object.entries(captures).entries()) {
    const frames = randomFrames(seed);
    const { out } = await command([
      ...['steer', 'explain', rules, '--pcap', write(frames), '--interface', 'eth0', '--json'],
    ]);
    const report = JSON.parse(out);
    expect(report, name).toMatchObject({ packets: frames.length, unreadable: 0 });

    await network.sendFrames(1, frames);
    seen += frames.length;
    let live: { rules: RuleStats[]; ports: Record<string, NativePortCounters> };
    do live = await receiver.ask('stats');
    while (live.ports.eth0!.frames < seen);
    expect(live.ports.eth0).toMatchObject({ frames: seen, ringDrops: 0 });

    const now = new Map(live.rules.map(({ rule, packets, bytes }) => [rule, { packets, bytes }]));
    const did = RULES.map(({ name: rule }) => ({
      rule,
      packets: now.get(rule!)!.packets - before.get(rule!)!.packets,
      bytes: now.get(rule!)!.bytes - before.get(rule!)!.bytes,
    }));
    expect(did, name).toEqual(
      report.totals.map(({ rule, packets, bytes }: RuleStats) => ({ rule, packets, bytes })),
    );
    for (const { rule, packets } of did) expect(packets, `${name}: ${rule}`).toBeGreaterThan(0);
    before = now;
  }
});
