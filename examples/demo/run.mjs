/**
 * Starts the demo's four processes (one publisher, three subscribers), waits, and prints what each subscriber got.
 *   node examples/demo/run.mjs [--file FILE] [--seconds N] [--json]
 * Exit code 0 if nothing was lost or out of order, 1 otherwise, 2 for a wrong argument, 130 after Ctrl-C.
 */
import { table } from '../fanout/table.mjs';
import { Children } from './children.mjs';
import { demoOptions } from './options.mjs';

/** @param {string} script */
const here = (script) => new URL(script, import.meta.url);
const SUBSCRIBERS = [
  { name: 'gauges', topics: ['host.*'] },
  { name: 'reader', topics: ['file.lines'] },
  { name: 'archive', topics: ['host.cpu', 'host.memory', 'host.network', 'file.lines'] },
];
const { file, seconds, json } = demoOptions(process.argv.slice(2));

// A domain of its own, so that two demos on one machine don't hear each other.
const domain = `demo-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
/** @param {string} text */
const say = (text) => {
  if (!json) console.log(text);
};

const children = new Children('demo');
children.limit(seconds + 45);

say(`domain ${domain}: one publisher, ${SUBSCRIBERS.length} subscribers, ${seconds} s`);
say(`  publisher  host.cpu host.memory host.network (10 a second), file.lines from ${file}`);

const progress = new Map();
const reports = new Map();
const subscribers = SUBSCRIBERS.map(({ name, topics }) => {
  say(`  ${name.padEnd(9)}  ${topics.join(' ')}`);
  return children.start(name, here('subscriber.mjs'), [domain, name, ...topics], (message) => {
    if (message.type === 'progress') progress.set(name, message);
    if (message.type === 'report') reports.set(name, message.rows);
  });
});
say('');

const sent = await new Promise((resolve) => {
  children.start('publisher', here('publisher.mjs'), [domain, file, String(seconds)], (message) => {
    if (message.type === 'started') say('all subscribed, publishing');
    if (message.type === 'sent') resolve(message.sent);
  });
  setInterval(() => {
    const counts = [...progress].map(([name, { received }]) => `${name} ${received}`);
    const { latest } = progress.get('gauges') ?? {};
    if (counts.length > 0) say(`  received: ${counts.join(', ')}${latest ? `   (${latest})` : ''}`);
  }, 1000).unref();
});

// The publisher has drained: what it sent has been handed over, so each subscriber can now be asked for its count.
const ended = children.ended();
for (const child of subscribers) child.send('report');
await ended;

/**
 * Whether a topic takes a channel.
 * @param {string} topic
 * @param {string} channel
 */
const matches = (topic, channel) => topic === channel || (topic === 'host.*' && channel.startsWith('host.'));
const rows = SUBSCRIBERS.flatMap(({ name, topics }) =>
  Object.keys(sent)
    .filter((channel) => topics.some((topic) => matches(topic, channel)))
    .map((channel) => {
      const got = reports.get(name)?.find((/** @type {any} */ row) => row.channel === channel);
      const received = got?.received ?? 0;
      return {
        subscriber: name,
        channel,
        sent: sent[channel],
        received,
        lost: sent[channel] - received,
        outOfOrder: got?.outOfOrder ?? 0,
        p50us: got ? Math.round(got.p50 * 1000) : null,
        p99us: got ? Math.round(got.p99 * 1000) : null,
      };
    }),
);
const ok = rows.every((row) => row.sent > 0 && row.lost === 0 && row.outOfOrder === 0);

if (json) {
  console.log(JSON.stringify({ ok, domain, file, seconds, rows }, null, 2));
} else {
  const head = ['subscriber', 'channel', 'sent', 'received', 'lost', 'out of order', 'p50 us', 'p99 us'];
  const cells = rows.map((row) => Object.values(row).map((cell) => String(cell ?? '-')));
  console.log(`\n${table(head, cells, 2).join('\n')}`);
  console.log(ok ? '\nNothing was lost, nothing was out of order.' : '\nSOMETHING WAS LOST OR OUT OF ORDER.');
}
process.exit(ok ? 0 : 1);
