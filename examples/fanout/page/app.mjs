/// <reference lib="dom" />
/** The page: takes snapshots from the WebSocket, shows them, and connects again when the connection is lost. */
import { colourOf, makeCharts, short } from './charts.mjs';
import { History } from './history.mjs';
import { setText, Table } from './tables.mjs';

/** Ms before the next try, the last one for ever. */
const RETRIES = [500, 1000, 2000, 5000];
/** A connection without a snapshot for so long, in ms, is no good. */
const SILENT_MS = 5000;

/** @param {string} id */
const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {number | undefined} n ms */
const ms = (n) => (n === undefined ? '–' : n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : short(n));
/** @param {number} n */
const count = (n) => n.toLocaleString('en-US');

/**
 * A section: its charts and its table.
 * @template {{ name: string, rate: number, dropRate: number, latency: { p50: number, p99: number } | null }} T
 */
class Section {
  #history = new History();
  #charts;
  #table;
  #idOf;
  #rowOf;

  /**
   * @param {string} name of its elements
   * @param {object} what
   * @param {string} what.unit
   * @param {string[]} what.head
   * @param {string} what.none
   * @param {(one: T) => string} what.idOf
   * @param {(one: T) => { state: string, cells: string[] }} what.rowOf
   */
  constructor(name, { unit, head, none, idOf, rowOf }) {
    this.#charts = makeCharts(at(`${name}-charts`), unit);
    this.#table = new Table(/** @type {HTMLTableElement} */ (at(`${name}-table`)), head, 2, none);
    this.#idOf = idOf;
    this.#rowOf = rowOf;
    this.draw();
  }

  /**
   * @param {number} time seconds since the epoch
   * @param {T[]} all
   */
  show(time, all) {
    const point = (/** @type {T} */ one) => ({
      ...{ id: this.#idOf(one), label: one.name, rate: one.rate, drops: one.dropRate },
      p50: one.latency?.p50 ?? null,
      p99: one.latency?.p99 ?? null,
    });
    const shown = all.filter((one) => this.#rowOf(one).state !== 'gone');
    this.#history.add(time, shown.map(point));
    this.draw();
    const { series } = this.#history;
    this.#table.show(
      all.map((one) => {
        const id = this.#idOf(one);
        const colour = series.get(id)?.colour;
        return { id, colour: colour === undefined ? undefined : colourOf(colour), ...this.#rowOf(one) };
      }),
    );
  }

  draw() {
    for (const chart of this.#charts) chart.draw(this.#history);
  }

  gap() {
    this.#history.gap();
  }

  restyle() {
    for (const chart of this.#charts) chart.restyle();
    this.draw();
  }
}

/** @type {Section<import('../board.mjs').RuleRow>} */
const rules = new Section('rules', {
  unit: 'packets',
  head: ['Rule', 'Channel', 'Packets/s', 'p50 ms', 'p99 ms', 'Drops/s', 'Packets', 'Drops', 'Missing'],
  none: 'No rules are in force.',
  idOf: ({ name }) => name,
  rowOf: ({ name, to, rate, latency, dropRate, packets, drops, missing }) => ({
    state: 'live',
    cells: [
      ...[name, to ?? '–', short(rate), ms(latency?.p50), ms(latency?.p99)],
      ...[short(dropRate), count(packets), count(drops), count(missing)],
    ],
  }),
});
/** @type {Section<import('../board.mjs').SubscriberRow>} */
const subscribers = new Section('subscribers', {
  unit: 'quotes',
  head: ['Subscriber', 'Policy', 'Quotes/s', 'p50 ms', 'p99 ms', 'Drops/s', 'Quotes', 'Drops', 'PID'],
  none: 'No subscriber has reported yet.',
  idOf: ({ id }) => String(id),
  rowOf: ({ name, state, policy, rate, latency, dropRate, handled, drops, pid }) => ({
    state,
    cells: [
      ...[state === 'live' ? name : `${name} (${state})`, policy, short(rate), ms(latency?.p50)],
      ...[ms(latency?.p99), short(dropRate), count(handled), count(drops), String(pid)],
    ],
  }),
});
const sections = [rules, subscribers];

const FACTS = ['Up', 'Browsers', 'Conflated', 'Kernel drops'];
const facts = FACTS.map((title) => {
  const [pair, term, value] = ['div', 'dt', 'dd'].map((tag) => document.createElement(tag));
  term.textContent = title;
  value.textContent = '–';
  pair.append(term, value);
  at('facts').append(pair);
  return value;
});

/** @param {string} text nothing: there is nothing to say */
function notice(text) {
  at('notice').hidden = text === '';
  setText(at('notice'), text);
}

/** @param {'connecting' | 'connected' | 'disconnected'} state */
function setState(state) {
  at('status').dataset.state = state;
  setText(at('status'), state);
  document.body.classList.toggle('stale', state !== 'connected');
}

/** @param {import('../board.mjs').State} state */
function show({ time, seconds, rules: all, subscribers: readers, browsers, kernelDrops, problem }) {
  rules.show(time / 1000, all);
  subscribers.show(time / 1000, readers);
  const numbers = [browsers.connected, browsers.skipped, kernelDrops];
  const values = [`${count(Math.round(seconds))} s`, ...numbers.map(count)];
  for (const [i, value] of values.entries()) setText(facts[i], value);
  notice(problem === null ? '' : `Rules: ${problem}`);
}

let tries = 0;
function connect() {
  const scheme = location.protocol === 'https:' ? 'wss' : 'ws';
  const socket = new WebSocket(`${scheme}://${location.host}/live`);
  /** @type {ReturnType<typeof setTimeout>} */
  let silence;
  const hear = () => {
    clearTimeout(silence);
    silence = setTimeout(() => socket.close(), SILENT_MS);
  };
  hear();
  socket.onmessage = ({ data }) => {
    hear();
    tries = 0;
    setState('connected');
    show(JSON.parse(data));
  };
  socket.onclose = () => {
    clearTimeout(silence);
    if (at('status').dataset.state === 'connected') {
      for (const section of sections) section.gap();
      notice(
        `The connection to the service was lost at ${new Date().toLocaleTimeString('en-GB')}. Trying again.`,
      );
    }
    setState('disconnected');
    setTimeout(connect, RETRIES[Math.min(tries++, RETRIES.length - 1)]);
  };
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const section of sections) section.restyle();
});
connect();
