import { describe, expect, test } from 'vitest';
import { joinWith } from '../../src/channels/join.js';
import { channelSettings, joinSettings, patternSettings } from '../../src/channels/options.js';
import { MillraceError } from '../../src/errors.js';
import { closest } from '../../src/suggest.js';
import { World } from '../support/world.js';

const refusal = (run: () => unknown): { code: string; message: string } & Error => {
  try {
    run();
  } catch (error) {
    return error as never;
  }
  throw new Error('was not refused');
};

describe('an unknown option is a TypeError that names it and the right one', () => {
  test.each([
    ['overflw', 'overflow'],
    ['maxQueueSize', 'maxQueueBytes'],
    ['Codec', 'codec'],
    ['replayBites', 'replayBytes'],
    ['window', 'windowBytes'],
    ['schemaID', 'schemaId'],
  ])('%s: %s', (given, meant) => {
    const error = refusal(() => channelSettings('x', { [given]: 1 }));
    expect(error).toBeInstanceOf(TypeError);
    expect(error).toMatchObject({ code: 'ERR_UNKNOWN_OPTION', details: { option: given, meant } });
    expect(error.message).toContain(`channel("x"): unknown option "${given}". Did you mean "${meant}"?`);
  });

  test('one that is like none lists them all', () => {
    const error = refusal(() => joinSettings({ zzzzzz: 1 } as never, 'me'));
    expect(error.message).toMatch(/^join\(\): unknown option "zzzzzz"\. It takes name, device, mode,/);
    expect(error.message).not.toContain('mean');
  });

  test('patterns take no publisher options', () => {
    expect(refusal(() => patternSettings('a.*', { maxQueueBytes: 1 }))).toMatchObject({
      code: 'ERR_UNKNOWN_OPTION',
    });
  });

  test('everywhere: methods too', async () => {
    const world = new World();
    const a = await world.join();
    const channel = a.channel('x');
    expect(() => channel.batches({ size: 4 } as never)).toThrow(/unknown option "size"/);
    expect(() => channel.values({ sginal: 1 } as never)).toThrow(/Did you mean "signal"/);
    // Who gets a promise handles errors in one place: these reject and never throw.
    const wrong: [() => Promise<unknown>, RegExp][] = [
      [() => channel.ready({ subscriber: 1 } as never), /Did you mean "subscribers"/],
      [() => channel.drain({ timeOut: 1 } as never), /Did you mean "timeout"/],
      [() => channel.drain(Number.NaN), /timeout must be/],
      [() => channel.flush({ timeout: 1 } as never), /unknown option "timeout"/],
      [() => channel.whenWritable({} as never), /signal/],
      [() => channel.publish(1 as never, { header: {} } as never), /Did you mean "headers"/],
      [() => a.flush({ timeout: 1 } as never), /unknown option "timeout"/],
      [() => a.drain({ signal: 1 } as never), /signal must be/],
      [() => a.fetch({} as never, {} as never), /region/],
    ];
    for (const [call, words] of wrong) await expect(call()).rejects.toThrow(words);
  });

  test('closest', () => {
    expect(closest('latst', ['wait', 'latest'])).toBe('latest');
    expect(closest('xyz', ['wait', 'latest'])).toBeUndefined();
  });
});

