import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type ControlMessage,
  encodeFrame,
  FrameDecoder,
  MAX_DEPTH,
  MAX_FRAME,
  MalformedFrame,
} from '../../src/cluster/framing.js';

const frame = (body: string | Uint8Array, length = Buffer.byteLength(body as string)): Buffer => {
  const header = Buffer.alloc(4);
  header.writeUInt32LE(length);
  return Buffer.concat([header, Buffer.from(body as string)]);
};

/** Decodes chunks. */
const decode = (...chunks: Uint8Array[]): ControlMessage[] => {
  const decoder = new FrameDecoder();
  const messages: ControlMessage[] = [];
  for (const chunk of chunks) decoder.push(chunk, (message) => messages.push(message));
  return messages;
};

const jsonMessage = fc
  .tuple(fc.string({ minLength: 1, maxLength: 20 }), fc.jsonValue({ maxDepth: 6 }))
  .map(([type, body]) => ({ type, body }))
  .filter((message) => !JSON.stringify(message).includes('__proto__'));

describe('a stream of frames', () => {
  test('is the same whatever pieces it comes in', () => {
    fc.assert(
      fc.property(
        fc.array(jsonMessage, { maxLength: 8 }),
        fc.array(fc.nat(), { maxLength: 30 }),
        (messages, cuts) => {
          const stream = Buffer.concat(messages.map((message) => encodeFrame(message)));
          const at = [...new Set(cuts.map((cut) => cut % (stream.length + 1)))].sort((a, b) => a - b);
          const chunks = [0, ...at].map((start, i) => stream.subarray(start, at[i] ?? stream.length));
          expect(decode(...chunks)).toEqual(JSON.parse(JSON.stringify(messages)));
        },
      ),
    );
  });

  test('byte by byte', () => {
    const stream = Buffer.concat([
      encodeFrame({ type: 'a', n: 1 }),
      encodeFrame({ type: 'b', text: 'é€😀' }),
    ]);
    const decoder = new FrameDecoder();
    const messages: ControlMessage[] = [];
    for (const byte of stream) decoder.push(Uint8Array.of(byte), (message) => messages.push(message));
    expect(messages).toEqual([
      { type: 'a', n: 1 },
      { type: 'b', text: 'é€😀' },
    ]);
    expect(decoder.idle).toBe(true);
  });

  test('states the size of each body', () => {
    const sizes: number[] = [];
    const message = encodeFrame({ type: 'x' });
    new FrameDecoder().push(Buffer.concat([message, message]), (_, size) => sizes.push(size));
    expect(sizes).toEqual([message.length - 4, message.length - 4]);
  });

  test('can be stopped from within', () => {
    const decoder = new FrameDecoder();
    let seen = 0;
    decoder.push(Buffer.concat([encodeFrame({ type: 'a' }), encodeFrame({ type: 'b' })]), () => {
      seen += 1;
      decoder.stop();
    });
    expect(seen).toBe(1);
  });

  test('the largest body passes, and one byte more is refused on both sides', () => {
    const room = MAX_FRAME - Buffer.byteLength(JSON.stringify({ type: 't', body: '' }));
    const largest = { type: 't', body: 'x'.repeat(room) };
    expect(decode(encodeFrame(largest))).toEqual([largest]);
    expect(() => encodeFrame({ type: 't', body: 'x'.repeat(room + 1) })).toThrow(
      expect.objectContaining({
        code: 'ERR_CONTROL_TOO_LARGE',
        details: { type: 't', bytes: MAX_FRAME + 1, limit: MAX_FRAME },
      }),
    );
  });
});

