/**
 * A subscriber, fast or slow, that reports twice a second how it does.
 *   node examples/fanout/subscriber.mjs --pattern 'feed.>' --policy latest-by:symbol --delay 20
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { join } from 'millrace';
import { endCleanly, now, tell } from '../demo/child.mjs';
import { quoteCodec, REPORTS } from './feed.mjs';
import { Latency } from './latency.mjs';
import { numberOf, readArgs, usage } from './options.mjs';

const HELP = `usage: subscriber.mjs [--name NAME] [--policy POLICY] [--delay MS] [--channel NAME]... [--pattern PATTERN]... [--window BYTES] [--domain NAME]

Subscribes to quotes that the service publishes, and reports to it.
  --name NAME         what the others see (default: subscriber-PID)
  --policy POLICY     what is dropped for it when it is slower than the feed: wait (the service's patience is none: the newest
                      go), drop-oldest, drop-newest, latest, latest-by:PATH such as latest-by:symbol (default: wait)
  --delay MS          that each quote takes it, 0 to 10000 (default: 0)
  --channel NAME      may be given several times
  --pattern PATTERN   likewise (default: feed.>)
  --window BYTES      that it holds of what it has not handled, 4096 to 1073741824 (default: 1048576)
  --domain NAME       (default: fanout)
Exit code: 130 after Ctrl-C, 143 after a TERM signal, 1 when it cannot start, 2 for a wrong argument.`;
const REPORT_MS = 500;
/** The end of everything that was published is waited for so long, in ms. */
const LAST_MS = 10_000;

/**
 * @param {string} text
 * @returns {import('millrace').Overflow}
 */
function overflowOf(text) {
  if (text.startsWith('latest-by:')) return { latestBy: text.slice('latest-by:'.length) };
  if (text === 'wait' || text === 'drop-oldest' || text === 'drop-newest' || text === 'latest') return text;
  return usage(
    HELP,
    `--policy takes wait, drop-oldest, drop-newest, latest or latest-by:PATH, not '${text}'`,
  );
}

const values = readArgs(HELP, process.argv.slice(2), {
  name: { type: 'string', default: `subscriber-${process.pid}` },
  policy: { type: 'string', default: 'wait' },
  delay: { type: 'string', default: '0' },
  channel: { type: 'string', multiple: true, default: [] },
  pattern: { type: 'string', multiple: true, default: [] },
  window: { type: 'string', default: String(2 ** 20) },
  domain: { type: 'string', default: 'fanout' },
});
const { name = '', policy = '', domain = '', channel: channels = [] } = values;
const { pattern: patterns = [] } = values;
if (channels.length + patterns.length === 0) patterns.push('feed.>');
const delay = numberOf(HELP, 'delay', values.delay, { least: 0, most: 10_000 });
const options = {
  codec: quoteCodec,
  overflow: overflowOf(policy),
  windowBytes: numberOf(HELP, 'window', values.window, { least: 4096, most: 2 ** 30, whole: true }),
};

const member = await join(domain, { name });
const end = endCleanly(() => member.leave());
const reports = member.channel(REPORTS);
const latency = new Latency();
/** @type {Record<string, number>} by channel */
const handled = {};
let missing = 0;
let skipped = 0;

/**
 * @param {string} channel
 * @param {import('./feed.mjs').Quote} quote
 */
function done(channel, quote) {
  handled[channel] = (handled[channel] ?? 0) + 1;
  latency.add(now() - quote.time);
}

/**
 * @template T
 * @param {import('rxjs').Observable<T> & AsyncIterable<T> & { status$: import('rxjs').Observable<import('millrace').StatusEvent> }} source
 * @param {(one: T) => void} take
 */
async function follow(source, take) {
  source.status$.subscribe((event) => {
    if (event.type === 'gap') missing += event.count;
    if (event.type === 'dropped' && event.at === 'subscriber') skipped += event.count;
  });
  if (delay === 0) {
    source.subscribe(take);
    return;
  }
  for await (const one of source) {
    await sleep(delay);
    take(one);
  }
}
try {
  for (const one of channels) follow(member.channel(one, options), (quote) => done(one, quote));
  for (const one of patterns)
    follow(member.pattern(one, options), ({ channel, value }) => done(channel, value));
} catch (error) {
  console.error(`fanout: ${error instanceof Error ? error.message : String(error)}`);
  await end(1);
}

const sum = () => Object.values(handled).reduce((total, one) => total + one, 0);
const report = () => {
  const body = { policy, topics: [...channels, ...patterns], missing, skipped, latency: latency.endPeriod() };
  reports.next({ ...body, handled: sum(), time: performance.now() });
};
report();
setInterval(report, REPORT_MS);
if (!process.send) {
  setInterval(() => console.log(`${name}: ${sum()} quotes, ${missing + skipped} dropped`), 1000);
}

/** Tells its parent how it did, once it has all that was published, unless it is a slow one. */
process.on('message', async (/** @type {{ published: Record<string, number> }} */ { published }) => {
  const wanted = Object.values(published).reduce((total, one) => total + one, 0);
  const until = performance.now() + LAST_MS;
  while (delay === 0 && sum() + missing < wanted && performance.now() < until) await sleep(10);
  await tell({ type: 'totals', handled, missing, skipped, latency: latency.total() });
  await end(0);
});
