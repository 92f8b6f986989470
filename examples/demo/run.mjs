/**
 * Starts the demo's four processes (one publisher, three subscribers), waits, and prints what each subscriber got.
 *   node examples/demo/run.mjs [--file FILE] [--seconds N] [--json]
 * Exit code 0 if nothing was lost or out of order, 1 otherwise, 2 for a wrong argument, 130 after Ctrl-C.
 */
import { fork } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { demoOptions } from './options.mjs';

const here = dirname(fileURLToPath(import.meta.url));
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

/** @type {{ name: string, child: import('node:child_process').ChildProcess, ended: Promise<object> }[]} */
const children = [];
let ending = false;

/**
 * Starts one process of the demo; it leaves by itself when this one is gone (its IPC channel closes).
 * @param {string} name
 * @param {string} script
 * @param {string[]} args
 * @param {(message: any) => void} onMessage
 */
function start(name, script, args, onMessage) {
  const child = fork(join(here, script), args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve({ name, code, signal })));
  child.on('message', onMessage);
  children.push({ name, child, ended });
  ended.then(({ code, signal }) => {
    // 130: Ctrl-C reached the whole group, and the child was quicker.
    if (!ending && code === 130) finish(130);
    else if (!ending && code !== 0) finish(1, `${name} ended early (${signal ?? `exit code ${code}`})`);
  });
  return { name, child, ended };
}

/** Asks every process to leave, and ends by force what has not left after three seconds. */
async function stopAll() {
  ending = true;
  for (const { child } of children) child.kill('SIGTERM');
  const force = setTimeout(() => {
    for (const { child } of children) child.kill('SIGKILL');
  }, 3000);
  await Promise.all(children.map(({ ended }) => ended));
  clearTimeout(force);
}

/**
 * @param {number} code
 * @param {string} [why]
 */
async function finish(code, why) {
  if (ending) return;
  if (why) console.error(`demo: ${why}`);
  await stopAll();
  process.exit(code);
}
process.on('SIGINT', () => finish(130));
process.on('SIGTERM', () => finish(143));
process.on('SIGHUP', () => finish(129));
const deadline = setTimeout(() => finish(1, 'not done in time'), (seconds + 45) * 1000);

say(`domain ${domain}: one publisher, ${SUBSCRIBERS.length} subscribers, ${seconds} s`);
say(`  publisher  host.cpu host.memory host.network (10 a second), file.lines from ${file}`);

const progress = new Map();
const reports = new Map();
const subscribers = SUBSCRIBERS.map(({ name, topics }) => {
  say(`  ${name.padEnd(9)}  ${topics.join(' ')}`);
  return start(name, 'subscriber.mjs', [domain, name, ...topics], (message) => {
    if (message.type === 'progress') progress.set(name, message);
    if (message.type === 'report') reports.set(name, message.rows);
  });
});
say('');

const sent = await new Promise((resolve) => {
  start('publisher', 'publisher.mjs', [domain, file, String(seconds)], (message) => {
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
ending = true;
for (const { child } of subscribers) child.send('report');
await Promise.all(children.map(({ ended }) => ended));
clearTimeout(deadline);

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
  const widths = head.map((title, i) => Math.max(title.length, ...cells.map((line) => line[i].length)));
  /** @param {string[]} parts */
  const line = (parts) =>
    parts.map((part, i) => (i < 2 ? part.padEnd(widths[i]) : part.padStart(widths[i]))).join('  ');
  console.log(`\n${line(head)}`);
  for (const cell of cells) console.log(line(cell));
  console.log(ok ? '\nNothing was lost, nothing was out of order.' : '\nSOMETHING WAS LOST OR OUT OF ORDER.');
}
process.exit(ok ? 0 : 1);
