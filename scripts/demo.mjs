/** `npm run demo`: prints its plan, sets up what is missing, then runs examples/demo/ (four real processes). */
import { demoOptions } from '../examples/demo/options.mjs';
import { runExample } from './example.mjs';

const HELP = `Usage: npm run demo -- [--file FILE] [--seconds N] [--json] [--yes]

One process publishes this host's readings (CPU, memory, network, ten times a second) and the lines of a file; three
others subscribe, one of them by pattern. Ends by itself with a table of what each got and how long it was under way.
  --file FILE   whose lines are published (default: a licence text that Debian installs)
  --seconds N   how long, 1 to 3600 (default 5)
  --json        print the result as JSON, and the set-up on standard error
  --yes         install missing Debian packages with sudo (root does so without being asked)
Environment: MILLRACE_NO_APT=1 never runs apt-get, and prints the line to run instead.
Exit code: 0 if nothing was lost or out of order, 1 otherwise, 2 for a wrong argument.`;

await runExample({
  help: HELP,
  check: demoOptions,
  program: 'examples/demo/run.mjs',
  does: 'one publisher, three subscribers',
});
