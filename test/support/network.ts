/** Network namespaces joined by a switch, made by a test and removed by it; root only. */
import { type ChildProcess, execFileSync, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';

/** Whether namespaces can be made here. With CI=true they must be. */
export const canMakeNetworks = (() => {
  const name = `mr${process.pid}try`;
  try {
    execFileSync('ip', ['netns', 'add', name], { stdio: 'pipe' });
    execFileSync('ip', ['netns', 'del', name], { stdio: 'pipe' });
    return true;
  } catch (error) {
    if (process.env.CI === 'true') throw error;
    return false;
  }
})();

/** Another user, without capabilities. */
export const NOBODY = [
  'setpriv',
  '--reuid',
  '65534',
  '--clear-groups',
  '--bounding-set',
  '-all',
  '--inh-caps',
  '-all',
];

let made = 0;

/** Hosts on one switch. Host k has `eth0` with 10.9.0.k and fd09::k, k from 1. */
export class Network {
  readonly #prefix = `mr${process.pid}n${++made}`;
  readonly #names: string[] = [];
  readonly #children: ChildProcess[] = [];

  constructor(hosts: number) {
    const bridge = this.#add('s');
    this.run(bridge, 'ip', 'link', 'add', 'br0', 'type', 'bridge', 'mcast_snooping', '0');
    this.run(bridge, 'ip', 'link', 'set', 'br0', 'up');
    for (let k = 1; k <= hosts; k++) {
      this.run(this.#add(`h${k}`), 'ip', 'link', 'set', 'lo', 'up');
      this.connect(k);
    }
  }

  /** Joins host k to the switch: at the start, and again after its `eth0` was deleted. */
  connect(k: number): void {
    const [host, bridge] = [this.host(k), this.host(0)];
    const link = ['ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', `p${k}`, 'netns', bridge];
    this.run(host, ...(link as [string, ...string[]]));
    this.run(bridge, 'ip', 'link', 'set', `p${k}`, 'master', 'br0', 'up');
    this.run(host, 'ip', 'link', 'set', 'eth0', 'up');
    this.run(host, 'ip', 'address', 'add', `10.9.0.${k}/24`, 'dev', 'eth0');
    // Without waiting for somebody who has the address already.
    this.run(host, 'ip', 'address', 'add', `fd09::${k}/64`, 'dev', 'eth0', 'nodad');
    this.run(host, 'ip', 'route', 'add', '224.0.0.0/4', 'dev', 'eth0');
  }

  /** Name of host k's namespace; 0 is the switch. */
  host(k: number): string {
    return this.#prefix + (k === 0 ? 's' : `h${k}`);
  }

  /** Runs a program in a namespace, to its end. */
  run(namespace: string, program: string, ...args: string[]): string {
    return execFileSync('ip', ['netns', 'exec', namespace, program, ...args], {
      encoding: 'utf8',
      stdio: 'pipe',
    });
  }

  /** Starts a program in a namespace. It is ended with the network. */
  start(namespace: string, program: string, ...args: string[]): ChildProcess {
    const child = spawn('ip', ['netns', 'exec', namespace, program, ...args], { stdio: 'pipe' });
    this.#children.push(child);
    return child;
  }

  /** Starts a Node program with IPC and a fabric of its own; `as` is a command that starts it, such as another user's. */
  node(namespace: string, program: string, as: readonly string[] = []): ChildProcess {
    const { MILLRACE_SHM_DIR: _, ...env } = process.env;
    const child = fork(join('test', 'integration', 'programs', program), [], {
      execPath: 'ip',
      execArgv: ['netns', 'exec', namespace, ...as, process.execPath],
      env,
    });
    this.#children.push(child);
    return child;
  }

  /** Sends frames as they are to host k, from its port of the switch: a switch may look into what it forwards. */
  async sendFrames(k: number, frames: readonly Uint8Array[]): Promise<void> {
    const out = this.start(this.host(0), 'python3', join('test', 'support', 'frames-out.py'), `p${k}`);
    const ended = once(out, 'close');
    out.stdin!.end(frames.map((one) => `${Buffer.from(one).toString('hex')}\n`).join(''));
    const [code, signal] = await ended;
    if (code !== 0) throw new Error(`frames-out.py ended with ${code ?? signal}`);
  }

  async remove(): Promise<void> {
    for (const child of this.#children) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    }
    for (const name of this.#names) execFileSync('ip', ['netns', 'del', name], { stdio: 'pipe' });
  }

  #add(name: string): string {
    const full = this.#prefix + name;
    execFileSync('ip', ['netns', 'add', full], { stdio: 'pipe' });
    this.#names.push(full);
    return full;
  }
}
