/**
 * A subscriber that computes the histograms of each frame: luma, red, green, blue.
 *   node histogram.mjs DOMAIN FOLDER
 */
import { closeSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { subscribe } from './subscriber.mjs';

const folder = process.argv[3];
const each = openSync(join(folder, 'histograms.ndjson'), 'w');
const whole = join(folder, 'histogram.json');
const CHANNELS = /** @type {const} */ (['luma', 'red', 'green', 'blue']);

/** @param {(new (length: number) => Uint32Array) | (new (length: number) => Float64Array)} Counts */
const empty = (Counts) => CHANNELS.map(() => new Counts(256));
const total = empty(Float64Array);
let frames = 0;
let pixelsOfAll = 0;
/** @type {number[]} */
let latest = [];

/**
 * Counts of each level of each channel. Luma is that of BT.709, rounded.
 * @param {Uint8Array} bytes RGBA
 */
function histogramsOf(bytes) {
  const pixels = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length >>> 2);
  const [luma, red, green, blue] = empty(Uint32Array);
  for (let i = 0; i < pixels.length; i++) {
    const pixel = pixels[i];
    const r = pixel & 255;
    const g = (pixel >>> 8) & 255;
    const b = (pixel >>> 16) & 255;
    red[r]++;
    green[g]++;
    blue[b]++;
    luma[Math.round(0.2126 * r + 0.7152 * g + 0.0722 * b)]++;
  }
  return [luma, red, green, blue];
}

/** @param {ArrayLike<number>[]} histograms */
const named = (histograms) =>
  Object.fromEntries(CHANNELS.map((name, i) => [name, Array.from(histograms[i])]));

await subscribe({
  name: 'histogram',
  look(bytes, number) {
    const histograms = histogramsOf(bytes);
    histograms.forEach((counts, i) => {
      for (let level = 0; level < 256; level++) total[i][level] += counts[level];
    });
    frames++;
    pixelsOfAll += bytes.length / 4;
    latest = Array.from(histograms[0]);
    writeSync(each, `${JSON.stringify({ frame: number, ...named(histograms) })}\n`);
  },
  live: () => ({ luma: latest }),
  result() {
    closeSync(each);
    const histogram = named(total);
    writeFileSync(whole, `${JSON.stringify({ frames, pixels: pixelsOfAll, ...histogram })}\n`);
    return { histogram, files: [whole, join(folder, 'histograms.ndjson')] };
  },
});
