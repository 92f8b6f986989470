/** What a measurement ran on. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { cpus, loadavg, release, totalmem } from 'node:os';
import { join } from 'node:path';

const here = import.meta.dirname;
const root = join(here, '..');

function version(...file) {
  try {
    return JSON.parse(readFileSync(join(...file, 'package.json'), 'utf8')).version;
  } catch {
    return null;
  }
}

/** The first line that a program prints; null where there is none. */
export function firstLine(command, args) {
  try {
    const options = { encoding: 'utf8', cwd: root, stdio: ['ignore', 'pipe', 'ignore'] };
    return execFileSync(command, args, options).trim().split('\n')[0];
  } catch {
    return null;
  }
}

/** The machine and the versions of what is measured, for the page of results. */
export function machine() {
  const system = existsSync('/etc/os-release')
    ? /PRETTY_NAME="?([^"\n]*)/.exec(readFileSync('/etc/os-release', 'utf8'))?.[1]
    : null;
  return {
    cpu: cpus()[0]?.model ?? null,
    processors: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    system,
    node: process.version,
    v8: process.versions.v8,
    versions: {
      millrace: version(root),
      commit: firstLine('git', ['rev-parse', '--short', 'HEAD']),
      zeromq: version(here, 'node_modules', 'zeromq'),
      nats: version(here, 'node_modules', '@nats-io', 'transport-node'),
      natsServer: firstLine('nats-server', ['--version']),
      ucx: firstLine('ucx_info', ['-v']),
      msgpackr: version(root, 'node_modules', 'msgpackr'),
    },
  };
}

/** The same in a line. */
export function machineLine() {
  const { cpu, processors, memoryGiB, kernel, node } = machine();
  const load = loadavg()[0].toFixed(1);
  return `${cpu}, ${processors} CPUs, ${memoryGiB} GiB, Linux ${kernel}, Node.js ${node}; load average ${load}`;
}

/** How many CPUs' time somebody took in a moment in which we do nothing. */
export async function otherLoad() {
  const sum = () =>
    cpus().reduce(
      ({ idle, total }, { times }) => ({
        idle: idle + times.idle,
        total: total + times.user + times.nice + times.sys + times.irq + times.idle,
      }),
      { idle: 0, total: 0 },
    );
  const before = sum();
  await new Promise((resolve) => setTimeout(resolve, 100));
  const after = sum();
  const total = after.total - before.total;
  return total === 0 ? 0 : (1 - (after.idle - before.idle) / total) * cpus().length;
}
