import * as v from 'valibot';
import { describe, expect, expectTypeOf, it } from 'vitest';
import { z } from 'zod';
import { type InferInput, type InferOutput, SchemaError, validator } from '../../src/channels/schema.js';
import { MillraceError } from '../../src/errors.js';

const zod = z.object({ bid: z.number(), tags: z.array(z.string()).optional() });
const valibot = v.object({ bid: v.number(), tags: v.optional(v.array(v.string())) });
const good = { bid: 1 };
const bad = { bid: 'x', tags: ['a', 5] };

const thrown = (run: () => unknown): unknown => {
  try {
    run();
  } catch (error) {
    return error;
  }
  throw new Error('nothing was thrown');
};

describe.each([
  ['zod', zod],
  ['valibot', valibot],
])('%s', (_name, schema) => {
  it('all: validates every value and gives the output', () => {
    const check = validator(schema, 'all');
    expect(check(good)).toEqual(good);
    const error = thrown(() => check(bad)) as SchemaError;
    expect(error).toBeInstanceOf(SchemaError);
    expect(error).toBeInstanceOf(MillraceError);
    expect(error.code).toBe('ERR_SCHEMA');
    expect(error.issues.map(({ path }) => path)).toEqual(['bid', 'tags[1]']);
    expect(error.message).toContain('bid: ');
    expect(error.message).toContain('tags[1]: ');
    expect(check({ ...good, extra: 1 })).toEqual(good);
  });

  it('first: validates until one passes, and leaves values as they are', () => {
    const check = validator(schema, 'first');
    expect(() => check(bad)).toThrow(SchemaError);
    expect(() => check(bad)).toThrow(SchemaError);
    const value = { ...good, extra: 1 };
    expect(check(value)).toBe(value);
    expect(check(bad)).toBe(bad);
  });

  it('off: validates nothing', () => {
    expect(validator(schema, 'off')(bad)).toBe(bad);
  });
});

describe('transformations', () => {
  it.each([
    ['a default of zod', z.object({ a: z.number().default(1) }), {}],
    ['a coercion of zod', z.object({ a: z.coerce.number() }), { a: '5' }],
    ['a transformation of zod in a list', z.array(z.string().transform((s) => s.length)), ['abc']],
    [
      'a transformation of valibot',
      v.object({
        a: v.pipe(
          v.unknown(),
          v.transform(() => 7),
        ),
      }),
      { a: 'x' },
    ],
  ])('%s is refused in mode first, and happens in mode all', (_name, schema, value) => {
    expect(thrown(() => validator(schema as unknown as typeof zod, 'first')(value))).toMatchObject({
      code: 'ERR_SCHEMA_TRANSFORM',
    });
    expect(validator(schema as unknown as typeof zod, 'all')(value)).not.toEqual(value);
  });

  it('that change nothing are fine', () => {
    const schema = z.object({
      at: z.date(),
      map: z.map(z.string(), z.number()),
      list: z.array(z.object({ n: z.number() })),
      s: z.string().trim(),
    });
    const value = { at: new Date(5), map: new Map([['a', 1]]), list: [{ n: 1 }], s: 'x' };
    expect(validator(schema, 'first')(value)).toBe(value);
  });
});

describe('what is refused', () => {
  it('asynchronous schemas, without an unhandled rejection', () => {
    const unhandled: unknown[] = [];
    const note = (reason: unknown) => unhandled.push(reason);
    process.on('unhandledRejection', note);
    const schema = v.pipeAsync(
      v.number(),
      v.checkAsync(async () => Promise.reject(new Error('late'))),
    );
    for (const mode of ['all', 'first'] as const) {
      expect(thrown(() => validator(schema, mode)(1))).toMatchObject({ code: 'ERR_SCHEMA_ASYNC' });
    }
    expect(
      thrown(() =>
        validator(
          z.number().refine(async () => false),
          'all',
        )(1),
      ),
    ).toMatchObject({ code: 'ERR_SCHEMA_ASYNC' });
    return new Promise<void>((resolve) => setImmediate(() => setImmediate(resolve))).then(() => {
      process.off('unhandledRejection', note);
      expect(unhandled).toEqual([]);
    });
  });

  it('what is no schema, and unknown modes', () => {
    for (const schema of [
      null,
      undefined,
      {},
      5,
      { '~standard': { version: 2, validate: () => 1 } },
      { '~standard': { version: 1 } },
    ]) {
      expect(thrown(() => validator(schema as unknown as typeof zod, 'all'))).toMatchObject({
        code: 'ERR_INVALID_OPTION',
        name: 'MillraceTypeError',
      });
    }
    expect(thrown(() => validator(zod, 'some' as 'all'))).toMatchObject({
      code: 'ERR_INVALID_OPTION',
      message: expect.stringContaining('"some"'),
    });
  });

  it('lets the own code of a schema throw', () => {
    const fault = new Error('mine');
    const schema = v.pipe(
      v.number(),
      v.check(() => {
        throw fault;
      }),
    );
    expect(thrown(() => validator(schema, 'all')(1))).toBe(fault);
  });

  it('names at most five issues', () => {
    const schema = z.array(z.number());
    const error = thrown(() => validator(schema, 'all')(Array(9).fill('x'))) as SchemaError;
    expect(error.issues.length).toBe(9);
    expect(error.message).toContain('and 4 more');
  });
});

it('infers types', () => {
  const schema = z.object({ n: z.string().transform(Number) });
  expectTypeOf<InferOutput<typeof schema>>().toEqualTypeOf<{ n: number }>();
  expectTypeOf<InferInput<typeof schema>>().toEqualTypeOf<{ n: string }>();
  expectTypeOf(validator(valibot, 'all')).returns.toEqualTypeOf<{
    bid: number;
    tags?: string[] | undefined;
  }>();
});
