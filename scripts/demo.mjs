/**
 * `npm run demo`: prints its plan, sets up what is missing, then runs examples/demo/ (four real processes).
 * Dependency-free, so that it works on a fresh clone.
 */
import { spawn } from 'node:child_process';
import { demoOptions } from '../examples/demo/options.mjs';
import {
  BUILD_TOOLS,
  buildNative,
  buildTypeScript,
  duration,
  installModules,
  installPackages,
  planSetup,
  root,
  routeTo,
  say,
} from './setup.mjs';

const HELP = `Usage: npm run demo -- [--file FILE] [--seconds N] [--json] [--yes]

One process publishes this host's readings (CPU, memory, network, ten times a second) and the lines of a file; three
others subscribe, one of them by pattern. Ends by itself with a table of what each got and how long it was under way.
  --file FILE   whose lines are published (default: a licence text that Debian installs)
  --seconds N   how long, 1 to 3600 (default 5)
  --json        print the result as JSON, and the set-up on standard error
  --yes         install missing Debian packages with sudo (root does so without being asked)
Environment: MILLRACE_NO_APT=1 never runs apt-get, and prints the line to run instead.
Exit code: 0 if nothing was lost or out of order, 1 otherwise, 2 for a wrong argument.`;

const argv = process.argv.slice(2);
if (argv.includes('--help') || argv.includes('-h')) {
  say(HELP);
  process.exit(0);
}
if (argv.includes('--json')) routeTo(process.stderr);
const yes = argv.includes('--yes') || argv.includes('-y');
const rest = argv.filter((arg) => arg !== '--yes' && arg !== '-y');

demoOptions(rest);

const started = Date.now();
const plan = planSetup({ tools: BUILD_TOOLS, yes });
say('Plan');
for (const line of plan.lines) say(`  ${line}`);
say('  run        examples/demo/run.mjs: one publisher, three subscribers');
say();
say('Set-up');
const absent = await installPackages(plan);
if (absent.length > 0) process.exit(1);
if (!((await installModules()) && (await buildNative()) && (await buildTypeScript()))) process.exit(1);
say(`  done after ${duration(Date.now() - started)}`);
say();

// In this process group and on this terminal, so that Ctrl-C reaches the demo, which ends its processes itself.
const child = spawn(process.execPath, ['examples/demo/run.mjs', ...rest], { cwd: root, stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
child.on('exit', (code) => process.exit(code ?? 1));
