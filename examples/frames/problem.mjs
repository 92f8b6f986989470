/** What the user can do something about, said in one line and without a stack. */
import { MillraceError } from 'millrace';

/** Of the file or the arguments. */
export const WRONG = 2;
/** Of this machine. */
const LACKS = 1;

export class Problem extends Error {
  /**
   * @param {string} message cause and remedy
   * @param {number} [code] that the example ends with
   */
  constructor(message, code = LACKS) {
    super(message);
    this.code = code;
  }
}

/**
 * What a process tells the one that started it when it can't go on.
 * @param {unknown} error
 */
export function failure(error) {
  let text = error instanceof Error ? error.message : String(error);
  if (error instanceof MillraceError) text = `${error.code}: ${text}`;
  else if (error instanceof Error && !(error instanceof Problem)) text = error.stack ?? text;
  const code = error instanceof Problem ? error.code : LACKS;
  return { type: 'failed', text, code };
}

/** sharp, which only this example needs. */
export async function loadSharp() {
  try {
    return (await import('sharp')).default;
  } catch (error) {
    const why = error instanceof Error ? error.message.split('\n')[0] : String(error);
    throw new Problem(
      `pictures are decoded and written by sharp, which can't be loaded (${why}). Run "npm ci" in this checkout, or "npm install sharp" in yours.`,
    );
  }
}
