/**
 * The upstream: sends quotes to the multicast groups of all feeds, paced, until it is ended.
 *   node examples/fanout/sender.mjs --rate 3000
 */
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { now, onOrphaned, tell } from '../demo/child.mjs';
import { encodeQuote } from './feed.mjs';
import { FEEDS, groupOf, PORT } from './feeds.mjs';
import { numberOf, readArgs } from './options.mjs';

const HELP = `usage: sender.mjs [--rate N] [--from ADDRESS] [--net N]

Sends quotes to three groups (239.255.N.1 to .3, port ${PORT}) until it is ended.
  --rate N         quotes per second, of all groups together, 1 to 100000 (default: 3000)
  --from ADDRESS   of the network interface to send from (default: 127.0.0.1, for this host only)
  --net N          third byte of the groups' addresses, 0 to 255 (default: 7, as in rules.yaml)
Exit code: 0 when its parent has asked it to stop, 2 for a wrong argument.`;
const TICK_MS = 5;
/** After a pause of this process the rest is sent in pieces, so that no receiver's buffer is run over. */
const BURST = 100;
/** Whose turn it is: one feed is livelier than the other. */
const TURNS = [0, 1, 0, 2, 0, 1];

const values = readArgs(HELP, process.argv.slice(2), {
  rate: { type: 'string', default: '3000' },
  from: { type: 'string', default: '127.0.0.1' },
  net: { type: 'string', default: '7' },
});
const rate = numberOf(HELP, 'rate', values.rate, { least: 1, most: 100_000 });
const net = numberOf(HELP, 'net', values.net, { least: 0, most: 255, whole: true });
const { from = '' } = values;

const feeds = FEEDS.map(({ name, symbols }, i) => ({
  ...{ name, group: groupOf(net, i), sequence: 0 },
  quotes: symbols.map((symbol) => ({ symbol, price: 10 + 90 * Math.random() })),
}));

/** Resolves when this process is to begin: at once, or when its parent says so. */
async function begin() {
  if (!process.send) return;
  onOrphaned(() => process.exit(1));
  const asked = once(process, 'message');
  await tell({ type: 'up' });
  await asked;
}

await begin();
const socket = createSocket('udp4');
socket.bind(0, from);
await once(socket, 'listening');
socket.setMulticastInterface(from);

/** @param {number} turn how many were sent before it */
function send(turn) {
  const feed = feeds[TURNS[turn % TURNS.length]];
  const quote = feed.quotes[feed.sequence % feed.quotes.length];
  quote.price *= 1 + (Math.random() - 0.5) / 1000;
  const bytes = encodeQuote({ ...quote, sequence: ++feed.sequence, time: now() });
  return new Promise((resolve, reject) =>
    socket.send(bytes, PORT, feed.group, (error) => (error ? reject(error) : resolve(undefined))),
  );
}

const started = performance.now();
let sent = 0;
let stopped = false;
process.once('message', () => {
  stopped = true;
});
while (!stopped) {
  const due = Math.floor((rate * (performance.now() - started)) / 1000);
  const burst = Math.min(BURST, due - sent);
  await Promise.all(Array.from({ length: burst }, () => send(sent++)));
  await new Promise((resolve) => setTimeout(resolve, due > sent ? 1 : TICK_MS));
}
await tell({ type: 'sent', sent: Object.fromEntries(feeds.map(({ name, sequence }) => [name, sequence])) });
process.exit(0);
