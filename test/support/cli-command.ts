import { PassThrough, Writable } from 'node:stream';
import { run } from '../../src/cli/program.js';

/** Takes what a command writes. */
export class Sink extends Writable {
  text = '';
  readonly isTTY: boolean;
  constructor(tty = false) {
    super();
    this.isTTY = tty;
  }
  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    this.text += chunk.toString();
    done();
  }
}

/** Runs a command line in this process. @param words a text is cut at spaces */
export const command = async (
  words: string | readonly string[],
  options: { tty?: boolean; env?: NodeJS.ProcessEnv; stdout?: Writable } = {},
) => {
  const stdout = options.stdout ?? new Sink(options.tty);
  const stderr = new Sink(options.tty);
  const exit = await run(typeof words === 'string' ? words.split(' ').filter((word) => word !== '') : words, {
    stdin: new PassThrough(),
    stdout,
    stderr,
    env: options.env ?? {},
  });
  return { exit, out: stdout instanceof Sink ? stdout.text : '', err: stderr.text };
};
