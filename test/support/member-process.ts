import type { Place, Running } from './cli-process.js';

/** One line of JSON that a program said. */
export interface Line {
  readonly type: string;
  // biome-ignore lint/suspicious/noExplicitAny: what the program says
  readonly [field: string]: any;
}

/** A program that says things as lines of JSON, each with a `type`. */
export class Speaker {
  #read = 0;
  readonly #said: Line[] = [];

  constructor(
    readonly running: Running,
    readonly name: string,
  ) {}

  /** Everything it has said. */
  get said(): readonly Line[] {
    const { lines } = this.running;
    for (; this.#read < lines.length; this.#read++) this.#said.push(JSON.parse(lines[this.#read]!) as Line);
    return this.#said;
  }

  /** What it said of this type. */
  of(type: string): Line[] {
    return this.said.filter((line) => line.type === type);
  }
}

/** A member in a process of its own that is told what to do in lines of JSON, each with a `do`. */
export class MemberProcess extends Speaker {
  constructor(place: Place, program: string, name: string, options: object) {
    super(place.node(program, name, JSON.stringify(options)), name);
  }

  /** Resolves when it has joined. */
  async up(): Promise<this> {
    await this.until('up', () => this.of('up').length > 0);
    return this;
  }

  until(what: string, condition: () => boolean): Promise<void> {
    return this.running.until(`${this.name}: ${what}`, condition);
  }

  tell(what: string, rest: object = {}): void {
    this.running.write(`${JSON.stringify({ do: what, ...rest })}\n`);
  }

  /** Tells it something and waits for its answer. */
  async ask(what: string, answer: string, rest: object = {}): Promise<Line> {
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

  /** Leaves, which must end its process in order. */
  async leave(): Promise<void> {
    this.tell('leave');
    const end = await this.running.finish();
    if (end.code !== 0) throw new Error(`${this.name} left with ${JSON.stringify(end)}\n${this.running.err}`);
  }
}
