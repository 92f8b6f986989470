import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { Arena } from '../../src/channels/arena.js';
import { readOffer } from '../../src/channels/lending/pool.js';
import { RecordQueue } from '../../src/channels/record-queue.js';
import {
  FLAG,
  FRAME_BYTES,
  FRAME_MAGIC,
  KIND,
  payloadLimit,
  RECORD_BYTES,
  recordSize,
  sequenceAt,
  sizeAt,
  TIME_WORD,
  WIRE_VERSION,
  WORD,
  writeHeader,
} from '../../src/channels/wire.js';
import { DESCRIPTOR_BYTES } from '../../src/native/lending-calls.js';

describe('wire.ts and native/transport/frame.h say the same', () => {
  const text = readFileSync(new URL('../../native/transport/frame.h', import.meta.url), 'utf8');

  /** The value of `inline constexpr … name = value;` or of an enumerator `name = value`. */
  function constant(name: string): number {
    const found = new RegExp(`\\b${name}\\s*=\\s*(0x[0-9A-Fa-f]+|\\d+)`).exec(text);
    expect(found, `${name} in frame.h`).not.toBeNull();
    return Number(found![1]);
  }

  /** Offsets of a struct's fields, by its declaration: natural alignment. */
  function offsets(struct: string): { fields: Record<string, number>; size: number } {
    const body = new RegExp(`struct ${struct} \\{([^}]*)\\}`).exec(text)![1]!.replace(/\/\/.*$/gm, '');
    const sizes: Record<string, number> = { uint8_t: 1, uint16_t: 2, uint32_t: 4, uint64_t: 8, double: 8 };
    const fields: Record<string, number> = {};
    let at = 0;
    for (const [, type, name] of body.matchAll(/(\w+)\s+(\w+);/g)) {
      const size = sizes[type!]!;
      at = Math.ceil(at / size) * size;
      fields[name!] = at;
      at += size;
    }
    return { fields, size: at };
  }

  test('magic, version, sizes', () => {
    expect(constant('kFrameMagic')).toBe(FRAME_MAGIC);
    expect(constant('kFrameVersion')).toBe(WIRE_VERSION);
    expect(offsets('FrameHeader').size).toBe(FRAME_BYTES);
    expect(offsets('RecordHeader').size).toBe(RECORD_BYTES);
    expect(constant('kRecordAlign')).toBe(8);
    expect([constant('kRecordLarge'), constant('kRecordRemote')]).toEqual([FLAG.LARGE, FLAG.REMOTE]);
  });

  test('the record header', () => {
    expect(offsets('RecordHeader').fields).toEqual({
      channel: WORD.CHANNEL * 4,
      payload_bytes: WORD.LENGTH * 4,
      sequence_low: WORD.SEQUENCE_LOW * 4,
      sequence_high: WORD.SEQUENCE_HIGH * 4,
      kind: WORD.BITS * 4,
      flags: WORD.BITS * 4 + 1,
      header_bytes: WORD.BITS * 4 + 2,
      correlation: WORD.CORRELATION * 4,
      time_ms: TIME_WORD * 8,
    });
  });

  test('what is offered to a member elsewhere', () => {
    const { fields, size } = offsets('RemoteDescriptor');
    expect([size, constant('kRemoteForm')]).toEqual([DESCRIPTOR_BYTES, 1]);
    const bytes = new Uint8Array(8 + size);
    const view = new DataView(bytes.buffer, 8);
    view.setUint32(fields.form!, 1, true);
    view.setBigUint64(fields.serial!, 5n + (3n << 32n), true);
    view.setBigUint64(fields.bytes!, 7n << 32n, true);
    expect(readOffer(new DataView(bytes.buffer), 8)).toEqual({
      form: 1,
      serial: 5 + 3 * 2 ** 32,
      bytes: 7 * 2 ** 32,
    });
  });
});

test('a record header, byte by byte', () => {
  const buffer = new ArrayBuffer(64);
  writeHeader(
    new Uint32Array(buffer),
    new Float64Array(buffer),
    8,
    7,
    13,
    2 ** 32 * 3 + 5,
    KIND.DATA | (FLAG.HEADERS << 8) | (16 << 16),
    9,
    1234.5,
  );
  const view = new DataView(buffer, 8);
  expect(view.getUint32(0, true)).toBe(7);
  expect(view.getUint32(4, true)).toBe(13);
  expect(view.getUint32(8, true)).toBe(5);
  expect(view.getUint32(12, true)).toBe(3);
  expect(view.getUint8(16)).toBe(KIND.DATA);
  expect(view.getUint8(17)).toBe(FLAG.HEADERS);
  expect(view.getUint16(18, true)).toBe(16);
  expect(view.getUint32(20, true)).toBe(9);
  expect(view.getFloat64(24, true)).toBe(1234.5);
  expect(sequenceAt(new Uint32Array(buffer), 2)).toBe(2 ** 32 * 3 + 5);
  expect(sizeAt(new Uint32Array(buffer), 2)).toBe(recordSize(16, 13));
  expect(TIME_WORD * 8).toBe(24);
  expect(WORD.BITS * 4).toBe(16);
  expect(recordSize(0, 1)).toBe(40);
  expect(payloadLimit(16_384)).toBe(16_288);
});

