/**
 * The demo: senders, the service, four subscribers; a live table, and at the end what each got.
 *   node examples/fanout/demo.mjs --help
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Children, heard } from './children.mjs';
import { demoOptions } from './demo-options.mjs';
import { FEEDS, rulesText } from './feeds.mjs';
import { choosePlace } from './network.mjs';
import { Screen, stateLines } from './table.mjs';
import { resultOf, totalLines } from './totals.mjs';

const SUBSCRIBERS = [
  {
    name: 'fast',
    delay: 0,
    policy: 'wait',
    topics: FEEDS.flatMap(({ name }) => ['--channel', `feed.${name}`]),
  },
  { name: 'fast-pattern', delay: 0, policy: 'drop-oldest', topics: ['--pattern', 'feed.*'] },
  { name: 'slow-conflating', delay: 10, policy: 'latest-by:symbol', topics: ['--pattern', 'feed.*'] },
  { name: 'slow-dropping', delay: 10, policy: 'drop-oldest', topics: ['--pattern', 'feed.*'] },
];
/** Bytes that a slow one holds of each feed: a second or so of it. */
const SLOW_WINDOW = 16_384;

const options = demoOptions(process.argv.slice(2));
/** @param {string} text */
const say = (text) => (options.json ? console.error(text) : console.log(text));

const children = new Children((what, code) => {
  // Ctrl-C reaches the whole group, and a child may be quicker.
  if (code === 130) finish(130);
  else finish(1, what);
});
/** @type {string | undefined} */
let folder;
let finishing = false;
/**
 * @param {number} code
 * @param {string} [why]
 */
async function finish(code, why) {
  if (finishing) return;
  finishing = true;
  if (why) console.error(`fanout: ${why}`);
  await children.stop();
  if (folder !== undefined) rmSync(folder, { recursive: true, force: true });
  process.exit(code);
}
process.on('SIGINT', () => finish(130));
process.on('SIGTERM', () => finish(143));
process.on('SIGHUP', () => finish(129));
if (!options.keepOpen) setTimeout(() => finish(1, 'not done in time'), (options.seconds + 60) * 1000);

try {
  await run();
} catch (error) {
  // A signal that ended one of its commands comes first.
  await sleep(1);
  await finish(1, error instanceof Error ? error.message : String(error));
}

async function run() {
  const place = choosePlace(options.loopback);
  const net = process.pid % 256;
  const domain = `fanout-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
  folder = mkdtempSync(join(tmpdir(), 'millrace-fanout-'));
  const rules = join(folder, 'rules.yaml');
  writeFileSync(rules, rulesText(net, place.interface));
  say(`domain ${domain}, rules ${rules}`);
  say(`  senders    ${place.text}: ${FEEDS.length} groups, ${options.rate} quotes/s`);

  const senderArgs = ['--rate', `${options.rate}`, '--from', place.from, '--net', `${net}`];
  const sender = children.start('the sender', 'sender.mjs', senderArgs, place.prefix);
  await heard(sender, 'up');
  place.connect(/** @type {number} */ (sender.pid));

  const serviceArgs = ['--rules', rules, '--domain', domain, '--http', `${options.http}`];
  const service = children.start('the service', 'service.mjs', serviceArgs);
  const { url } = await heard(service, 'open');
  say(`  page       ${url}`);
  const subscribers = SUBSCRIBERS.map(({ name, delay, policy, topics }) => {
    say(`  subscriber ${name}: ${policy}${delay === 0 ? '' : `, ${delay} ms a quote`}`);
    const args = ['--domain', domain, '--name', name, '--policy', policy, '--delay', `${delay}`, ...topics];
    if (delay > 0) args.push('--window', `${SLOW_WINDOW}`);
    return { name, policy, delay, child: children.start(name, 'subscriber.mjs', args) };
  });
  // Nothing is sent before all of them are there.
  await heard(service, 'state', ({ state }) => allSubscribed(state));
  say('');
  const screen = new Screen();
  service.on('message', (/** @type {any} */ { type, state }) => {
    if (type !== 'state' || state.number % 2 !== 0 || children.ending) return;
    if (!options.json) screen.show(stateLines(state));
  });
  sender.send('begin');
  if (options.keepOpen) return;
  await sleep(options.seconds * 1000);

  children.ending = true;
  const sending = heard(sender, 'sent');
  sender.send('stop');
  const { sent } = await sending;
  const state = await settled(service, sent);
  const published = Object.fromEntries(state.channels.map((one) => [one.name, one.published]));
  const totals = await Promise.all(
    subscribers.map(async ({ child, ...subscriber }) => {
      const answer = heard(child, 'totals');
      child.send({ published });
      return { ...subscriber, ...(await answer) };
    }),
  );
  const result = resultOf(sent, state, totals);
  if (options.json)
    console.log(
      JSON.stringify({ ...result, domain, seconds: options.seconds, network: place.text }, null, 2),
    );
  else console.log(`\n${totalLines(result).join('\n')}`);
  await finish(result.ok ? 0 : 1);
}

/** @param {import('./board.mjs').State} state */
function allSubscribed({ channels, subscribers }) {
  return (
    channels.length === FEEDS.length &&
    channels.every((one) => one.subscribers === SUBSCRIBERS.length) &&
    subscribers.length === SUBSCRIBERS.length
  );
}

/**
 * The service's state once it has taken all that was sent, or nothing more comes.
 * @param {import('node:child_process').ChildProcess} service
 * @param {Record<string, number>} sent by rule
 * @returns {Promise<import('./board.mjs').State>}
 */
async function settled(service, sent) {
  const wanted = Object.values(sent).reduce((sum, one) => sum + one, 0);
  for (let before = -1, still = 0; ; ) {
    const { state } = await heard(service, 'state');
    const quotes = state.rules.reduce(
      (/** @type {number} */ sum, /** @type {any} */ one) => sum + one.quotes,
      0,
    );
    still = quotes === before ? still + 1 : 0;
    if (quotes >= wanted || still === 4) return state;
    before = quotes;
  }
}
