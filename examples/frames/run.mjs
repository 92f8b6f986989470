/**
 * Starts a publisher of frames and two subscribers, and prints what became of the frames.
 *   node examples/frames/run.mjs --help
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { Children } from '../demo/children.mjs';
import { sparkline } from './chart.mjs';
import { framesOptions } from './options.mjs';
import { rate, resultLines, resultOf } from './result.mjs';

const SUBSCRIBERS = ['histogram', 'thumbnail'];
const options = framesOptions(process.argv.slice(2));
const { out, seconds, json } = options;
const live = process.stdout.isTTY && !json;
/** Goes back to the line's begin and clears it. */
const CLEAR = live ? '\r\x1b[2K' : '';

const children = new Children('frames', () => {
  if (out === undefined) rmSync(folder, { recursive: true, force: true });
});
children.limit(seconds + 120);
// Made when a signal is no more the end: what is temporary goes with it.
const folder = out === undefined ? mkdtempSync(join(tmpdir(), 'millrace-frames-')) : resolve(out);

/** @param {string} text */
const say = (text) => {
  if (!json) console.log(CLEAR + text);
};

// A domain of its own, so that two on one machine don't hear each other.
const domain = `frames-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
/** @type {Map<string, any>} the latest of each process */
const progress = new Map();
/** @type {Map<string, import('./result.mjs').Report>} */
const reports = new Map();

/**
 * @param {string} name of the process and its script
 * @param {string[]} args
 * @param {(message: any) => void} onMessage
 */
const start = (name, args, onMessage) =>
  children.start(name, new URL(`${name}.mjs`, import.meta.url), [domain, ...args], (message) => {
    if (message.type === 'failed') children.finish(message.code, message.text);
    if (message.type === 'progress') progress.set(name, message);
    onMessage(message);
  });

const startSubscribers = () =>
  SUBSCRIBERS.map((name) =>
    start(name, [folder], (message) => {
      if (message.type === 'report') reports.set(name, message);
    }),
  );

/** @type {import('node:child_process').ChildProcess[]} */
let subscribers = [];
/** @type {import('./result.mjs').Source | undefined} */
let source;
let begun = 0;

/** The live line. */
function show() {
  const counts = SUBSCRIBERS.map((name) => progress.get(name));
  if (begun === 0 || counts.includes(undefined)) return;
  const s = (performance.now() - begun) / 1000;
  const frames = progress.get('publisher')?.frames ?? 0;
  const handed = counts.reduce((sum, { bytes }) => sum + bytes, 0);
  const line =
    `${frames} frames  ${(frames / s).toFixed(1)}/s  ${rate(handed, s).toFixed(2)} GB/s  ` +
    `${SUBSCRIBERS.map((name, i) => `${name} ${counts[i].frames}`).join('  ')}  ${sparkline(counts[0].luma)}`;
  if (live) process.stdout.write(CLEAR + line.slice(0, process.stdout.columns ?? 80));
  else say(line);
}

/** @type {import('./result.mjs').Sent} */
const sent = await new Promise((done) => {
  start('publisher', [JSON.stringify(options)], (message) => {
    if (message.type === 'opened') {
      source = message.source;
      const { name, width, height, bytes, how } = message.source;
      say(`${name}: ${width} x ${height}, ${(bytes / 1e6).toFixed(1)} MB a frame, ${how}`);
      subscribers = startSubscribers();
    }
    if (message.type === 'started') begun = performance.now();
    if (message.type === 'sent') done(message);
  });
  setInterval(show, live ? 250 : 1000).unref();
});

// Everything was handed to the subscribers, so each can now be asked for what it made of it.
const ended = children.ended();
for (const child of subscribers) child.send('report');
await ended;
if (source !== undefined && reports.size === SUBSCRIBERS.length) {
  const result = resultOf(source, sent, [...reports].sort());
  if (json) console.log(JSON.stringify(result, null, 2));
  else for (const line of resultLines(result, reports.get('histogram')?.histogram ?? {})) say(line);
  process.exit(result.ok ? 0 : 1);
}
await children.finish(1, 'a subscriber ended without its report');
