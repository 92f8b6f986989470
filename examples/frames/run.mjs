/**
 * Starts a publisher of frames and two subscribers, and prints what became of the frames.
 *   node examples/frames/run.mjs --help
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { Children, table } from '../demo/children.mjs';
import { chart, sparkline } from './chart.mjs';
import { framesOptions } from './options.mjs';

/** @param {string} script */
const here = (script) => new URL(script, import.meta.url);
const SUBSCRIBERS = ['histogram', 'thumbnail'];
const options = framesOptions(process.argv.slice(2));
const { seconds, json } = options;
const live = process.stdout.isTTY && !json;

const folder =
  options.out === undefined ? mkdtempSync(join(tmpdir(), 'millrace-frames-')) : resolve(options.out);
const children = new Children('frames', () => {
  if (options.out === undefined) rmSync(folder, { recursive: true, force: true });
});
children.limit(seconds + 120);

/** @param {string} text */
const say = (text) => {
  if (!json) console.log(live ? `\r\x1b[2K${text}` : text);
};
const failed = (/** @type {any} */ { text, code }) => {
  if (live) process.stdout.write('\r\x1b[2K');
  children.finish(code, text);
};

// A domain of its own, so that two on one machine don't hear each other.
const domain = `frames-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
const progress = new Map();
const reports = new Map();
const subscribers = SUBSCRIBERS.map((name) =>
  children.start(name, here(`${name}.mjs`), [domain, folder], (message) => {
    if (message.type === 'failed') failed(message);
    if (message.type === 'progress') progress.set(name, message);
    if (message.type === 'report') reports.set(name, message);
  }),
);

/** @type {{ name: string, how: string, width: number, height: number, bytes: number } | undefined} */
let source;
let begun = 0;
/** @param {number} bytes @param {number} s */
const rate = (bytes, s) => (s > 0 ? bytes / s / 1e9 : 0);

function show() {
  const counts = SUBSCRIBERS.map((name) => progress.get(name));
  if (source === undefined || counts.includes(undefined)) return;
  const s = (performance.now() - begun) / 1000;
  const frames = progress.get('publisher')?.frames ?? 0;
  const handed = counts.reduce((sum, { bytes }) => sum + bytes, 0);
  const line =
    `${frames} frames  ${(frames / s).toFixed(1)}/s  ${rate(handed, s).toFixed(2)} GB/s  ` +
    `${SUBSCRIBERS.map((name, i) => `${name} ${counts[i].frames}`).join('  ')}  ${sparkline(counts[0].luma)}`;
  if (live) process.stdout.write(`\r\x1b[2K${line.slice(0, process.stdout.columns ?? 80)}`);
  else say(line);
}

const sent = await new Promise((done) => {
  children.start('publisher', here('publisher.mjs'), [domain, JSON.stringify(options)], (message) => {
    if (message.type === 'failed') failed(message);
    if (message.type === 'progress') progress.set('publisher', message);
    if (message.type === 'sent') done(message);
    if (message.type !== 'started') return;
    source = message.source;
    begun = performance.now();
    const { width, height, bytes, name, how } = message.source;
    say(`${name}: ${width} x ${height}, ${(bytes / 1e6).toFixed(1)} MB a frame, ${how}`);
  });
  setInterval(show, live ? 250 : 1000).unref();
});

// Everything was handed to the subscribers, so each can now be asked for what it made of it.
const ended = children.ended();
for (const child of subscribers) child.send('report');
await ended;

const rows = SUBSCRIBERS.map((name) => {
  const { frames, bytes, missing, copies, files } = reports.get(name) ?? {};
  return {
    ...{ subscriber: name, frames: frames ?? 0, lost: sent.sent - (frames ?? 0), missing: missing ?? 0 },
    ...{ gbPerSecond: rate(bytes ?? 0, sent.seconds), copies: copies ?? null, files: files ?? [] },
  };
});
const ok = sent.sent > 0 && rows.every((row) => row.lost === 0 && row.missing === 0);
const total = {
  ...{ frames: sent.sent, seconds: sent.seconds, framesPerSecond: sent.sent / sent.seconds },
  gbPerSecond: rows.reduce((sum, row) => sum + row.gbPerSecond, 0),
  // Of the publisher and of the subscribers, as the library counts them.
  copies: rows.reduce((sum, row) => sum + row.copies, sent.copies),
};

if (json) {
  console.log(
    JSON.stringify({ ok, source, ...total, publisher: { copies: sent.copies }, subscribers: rows }, null, 2),
  );
} else {
  const cells = rows.map(({ subscriber, frames, lost, gbPerSecond, copies }) => [
    ...[subscriber, String(frames), String(lost), (frames / sent.seconds).toFixed(1)],
    ...[gbPerSecond.toFixed(2), String(copies ?? '-')],
  ]);
  cells.push([
    'publisher',
    String(sent.sent),
    '',
    total.framesPerSecond.toFixed(1),
    total.gbPerSecond.toFixed(2),
    String(sent.copies),
  ]);
  say('');
  for (const line of table(['', 'frames', 'lost', 'frames/s', 'GB/s', 'copies'], cells, 1)) console.log(line);
  console.log(`\n${chart(reports.get('histogram')?.histogram ?? { luma: [] }).join('\n')}\n`);
  for (const { subscriber, files } of rows)
    for (const file of files) console.log(`${subscriber.padEnd(9)}  ${file}`);
  console.log(
    `\n${total.framesPerSecond.toFixed(1)} frames/s, ${total.gbPerSecond.toFixed(2)} GB/s handed over, ${total.copies} copies made. ` +
      (ok ? 'Nothing was lost.' : 'SOMETHING WAS LOST.'),
  );
}
process.exit(ok ? 0 : 1);
