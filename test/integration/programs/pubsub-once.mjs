/** Publishes and ends without a word: no drain, no leave. `pubsub-once.mjs COUNT [SUBSCRIBERS]` */
import millrace from '../../../dist/index.js';

const [count, subscribers = 1] = process.argv.slice(2).map(Number);
const member = await millrace.join(undefined, { name: 'once' });
const channel = member.channel('x', { codec: 'json', maxQueueBytes: 2 ** 30 });
if (subscribers > 0) await channel.ready({ subscribers });
for (let n = 1; n <= count; n++) channel.next({ n, text: '' });