describe('bad input', () => {
  const bad: [string, Uint8Array][] = [
    ['length 0', frame('', 0)],
    ['length 1 MiB + 1, before its bytes', frame('', MAX_FRAME + 1)],
    ['length 2^32 - 1', frame('', 0xffffffff)],
    ['not JSON', frame('{"type":')],
    ['bytes after the JSON', frame('{"type":"a"}x')],
    ['a number', frame('7')],
    ['null', frame('null')],
    ['an array', frame('["type"]')],
    ['a string', frame('"type"')],
    ['no type', frame('{"kind":"a"}')],
    ['an empty type', frame('{"type":""}')],
    ['a type that is no string', frame('{"type":{"length":3}}')],
    ['a type of 65 characters', frame(`{"type":"${'x'.repeat(65)}"}`)],
    ['an inherited type', frame('{"__proto__":{"type":"a"}}')],
    ['__proto__', frame('{"type":"a","__proto__":{}}')],
    ['__proto__ deep inside', frame('{"type":"a","body":[{"b":{"__proto__":1}}]}')],
    ['__proto__ with an escape', frame('{"type":"a","\\u005f_proto__":{}}')],
    [
      'broken UTF-8',
      frame(Buffer.concat([Buffer.from('{"type":"'), Buffer.from([0xc3]), Buffer.from('"}')]), 12),
    ],
    [
      'a lone surrogate in UTF-8',
      frame(
        Buffer.concat([Buffer.from('{"type":"'), Buffer.from([0xed, 0xa0, 0x80]), Buffer.from('"}')]),
        14,
      ),
    ],
    ['a byte order mark', frame('\ufeff{"type":"a"}')],
    ['nesting of MAX_DEPTH + 1', frame(`{"type":"a","b":${'['.repeat(MAX_DEPTH)}${']'.repeat(MAX_DEPTH)}}`)],
    ['a mebibyte of brackets', frame('['.repeat(MAX_FRAME))],
    ['brackets closed before they open', frame(`${']'.repeat(100)}${'['.repeat(100)}`)],
  ];
  test.each(bad)('%s is refused, and nothing after it is taken', (_, bytes) => {
    const decoder = new FrameDecoder();
    const messages: ControlMessage[] = [];
    expect(() => decoder.push(bytes, (message) => messages.push(message))).toThrow(MalformedFrame);
    decoder.push(encodeFrame({ type: 'later' }), (message) => messages.push(message));
    expect(messages).toEqual([]);
  });

  test('what came before it was taken', () => {
    const decoder = new FrameDecoder();
    const messages: ControlMessage[] = [];
    const stream = Buffer.concat([encodeFrame({ type: 'good' }), frame('', 0)]);
    expect(() => decoder.push(stream, (message) => messages.push(message))).toThrow(MalformedFrame);
    expect(messages).toEqual([{ type: 'good' }]);
  });

  test('nesting of MAX_DEPTH is taken, and brackets in strings do not count', () => {
    const text = `{"type":"a","b":${'['.repeat(MAX_DEPTH - 1)}${']'.repeat(MAX_DEPTH - 1)},"c":"\\"${'['.repeat(200)}"}`;
    expect(decode(frame(text))).toHaveLength(1);
  });

  test('no prototype is changed by a name like constructor', () => {
    const [message] = decode(frame('{"type":"a","constructor":{"prototype":{"polluted":1}}}'));
    expect(message!.type).toBe('a');
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });

  test('random bytes, in random pieces, give messages or MalformedFrame, and never hold more than one frame', () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 40 }), { maxLength: 12 }), (chunks) => {
        try {
          for (const message of decode(...chunks)) expect(typeof message.type).toBe('string');
        } catch (error) {
          expect(error).toBeInstanceOf(MalformedFrame);
        }
      }),
      { numRuns: 500 },
    );
  });

  test('one changed byte in a valid stream gives messages or MalformedFrame', () => {
    const stream = Buffer.concat([
      encodeFrame({ type: 'hello', v: 1, name: 'ä', list: [1, { a: null }] }),
      encodeFrame({ type: 'goodbye' }),
    ]);
    fc.assert(
      fc.property(fc.nat(stream.length - 1), fc.nat(255), (at, byte) => {
        const changed = Buffer.from(stream);
        changed[at] = byte;
        try {
          for (const message of decode(changed)) expect(typeof message.type).toBe('string');
        } catch (error) {
          expect(error).toBeInstanceOf(MalformedFrame);
        }
      }),
      { numRuns: 500 },
    );
  });
});
