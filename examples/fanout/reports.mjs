/** What subscribers say of themselves, over a channel: processes of other people, so it is checked before it is shown. */
import { REPORTS } from './feed.mjs';

/** Subscribers that are remembered; those that have left go first. */
const MOST = 256;
/** No word for so long, in ms: the process is stopped, or busy. */
const SILENT_MS = 3000;
/** One that has left is shown for so long after its last report, in ms. */
const GONE_MS = 60_000;

/**
 * What a subscriber sends, twice a second.
 * @typedef {object} Report
 * @property {string} policy
 * @property {string[]} topics
 * @property {number} handled quotes that it has done with
 * @property {number} missing that the service dropped for it
 * @property {number} skipped that it dropped itself, for its own slow loop
 * @property {number} time ms of a clock of its own
 * @property {import('./latency.mjs').Percentiles | null} latency from the sender to the end of its work
 */

/**
 * @typedef {object} Subscriber
 * @property {number} incarnation
 * @property {string} name
 * @property {number} pid
 * @property {Report} report the last one
 * @property {number} rate quotes per second that it handles
 * @property {'live' | 'silent' | 'gone'} state
 */

/** @param {unknown} value */
const isCount = (value) => typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;
/** @param {unknown} value */
const isTime = (value) => typeof value === 'number' && Number.isFinite(value) && value >= 0;
/** @param {unknown} value */
const isText = (value) => typeof value === 'string' && value.length <= 256;

/**
 * @param {any} value
 * @returns {Report | undefined} undefined for what is no report
 */
export function readReport(value) {
  if (typeof value !== 'object' || value === null) return undefined;
  const { policy, topics, handled, missing, skipped, time, latency } = value;
  const right =
    isText(policy) &&
    Array.isArray(topics) &&
    topics.length <= 64 &&
    topics.every(isText) &&
    [handled, missing, skipped].every(isCount) &&
    isTime(time) &&
    (latency === null || (isTime(latency?.p50) && isTime(latency?.p99)));
  if (!right) return undefined;
  const percentiles = latency === null ? null : { p50: latency.p50, p99: latency.p99 };
  return { policy, topics, handled, missing, skipped, time, latency: percentiles };
}

/** The subscribers, as they report. */
export class Reports {
  /** @type {Map<number, Subscriber & { heard: number }>} by incarnation */
  #all = new Map();
  /** What came and was no report. */
  malformed = 0;

  /** @param {import('millrace').Member} member */
  constructor(member) {
    member.channel(REPORTS, { overflow: 'drop-oldest' }).messages$.subscribe((event) => {
      if (event.type === 'message') this.#take(event.publisher, event.value);
      if (event.type !== 'publisher-left') return;
      const known = this.#all.get(event.publisher.incarnation);
      if (known !== undefined) known.state = 'gone';
    });
  }

  /** @returns {Subscriber[]} by name */
  list() {
    const now = performance.now();
    for (const [incarnation, one] of this.#all) {
      const quiet = now - one.heard;
      if (one.state !== 'gone') one.state = quiet > SILENT_MS ? 'silent' : 'live';
      else if (quiet > GONE_MS) this.#all.delete(incarnation);
    }
    return [...this.#all.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /**
   * @param {import('millrace').Publisher} publisher
   * @param {unknown} value
   */
  #take({ incarnation, name, pid }, value) {
    const report = readReport(value);
    if (report === undefined) {
      this.malformed++;
      return;
    }
    const before = this.#all.get(incarnation)?.report;
    const seconds = before === undefined ? 0 : (report.time - before.time) / 1000;
    const rate = before !== undefined && seconds > 0 ? (report.handled - before.handled) / seconds : 0;
    this.#all.set(incarnation, {
      ...{ incarnation, name, pid, report, state: 'live' },
      ...{ rate: Math.max(0, rate), heard: performance.now() },
    });
    if (this.#all.size > MOST) this.#forgetOne();
  }

  #forgetOne() {
    const all = [...this.#all.values()];
    this.#all.delete((all.find(({ state }) => state === 'gone') ?? all[0]).incarnation);
  }
}
