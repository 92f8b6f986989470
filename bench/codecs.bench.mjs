/**
 * Micro benchmark of the codecs: nanoseconds to write one message into an arena and to read it back. Printed only.
 * Usage: npm run build:ts && node bench/codecs.bench.mjs [--quick]
 */
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const dist = new URL('../dist/channels/codec/index.js', import.meta.url);
let codecs;
try {
  codecs = require(dist.pathname);
} catch (error) {
  console.error(`Cannot load dist/: ${error.message}\nRun 'npm run build:ts' first.`);
  process.exit(1);
}
const { struct, msgpackr, bytes, json } = codecs;

const quick = process.argv.includes('--quick');
const rounds = quick ? 10 : 60;
const turns = 50_000;

/** The fastest of many short runs: what the code costs when nothing disturbs it. */
function best(run) {
  run(turns);
  run(turns);
  let least = Infinity;
  for (let round = 0; round < rounds; round++) {
    const before = process.hrtime.bigint();
    run(turns);
    least = Math.min(least, Number(process.hrtime.bigint() - before) / turns);
  }
  return least;
}

let sink = 0;

function measure(name, codec, values) {
  const arena = new Uint8Array(1 << 20);
  const encoder = codec.encoder();
  const decoder = codec.decoder();
  const room = 16_288;
  // As a channel does: definitions are taken as they come.
  for (const value of values) {
    encoder.encode(value, arena, 0, room);
    encoder.takeDefinitions();
  }
  const write = best((n) => {
    let at = 0;
    for (let i = 0; i < n; i++) {
      at = (encoder.encode(values[i & 63], arena, at, at + room) + 39) & ~7;
      if (at > arena.length - room) at = 0;
    }
  });
  for (const payload of encoder.allDefinitions()) decoder.define(payload);
  const batch = new Uint8Array(1 << 16);
  const spans = [];
  for (let i = 0, at = 0; ; i++) {
    const end = encoder.encode(values[i & 63], batch, at, batch.length);
    if (end < 0) break;
    spans.push(at, end);
    at = (end + 39) & ~7;
    if (at >= batch.length) break;
  }
  const read = best((n) => {
    for (let i = 0, k = 0; i < n; i++) {
      sink += decoder.decode(batch, spans[k], spans[k + 1]) === undefined ? 1 : 0;
      k += 2;
      if (k === spans.length) k = 0;
    }
  });
  const rate = (ns) => `${(1000 / ns).toFixed(1)} M/s`.padStart(11);
  const cost = (ns) => `${ns.toFixed(0)} ns`.padStart(8);
  console.log(
    `${name.padEnd(34)}${String(spans[1] - spans[0]).padStart(5)} B  ${cost(write)}${rate(write)}  ${cost(read)}${rate(read)}`,
  );
}

const many = (make) => Array.from({ length: 64 }, (_, i) => make(i));
const tick = (i) => ({ bid: 1.0841 + i, ask: 1.0843, time: 1.7e12 + i, sequence: i });
const named = (i) => ({ symbol: 'EURUSD', bid: 1.0841 + i, ask: 1.0843, sequence: i });
const order = (i) => ({
  id: `order-${i}`,
  account: { name: 'Nadja Müller', country: 'AT', tags: ['a', 'b'] },
  lines: many((k) => ({ article: `A${k}`, count: k, price: k * 1.25 })).slice(0, 5),
  at: new Date(1.7e12),
});
const layout = { bid: 'f64', ask: 'f64', time: 'f64', sequence: 'u32' };

console.log(`node ${process.version}; fastest of ${rounds} runs of ${turns}\n`);
console.log(`${'codec, value'.padEnd(34)} bytes  ${'write'.padStart(19)}  ${'read'.padStart(19)}`);
measure('struct, 4 numbers', struct(layout), many(tick));
measure('msgpackr, 4 numbers', msgpackr, many(tick));
measure('msgpackr, 3 numbers and a text', msgpackr, many(named));
measure('msgpackr, nested order', msgpackr, many(order));
measure('json, 4 numbers', json, many(tick));
measure('json, nested order', json, many(order));
measure(
  'bytes, 64',
  bytes,
  many((i) => new Uint8Array(64).fill(i)),
);
measure(
  'bytes, 1024',
  bytes,
  many((i) => new Uint8Array(1024).fill(i)),
);
if (sink > 0) console.log(sink);
