import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { pcap, pcapng } from '../support/captures.js';
import { command } from '../support/cli-command.js';
import { frame } from '../support/frames.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'steer-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

const put = (name: string, content: string | Uint8Array) => {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
};
const GOOD = `rules:
  - { name: feed, match: { dst: 239.1.1.7, protocol: udp, port: 5001 }, priority: 1, to: feed.a }
  - { name: rest, match: { protocol: udp }, priority: 2, to: feed.rest }
`;
const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex');

describe('steer validate', () => {
  test('a good file', async () => {
    const file = put('good.yaml', GOOD);
    expect(await command(['steer', 'validate', file])).toEqual({
      exit: 0,
      out: `${file}: 2 valid rules, 0 errors, 0 warnings\n`,
      err: '',
    });
  });

  test('errors and warnings, with their lines; warnings fail with --strict only', async () => {
    const twice = put(
      'twice.yaml',
      `${GOOD}  - { name: late, match: { dst: 10.0.0.1, protocol: udp }, priority: 3, to: x }\n`,
    );
    const warned = await command(['steer', 'validate', twice]);
    expect(warned).toMatchObject({ exit: 0, err: '' });
    expect(warned.out).toContain(
      `${twice}:4:5: warning: rule late (line 4) never gets a packet: rule rest (line 3)`,
    );
    expect((await command(['steer', 'validate', twice, '--strict'])).exit).toBe(1);
    const bad = put('bad.yaml', GOOD.replace('5001', '65536'));
    const { exit, out } = await command(['steer', 'validate', bad]);
    expect(exit).toBe(1);
    expect(out).toContain(`${bad}:2:`);
    expect(out).toContain(
      'rule feed: match.port: 65536 is not a whole number from 0 to 65535 (EINVAL). Use 0 to 65535.',
    );
    expect(out).toContain('1 valid rule, 1 error, 0 warnings');
  });

  test('as JSON', async () => {
    const file = put('json.json', '{"rules": [{"match": {"vlan": 7}, "drop": true}, {"to": 5}]}');
    const { exit, out } = await command(['steer', 'validate', file, '--json']);
    expect(exit).toBe(1);
    expect(JSON.parse(out)).toMatchObject({
      file,
      valid: false,
      rules: [{ name: '#1', line: 1, type: 'normal', priority: 0, drop: true }],
      problems: [{ severity: 'error', rule: '#2', field: 'to', errno: 'EINVAL', line: 1 }],
    });
  });

  test('a file that is not there', async () => {
    const { exit, err } = await command(['steer', 'validate', join(folder, 'none.yaml')]);
    expect(exit).toBe(1);
    expect(err).toMatch(/none\.yaml: it does not exist \(ENOENT\)\. \(ERR_STEERING_FILE\)/);
  });
});

describe('steer explain', () => {
  test('one packet', async () => {
    const file = put('good.yaml', GOOD);
    expect(await command(['steer', 'explain', file, '--packet', hex(frame())])).toEqual({
      exit: 0,
      out: [
        'UDP 10.0.0.1:4000 > 239.1.1.7:5001: packet 1, 46 B',
        '  taken by feed (line 2) -> feed.a: the strongest that matches (priority 1)',
        '  not by rest (line 3): rule feed (line 2) takes it first (priority 1 is stronger than 2)',
        '',
      ].join('\n'),
      err: '',
    });
  });

  test('with colons and spaces; 3 when no rule takes it', async () => {
    const file = put('good.yaml', GOOD);
    const text = hex(frame({ protocol: 6, dst: '10.0.0.2' }))
      .replace(/../g, '$&:')
      .slice(0, -1);
    const { exit, out } = await command(['steer', 'explain', file, '--packet', text, '--interface', 'eth0']);
    expect(exit).toBe(3);
    expect(out).toContain('TCP 10.0.0.1:4000 > 10.0.0.2:5001 on eth0');
  });

  test('a capture: flows, and totals', async () => {
    const file = put('good.yaml', GOOD);
    const list = [frame(), frame({ port: 9 }), frame(), frame({ etherType: 0x0806 })].map((one) => ({
      frame: one,
    }));
    for (const capture of [put('a.pcap', pcap(list)), put('a.pcapng', pcapng([{ name: 'eth0' }], list))]) {
      const { exit, out, err } = await command(['steer', 'explain', file, '--pcap', capture]);
      expect({ exit, err }).toEqual({ exit: 0, err: '' });
      expect(out).toMatch(/5001( on eth0)?: 2 packets \(1 to 3\), 92 B\n {2}taken by feed/);
      expect(out).toMatch(/RULE +PACKETS +BYTES +TO\nfeed +2 +92 B +feed\.a\nrest +1 +46 B +feed\.rest\n/);
      expect(out).toContain('4 packets, 164 B; 1 that no rule takes or drops, 0 that are no Ethernet frames');
      const json = JSON.parse((await command(['steer', 'explain', file, '--pcap', capture, '--json'])).out);
      expect(json).toMatchObject({ packets: 4, untouched: 1, unreadable: 0 });
      expect(json.flows[0]).toMatchObject({
        packet: 'UDP 10.0.0.1:4000 > 239.1.1.7:5001',
        first: 1,
        last: 3,
        packets: 2,
        rules: [
          { rule: 'feed', line: 2, outcome: 'taken' },
          { rule: 'rest', line: 3, outcome: 'lost' },
        ],
      });
      expect(json.totals).toEqual([
        { rule: 'feed', to: 'feed.a', packets: 2, bytes: 92 },
        { rule: 'rest', to: 'feed.rest', packets: 1, bytes: 46 },
      ]);
    }
  });

  test.each<[string, () => string[], number, RegExp]>([
    ['no hexadecimal', () => [put('good.yaml', GOOD), '--packet', 'xyz'], 2, /hexadecimal/],
    ['too few bytes', () => [put('good.yaml', GOOD), '--packet', '0102'], 2, /alone has 14/],
    ['both', () => [put('good.yaml', GOOD), '--packet', '01', '--pcap', 'x'], 2, /either/],
    [
      'no capture',
      () => [put('good.yaml', GOOD), '--pcap', put('x', 'text')],
      1,
      /no pcap or pcapng.*ERR_STEERING_FILE/,
    ],
    [
      'bad rules',
      () => [put('bad.yaml', 'rules: 5'), '--packet', hex(frame())],
      1,
      /bad\.yaml:1:8: the file has no list.*ERR_STEERING_RULE/,
    ],
  ])('%s', async (_title, words, wanted, message) => {
    const { exit, out, err } = await command(['steer', 'explain', ...words()]);
    expect({ exit, out }).toEqual({ exit: wanted, out: '' });
    expect(err).toMatch(message);
  });
});
