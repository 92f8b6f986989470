import { constants } from 'node:os';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Turns signals into an abort, so that a command can leave the domain; the second one ends it at once. */
export class Interrupts {
  private readonly controller = new AbortController();
  private name: (typeof SIGNALS)[number] | undefined;
  private readonly handler = (name: NodeJS.Signals) => this.take(name as (typeof SIGNALS)[number]);

  constructor() {
    for (const name of SIGNALS) process.on(name, this.handler);
  }

  /** Fires at the first signal. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** 128 plus the signal's number; undefined when none came. */
  get exit(): number | undefined {
    return this.name === undefined ? undefined : 128 + constants.signals[this.name];
  }

  /** Gives the signals back. */
  release(): void {
    for (const name of SIGNALS) process.off(name, this.handler);
  }

  private take(name: (typeof SIGNALS)[number]): void {
    // process.exit() still runs what removes the member's files.
    if (this.name !== undefined) process.exit(128 + constants.signals[name]);
    this.name = name;
    this.controller.abort();
  }
}
