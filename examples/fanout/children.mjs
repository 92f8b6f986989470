/** The demo's processes: started, asked, and ended with it. */
import { fork } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
/** They leave by themselves; what has not after so long, in ms, is killed. */
const PATIENCE_MS = 10_000;

export class Children {
  /** @type {{ child: import('node:child_process').ChildProcess, ended: Promise<unknown> }[]} */
  #all = [];
  #onEarlyEnd;
  /** From now on an end is no surprise. */
  ending = false;

  /** @param {(what: string, code: number | null) => void} onEarlyEnd one of them ended although it should not */
  constructor(onEarlyEnd) {
    this.#onEarlyEnd = onEarlyEnd;
  }

  /**
   * Starts one of the example's programs.
   * @param {string} name for people
   * @param {string} program
   * @param {string[]} args
   * @param {string[]} prefix a command that runs it, such as in a namespace
   */
  start(name, program, args, prefix = []) {
    const [execPath, ...execArgv] = [...prefix, process.execPath];
    const child = fork(join(here, program), args, {
      ...{ execPath, execArgv },
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    const ended = new Promise((resolve) => {
      child.on('error', () => resolve(undefined));
      child.on('exit', resolve);
    });
    this.#all.push({ child, ended });
    child.on('error', (error) => this.#onEarlyEnd(`${name}: ${error.message}`, 1));
    child.on('exit', (code, signal) => {
      // As a shell has it: not all have come to handle Ctrl-C yet.
      const end = signal === 'SIGINT' ? 130 : code;
      if (!this.ending && end !== 0)
        this.#onEarlyEnd(`${name} ended (${signal ?? `exit code ${code}`})`, end);
    });
    return child;
  }

  /** Asks all to leave, and ends by force those that don't. */
  async stop() {
    this.ending = true;
    for (const { child } of this.#all) child.kill('SIGTERM');
    const force = setTimeout(() => {
      for (const { child } of this.#all) child.kill('SIGKILL');
    }, PATIENCE_MS);
    await Promise.all(this.#all.map(({ ended }) => ended));
    clearTimeout(force);
  }
}

/**
 * The next message of a type; never comes when the child ends without it.
 * @param {import('node:child_process').ChildProcess} child
 * @param {string} type
 * @param {(message: any) => boolean} [wanted]
 * @returns {Promise<any>}
 */
export const heard = (child, type, wanted = () => true) =>
  new Promise((resolve) => {
    /** @param {any} message */
    const listen = (message) => {
      if (message.type !== type || !wanted(message)) return;
      child.off('message', listen);
      resolve(message);
    };
    child.on('message', listen);
  });
