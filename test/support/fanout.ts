/** The fan-out example's service and subscribers on the loopback interface, in a place of their own. */
import type { ChildProcess } from 'node:child_process';
import { renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { State } from '../../examples/fanout/board.mjs';
import { Children, heard } from '../../examples/fanout/children.mjs';
import { rulesText } from '../../examples/fanout/feeds.mjs';
import { Place } from './cli-process.js';

export type { State };

export class Fanout {
  readonly #folder = process.env.MILLRACE_SHM_DIR;
  readonly place = new Place();
  readonly rules = join(this.place.folder, 'rules.yaml');
  /** Third byte of its groups, so that nobody else on this host is heard. */
  readonly #net = process.pid % 256;
  readonly #early: string[] = [];
  readonly #children = new Children((what) => this.#early.push(what));
  #service: ChildProcess | undefined;

  constructor() {
    process.env.MILLRACE_SHM_DIR = this.place.folder;
    this.edit(this.rulesText);
  }

  get rulesText(): string {
    return rulesText(this.#net, 'lo');
  }

  /** Puts a file with this in the place of the rules file: one that is being written may be read, and told of as a bad edit. */
  edit(text: string): void {
    writeFileSync(`${this.rules}.new`, text);
    renameSync(`${this.rules}.new`, this.rules);
  }

  /** Starts the service. @returns the page's address */
  async service(port = 0): Promise<string> {
    const args = ['--rules', this.rules, '--domain', 'fanout', '--http', `${port}`];
    this.#service = this.#children.start('service', 'service.mjs', args);
    return (await heard(this.#service, 'open')).url;
  }

  subscriber(name: string, ...args: string[]): ChildProcess {
    return this.#children.start(name, 'subscriber.mjs', [...args, '--name', name, '--domain', 'fanout']);
  }

  /** Starts the sender; it begins when it is sent a message, and stops with the next one. */
  async sender(rate: number): Promise<ChildProcess> {
    const sender = this.#children.start('sender', 'sender.mjs', [
      '--rate',
      `${rate}`,
      '--net',
      `${this.#net}`,
    ]);
    await heard(sender, 'up');
    return sender;
  }

  /** The service's next state that is as wished; the test's own time limit ends it. */
  async state(wanted: (state: State) => boolean): Promise<State> {
    return (await heard(this.#service!, 'state', ({ state }) => wanted(state))).state;
  }

  /** Ends the service at once, as a crash does. */
  async kill(): Promise<void> {
    this.#children.ending = true;
    const ended = new Promise((resolve) => this.#service!.once('exit', resolve));
    this.#service!.kill('SIGKILL');
    await ended;
  }

  /** Ends everything. @returns those that had ended before */
  async end(): Promise<readonly string[]> {
    await this.#children.stop();
    if (this.#folder === undefined) delete process.env.MILLRACE_SHM_DIR;
    else process.env.MILLRACE_SHM_DIR = this.#folder;
    await this.place.dispose();
    return this.#early;
  }
}