describe('the arena is a ring', () => {
  function arena(size = 1024) {
    const counters = new Float64Array(32);
    return { counters, arena: new Arena(new ArrayBuffer(size), counters) };
  }

  test('what is not committed does not exist', () => {
    const { arena: ring } = arena();
    expect(ring.reserve(100)).toBe(0);
    expect(ring.reserve(100)).toBe(0);
    ring.commit(96);
    expect(ring.reserve(100)).toBe(96);
    expect(ring.head).toBe(96);
  });

  test('skips to the start at the end, and waits for the tail', () => {
    const { arena: ring, counters } = arena();
    expect(ring.reserve(800)).toBe(0);
    ring.commit(800);
    expect(ring.reserve(400)).toBe(-1);
    counters[0] = 400;
    expect(ring.reserve(400)).toBe(0);
    expect(ring.head).toBe(1024);
    ring.commit(400);
    expect(ring.reserve(8)).toBe(-1);
    counters[0] = 1424;
    expect(ring.reserve(600)).toBe(400);
  });

  test('exactly to the end', () => {
    const { arena: ring, counters } = arena();
    for (let i = 0; i < 10; i++) {
      expect(ring.reserve(1024)).toBe(0);
      ring.commit(1024);
      expect(ring.reserve(8)).toBe(-1);
      counters[0] = ring.head;
    }
  });

  test('the release position stops before a record that is being handed out', () => {
    const { arena: ring } = arena();
    ring.reserve(64);
    ring.pinned = ring.head;
    ring.commit(64);
    expect(ring.release).toBe(0);
    ring.pinned = -1;
    expect(ring.release).toBe(64);
  });
});

describe('RecordQueue', () => {
  function record(sequence: number, payload: number) {
    const size = recordSize(0, payload);
    const buffer = new ArrayBuffer(size);
    const bytes = new Uint8Array(buffer).fill(sequence, RECORD_BYTES);
    const u32 = new Uint32Array(buffer);
    writeHeader(u32, new Float64Array(buffer), 0, 1, payload, sequence, KIND.DATA, 0, 0);
    return { source: { bytes, u32 }, size };
  }

  test('first in, first out, across chunks and sizes; runs stop at holes in the sequence', () => {
    const queue = new RecordQueue();
    const sizes = [1, 100, 300, 5000, 70_000, 8, 30_000, 30_000, 30_000];
    sizes.forEach((payload, i) => {
      const { source, size } = record(i < 5 ? i : i + 10, payload);
      queue.push(source, 0, size);
    });
    expect(queue.count).toBe(9);
    expect(queue.bytes).toBe(sizes.reduce((sum, payload) => sum + recordSize(0, payload), 0));
    const seen: number[] = [];
    queue.forEach((source, start, size, sequence) => {
      expect(source.bytes[start + size - 8]).toBe(sequence);
      seen.push(sequence);
    });
    const target = new Uint8Array(200_000);
    const taken: number[] = [];
    let head = queue.headSequence();
    while (queue.count > 0) {
      head = queue.headSequence();
      const bytes = queue.take(target, 0, 200_000);
      for (let at = 0; at < bytes; at += sizeAt(new Uint32Array(target.buffer), at >> 2))
        taken.push(sequenceAt(new Uint32Array(target.buffer), at >> 2));
      expect(taken).toContain(head);
      expect(queue.lastTaken).toBe(taken.at(-1));
    }
    expect(taken).toEqual([0, 1, 2, 3, 4, 15, 16, 17, 18]);
    expect(seen).toEqual(taken);
    expect([queue.bytes, queue.count, queue.headSize(), queue.take(target, 0, 1000)]).toEqual([0, 0, 0, 0]);
  });

  test('the newest may go, too: across chunks, after some were taken, and down to none', () => {
    const queue = new RecordQueue();
    const left: number[] = [];
    const push = (sequence: number, payload: number) => {
      const { source, size } = record(sequence, payload);
      queue.push(source, 0, size);
      left.push(sequence);
    };
    const content = () => {
      const seen: number[] = [];
      let bytes = 0;
      queue.forEach((_source, _start, size, sequence) => {
        seen.push(sequence);
        bytes += size;
      });
      expect([queue.count, queue.bytes]).toEqual([seen.length, bytes]);
      return seen;
    };
    [8, 100, 40_000, 40_000, 70_000, 8].forEach((payload, i) => {
      push(i, payload);
    });
    queue.shift();
    left.shift();
    while (left.length > 2) {
      expect(queue.pop()).toBe(left.pop());
      expect(content()).toEqual(left);
    }
    push(9, 60_000);
    push(10, 8);
    expect(content()).toEqual(left);
    while (left.length > 0) {
      expect(queue.pop()).toBe(left.pop());
      expect(content()).toEqual(left);
    }
    push(11, 8);
    expect([queue.headSequence(), queue.pop(), queue.count]).toEqual([11, 11, 0]);
  });

  test('takes nothing when the first does not fit', () => {
    const queue = new RecordQueue();
    const { source, size } = record(1, 1000);
    queue.push(source, 0, size);
    expect(queue.take(new Uint8Array(2000), 0, 500)).toBe(0);
    expect(queue.shift()).toBe(size);
    expect(queue.count).toBe(0);
  });
});
