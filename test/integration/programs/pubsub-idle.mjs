/** What holds the event loop: `pubsub-idle.mjs HOW`. Prints "end" when the process ends by itself. */
import millrace from '../../../dist/index.js';

const [how] = process.argv.slice(2);
process.on('exit', (code) => process.stdout.write(`end ${code}\n`));
const member = await millrace.join(undefined, { name: 'idle' });
process.stdout.write('up\n');
if (how === 'nothing') {
  member.status$.subscribe();
  member.channel('x');
}
if (how === 'subscriber') {
  const subscription = member.channel('x').subscribe();
  process.stdin.once('data', () => {
    process.stdin.destroy();
    subscription.unsubscribe();
  });
}
if (how === 'unref') {
  member.unref();
  member.channel('x').subscribe();
}
if (how === 'served') {
  // Something else holds the loop, and nothing but messages wakes it.
  member.unref();
  const rest = setTimeout(() => process.stdout.write('late\n'), 60_000);
  const other = await millrace.join(undefined, { name: 'other' });
  const [there, back] = [member.channel('there'), member.channel('back')];
  there.subscribe((n) => back.next(n));
  const answers = other.channel('back').subscribe((n) => {
    if (n < 20) return other.channel('there').next(n + 1);
    process.stdout.write('served\n');
    clearTimeout(rest);
    answers.unsubscribe();
  });
  await other.channel('there').ready();
  other.channel('there').next(1);
}
if (how === 'promise') {
  await member
    .channel('x')
    .ready({ timeout: 500 })
    .catch((error) => process.stdout.write(`${error.code}\n`));
}
if (how === 'two') {
  // Two members of one process, one the other's subscriber.
  const other = await millrace.join(undefined, { name: 'other' });
  const channel = member.channel('x');
  let last = 0;
  const subscription = other.channel('x').subscribe((n) => {
    last = n;
    if (n === 1000) {
      process.stdout.write(`last ${last}\n`);
      subscription.unsubscribe();
    }
  });
  await channel.ready();
  for (let n = 1; n <= 1000; n++) channel.next(n);
}
