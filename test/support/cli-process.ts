import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join, resolve } from 'node:path';
import { DEADLINE_MS, Waiters } from './waiters.js';

export const root = resolve(__dirname, '..', '..');
const main = join(root, 'dist', 'cli', 'main.js');

/** What a process ended with. */
export interface End {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** A process whose output is waited on: each piece of it looks whether a waiter is content. */
export class Running {
  out = '';
  err = '';
  readonly ended: Promise<End>;
  end: End | undefined;
  private readonly waiters = new Waiters();

  constructor(readonly process: ChildProcess) {
    process.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.out += text;
      this.waiters.look();
    });
    process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.err += text;
      this.waiters.look();
    });
    process.stdin?.on('error', () => {});
    this.ended = new Promise((done) => {
      process.on('close', (code, signal) => {
        this.end = { code, signal };
        done(this.end);
        this.waiters.look();
      });
    });
  }

  get pid(): number {
    return this.process.pid!;
  }

  /** Lines of standard output, without a last one that is unfinished. */
  get lines(): string[] {
    return this.out.split('\n').slice(0, -1);
  }

  kill(signal: NodeJS.Signals): void {
    this.process.kill(signal);
  }

  write(text: string): void {
    this.process.stdin!.write(text);
  }

  /** Resolves once the condition holds; rejects at the deadline, or when the process has ended without it. */
  until(what: string, condition: () => boolean): Promise<void> {
    return this.waiters.until(
      what,
      condition,
      () => this.tail(),
      () => (this.end === undefined ? undefined : `ended (${JSON.stringify(this.end)}) without`),
    );
  }

  /** Resolves with the end; rejects at the deadline. */
  async finish(): Promise<End> {
    await this.until('the end', () => this.end !== undefined);
    return this.end!;
  }

  private tail(): string {
    return `stdout: …${this.out.slice(-1500)}\nstderr: …${this.err.slice(-1500)}`;
  }
}

/** A place of its own in shared memory, and the processes that use it. */
export class Place {
  readonly folder: string;
  readonly env: NodeJS.ProcessEnv;
  /** What Node is run by: a command that runs the rest of its line, and its options. */
  runner: readonly string[] = [];
  private readonly started: Running[] = [];

  constructor(base = process.env.MILLRACE_SHM_DIR || '/dev/shm') {
    this.folder = fs.mkdtempSync(join(base, 'cli-'));
    this.env = {
      ...process.env,
      MILLRACE_SHM_DIR: this.folder,
      MILLRACE_FABRIC: 'test',
      MILLRACE_DOMAIN: 'test',
      NO_COLOR: '1',
    };
  }

  /** Everything that is in it, as paths below it. */
  get content(): string[] {
    return fs.readdirSync(this.folder, { recursive: true }) as string[];
  }

  /** Runs `millrace` with these words. */
  millrace(...words: string[]): Running {
    return this.node(main, ...words);
  }

  /** Runs a program with Node. */
  node(file: string, ...words: string[]): Running {
    const [command, ...rest] = [...this.runner, process.execPath, file, ...words];
    return this.run(command!, rest);
  }

  /** Runs a command line of the shell, in which `millrace` is ours. */
  shell(line: string): Running {
    return this.run('bash', [
      '-c',
      `millrace() { ${JSON.stringify(process.execPath)} ${JSON.stringify(main)} "$@"; }; ${line}`,
    ]);
  }

  /** Runs `millrace ls --json` until what it shows is as wanted. @param words more of its options */
  async until(
    what: string,
    condition: (members: Seen[]) => boolean,
    ...words: readonly string[]
  ): Promise<Seen[]> {
    const end = Date.now() + DEADLINE_MS;
    for (;;) {
      const ls = this.millrace('ls', '--json', '--timeout', '5s', ...words);
      await ls.finish();
      const { domains } = JSON.parse(ls.out) as { domains: { members: Seen[] }[] };
      const members = domains.flatMap((domain) => domain.members);
      if (condition(members)) return members;
      if (Date.now() > end) throw new Error(`did not happen: ${what}\n${ls.out}\n${ls.err}`);
    }
  }

  /** Ends what still runs, and removes the folder. */
  async dispose(): Promise<void> {
    for (const { end, process: child } of this.started) {
      if (end !== undefined) continue;
      child.kill('SIGCONT');
      child.kill('SIGKILL');
    }
    await Promise.all(this.started.map((one) => one.ended));
    fs.rmSync(this.folder, { recursive: true, force: true });
  }

  private run(command: string, words: string[]): Running {
    const one = new Running(spawn(command, words, { env: this.env, cwd: root, stdio: 'pipe' }));
    this.started.push(one);
    return one;
  }
}

/** A member as `millrace ls --json` shows it. */
export interface Seen {
  readonly name: string;
  readonly pid: number;
  readonly incarnation: number;
  readonly answer: string;
  readonly report: {
    readonly peers: readonly unknown[];
    readonly channels: readonly {
      readonly name: string;
      readonly codec: string;
      readonly listeners: number;
      readonly publishing: null | {
        readonly subscribers: readonly { readonly peer: { readonly name: string } }[];
      };
    }[];
    readonly patterns: readonly { readonly pattern: string; readonly listeners: number }[];
  } | null;
}
