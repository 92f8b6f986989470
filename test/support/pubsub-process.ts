import { join } from 'node:path';
import { type Place, type Running, root } from './cli-process.js';

const program = join(root, 'test', 'integration', 'programs', 'pubsub-member.mjs');

export interface Heard {
  readonly count: number;
  readonly first: number;
  readonly last: number;
  readonly missing: number;
  readonly disorder: number;
  readonly broken: number;
  readonly reasons: Readonly<Record<string, number>>;
  readonly left: string | null;
}

export interface Line {
  readonly type: string;
  // biome-ignore lint/suspicious/noExplicitAny: what the program says
  readonly [field: string]: any;
}

/** A member in a process of its own, told what to do. */
export class PubSub {
  readonly running: Running;
  #read = 0;
  readonly #said: Line[] = [];

  constructor(
    place: Place,
    readonly name: string,
    options: object = {},
  ) {
    this.running = place.node(program, name, JSON.stringify(options));
  }

  /** A member that has joined. */
  static async start(place: Place, name: string, options: object = {}): Promise<PubSub> {
    const one = new PubSub(place, name, options);
    await one.until('up', () => one.of('up').length > 0);
    return one;
  }

  get said(): readonly Line[] {
    const { lines } = this.running;
    for (; this.#read < lines.length; this.#read++) this.#said.push(JSON.parse(lines[this.#read]!) as Line);
    return this.#said;
  }

  of(type: string): Line[] {
    return this.said.filter((line) => line.type === type);
  }

  status(type: string): Line[] {
    return this.of('status').filter((line) => line.event.type === type);
  }

  until(what: string, condition: () => boolean): Promise<void> {
    return this.running.until(`${this.name}: ${what}`, condition);
  }

  tell(what: string, rest: object = {}): void {
    this.running.write(`${JSON.stringify({ do: what, ...rest })}\n`);
  }

  /** Tells it something and waits for its answer. */
  async ask(what: string, rest: object, answer: string): Promise<Line> {
    const before = this.of(answer).length;
    this.tell(what, rest);
    await this.until(
      `${answer} after ${what}`,
      () => this.of(answer).length > before || this.of('error').length > 0,
    );
    const error = this.of('error')[0];
    if (error !== undefined) throw new Error(`${this.name}: ${error.what}: ${error.message}`);
    return this.of(answer)[before]!;
  }

  async heard(): Promise<Readonly<Record<string, Heard>>> {
    return (await this.ask('heard', {}, 'heard')).heard;
  }

  publish(rest: object): Promise<Line> {
    return this.ask('publish', rest, 'published');
  }

  drain(timeout = 60_000): Promise<Line> {
    return this.ask('drain', { timeout }, 'drained');
  }

  async leave(): Promise<void> {
    this.tell('leave');
    await this.running.finish();
  }
}

/** What a subscriber heard that missed nothing. */
export function whole(count: number, first = 1): object {
  return { count, first, last: first + count - 1, missing: 0, disorder: 0, broken: 0, reasons: {} };
}
