/** How an example starts its processes, and that all of them end: when they are done, at Ctrl-C, and when one of them fails. */
import { fork } from 'node:child_process';
import { constants } from 'node:os';

/** @typedef {{ name: string, child: import('node:child_process').ChildProcess, ended: Promise<{ name: string, code: number | null, signal: string | null }> }} Started */

/** The processes that this one has started. One object to a process: it takes its signals. */
export class Children {
  /** @type {Started[]} */
  #started = [];
  #expected = false;
  #finishing = false;
  #title;
  /** @type {() => void} */
  #leave;

  /**
   * @param {string} title begins what is printed of a failure
   * @param {() => void} [leave] runs last, when they are ended early
   */
  constructor(title, leave = () => {}) {
    this.#title = title;
    this.#leave = leave;
    for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) {
      process.on(signal, () => this.finish(128 + constants.signals[signal]));
    }
  }

  /**
   * Starts one process; it leaves by itself when this one is gone (its IPC channel closes, see child.mjs).
   * @param {string} name
   * @param {URL} script
   * @param {string[]} args
   * @param {(message: any) => void} onMessage
   * @returns {import('node:child_process').ChildProcess}
   */
  start(name, script, args, onMessage) {
    const child = fork(script, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    // What it has sent may still be under way when it has ended.
    const heard = new Promise((resolve) => child.on('disconnect', resolve));
    /** @type {Started['ended']} */
    const ended = new Promise((resolve) =>
      child.on('exit', (code, signal) => heard.then(() => resolve({ name, code, signal }))),
    );
    child.on('message', onMessage);
    this.#started.push({ name, child, ended });
    ended.then(({ code, signal }) => {
      // 130: Ctrl-C reached the whole group, and the child was quicker.
      if (this.#expected) return;
      if (code === 130) this.finish(130);
      else if (code !== 0) this.finish(1, `${name} ended early (${signal ?? `exit code ${code}`})`);
    });
    return child;
  }

  /**
   * From here on they may end as they like. Resolves when all have, unless this process is being ended, too.
   * @returns {Promise<void>}
   */
  async ended() {
    this.#expected = true;
    await this.#all();
    if (this.#finishing) await new Promise(() => {});
  }

  /**
   * Ends this process when they are not done after so many seconds.
   * @param {number} seconds
   */
  limit(seconds) {
    setTimeout(() => this.finish(1, 'not done in time'), seconds * 1000).unref();
  }

  /**
   * Asks every process to leave, ends by force what has not left after three seconds, and ends this one. Once.
   * @param {number} code
   * @param {string} [why]
   */
  async finish(code, why) {
    if (this.#finishing) return;
    this.#finishing = true;
    if (why) console.error(`${this.#title}: ${why}`);
    for (const { child } of this.#started) child.kill('SIGTERM');
    const force = setTimeout(() => {
      for (const { child } of this.#started) child.kill('SIGKILL');
    }, 10_000);
    await this.#all();
    clearTimeout(force);
    this.#leave();
    process.exit(code);
  }

  #all() {
    return Promise.all(this.#started.map(({ ended }) => ended));
  }
}
