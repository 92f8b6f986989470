/**
 * A subscriber: takes channels by name or by pattern, checks the numbers of what arrives and measures how long each
 * message was under way.
 *   node subscriber.mjs DOMAIN NAME TOPIC...        a TOPIC with * or > in it is a pattern
 */
import { join } from 'millrace';
import { endCleanly, now, tell } from './child.mjs';

const [domain, name, ...topics] = process.argv.slice(2);
const member = await join(domain, { name });
const end = endCleanly(() => member.leave());

const channels = new Map();
let latest = '';

/**
 * @param {string} channel
 * @param {any} message what publisher.mjs sends: its number, its time, its body
 */
function take(channel, message) {
  const late = now() - message.time;
  let seen = channels.get(channel);
  if (!seen) {
    seen = { received: 0, last: 0, disorder: 0, latencies: [] };
    channels.set(channel, seen);
  }
  seen.received += 1;
  if (message.n <= seen.last) seen.disorder += 1;
  else seen.last = message.n;
  seen.latencies.push(late);
  if (channel === 'host.cpu') latest = `CPU ${message.body.busy.all} % busy`;
}

for (const topic of topics) {
  if (/[*>]/.test(topic)) member.pattern(topic).subscribe((m) => take(m.channel, m.value));
  else member.channel(topic).subscribe((message) => take(topic, message));
}
tell({ type: 'subscribed' });

const ticker = setInterval(() => {
  const received = [...channels.values()].reduce((sum, seen) => sum + seen.received, 0);
  tell({ type: 'progress', received, latest });
}, 1000);

/**
 * The p-th percentile of sorted numbers.
 * @param {Float64Array} sorted
 * @param {number} p
 */
const percentile = (sorted, p) => sorted[Math.min(sorted.length - 1, Math.floor((sorted.length * p) / 100))];

process.on('message', async (message) => {
  if (message !== 'report') return;
  clearInterval(ticker);
  const rows = [...channels].map(([channel, seen]) => {
    const sorted = Float64Array.from(seen.latencies).sort();
    return {
      channel,
      received: seen.received,
      outOfOrder: seen.disorder,
      p50: percentile(sorted, 50),
      p99: percentile(sorted, 99),
    };
  });
  await tell({ type: 'report', rows });
  await end(0);
});
