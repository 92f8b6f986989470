/**
 * A member for the virtual machine's checks: `member.mjs sub|pub|serve|hold DEVICE [COUNT]`. What it says is lines that
 * the checks wait for; `holds` is followed by its resources as JSON.
 */
import millrace from '../../dist/index.js';

const { join } = millrace;
const [role, device, count = '0'] = process.argv.slice(2);
const total = Number(count);
const say = (text) => process.stdout.write(`${text}\n`);

/** Resolves when the checks have looked at what there is. A signal's handler alone does not keep a process. */
const seen = new Promise((resolve) => {
  const alive = setInterval(() => {}, 60_000);
  process.once('SIGTERM', () => {
    clearInterval(alive);
    resolve();
  });
});
const member = await join('vm', { device, name: role });
member.status$.subscribe((event) => {
  if (event.type === 'fault') say(`fault ${event.error.message}`);
  if (event.type === 'peer-left' || event.type === 'peer-lost') say('lost a peer');
});
const channel = member.channel('numbers');

/** Resolves when `wanted` numbers have come, each one more than the one before. */
function receive(wanted) {
  return new Promise((resolve, reject) => {
    let last;
    let received = 0;
    channel.subscribe(({ n }) => {
      if (last !== undefined && n !== last + 1) reject(new Error(`${n} came after ${last}`));
      last = n;
      received += 1;
      if (received === wanted) resolve(received);
    });
  });
}

switch (role) {
  case 'sub': {
    const all = receive(total);
    say('ready');
    const received = await all;
    say(`holds ${JSON.stringify(member.resources())}`);
    say(`received ${received}`);
    await seen;
    await member.leave();
    break;
  }
  case 'hold':
    say(`received ${await receive(10)}`);
    break;
  case 'pub':
    await channel.ready({ subscribers: 1 });
    for (let n = 0; n < total; n += 1) {
      const value = { n, text: 'x'.repeat(n % 500) };
      // Each hundredth is waited for: it is then known to be in the subscriber's inbox.
      if (n % 100 === 99) await channel.publish(value);
      else channel.next(value);
    }
    say(`holds ${JSON.stringify(member.resources())}`);
    await member.drain(10_000);
    await seen;
    await member.leave();
    break;
  case 'serve': {
    let n = 0;
    const timer = setInterval(() => {
      channel.next({ n });
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
