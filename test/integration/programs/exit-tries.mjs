/** Joins, says in a line of JSON what became of it, shows that the process goes on, and leaves. */
import millrace from '../../../dist/index.js';

let member = null;
const result = { joined: false };
try {
  member = await millrace.join(undefined, { name: 'tries' });
  result.joined = true;
} catch (error) {
  Object.assign(result, { code: error.code, scope: error.scope, message: error.message });
}
// Alive: the loop turns, and trying again ends the same way.
await new Promise((resolve) => setImmediate(resolve));
if (member === null)
  await millrace
    .join(undefined, { name: 'again' })
    .catch((error) => Object.assign(result, { alive: error.code === result.code }));
await member?.leave();
process.stdout.write(`${JSON.stringify(result)}\n`);
