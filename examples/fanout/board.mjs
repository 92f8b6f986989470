/** The state of the service, sampled twice a second: what the terminal, the page and the demo show. */

/** Ms between two samples. */
export const SAMPLE_MS = 500;

/**
 * @typedef {object} RuleRow
 * @property {string} name
 * @property {string | null} to
 * @property {number} packets
 * @property {number} bytes
 * @property {number} drops packets that were lost on their way into the process, and those that were no quotes
 * @property {number} missing quotes that the senders' sequences say are missing
 * @property {number} quotes
 * @property {number} rate packets per second
 * @property {number} dropRate
 * @property {import('./latency.mjs').Percentiles | null} latency from the sender to the service
 */

/**
 * @typedef {object} SubscriberRow
 * @property {number} id
 * @property {string} name
 * @property {number} pid
 * @property {string} policy
 * @property {string[]} topics
 * @property {'live' | 'silent' | 'gone'} state
 * @property {number} handled
 * @property {number} drops quotes that its policy dropped or conflated
 * @property {number} rate quotes per second
 * @property {number} dropRate
 * @property {import('./latency.mjs').Percentiles | null} latency from the sender to the end of its work
 */

/**
 * @typedef {object} State
 * @property {number} number of the sample
 * @property {number} time ms since the epoch
 * @property {number} seconds since the service started
 * @property {RuleRow[]} rules
 * @property {SubscriberRow[]} subscribers
 * @property {{ name: string, published: number, subscribers: number }[]} channels
 * @property {{ connected: number, skipped: number, ended: number }} browsers
 * @property {number} kernelDrops frames that the kernel dropped before any rule saw them
 * @property {string | null} problem what is wrong with the last edit of the rules
 */

/** Takes the samples. Rates are those since the sample before. */
export class Board {
  #member;
  #upstream;
  #reports;
  #started = performance.now();
  #number = 0;
  #at = performance.now();
  /** @type {Map<string, number>} what was counted at the sample before, by what it is */
  #before = new Map();
  /** @type {string | null} */
  problem = null;

  /**
   * @param {import('millrace').Member} member
   * @param {import('./upstream.mjs').Upstream} upstream
   * @param {import('./reports.mjs').Reports} reports
   */
  constructor(member, upstream, reports) {
    this.#member = member;
    this.#upstream = upstream;
    this.#reports = reports;
  }

  /**
   * @param {State['browsers']} browsers
   * @returns {State}
   */
  sample(browsers) {
    const now = performance.now();
    const seconds = (now - this.#at) / 1000;
    this.#at = now;
    const before = this.#before;
    const counted = new Map();
    /**
     * @param {string} what
     * @param {number} count
     */
    const rate = (what, count) => {
      counted.set(what, count);
      return seconds > 0 ? Math.max(0, count - (before.get(what) ?? count)) / seconds : 0;
    };
    const { channels } = this.#member.inspect();
    const state = {
      number: ++this.#number,
      time: Date.now(),
      seconds: (now - this.#started) / 1000,
      rules: this.#rules(rate),
      subscribers: this.#subscribers(channels, rate),
      channels: this.#upstream.channels.map((name) => {
        const publishing = channels.find((channel) => channel.name === name)?.publishing;
        const { sequence = 0, subscribers = [] } = publishing ?? {};
        return { name, published: sequence, subscribers: subscribers.length };
      }),
      browsers,
      kernelDrops: Object.values(this.#member.portCounters()).reduce(
        (sum, { ringDrops }) => sum + ringDrops,
        0,
      ),
      problem: this.problem,
    };
    this.#before = counted;
    return state;
  }

  /**
   * @param {(what: string, count: number) => number} rate
   * @returns {RuleRow[]}
   */
  #rules(rate) {
    return this.#member.steering.stats().map(({ rule: name, to, packets, bytes, drops: lost }) => {
      const { quotes, malformed, missing, latency } = this.#upstream.flow(name);
      const drops = lost + malformed;
      return {
        ...{ name, to, packets, bytes, drops, missing, quotes },
        rate: rate(`packets of ${name}`, packets),
        dropRate: rate(`drops of ${name}`, drops),
        latency: latency.endPeriod(),
      };
    });
  }

  /**
   * @param {readonly import('millrace').ChannelReport[]} channels
   * @param {(what: string, count: number) => number} rate
   * @returns {SubscriberRow[]}
   */
  #subscribers(channels, rate) {
    const sent = channels.flatMap(({ publishing }) => publishing?.subscribers ?? []);
    return this.#reports.list().map((one) => {
      const { incarnation: id, name, pid, state, report } = one;
      const { policy, topics, handled, missing, skipped, latency } = report;
      // One that is stopped does not say what it misses.
      const dropped = sent
        .filter(({ peer }) => peer.incarnation === id)
        .reduce((sum, { dropped }) => sum + dropped, 0);
      const drops = Math.max(missing, dropped) + skipped;
      const live = state === 'live';
      return {
        ...{ id, name, pid, policy, topics, state, handled, drops },
        rate: live ? one.rate : 0,
        dropRate: rate(`drops of ${id}`, drops),
        latency: live ? latency : null,
      };
    });
  }
}
