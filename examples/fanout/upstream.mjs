/**
 * The way in: what the rules steer into streams is decoded and published on the channel of the stream's name.
 */
import { decodeQuote, quoteCodec } from './feed.mjs';
import { Latency } from './latency.mjs';

/** Senders of one rule whose sequences are followed; beyond that it begins anew. */
const MOST_SENDERS = 1024;
/** A sequence that is so far behind is no late datagram but a sender that began anew. */
const LATE = 1000;

/** What came by one rule. */
export class Flow {
  quotes = 0;
  malformed = 0;
  /** Quotes that the sequences of the senders say are missing. */
  missing = 0;
  latency = new Latency();
  /** @type {Map<string, number>} the next sequence, by sender */
  #next = new Map();

  /**
   * @param {string} sender
   * @param {number} sequence
   */
  follow(sender, sequence) {
    const next = this.#next.get(sender);
    if (next === undefined && this.#next.size >= MOST_SENDERS) this.#next.clear();
    if (next !== undefined && sequence < next && next - sequence < LATE) {
      // It was missing and comes late.
      if (this.missing > 0) this.missing--;
      return;
    }
    if (next !== undefined && sequence > next) this.missing += sequence - next;
    this.#next.set(sender, sequence + 1);
  }
}

/** The flows of the rules in force, and the channels that they feed. */
export class Upstream {
  /** @type {Map<string, Flow>} by rule */
  #flows = new Map();
  /** @type {Map<string, import('rxjs').Subscription>} by stream */
  #streams = new Map();
  #member;

  /** @param {import('millrace').Member} member */
  constructor(member) {
    this.#member = member;
  }

  /**
   * Follows the rules that are in force now; to be called after each change.
   * @returns {string[]} why streams have no channel: their names are no names of channels, or are taken
   */
  refresh() {
    const { rules } = this.#member.steering;
    const names = new Set(rules.map(({ name }) => name));
    for (const name of this.#flows.keys()) if (!names.has(name)) this.#flows.delete(name);
    const streams = new Set(
      rules.flatMap(({ action }) => (typeof action === 'object' ? [action.to.name] : [])),
    );
    for (const [name, subscription] of this.#streams) {
      if (streams.has(name)) continue;
      subscription.unsubscribe();
      this.#streams.delete(name);
      this.#member.channel(name).close();
    }
    return [...streams].flatMap((name) => {
      if (this.#streams.has(name)) return [];
      try {
        this.#streams.set(name, this.#open(name));
        return [];
      } catch (error) {
        return [error instanceof Error ? error.message : String(error)];
      }
    });
  }

  /**
   * What came by a rule.
   * @param {string} rule its name
   */
  flow(rule) {
    let flow = this.#flows.get(rule);
    if (flow === undefined) {
      flow = new Flow();
      this.#flows.set(rule, flow);
    }
    return flow;
  }

  /** The channels that are fed now. */
  get channels() {
    return [...this.#streams.keys()];
  }

  /** @param {string} name */
  #open(name) {
    // A subscriber that asks to be waited for is waited for as long as its queue has room, and then loses for itself alone.
    const channel = this.#member.channel(name, { codec: quoteCodec, maxWait: 0 });
    // From now on it is a publisher, and shows who subscribes.
    channel.whenWritable().catch(() => {});
    return this.#member.datagrams(name).subscribe((datagram) => {
      const flow = this.flow(datagram.rule);
      const quote = decodeQuote(datagram.bytes);
      if (quote === undefined) {
        flow.malformed++;
        return;
      }
      flow.quotes++;
      flow.latency.add(datagram.time - quote.time);
      flow.follow(`${datagram.source} ${datagram.sourcePort}`, quote.sequence);
      channel.next(quote);
    });
  }
}
