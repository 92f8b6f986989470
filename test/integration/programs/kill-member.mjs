/**
 * A member that publishes numbers without end on `k.NAME` and checks what it hears on `k.*`, for the tests that kill and stop
 * members: `kill-member.mjs NAME [OPTIONS]`, options as JSON: `join` (options of join), `publish` (false: only listens), `burst`
 * (messages a turn), `progress` (says so each time it has heard that many). Commands are lines of JSON on standard input, and
 * answers lines of JSON. Ends when standard input ends.
 */
import { createInterface } from 'node:readline';
import millrace from '../../../dist/index.js';

const [name, words = '{}'] = process.argv.slice(2);
const { join: options = {}, publish = true, burst = 8, progress = 500 } = JSON.parse(words);
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

say({ type: 'starts', pid: process.pid });
const member = await millrace.join(undefined, { name, ...options });
member.status$.subscribe(({ type, peer, error }) => say({ type, peer: peer?.name, error: error?.code }));

/** What is to happen after so many messages. */
let end = null;
const step = () => {
  if (end !== null && --end.after <= 0) end.run();
};
const ends = {
  kill: () => process.kill(process.pid, 'SIGKILL'),
  exit: () => process.exit(0),
  throw: () => {
    end = null;
    throw new Error('on purpose');
  },
  reject: () => {
    end = null;
    void Promise.reject(new Error('on purpose'));
  },
  leave: () => {
    end = null;
    running = false;
    void member.leave().then(() => process.stdin.destroy());
  },
};

/** By the publisher's name; names are not used twice. */
const heard = {};
let total = 0;
const source = member.pattern('k.*', { codec: 'msgpackr' });
source.messages$.subscribe((event) => {
  const { name: peer } = event.publisher;
  heard[peer] ??= {
    ...{ from: 0, first: 0, last: 0, count: 0 },
    ...{ gaps: 0, resumed: 0, disorder: 0, broken: 0, left: null },
  };
  const known = heard[peer];
  if (event.type === 'message') {
    if (known.last !== 0 && event.sequence !== known.last + 1) known.disorder++;
    if (event.value.n !== event.sequence || event.value.from !== peer) known.broken++;
    if (known.first === 0) known.first = event.sequence;
    known.last = event.sequence;
    known.count++;
    if (known.left !== null) known.disorder++;
    if (known.gaps > 0) known.resumed++;
    if (++total % progress === 0) say({ type: 'progress', total });
    step();
  } else if (event.type === 'gap') {
    known.gaps += event.count;
    known.last = event.to;
  } else if (event.type === 'publisher-joined') {
    known.from = event.sequence;
    say({ type: 'joined', peer });
  } else if (event.type === 'publisher-left') {
    known.left = event.reason;
    say({ type: 'left', peer, reason: event.reason, last: event.sequence });
  }
});

const channel = member.channel(`k.${name}`);
let n = 0;
let running = publish;
async function run() {
  while (running) {
    for (let i = 0; i < burst && running; i++) {
      if (channel.offer({ n: n + 1, from: name, pad: 'x'.repeat(n % 100) })) n++;
      else await channel.whenWritable();
      step();
    }
    await new Promise((resolve) => setImmediate(resolve));
  }
}
// Leaving ends a wait for room.
const runs = run().catch((error) => {
  if (running || error.code !== 'ERR_CHANNEL_CLOSED') throw error;
});

const commands = {
  /** Publishes no more, and waits until everybody who still is there has it all. */
  async rest() {
    running = false;
    await runs;
    const { complete, undelivered } = await member.drain(60_000);
    say({ type: 'rests', published: n, complete, undelivered });
  },
  heard: () => say({ type: 'heard', heard }),
  resources: () => say({ type: 'resources', ...member.resources() }),
  /** Ends in this way after so many messages, own and others'. */
  end({ how, after }) {
    end = { after, run: ends[how] };
  },
  async leave() {
    running = false;
    await member.leave();
    say({ type: 'gone' });
    process.stdin.destroy();
  },
};
createInterface({ input: process.stdin }).on('line', (line) => {
  const { do: what, ...rest } = JSON.parse(line);
  Promise.resolve()
    .then(() => commands[what](rest))
    .catch((error) => say({ type: 'error', what, code: error.code, message: error.message }));
});
say({ type: 'up' });
