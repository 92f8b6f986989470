import { MillraceRangeError, MillraceTypeError } from './errors.js';

/** A value as a message shows it. */
export function describe(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 60 ? `${value.slice(0, 57)}…` : value);
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'an array' : 'an object';
  if (typeof value === 'function') return 'a function';
  return String(value);
}

/** Edits between two words (insert, delete, replace, swap neighbours), case ignored. */
function distance(a: string, b: string): number {
  const x = a.toLowerCase();
  const y = b.toLowerCase();
  const rows: number[][] = [Array.from({ length: y.length + 1 }, (_, i) => i)];
  for (let i = 1; i <= x.length; i++) {
    const row = [i];
    for (let j = 1; j <= y.length; j++) {
      const same = x[i - 1] === y[j - 1];
      let best = Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, rows[i - 1]![j - 1]! + (same ? 0 : 1));
      if (i > 1 && j > 1 && x[i - 1] === y[j - 2] && x[i - 2] === y[j - 1])
        best = Math.min(best, rows[i - 2]![j - 2]! + 1);
      row.push(best);
    }
    rows.push(row);
  }
  return rows[x.length]![y.length]!;
}

/** The known name that was probably meant, or undefined. */
export function closest(name: string, known: readonly string[]): string | undefined {
  let best: string | undefined;
  let least = Math.max(2, Math.floor(name.length / 2)) + 1;
  for (const one of known) {
    const lower = one.toLowerCase();
    const part =
      name.length >= 3 && (lower.includes(name.toLowerCase()) || name.toLowerCase().includes(lower));
    const far = Math.min(distance(name, one), part ? 1.5 : Number.POSITIVE_INFINITY);
    if (far < least) {
      least = far;
      best = one;
    }
  }
  return best;
}

/**
 * Refuses options that nobody knows: a spelling mistake would otherwise be silently without effect.
 * @throws MillraceTypeError ERR_UNKNOWN_OPTION or ERR_INVALID_ARGUMENT
 */
export function checkNames(call: string, options: unknown, known: readonly string[]): void {
  if (options === undefined) return;
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new MillraceTypeError(
      'ERR_INVALID_ARGUMENT',
      `${call}: the options must be an object, not ${describe(options)}.`,
    );
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue;
    const meant = closest(name, known);
    throw new MillraceTypeError(
      'ERR_UNKNOWN_OPTION',
      `${call}: unknown option ${JSON.stringify(name)}.${meant === undefined ? '' : ` Did you mean ${JSON.stringify(meant)}?`}` +
        ` It takes ${known.join(', ')}.`,
      { details: { option: name, meant } },
    );
  }
}

/** Refuses an option's value. @throws MillraceTypeError ERR_INVALID_OPTION */
export function invalid(call: string, name: string, value: unknown, wanted: string): never {
  throw new MillraceTypeError(
    'ERR_INVALID_OPTION',
    `${call}: ${name} must be ${wanted}, not ${describe(value)}.`,
    {
      details: { option: name, value },
    },
  );
}

/** Refuses an argument that is no option. @throws MillraceTypeError ERR_INVALID_ARGUMENT */
export function invalidArgument(call: string, name: string, value: unknown, wanted: string): never {
  throw new MillraceTypeError(
    'ERR_INVALID_ARGUMENT',
    `${call}: ${name} must be ${wanted}, not ${describe(value)}.`,
  );
}

/** An integer within bounds, or the default. @throws MillraceTypeError or MillraceRangeError ERR_INVALID_OPTION */
export function integer(
  call: string,
  name: string,
  value: unknown,
  standard: number,
  least: number,
  most: number,
  multiple = 1,
): number {
  if (value === undefined) return standard;
  if (typeof value !== 'number' || !Number.isInteger(value)) invalid(call, name, value, 'an integer');
  if (value < least || value > most || value % multiple !== 0) {
    throw new MillraceRangeError(
      'ERR_INVALID_OPTION',
      `${call}: ${name} must be from ${least} to ${most}${multiple > 1 ? ` and a multiple of ${multiple}` : ''}, not ${value}.`,
      { details: { option: name, value, least, most } },
    );
  }
  return value;
}

/** One of the known words, or the default. @throws MillraceTypeError ERR_INVALID_OPTION */
export function oneOf<V extends string>(
  call: string,
  name: string,
  value: unknown,
  standard: V,
  all: readonly V[],
): V {
  if (value === undefined) return standard;
  if (typeof value === 'string' && (all as readonly string[]).includes(value)) return value as V;
  const meant = typeof value === 'string' ? closest(value, all) : undefined;
  invalid(
    call,
    name,
    value,
    `one of ${all.map((one) => `'${one}'`).join(', ')}${meant === undefined ? '' : ` (did you mean '${meant}'?)`}`,
  );
}

/** A boolean; false unless given. @throws MillraceTypeError ERR_INVALID_OPTION */
export function flag(call: string, name: string, value: unknown): boolean {
  if (value === undefined) return false;
  if (typeof value !== 'boolean') invalid(call, name, value, 'true or false');
  return value;
}
