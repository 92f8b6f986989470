/**
 * A member for the tests of publish and subscribe. Takes commands as lines of JSON on standard input, answers with lines of
 * JSON: `pubsub-member.mjs NAME [JOIN OPTIONS]`. Ends when standard input ends.
 */
import { createInterface } from 'node:readline';
import millrace from '../../../dist/index.js';

const { join, struct } = millrace;
const [name, options = '{}'] = process.argv.slice(2);
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

const CODECS = { msgpackr: 'msgpackr', json: 'json', bytes: 'bytes', struct: struct({ n: 'u32', x: 'f64' }) };
const settings = ({ codec = 'msgpackr', ...rest } = {}) => ({ codec: CODECS[codec], ...rest });
const make = {
  msgpackr: (n, size) => ({ n, text: 'x'.repeat(size), [`k${n % 7}`]: n }),
  json: (n, size) => ({ n, text: 'x'.repeat(size) }),
  bytes: (n, size) => {
    const bytes = Buffer.alloc(4 + size, n & 0xff);
    bytes.writeUInt32LE(n);
    return bytes;
  },
  struct: (n) => ({ n, x: n / 3 }),
};
const read = {
  msgpackr: (value, size) =>
    value.text.length === size && value[`k${value.n % 7}`] === value.n ? value.n : -1,
  json: (value, size) => (value.text.length === size ? value.n : -1),
  bytes: (value, size) => {
    const n = new DataView(value.buffer, value.byteOffset).getUint32(0, true);
    const whole = value.length === 4 + size && value.subarray(4).every((byte) => byte === (n & 0xff));
    return whole ? n : -1;
  },
  struct: (value) => (value.x === value.n / 3 ? value.n : -1),
};

const member = await join(undefined, { name, ...JSON.parse(options) });
member.status$.subscribe((event) =>
  say({ type: 'status', event: { ...event, error: event.error?.code ?? event.error } }),
);

/** What was heard, by channel and publisher. */
const heard = new Map();
/** Channels whose publish() is to end. */
const stopped = new Set();
const turn = () => new Promise((resolve) => setImmediate(resolve));

const commands = {
  subscribe({ channel, pattern, options, size = 0, codec = options?.codec ?? 'msgpackr' }) {
    const source =
      channel === undefined
        ? member.pattern(pattern, settings({ codec, ...options }))
        : member.channel(channel, settings(options));
    source.messages$.subscribe((event) => {
      const key = `${event.channel} ${event.publisher.name}`;
      const known = heard.get(key) ?? {
        count: 0,
        first: 0,
        last: 0,
        missing: 0,
        disorder: 0,
        broken: 0,
        reasons: {},
        left: null,
      };
      heard.set(key, known);
      if (event.type === 'gap') {
        known.missing += event.count;
        known.reasons[event.reason] = (known.reasons[event.reason] ?? 0) + event.count;
        if (event.from !== known.last + 1 && known.last !== 0) known.disorder++;
        known.last = event.to;
      } else if (event.type === 'message') {
        known.count++;
        if (read[codec](event.value, size) !== event.sequence) known.broken++;
        if (known.last !== 0 && event.sequence !== known.last + 1) known.disorder++;
        if (known.first === 0) known.first = event.sequence;
        known.last = event.sequence;
      } else if (event.type === 'publisher-left') {
        known.left = event.reason;
        say({
          type: 'left',
          channel: event.channel,
          peer: event.publisher.name,
          reason: event.reason,
          sequence: event.sequence,
        });
      } else
        say({ type: 'joined', channel: event.channel, peer: event.publisher.name, sequence: event.sequence });
    });
  },
  async ready({ channel, options, subscribers }) {
    await member.channel(channel, settings(options)).ready({ subscribers });
    say({ type: 'ready' });
  },
  /**
   * Publishes numbers that are their sequences, without a count until it is told to stop; `how`: offer (waits), next (may be
   * refused), publish (each awaited).
   */
  async publish({ channel, options, count = Infinity, size = 0, how = 'offer', pace = 64 }) {
    stopped.delete(channel);
    const out = member.channel(channel, settings(options));
    const from = out.stats().published;
    const value = make[options?.codec ?? 'msgpackr'];
    let received = 0;
    for (let n = from + 1; n <= from + count && !stopped.has(channel); ) {
      if (how === 'next') {
        out.next(value(n++, size));
      } else if (how === 'publish') {
        received += (await out.publish(value(n++, size))).received;
      } else if (out.offer(value(n, size))) n++;
      else await out.whenWritable();
      if (pace > 0 && n % pace === 0) await turn();
    }
    const { published, refused, dropped } = out.stats();
    say({ type: 'published', channel, published, refused, dropped, received });
  },
  /** Answered by the publish() that ends. */
  stop({ channel }) {
    stopped.add(channel);
  },
  async drain({ timeout }) {
    const { complete, undelivered } = await member.drain(timeout);
    say({ type: 'drained', complete, undelivered });
  },
  complete({ channel }) {
    member.channel(channel).complete();
  },
  heard() {
    say({ type: 'heard', heard: Object.fromEntries(heard) });
  },
  resources() {
    say({ type: 'resources', ...member.resources() });
  },
  /** Milliseconds of CPU that this process takes within so many. */
  async cpu({ ms }) {
    const before = process.cpuUsage();
    await new Promise((resolve) => setTimeout(resolve, ms));
    const { user, system } = process.cpuUsage(before);
    say({ type: 'cpu', ms: (user + system) / 1000 });
  },
  inspect() {
    say({ type: 'inspect', ...member.inspect() });
  },
  async leave() {
    await member.leave();
    say({ type: 'gone' });
    process.stdin.destroy();
  },
  exit({ code = 0 }) {
    process.exit(code);
  },
  throw() {
    setImmediate(() => {
      throw new Error('uncaught on purpose');
    });
  },
  crash() {
    process.abort();
  },
};

createInterface({ input: process.stdin }).on('line', (line) => {
  const { do: what, ...rest } = JSON.parse(line);
  Promise.resolve()
    .then(() => commands[what](rest))
    .catch((error) => say({ type: 'error', what, code: error.code, message: error.message }));
});
say({ type: 'up', pid: process.pid });
