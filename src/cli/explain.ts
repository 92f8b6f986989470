import { CODES, type CodeEntry } from '../errors.js';
import type { Context } from './context.js';
import { EXIT, Outcome } from './exit.js';

/** `millrace errors [CODE]`: what a code means, from the table that the library uses. */
export async function explain(given: string | undefined, json: boolean, { io }: Context): Promise<number> {
  const all = Object.entries(CODES) as [string, CodeEntry][];
  const wanted = given?.trim().toUpperCase();
  const found =
    wanted === undefined ? all : all.filter(([code]) => code === wanted || code === `ERR_${wanted}`);
  if (found.length === 0) {
    const near = all
      .map(([code]) => code)
      .filter((code) => code.includes((wanted ?? '').replace(/^ERR_/, '') || '?'));
    throw new Outcome(
      EXIT.NOTHING,
      `There is no code ${JSON.stringify(given)}.${near.length > 0 ? ` Did you mean ${near.slice(0, 5).join(', ')}?` : ''} Run millrace errors for the list.`,
    );
  }
  if (json) {
    const rows = found.map(([code, entry]) => ({ code, ...entry }));
    await io.line(JSON.stringify(given === undefined ? rows : rows[0]));
    return EXIT.OK;
  }
  const { bold, dim } = io.colors;
  if (given === undefined) {
    const width = Math.max(...found.map(([code]) => code.length));
    for (const [code, { title }] of found) await io.line(`${code.padEnd(width)}  ${title}`);
    return EXIT.OK;
  }
  for (const [code, { title, cause, remedy, scope, retryable }] of found) {
    await io.line(bold(code));
    await io.line(
      `  ${title}. Concerns the ${scope}; ${retryable ? 'can succeed later' : 'stays until something is changed'}.`,
    );
    await io.line(`  ${dim('Cause:')}  ${cause}`);
    await io.line(`  ${dim('Remedy:')} ${remedy}`);
  }
  return EXIT.OK;
}
