/** Text tables of the service's state, for terminals. */

/** @param {number} n */
const whole = (n) => Math.round(n).toLocaleString('en-US');
/** @param {number | undefined} n */
const ms = (n) => (n === undefined ? '-' : n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : whole(n));

/**
 * Columns as wide as their widest cell; all but the first `left` are numbers.
 * @param {string[]} head
 * @param {string[][]} rows
 * @param {number} left
 */
export function table(head, rows, left = 1) {
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i].length)));
  return [head, ...rows].map((row) =>
    row
      .map((cell, i) => (i < left ? cell.padEnd(widths[i]) : cell.padStart(widths[i])))
      .join('  ')
      .trimEnd(),
  );
}

/**
 * The state as lines.
 * @param {import('./board.mjs').State} state
 */
export function stateLines({ rules, subscribers, seconds, browsers, kernelDrops, problem }) {
  const { connected, skipped } = browsers;
  const page = `${connected} browser${connected === 1 ? '' : 's'}, ${whole(skipped)} snapshots conflated`;
  return [
    `${whole(seconds)} s   ${page}   ${whole(kernelDrops)} frames dropped by the kernel`,
    ...table(
      ['rule', 'channel', 'packets/s', 'packets', 'drops', 'missing', 'p50 ms', 'p99 ms'],
      rules.map(({ name, to, rate, packets, drops, missing, latency }) => [
        ...[name, to ?? '-', whole(rate), whole(packets), whole(drops), whole(missing)],
        ...[ms(latency?.p50), ms(latency?.p99)],
      ]),
      2,
    ),
    ...table(
      ['subscriber', 'policy', 'quotes/s', 'quotes', 'drops', 'drops/s', 'p50 ms', 'p99 ms'],
      subscribers.map(({ name, policy, state, rate, handled, drops, dropRate, latency }) => [
        ...[state === 'live' ? name : `${name} (${state})`, policy],
        ...[whole(rate), whole(handled), whole(drops), whole(dropRate), ms(latency?.p50), ms(latency?.p99)],
      ]),
      2,
    ),
    ...(problem === null ? [] : [`rules: ${problem}`]),
  ];
}

/** Shows lines in the place of those before, on a terminal; below them elsewhere. */
export class Screen {
  #shown = 0;

  /** @param {string[]} lines */
  show(lines) {
    const { stdout } = process;
    if (!stdout.isTTY) {
      stdout.write(`${lines.join('\n')}\n\n`);
      return;
    }
    // A line that is longer than the terminal is wide would take two.
    const cut = lines.map((line) => line.slice(0, Math.max(20, stdout.columns - 1)));
    const up = this.#shown > 0 ? `\x1b[${this.#shown}A` : '';
    stdout.write(`${up}${cut.map((line) => `${line}\x1b[K\n`).join('')}\x1b[J`);
    this.#shown = cut.length;
  }
}