describe('values', () => {
  test.each([
    [{ overflow: 'drop' }, /overflow must be one of .*did you mean 'drop-(oldest|newest)'/],
    [{ overflow: { latestBy: () => 1 } }, /property path.*functions don't travel/],
    [{ overflow: { latestBy: 'a', more: 1 } }, /overflow must be/],
    [{ windowBytes: '1' }, /windowBytes must be an integer, not "1"/],
    [{ windowBytes: 1 }, /from 4096 to/],
    [{ replay: -1 }, /replay must be from 0/],
    [{ replay: 1.5 }, /an integer, not 1.5/],
    [{ echo: 1 }, /echo must be true or false, not 1/],
    [{ codec: 'msgpack' }, /did you mean 'msgpackr'/],
    [{ schema: {} }, /Standard Schema/],
    [{ schemaId: '' }, /schemaId must be a string/],
    [{ validate: 'always' }, /validate must be one of 'off', 'first', 'all'/],
    [{ maxWait: Number.NaN }, /maxWait must be a number of milliseconds/],
    [{ maxWait: -1 }, /must be from 0 to/],
    [{ lane: 'shred' }, /did you mean 'shared'/],
    [5, /options must be an object/],
    [[], /options must be an object, not an array/],
  ])('%j', (options, message) => {
    const error = refusal(() => channelSettings('x', options as object));
    expect(error).toBeInstanceOf(Error);
    expect(error.message).toMatch(message);
    expect(error.code).toMatch(/^ERR_(INVALID_OPTION|INVALID_ARGUMENT|CODEC_UNKNOWN)$/);
  });

  test('defaults', () => {
    expect(channelSettings('x', undefined)).toMatchObject({
      overflow: 'wait',
      windowBytes: 1_048_576,
      replay: 0,
      replayBytes: 1_048_576,
      echo: false,
      codec: { name: 'msgpackr' },
      validate: 'all',
      maxQueueBytes: 4_194_304,
      maxWait: Number.POSITIVE_INFINITY,
      lane: 'shared',
    });
    expect(patternSettings('x', undefined).codec).toBeNull();
    expect(joinSettings({}, 'me')).toMatchObject({
      name: 'me',
      device: 'soft',
      mode: 'adaptive',
      slotBytes: 16_384,
      slots: 128,
      maxSlots: 4096,
      arenaBytes: 1_048_576,
    });
    expect(joinSettings({ slotBytes: 1_048_576 }, 'me').arenaBytes).toBe(8_388_608);
  });

  test.each([
    [{ slotBytes: 100 }, RangeError],
    [{ slotBytes: 2 ** 21 }, RangeError],
    [{ slotBytes: 5000 }, RangeError],
    [{ arenaBytes: 4096 }, RangeError],
    [{ mode: 'busy' }, TypeError],
    [{ name: '' }, TypeError],
    [{ signal: {} }, TypeError],
    // Names are shown in terminals.
    [{ name: 'a\u001b[2Jb' }, TypeError],
    [{ name: 'two\nlines' }, TypeError],
    [{ name: '\ud800' }, TypeError],
  ])('join %j', (options, kind) => {
    expect(refusal(() => joinSettings(options as never, 'me'))).toBeInstanceOf(kind);
  });
});

describe('times', () => {
  const LONGEST = 2 ** 31 - 1; // a timer of Node.js that is to take longer fires at once

  test.each([-1, LONGEST + 1, 2 ** 40, Number.MAX_VALUE, Number.NEGATIVE_INFINITY])('%d ms', async (ms) => {
    const error = refusal(() => channelSettings('x', { maxWait: ms }));
    expect(error).toBeInstanceOf(RangeError);
    expect(error.message).toBe(
      `channel("x"): maxWait must be from 0 to ${LONGEST} ms, or Infinity, not ${ms}.`,
    );
    const channel = (await new World().join()).channel('x');
    for (const call of [() => channel.drain(ms), () => channel.ready({ timeout: ms })])
      await expect(call()).rejects.toMatchObject({ code: 'ERR_INVALID_OPTION', details: { most: LONGEST } });
  });

  test.each([0, 0.5, LONGEST, Number.POSITIVE_INFINITY])('%d ms are taken', (ms) => {
    expect(channelSettings('x', { maxWait: ms }).maxWait).toBe(ms);
  });
});

test.each([[null], [{}], [{ latestBy: '' }], [{ latestBy: 5 }], [5]])(
  'overflow %j: the message has the form with a key, too',
  (overflow) => {
    const { message } = refusal(() => channelSettings('x', { overflow }));
    expect(message).toMatch(/must be one of 'wait', .*'latest', or \{ latestBy: path \}, not/);
  },
);

test('arguments that are no options', async () => {
  const member = await new World().join();
  const bytes = member.channel('b', { codec: 'bytes' });
  for (const [call, message] of [
    [() => member.channel(undefined as never), /^Invalid channel name: it is undefined\. Pass a string\.$/],
    [() => member.channel({} as never), /^Invalid channel name: it is an object\./],
    [
      () => member.region(undefined as never),
      /^region\(\): the options must be \{ bytes \} at least, not undefined\.$/,
    ],
    [() => bytes.loan('5' as never), /^loan\(\): bytes must be an integer from 1 on, not "5"\.$/],
  ] as const) {
    const error = refusal(call);
    expect(error.message).toMatch(message);
    expect(error).toBeInstanceOf(MillraceError);
  }
  await expect(bytes.whenWritable(5 as never)).rejects.toThrow(
    'whenWritable(): signal must be an AbortSignal, not 5.',
  );
  await expect(member.fetch({} as never, {} as never)).rejects.toMatchObject({
    code: 'ERR_INVALID_ARGUMENT',
    message: 'fetch(): into must be a region, not an object.',
  });
});

describe('join', () => {
  test('refuses wrong arguments before it does anything', async () => {
    const parts = () => {
      throw new Error('not reached');
    };
    await expect(joinWith(parts, { slots: 1 } as never)).rejects.toMatchObject({
      code: 'ERR_INVALID_ARGUMENT',
    });
    await expect(joinWith(parts, 'x', { slotz: 1 } as never)).rejects.toMatchObject({
      code: 'ERR_UNKNOWN_OPTION',
    });
    await expect(joinWith(parts, 'x', { signal: AbortSignal.abort('now') })).rejects.toMatchObject({
      code: 'ERR_ABORTED',
      cause: 'now',
    });
  });

  test('passes on what the cluster says', async () => {
    const world = new World();
    world.fabric.openError = Object.assign(new Error('no memory'), { code: 'ENOMEM' });
    await expect(world.join()).rejects.toThrow('no memory');
  });
});
