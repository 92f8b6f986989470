import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type ControlMessage, MalformedFrame } from '../../src/cluster/framing.js';
import {
  greet,
  type Hello,
  judge,
  type Known,
  parseHello,
  parseRefusal,
  versionOf,
} from '../../src/cluster/handshake.js';
import { Outbox } from '../../src/cluster/outbox.js';

const hello: Hello = {
  incarnation: 100,
  name: 'x',
  pid: 1,
  offer: new Uint8Array([1, 2, 255]),
  session: 5,
  established: 0,
  received: 0,
  yourSession: 0,
};

describe('hello', () => {
  test('comes out as it went in', () => {
    const message = JSON.parse(JSON.stringify(greet('hello', hello))) as ControlMessage;
    expect(versionOf(message)).toBe(1);
    const parsed = parseHello(message);
    expect({ ...parsed, offer: [...parsed.offer] }).toEqual({ ...hello, offer: [1, 2, 255] });
  });

  test.each([
    ['incarnation', 0],
    ['incarnation', 2 ** 53],
    ['incarnation', '7'],
    ['name', 7],
    ['name', 'x'.repeat(257)],
    ['pid', -1],
    ['pid', 1.5],
    ['offer', 'a'],
    ['offer', 'a b='],
    ['offer', 'AAAA'.repeat(20_000)],
    ['offer', ['AAAA']],
    ['session', 0],
    ['established', null],
    ['received', undefined],
    ['yourSession', {}],
  ])('%s = %j is refused', (field, value) => {
    const message = { ...greet('hello', hello), [field]: value } as ControlMessage;
    expect(() => parseHello(message)).toThrow(MalformedFrame);
  });

  test('anything as a field gives a hello or MalformedFrame', () => {
    const fields = Object.keys(greet('hello', hello)).filter((field) => field !== 'type');
    fc.assert(
      fc.property(fc.constantFrom(...fields), fc.jsonValue(), (field, value) => {
        try {
          parseHello({ ...greet('hello', hello), [field]: value } as ControlMessage);
        } catch (error) {
          expect(error).toBeInstanceOf(MalformedFrame);
        }
      }),
    );
  });

  test('a refusal is read whatever it holds', () => {
    expect(parseRefusal({ type: 'refuse' })).toEqual({ code: '?', message: '?' });
    expect(parseRefusal({ type: 'refuse', code: 'x'.repeat(100), message: 7 }).code).toHaveLength(64);
  });
});

describe('which connection stays', () => {
  const known: Known = { session: 3, theirSession: 5, established: 1, connected: false, attempting: false };
  const cases: [string, number, Partial<Hello>, Known | undefined, string][] = [
    ['nobody is known', 1, {}, undefined, 'accept'],
    ['nobody is known, and the hello continues a session', 1, { yourSession: 9 }, undefined, 'session'],
    ['the hello continues another session', 1, { yourSession: 9 }, known, 'session'],
    ['the connection was lost on both sides', 1, { yourSession: 3, established: 1 }, known, 'accept'],
    [
      'it was lost on the other side only',
      1,
      { yourSession: 3, established: 1 },
      { ...known, connected: true },
      'replace',
    ],
    ['a late second attempt', 1, {}, { ...known, connected: true }, 'duplicate'],
    [
      'two attempts at once, ours counts',
      1,
      {},
      { ...known, theirSession: 0, established: 0, attempting: true },
      'duplicate',
    ],
    [
      'two attempts at once, theirs counts',
      200,
      {},
      { ...known, theirSession: 0, established: 0, attempting: true },
      'accept',
    ],
    ['the peer began anew', 1, { session: 6 }, { ...known, connected: true }, 'renew'],
    [
      'a connection of an earlier session is late',
      1,
      { session: 4 },
      { ...known, connected: true },
      'duplicate',
    ],
  ];
  test.each(cases)('%s', (_, own, part, peer, verdict) => {
    expect(judge(own, { ...hello, ...part }, peer)).toBe(verdict);
  });

  test('of two attempts at once exactly one is accepted', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 1000 }), fc.integer({ min: 1, max: 1000 }), (a, b) => {
        fc.pre(a !== b);
        const trying: Known = {
          session: 1,
          theirSession: 0,
          established: 0,
          connected: false,
          attempting: true,
        };
        const atA = judge(a, { ...hello, incarnation: b }, trying);
        const atB = judge(b, { ...hello, incarnation: a }, trying);
        expect([atA, atB].sort()).toEqual(['accept', 'duplicate']);
      }),
    );
  });
});

describe('the outbox', () => {
  test('keeps what is not acknowledged, in order, and nothing else', () => {
    const command = fc.oneof(
      fc.record({ push: fc.integer({ min: 1, max: 50 }) }),
      fc.record({ acknowledge: fc.integer({ min: 0, max: 300 }) }),
    );
    fc.assert(
      fc.property(fc.array(command, { maxLength: 200 }), (commands) => {
        const outbox = new Outbox();
        const model: Buffer[] = [];
        let acknowledged = 0;
        for (const step of commands) {
          if ('push' in step) {
            const frame = Buffer.alloc(step.push);
            outbox.push(frame);
            model.push(frame);
          } else {
            const valid = step.acknowledge >= acknowledged && step.acknowledge <= model.length;
            expect(outbox.acknowledge(step.acknowledge)).toBe(valid);
            if (valid) acknowledged = step.acknowledge;
          }
          const rest = model.slice(acknowledged);
          expect(outbox.unacknowledged()).toEqual(rest);
          expect(outbox.bytes).toBe(rest.reduce((sum, frame) => sum + frame.length, 0));
          expect(outbox.sent).toBe(model.length);
        }
      }),
    );
  });
});
