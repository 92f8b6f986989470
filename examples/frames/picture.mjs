/** Pictures, by sharp: each page is decoded anew for each frame, for ever. */
import { loadSharp, Problem, WRONG } from './problem.mjs';

/** @param {unknown} error */
const reason = (error) =>
  error instanceof Error ? error.message.trim().split('\n').join('; ') : String(error);

/**
 * @param {string} file
 * @param {{ width: number, height: number } | undefined} size
 * @returns null if sharp knows no such format
 */
export async function pictureSource(file, size) {
  const sharp = await loadSharp();
  let about;
  try {
    about = await sharp(file).metadata();
  } catch (error) {
    if (/unsupported image format/.test(reason(error))) return null;
    throw unreadable(file, error);
  }
  const { pages = 1, format } = about;
  let shape = size;
  /** @param {number} page */
  const decode = async (page) => {
    const image = sharp(file, { page, autoOrient: true });
    if (shape !== undefined) image.resize(shape.width, shape.height, { fit: 'fill' });
    const rgba = image.toColourspace('srgb').ensureAlpha().raw({ depth: 'uchar' });
    return rgba.toBuffer({ resolveWithObject: true });
  };
  // A picture that can't be decoded is said before anybody is asked to wait for its frames; the size is what came out.
  const first = await decode(0).catch((error) => {
    throw unreadable(file, error);
  });
  shape = { width: first.info.width, height: first.info.height };
  let n = 0;
  return {
    ...{ ...shape, name: `${file} (${format}${pages > 1 ? `, ${pages} pages` : ''})` },
    how: 'decoded by sharp, which hands out memory of its own: one copy by this example from there into the loan',
    /**
     * @param {Uint8Array} into
     * @returns {Promise<boolean>}
     */
    async next(into) {
      const { data } = await decode(n++ % pages).catch((error) => {
        throw unreadable(file, error);
      });
      into.set(data);
      return true;
    },
    close() {},
  };
}

/**
 * @param {string} file
 * @param {unknown} error
 */
const unreadable = (file, error) =>
  new Problem(
    `${file} can't be decoded: ${reason(error)}. Is it complete? Try another file, or convert it anew.`,
    WRONG,
  );
