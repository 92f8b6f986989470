/** Histograms in a terminal. */

const BARS = ' ▁▂▃▄▅▆▇█';

/**
 * The levels, so many to a group, added up.
 * @param {number[]} counts
 * @param {number} groups
 */
function grouped(counts, groups) {
  const width = counts.length / groups;
  return Array.from({ length: groups }, (_, i) =>
    counts.slice(i * width, (i + 1) * width).reduce((sum, n) => sum + n, 0),
  );
}

/** One line of bars, dark to light. @param {number[]} counts */
export function sparkline(counts) {
  const groups = grouped(counts, 32);
  const most = Math.max(1, ...groups);
  return groups.map((n) => BARS[Math.ceil((8 * n) / most)]).join('');
}

/**
 * A bar chart of the luma, and a line of bars for each colour.
 * @param {Record<string, number[]>} histogram
 */
export function chart({ luma, ...colours }) {
  const groups = grouped(luma, 16);
  const all = Math.max(
    1,
    groups.reduce((sum, n) => sum + n, 0),
  );
  const most = Math.max(1, ...groups);
  const bars = groups.map((n, i) => {
    const levels = `${16 * i}-${16 * i + 15}`.padStart(9);
    const bar = '█'.repeat(Math.round((40 * n) / most));
    return `  ${levels}  ${bar.padEnd(40)} ${((100 * n) / all).toFixed(1).padStart(5)} %`;
  });
  const lines = Object.entries(colours).map(
    ([name, counts]) => `  ${name.padStart(9)}  ${sparkline(counts)}`,
  );
  return ['  luma', ...bars, ...lines];
}
