/**
 * `npm run demo`, `npm run fanout:demo` and `npm run frames`: print their plan, set up what is missing, then run an example. Dependency-free, so
 * that it works on a fresh clone.
 */
import { spawn } from 'node:child_process';
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

/**
 * Sets up and runs a program, and ends with its exit code.
 * @param {object} example
 * @param {string} example.help printed for --help
 * @param {(args: string[]) => unknown} example.check ends the process when the arguments are wrong
 * @param {string} example.program a path from the project's folder
 * @param {string} example.does what it does, for the plan
 */
export async function runExample({ help, check, program, does }) {
  const argv = process.argv.slice(2);
  if (argv.includes('--help') || argv.includes('-h')) {
    say(help);
    process.exit(0);
  }
  if (argv.includes('--json')) routeTo(process.stderr);
  const yes = argv.includes('--yes') || argv.includes('-y');
  const rest = argv.filter((arg) => arg !== '--yes' && arg !== '-y');
  check(rest);

  const started = Date.now();
  const plan = planSetup({ tools: BUILD_TOOLS, yes });
  say('Plan');
  for (const line of plan.lines) say(`  ${line}`);
  say(`  run        ${program}: ${does}`);
  say();
  say('Set-up');
  const absent = await installPackages(plan);
  if (absent.length > 0) process.exit(1);
  if (!((await installModules()) && (await buildNative()) && (await buildTypeScript()))) process.exit(1);
  say(`  done after ${duration(Date.now() - started)}`);
  say();

  // In this process group and on this terminal, so that Ctrl-C reaches the example, which ends its processes itself.
  const child = spawn(process.execPath, [program, ...rest], { cwd: root, stdio: 'inherit' });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  child.on('exit', (code) => process.exit(code ?? 1));
}
