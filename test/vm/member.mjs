/**
 * A member for the virtual machine's checks: `member.mjs sub|pub|serve|hold DEVICE [COUNT [CAST]]`: COUNT messages on lanes,
 * then CAST to a multicast group, some of whose datagrams get lost. What it says is lines that the checks wait for; `holds`
 * is followed by its resources as JSON, `repaired` by how many messages were.
 */
import millrace from '../../dist/index.js';

const { join } = millrace;
const [role, device, count = '0', casts = '0'] = process.argv.slice(2);
const say = (text) => process.stdout.write(`${text}\n`);

/** Resolves when the checks have looked at what there is. A signal's handler alone does not keep a process. */
const seen = new Promise((resolve) => {
  const alive = setInterval(() => {}, 60_000);
  process.once('SIGTERM', () => {
    clearInterval(alive);
    resolve();
  });
});
const member = await join('vm', {
  ...{ device, name: role },
  ...(role === 'pub' ? { faults: { seed: 5, drop: 0.05 } } : {}),
});
member.status$.subscribe((event) => {
  if (event.type === 'fault') say(`fault ${event.error.message}`);
  if (event.type === 'peer-left' || event.type === 'peer-lost') say('lost a peer');
});
/** What `pub` sends and `sub` waits for, one after the other. A message has fewer characters than `text`. */
const numbers = { channel: member.channel('numbers'), total: Number(count), text: 500 };
const streams = [numbers];
if (Number(casts) > 0) {
  const channel = member.channel('casts', { delivery: 'multicast', pace: 2 ** 19 });
  // A datagram has room for some 900.
  streams.push({ channel, total: Number(casts), text: 3000 });
}
const textOf = (n, longest) => 'x'.repeat((37 * n) % longest);

/** Resolves when all numbers of a stream have come, each one more than the one before. */
function receive({ channel, total, text: longest }) {
  return new Promise((resolve, reject) => {
    let last;
    let received = 0;
    channel.subscribe(({ n, text }) => {
      if (text !== textOf(n, longest)) reject(new Error(`${n} came with another text`));
      if (last !== undefined && n !== last + 1) reject(new Error(`${n} came after ${last}`));
      last = n;
      received += 1;
      if (received === total) resolve(received);
    });
  });
}

switch (role) {
  case 'sub': {
    const all = streams.map(receive);
    say('ready');
    const received = await Promise.all(all);
    say(`holds ${JSON.stringify(member.resources())}`);
    say(`repaired ${member.inspect().channels.find(({ multicast }) => multicast)?.multicast.repaired}`);
    say(`received ${received}`);
    await seen;
    await member.leave();
    break;
  }
  case 'hold':
    say(`received ${await receive({ ...numbers, total: 10 })}`);
    break;
  case 'pub':
    for (const { channel, total, text } of streams) {
      await channel.ready({ subscribers: 1 });
      for (let n = 0; n < total; n += 1) {
        const value = { n, text: textOf(n, text) };
        // Each hundredth is waited for: it is then known to be in the subscriber's inbox.
        if (n % 100 === 99) await channel.publish(value);
        else channel.next(value);
      }
    }
    say(`holds ${JSON.stringify(member.resources())}`);
    await member.drain(10_000);
    await seen;
    await member.leave();
    break;
  case 'serve': {
    let n = 0;
    const timer = setInterval(() => {
      numbers.channel.next({ n, text: textOf(n, numbers.text) });
      n += 1;
    }, 5);
    say('ready');
    await seen;
    clearInterval(timer);
    await member.leave();
    break;
  }
  default:
    throw new Error(`no role ${role}`);
}
