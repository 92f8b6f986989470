import { isDeepStrictEqual } from 'node:util';
import type { StandardSchemaV1 } from '@standard-schema/spec';
import { MillraceError, MillraceTypeError } from '../errors.js';

/** Any Standard Schema: zod, valibot, arktype and others. */
export type AnySchema = StandardSchemaV1<unknown, unknown>;

/** The type that a schema gives. */
export type InferOutput<S extends StandardSchemaV1> = StandardSchemaV1.InferOutput<S>;
/** The type that a schema takes. */
export type InferInput<S extends StandardSchemaV1> = StandardSchemaV1.InferInput<S>;

/**
 * - 'off': nothing is validated; the schema serves the types only.
 * - 'first': values are validated until one passes, and trusted from then on. Values stay what they are.
 * - 'all': every value is validated, and replaced by the schema's output.
 */
export type ValidateMode = 'off' | 'first' | 'all';

const MODES: readonly string[] = ['off', 'first', 'all'];

/** One thing that is wrong with a value. */
export interface SchemaIssue {
  /** Where, such as `orders[3].price`; empty for the value itself. */
  readonly path: string;
  readonly message: string;
}

/** A value does not satisfy its schema. */
export class SchemaError extends MillraceError {
  /** All that the schema found. */
  readonly issues: readonly SchemaIssue[];

  constructor(issues: readonly SchemaIssue[]) {
    const shown = issues
      .slice(0, 5)
      .map(({ path, message }) => (path === '' ? message : `${path}: ${message}`));
    const more = issues.length > 5 ? `; and ${issues.length - 5} more` : '';
    super('ERR_SCHEMA', `The value does not satisfy the schema: ${shown.join('; ')}${more}`, {
      details: { issues },
    });
    this.name = 'SchemaError';
    this.issues = issues;
  }
}

/**
 * Checks one value and returns the value to go on with.
 *
 * @throws SchemaError if the value does not satisfy the schema; MillraceError ERR_SCHEMA_ASYNC if the schema is
 *   asynchronous, ERR_SCHEMA_TRANSFORM if it changes values in mode 'first'; what the schema's own code threw
 */
export type Validator<T> = (value: unknown) => T;

/**
 * Makes a validator. Use one for each stream that is to be trusted on its own: in mode 'first' it has a state.
 *
 * @throws MillraceTypeError (ERR_INVALID_OPTION) if `schema` is not a Standard Schema or `mode` is unknown
 */
export function validator<S extends StandardSchemaV1>(
  schema: S,
  mode: ValidateMode,
): Validator<InferOutput<S>> {
  const props = propsOf(schema);
  if (!MODES.includes(mode)) {
    throw new MillraceTypeError(
      'ERR_INVALID_OPTION',
      `validate must be 'off', 'first' or 'all', not ${JSON.stringify(mode) ?? String(mode)}`,
    );
  }
  type Out = InferOutput<S>;
  if (mode === 'off') return (value) => value as Out;
  if (mode === 'all') return (value) => outputOf(props, value) as Out;
  let trusted = false;
  return (value) => {
    if (!trusted) {
      const output = outputOf(props, value);
      if (!keeps(output, value)) {
        throw new MillraceError(
          'ERR_SCHEMA_TRANSFORM',
          `The schema (${props.vendor}) changes values, and validate: 'first' would change only the first. Use validate: 'all'.`,
        );
      }
      trusted = true;
    }
    return value as Out;
  };
}

type Props = StandardSchemaV1.Props<unknown, unknown>;

function propsOf(schema: StandardSchemaV1): Props {
  // A schema may be a function (arktype), so only the marker counts.
  const usable = (typeof schema === 'object' && schema !== null) || typeof schema === 'function';
  const props = usable ? (schema as Partial<AnySchema>)['~standard'] : undefined;
  if (props?.version === 1 && typeof props.validate === 'function') return props;
  throw new MillraceTypeError(
    'ERR_INVALID_OPTION',
    'schema must be a Standard Schema, as zod (3.24 or later), valibot and arktype make them: an object with a ~standard property of version 1',
  );
}

function outputOf(props: Props, value: unknown): unknown {
  const result = props.validate(value);
  if (typeof (result as PromiseLike<unknown>).then === 'function') {
    // Nobody will look at it, and its failure must not end the process.
    (result as PromiseLike<unknown>).then(undefined, () => {});
    throw new MillraceError(
      'ERR_SCHEMA_ASYNC',
      `The schema (${props.vendor}) returned a promise, but messages keep their order and cannot wait. It has asynchronous checks or, with zod, a check of its own that threw; use checks that return at once.`,
    );
  }
  const settled = result as StandardSchemaV1.Result<unknown>;
  if (settled.issues !== undefined) {
    throw new SchemaError(settled.issues.map(({ message, path }) => ({ message, path: pathOf(path) })));
  }
  return settled.value;
}

function pathOf(path: StandardSchemaV1.Issue['path']): string {
  let text = '';
  for (const segment of path ?? []) {
    const key = typeof segment === 'object' ? segment.key : segment;
    if (typeof key === 'number') text += `[${key}]`;
    else if (typeof key === 'string' && /^[\p{L}_$][\p{L}\p{N}_$]*$/u.test(key))
      text += text === '' ? key : `.${key}`;
    else text += `[${typeof key === 'symbol' ? String(key) : JSON.stringify(key)}]`;
  }
  return text;
}

const isPlain = (value: unknown): value is Record<string, unknown> => {
  if (typeof value !== 'object' || value === null) return false;
  const prototype = Object.getPrototypeOf(value) as unknown;
  return prototype === Object.prototype || prototype === null;
};

/** Whether an output is the input, apart from properties that were left out: many schemas strip what they don't know. */
function keeps(output: unknown, input: unknown): boolean {
  if (Object.is(output, input)) return true;
  if (Array.isArray(output)) {
    return (
      Array.isArray(input) &&
      output.length === input.length &&
      output.every((item, i) => keeps(item, input[i]))
    );
  }
  if (isPlain(output) && typeof input === 'object' && input !== null) {
    return Object.keys(output).every(
      (key) => Object.hasOwn(input, key) && keeps(output[key], (input as Record<string, unknown>)[key]),
    );
  }
  return isDeepStrictEqual(output, input);
}
