/**
 * A member that starts a program in the middle of its traffic: `exit-children.mjs spawn|fork|member`. `spawn` and `fork` start one
 * that does nothing and outlives its parent; `member` starts one that joins, publishes and leaves. Prints the child's pid,
 * and `ended` when it has.
 */
import { fork, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import millrace from '../../../dist/index.js';

const how = process.argv[2];
const self = fileURLToPath(import.meta.url);

if (how === 'idle') {
  setInterval(() => {}, 1 << 30);
} else if (how === 'child') {
  const member = await millrace.join(undefined, { name: 'child' });
  const channel = member.channel('k.child');
  await channel.ready({ subscribers: 1 });
  for (let n = 1; n <= 1000; ) {
    if (channel.offer({ n, from: 'child' })) n++;
    else await channel.whenWritable();
  }
  await member.drain(60_000);
  await member.leave();
  process.disconnect?.();
} else {
  const member = await millrace.join(undefined, { name: 'parent' });
  const channel = member.channel('k.parent');
  await channel.ready({ subscribers: 1 });
  let n = 0;
  const more = async () => {
    for (let i = 0; i < 8; i++) {
      if (channel.offer({ n: n + 1, from: 'parent' })) n++;
      else await channel.whenWritable();
    }
    setImmediate(more);
  };
  await more();
  const options = {
    detached: true,
    stdio: how === 'spawn' ? 'ignore' : ['ignore', 'ignore', 'ignore', 'ipc'],
  };
  const child =
    how === 'spawn'
      ? spawn(process.execPath, [self, 'idle'], options)
      : fork(self, [how === 'fork' ? 'idle' : 'child'], options);
  process.stdout.write(`${child.pid}\n`);
  child.on('exit', () => process.stdout.write('ended\n'));
}
