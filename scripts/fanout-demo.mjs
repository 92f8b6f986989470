/** `npm run fanout:demo`: prints its plan, sets up what is missing, then runs the fan-out example. */
import { demoOptions, HELP } from '../examples/fanout/demo-options.mjs';
import { runExample } from './example.mjs';

await runExample({
  help: HELP,
  check: demoOptions,
  program: 'examples/fanout/demo.mjs',
  does: 'multicast senders, the service with its page, four subscribers',
});
