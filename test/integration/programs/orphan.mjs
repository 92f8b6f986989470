/** Comes to listen for the death of its parent only after that. */
import { once } from 'node:events';

if (process.connected) await once(process, 'disconnect');
const { endCleanly } = await import('../../../examples/demo/child.mjs');
setInterval(() => {}, 60_000);
endCleanly(async () => {
  process.stdout.write('left\n');
});
