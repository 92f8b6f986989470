/**
 * A subscriber that writes a thumbnail PNG of each frame.
 *   node thumbnail.mjs DOMAIN FOLDER
 */
import { join } from 'node:path';
import { loadSharp } from './problem.mjs';
import { subscribe } from './subscriber.mjs';

/** Its longer side, in pixels. */
const SIDE = 160;
const folder = process.argv[3];
/** @type {Awaited<ReturnType<typeof loadSharp>>} */
let sharp;

await subscribe({
  name: 'thumbnail',
  async begin() {
    sharp = await loadSharp();
    // One thread for a picture: several are under way at a time.
    sharp.concurrency(1);
  },
  // sharp reads raw pixels where they lie; the lease is kept until it has.
  async look(pixels, number, { width, height }) {
    const name = `frame-${String(number).padStart(6, '0')}.png`;
    await sharp(pixels, { raw: { width, height, channels: 4 } })
      .resize(SIDE, SIDE, { fit: 'inside', withoutEnlargement: true })
      .png()
      .toFile(join(folder, name));
  },
  result: () => ({ files: [join(folder, 'frame-*.png')] }),
});
