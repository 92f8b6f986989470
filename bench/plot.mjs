/** A line chart as SVG, for what a run of a benchmark leaves in docs/. No script and no font in it, so it shows anywhere. */

const WIDTH = 640;
const HEIGHT = 320;
const LEFT = 60;
const RIGHT = 30;
const TOP = 40;
const BOTTOM = 50;
const COLOURS = ['#1f6feb', '#8b949e', '#bf5b04'];

const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** 1, 2 or 5 times a power of ten, for about `count` steps up to `most`. */
function stepOf(most, count) {
  const raw = most / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((n) => n * power >= raw) * power;
}

/**
 * @param {{ title: string, x: string, y: string, at: number[], series: { name: string, values: number[] }[] }} chart `at`: the
 *   values of the x axis, which is logarithmic; the y axis begins at 0
 * @returns {string} the SVG's text
 */
export function lineChart({ title, x, y, at, series }) {
  const step = stepOf(Math.max(...series.flatMap((one) => one.values)) * 1.1, 5);
  const most = Math.ceil((Math.max(...series.flatMap((one) => one.values)) * 1.1) / step) * step;
  const [first, last] = [Math.log10(Math.min(...at)), Math.log10(Math.max(...at))];
  const px = (value) => LEFT + ((Math.log10(value) - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const py = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  const text = (where, words, more = '') =>
    `<text x="${where[0].toFixed(1)}" y="${where[1].toFixed(1)}" ${more}>${escaped(words)}</text>`;
  const line = (from, to, colour) =>
    `<line x1="${from[0].toFixed(1)}" y1="${from[1].toFixed(1)}" x2="${to[0].toFixed(1)}" y2="${to[1].toFixed(1)}" stroke="${colour}"/>`;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12" fill="#57606a">`,
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>`,
    text([LEFT, 20], title, 'font-size="14" fill="#24292f"'),
    text([(LEFT + WIDTH) / 2, HEIGHT - 12], x, 'text-anchor="middle"'),
    text([16, HEIGHT / 2], y, `text-anchor="middle" transform="rotate(-90 16 ${HEIGHT / 2})"`),
  ];
  for (let value = 0; value <= most + step / 2; value += step) {
    parts.push(line([LEFT, py(value)], [WIDTH - RIGHT, py(value)], '#d0d7de'));
    parts.push(text([LEFT - 8, py(value) + 4], Number(value.toPrecision(6)), 'text-anchor="end"'));
  }
  for (const value of at)
    parts.push(text([px(value), HEIGHT - BOTTOM + 18], value.toLocaleString('en'), 'text-anchor="middle"'));
  series.forEach(({ name, values }, i) => {
    const colour = COLOURS[i % COLOURS.length];
    const points = values.map((value, k) => [px(at[k]).toFixed(1), py(value).toFixed(1)]);
    parts.push(`<polyline points="${points.join(' ')}" fill="none" stroke="${colour}" stroke-width="2"/>`);
    for (const [cx, cy] of points) parts.push(`<circle cx="${cx}" cy="${cy}" r="3" fill="${colour}"/>`);
    parts.push(text([LEFT + 12 + i * 120, TOP + 14], name, `fill="${colour}"`));
  });
  return `${parts.join('\n')}\n</svg>\n`;
}
