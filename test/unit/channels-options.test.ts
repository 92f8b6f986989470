import { describe, expect, test } from 'vitest';
import { joinWith } from '../../src/channels/join.js';
import { channelSettings, joinSettings, patternSettings } from '../../src/channels/options.js';
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
    expect(() => channel.ready({ subscriber: 1 } as never)).toThrow(/Did you mean "subscribers"/);
    expect(() => channel.drain({ timeOut: 1 } as never)).toThrow(/Did you mean "timeout"/);
    expect(() => a.flush({ timeout: 1 } as never)).toThrow(/unknown option "timeout"/);
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
    [{ maxWait: -1 }, /must not be negative/],
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
  ])('join %j', (options, kind) => {
    expect(refusal(() => joinSettings(options as never, 'me'))).toBeInstanceOf(kind);
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
