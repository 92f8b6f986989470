/**
 * Asks, or answers, over channels that are new for each question.
 *   pubsub-ask.mjs answer          answers every question on the channel that it names, until its input ends
 *   pubsub-ask.mjs ask COUNT WHO   subscribes to a new channel and asks in the same turn, COUNT times, of WHO members;
 *                                  ends when every answer has come, and prints how many
 */
import millrace from '../../../dist/index.js';

const [role, count, who] = process.argv.slice(2);
const member = await millrace.join(undefined, { name: role });
const ask = member.channel('ask');

if (role === 'answer') {
  ask.subscribe((name) => member.channel(name, { codec: 'json' }).next(process.pid));
  process.stdout.write('up\n');
  process.stdin.on('end', () => member.leave()).resume();
} else {
  await ask.ready({ subscribers: Number(who) });
  let answers = 0;
  for (let i = 0; i < Number(count); i++) {
    const name = `reply.${i}`;
    await new Promise((resolve) => {
      let here = 0;
      const subscription = member.channel(name, { codec: 'json' }).subscribe(() => {
        answers++;
        if (++here < Number(who)) return;
        subscription.unsubscribe();
        resolve();
      });
      ask.next(name);
    });
    member.channel(name).close();
  }
  process.stdout.write(`${answers}\n`);
  await member.leave();
}
