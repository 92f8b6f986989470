/// <reference lib="dom" />
/** Charts of a history: rate, latency (p50 and p99), drops. */
import { SPAN } from './history.mjs';

const uPlot = /** @type {typeof import('uplot')} */ (/** @type {any} */ (globalThis).uPlot);
const HEIGHT = 180;
/** Seconds that the time axis has at least. */
const LEAST_SPAN = 30;
/** Told apart by people who see red and green alike, on light and on dark. */
const COLOURS = ['#2f7ed8', '#e08214', '#1b9e77', '#b35bb5', '#c9475c', '#7a8a2a', '#3aa6b9', '#8c6d5a'];

/** @param {number} index */
export const colourOf = (index) => COLOURS[index % COLOURS.length];

/**
 * A number in few characters.
 * @param {number} n
 */
export function short(n) {
  if (n >= 1e6) return `${+(n / 1e6).toFixed(1)}M`;
  if (n >= 1e4) return `${+(n / 1e3).toFixed(1)}k`;
  return n >= 100 ? n.toLocaleString('en-US', { maximumFractionDigits: 0 }) : `${+n.toPrecision(2)}`;
}

/** @param {string} name of a property of the style sheet */
const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** @typedef {(typeof import('./history.mjs').METRICS)[number]} Metric */

/**
 * The range of an axis: whole decades, or from 0.
 * @param {boolean} log
 * @returns {import('uplot').Range.Function}
 */
const rangeOf = (log) => (_plot, least, most) => {
  if (!log) return [0, most > 0 ? most * 1.1 : 1];
  if (least == null || most == null) return [0.1, 10];
  const low = 10 ** Math.floor(Math.log10(Math.max(least, 0.001)));
  return [low, Math.max(low * 10, 10 ** Math.ceil(Math.log10(Math.max(most, 0.001))))];
};

/**
 * Where an axis of decades has its lines: at the powers of ten alone.
 * @type {import('uplot').Axis.Splits}
 */
const decades = (_plot, _axis, least, most) => {
  const splits = [];
  for (let power = Math.round(Math.log10(least)); 10 ** power <= most * 1.001; power++)
    splits.push(10 ** power);
  return splits;
};

class Chart {
  #plot;
  #box = document.createElement('div');
  #empty = document.createElement('p');
  #metrics;
  #log;
  /** @type {import('uplot') | undefined} */
  #uplot;
  /** What it was made for: other series need another one. */
  #made = '';
  /** Of the time axis, which grows until it has the whole span. */
  #first = 0;
  #latest = 0;

  /**
   * @param {HTMLElement} parent
   * @param {{ title: string, unit: string, metrics: Metric[], log?: boolean }} what
   */
  constructor(parent, { title, unit, metrics, log = false }) {
    this.#metrics = metrics;
    this.#log = log;
    const figure = document.createElement('figure');
    const caption = document.createElement('figcaption');
    const small = document.createElement('span');
    small.textContent = unit;
    caption.append(title, small);
    this.#plot = document.createElement('div');
    this.#plot.className = 'plot';
    this.#empty.textContent = 'no data yet';
    this.#plot.append(this.#box, this.#empty);
    figure.append(caption, this.#plot);
    parent.append(figure);
    new ResizeObserver(() => {
      this.#uplot?.setSize({ width: this.#plot.clientWidth, height: HEIGHT });
    }).observe(this.#plot);
  }

  /** It looks as the style sheet says now. */
  restyle() {
    this.#made = '';
  }

  /** @param {import('./history.mjs').History} history */
  draw(history) {
    const series = [...history.series.values()];
    const lines = series.flatMap((one) => this.#metrics.map((metric) => ({ one, metric })));
    const made = JSON.stringify(lines.map(({ one, metric }) => [one.label, one.colour, metric]));
    this.#latest = history.times.at(-1) ?? Date.now() / 1000;
    this.#first = Math.min(history.times[0] ?? this.#latest, this.#latest - LEAST_SPAN);
    const data = /** @type {import('uplot').AlignedData} */ ([
      history.times,
      ...lines.map(({ one, metric }) => one[metric]),
    ]);
    this.#empty.hidden = lines.some(({ one, metric }) => one[metric].some((value) => value !== null));
    if (this.#uplot !== undefined && made === this.#made) {
      this.#uplot.setData(data);
      return;
    }
    this.#uplot?.destroy();
    this.#uplot = new uPlot(this.#options(lines), data, this.#box);
    this.#made = made;
  }

  /**
   * @param {{ one: import('./history.mjs').Series, metric: Metric }[]} lines
   * @returns {import('uplot').Options}
   */
  #options(lines) {
    const [stroke, line] = [styled('--faint'), styled('--line')];
    const axis = { stroke, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
    return {
      width: this.#plot.clientWidth,
      height: HEIGHT,
      cursor: { show: false },
      legend: { show: false },
      padding: [8, 12, 0, 0],
      scales: {
        x: { time: true, range: () => [Math.max(this.#latest - SPAN, this.#first), this.#latest] },
        y: { distr: this.#log ? 3 : 1, range: rangeOf(this.#log) },
      },
      axes: [
        { ...axis, size: 32, space: 70, values: (_plot, times) => times.map(clock) },
        {
          ...axis,
          size: 52,
          ...(this.#log ? { splits: decades } : {}),
          values: (_plot, numbers) => numbers.map((n) => (n == null ? '' : short(n))),
        },
      ],
      series: [
        {},
        ...lines.map(({ one, metric }) => ({
          label: `${one.label} ${metric}`,
          stroke: colourOf(one.colour),
          width: metric === 'p99' ? 1 : 1.5,
          ...(metric === 'p99' ? { dash: [4, 3] } : {}),
          points: { show: false },
        })),
      ],
    };
  }
}

/** @param {number} seconds since the epoch */
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString('en-GB');

/**
 * The three charts of a section.
 * @param {HTMLElement} parent
 * @param {string} unit what is counted
 */
export function makeCharts(parent, unit) {
  return [
    new Chart(parent, { title: 'Rate', unit: `${unit}/s`, metrics: ['rate'] }),
    new Chart(parent, {
      title: 'Latency',
      unit: 'ms, p50 and p99 (dashed)',
      metrics: ['p50', 'p99'],
      log: true,
    }),
    new Chart(parent, { title: 'Drops', unit: `${unit}/s`, metrics: ['drops'] }),
  ];
}
