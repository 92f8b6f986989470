/** What the demo ends with: what was sent, what each rule took, what each subscriber got. */
import { table } from './table.mjs';

/**
 * What a subscriber says at its end.
 * @typedef {object} Totals
 * @property {string} name
 * @property {string} policy
 * @property {number} delay ms that each quote takes it
 * @property {Record<string, number>} handled by channel
 * @property {number} missing
 * @property {number} skipped
 * @property {import('./latency.mjs').Percentiles | null} latency
 */

/** @param {Record<string, number>} counts */
const sum = (counts) => Object.values(counts).reduce((total, one) => total + one, 0);

/**
 * @param {Record<string, number>} sent by rule
 * @param {import('./board.mjs').State} state
 * @param {Totals[]} totals
 */
export function resultOf(sent, state, totals) {
  const all = sum(sent);
  const rules = state.rules.map(({ name, to, packets, quotes, drops }) => ({
    ...{ rule: name, channel: to, sent: sent[name] ?? 0, packets, quotes, drops },
    lost: (sent[name] ?? 0) - quotes,
  }));
  const subscribers = totals.map(({ name, policy, delay, handled, missing, skipped, latency }) => {
    const got = sum(handled);
    const dropped = missing + skipped;
    const [p50, p99] = [latency?.p50 ?? null, latency?.p99 ?? null];
    const row = { subscriber: name, policy, keepsUp: delay === 0, sent: all, handled: got, dropped };
    // A slow one has not come to the last ones.
    return { ...row, left: all - got - dropped, p50, p99 };
  });
  const fast = subscribers.filter(({ keepsUp }) => keepsUp);
  const ok = all > 0 && fast.length > 0 && fast.every(({ handled }) => handled === all);
  return { ok, rules, subscribers };
}

/** @param {number | null} ms */
const time = (ms) => (ms === null ? '-' : ms.toFixed(2));

/** @param {ReturnType<typeof resultOf>} result */
export function totalLines({ ok, rules, subscribers }) {
  return [
    ...table(
      ['rule', 'channel', 'sent', 'packets', 'quotes', 'drops', 'lost'],
      rules.map((row) => Object.values(row).map((cell) => `${cell ?? '-'}`)),
      2,
    ),
    '',
    ...table(
      ['subscriber', 'policy', 'sent', 'handled', 'dropped', 'not yet', 'p50 ms', 'p99 ms'],
      subscribers.map(({ subscriber, policy, sent, handled, dropped, left, p50, p99 }) => [
        ...[subscriber, policy, `${sent}`, `${handled}`, `${dropped}`, `${left}`, time(p50), time(p99)],
      ]),
      2,
    ),
    '',
    ok ? 'Those that keep up lost nothing.' : 'A SUBSCRIBER THAT KEEPS UP LOST SOMETHING.',
  ];
}
