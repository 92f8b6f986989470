import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decodePacket, packetText } from '../../src/steering/packet.js';
import { type Captured, readCapture } from '../../src/steering/pcap.js';
import { replay } from '../../src/steering/replay.js';
import { readRules } from '../../src/steering/set.js';
import { pcap, pcapng } from '../support/captures.js';
import { type FrameParts, frame } from '../support/frames.js';
import { frames } from '../support/steering.js';

describe('a packet in words', () => {
  test.each<[FrameParts, string]>([
    [{}, 'UDP 10.0.0.1:4000 > 239.1.1.7:5001'],
    [{ dst: 'ff02::1' }, 'UDP [fd00::1]:4000 > [ff02::1]:5001'],
    [{ protocol: 6, dst: '10.0.0.2', vlans: [7] }, 'VLAN 7 TCP 10.0.0.1:4000 > 10.0.0.2:5001'],
    [{ fragment: 185 }, 'IP protocol 17 (fragment) 10.0.0.1 > 239.1.1.7'],
    [{ protocol: 2 }, 'IP protocol 2 10.0.0.1 > 239.1.1.7'],
    [{ etherType: 0x0806 }, 'Ethernet 0x0806 02:00:00:00:00:0a > 01:00:5e:01:01:07'],
  ])('%o', (parts, text) => {
    expect(packetText(decodePacket(frame(parts))!)).toBe(text);
  });
});

describe('malformed frames', () => {
  test('cut off anywhere: what was read before stays, and nothing is read beyond', () => {
    for (const parts of [
      {},
      { protocol: 6 },
      { dst: 'ff02::1', options: 16, fragment: 0 },
      { vlans: [1, 2], options: 8 },
    ]) {
      const whole = frame(parts);
      for (let length = 0; length < whole.length; length++) {
        const packet = decodePacket(whole.slice(0, length));
        if (length < 14) expect(packet).toBeUndefined();
        else expect(packetText(packet!)).not.toBe('');
      }
    }
  });

  test('any bytes', () => {
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 200 }),
        (bytes) => (decodePacket(bytes) === undefined) === bytes.length < 14,
      ),
    );
    fc.assert(
      fc.property(frames, fc.nat(), fc.nat(255), (bytes, place, value) => {
        const broken = bytes.slice();
        broken[place % broken.length] = value;
        expect(decodePacket(broken)).toBeDefined();
      }),
    );
  });
});

const summary = (bytes: Uint8Array) =>
  [...readCapture(bytes, 'x')].map(({ number, time, frame, wireBytes, interface: port }: Captured) => ({
    number,
    time,
    bytes: frame.length,
    wireBytes,
    port,
  }));

describe('captures', () => {
  const given = [
    { frame: frame(), time: 1700000000.25 },
    { frame: frame({ payload: 7 }), time: 1700000001.5 },
  ];
  const wanted = [
    { number: 1, time: 1700000000250, bytes: 46, wireBytes: 46, port: undefined },
    { number: 2, time: 1700000001500, bytes: 49, wireBytes: 49, port: undefined },
  ];
  test.each([true, false])('pcap, little endian %s', (little) => {
    expect(summary(pcap(given, { little }))).toEqual(wanted);
    expect(summary(pcap(given, { little, nano: true }))).toEqual(wanted);
  });

  test.each([true, false])('pcapng, little endian %s', (little) => {
    expect(summary(pcapng([{}], given, { little }))).toEqual(wanted);
    expect(
      summary(
        pcapng([{ name: 'lo' }, { name: 'eth0', nano: true }], [{ ...given[0]!, interface: 1 }, given[1]!], {
          little,
        }),
      ),
    ).toEqual([
      { ...wanted[0], port: 'eth0' },
      { ...wanted[1], port: 'lo' },
    ]);
    expect(summary(pcapng([{}], given, { little, simple: true })).map(({ bytes }) => bytes)).toEqual([
      46, 49,
    ]);
  });

  test('a link type that says that checksums are behind the frames', () => {
    expect(summary(pcap(given, { link: 0x24000001 }))).toEqual(wanted);
  });

  test('several sections, with interfaces of their own', () => {
    const both = Buffer.concat([
      pcapng([{ name: 'a' }], given),
      pcapng([{ name: 'b' }], given, { little: false }),
    ]);
    expect(summary(both).map(({ number, port }) => [number, port])).toEqual([
      [1, 'a'],
      [2, 'a'],
      [3, 'b'],
      [4, 'b'],
    ]);
  });

  test.each<[string, Uint8Array, RegExp]>([
    ['empty', new Uint8Array(0), /no pcap or pcapng/],
    ['text', Buffer.from('rules: []\n'.repeat(10)), /no pcap or pcapng/],
    ['compressed', gzipSync(pcap(given)), /compressed with gzip.*gunzip/],
    ['raw IP', pcap(given, { link: 101 }), /link type is 101 \(raw IP\).*Capture on one/],
    ['cut off in a packet', pcap(given).subarray(0, -1), /packet 2 .* cut off/],
    ['cut off in a block', pcapng([{}], given).subarray(0, -1), /block at byte \d+ is cut off/],
    ['no such interface', pcapng([], given), /interface that the file does not have/],
    ['a block of no length', Buffer.concat([pcapng([{}], given), Buffer.alloc(12)]), /has a length of 0/],
  ])('%s', (_title, bytes, message) => {
    expect(() => summary(bytes)).toThrow(
      expect.objectContaining({ code: 'ERR_STEERING_FILE', message: expect.stringMatching(message) }),
    );
  });

  test('any damage is an error or other packets, never a crash', () => {
    const files = [pcap(given), pcapng([{ name: 'eth0', nano: true }], given)];
    fc.assert(
      fc.property(
        fc.constantFrom(...files),
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 4 }),
        fc.nat(400),
        (file, changes, cut) => {
          const bytes = file.slice(0, cut);
          for (const [place, value] of changes) if (bytes.length > 0) bytes[place % bytes.length] = value;
          try {
            for (const { frame } of readCapture(bytes, 'x')) expect(frame.length).toBeLessThan(400);
          } catch (error) {
            expect(error).toMatchObject({ code: 'ERR_STEERING_FILE' });
          }
        },
      ),
    );
  });

  test('replay: totals, flows, and what no rule sees', () => {
    const { rules } = readRules([
      { name: 'feed', match: { dst: '239.1.1.7', protocol: 'udp', port: 5001 }, to: 'feed' },
      { name: 'off', match: { protocol: 'udp', port: 9 }, drop: true },
      { name: 'all', type: 'sniffer', to: 's' },
    ]);
    const list = [frame(), frame({ port: 9 }), frame(), frame({ port: 10 }), Uint8Array.of(1, 2, 3)];
    const report = replay(rules, readCapture(pcap(list.map((one) => ({ frame: one }))), 'x'));
    expect(report).toMatchObject({ packets: 5, bytes: 187, unreadable: 1, untouched: 1 });
    expect(report.totals.map(({ rule, packets, bytes }) => [rule.name, packets, bytes])).toEqual([
      ['feed', 2, 92],
      ['off', 1, 46],
      ['all', 4, 184],
    ]);
    expect(report.flows.map(({ first, last, packets }) => [first, last, packets])).toEqual([
      [1, 3, 2],
      [2, 2, 1],
      [4, 4, 1],
    ]);
  });
});
