/** Frames to have when no file is named: stripes of every colour, and a square, that move. */

/** @param {number} t 0 to 1, around the colours; @returns one RGBA pixel as it lies in memory */
function colour(t) {
  const channel = (/** @type {number} */ shift) =>
    Math.round(127.5 + 127.5 * Math.cos(2 * Math.PI * (t + shift)));
  return ((255 << 24) | (channel(2 / 3) << 16) | (channel(1 / 3) << 8) | channel(0)) >>> 0;
}

/** @param {{ width: number, height: number } | undefined} size */
export function sampleSource({ width, height } = { width: 1920, height: 1080 }) {
  const line = Uint32Array.from({ length: 2 * width }, (_, x) => colour(x / width));
  const side = Math.max(1, Math.min(width, height) >> 2);
  let n = 0;
  return {
    ...{ width, height, name: 'a moving sample' },
    how: 'drawn into the loan',
    /**
     * @param {Uint8Array} into
     * @returns {Promise<boolean>}
     */
    async next(into) {
      const pixels = new Uint32Array(into.buffer, into.byteOffset, width * height);
      for (let y = 0; y < height; y++) {
        const from = (y + 8 * n) % width;
        pixels.set(line.subarray(from, from + width), y * width);
      }
      const left = (12 * n) % (width - side + 1);
      const top = (height - side) >> 1;
      for (let y = top; y < top + side; y++)
        pixels.fill(0xff_ff_ff_ff, y * width + left, y * width + left + side);
      n++;
      return true;
    },
    close() {},
  };
}
