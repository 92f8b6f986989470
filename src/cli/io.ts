import type { Readable, Writable } from 'node:stream';
import { createColors } from 'picocolors';
import type { Shown } from './exit.js';

/** What a command reads from and writes to; a test passes its own. */
export interface Streams {
  readonly stdin: Readable;
  readonly stdout: Writable & { readonly isTTY?: boolean };
  readonly stderr: Writable & { readonly isTTY?: boolean };
  readonly env: NodeJS.ProcessEnv;
}

/** Standard output and standard error, with care for slow and for closed readers. */
export class Io {
  /** Fires when nobody reads standard output any more (EPIPE): the command ends, and says nothing. */
  readonly closed: AbortSignal;
  readonly colors: ReturnType<typeof createColors>;
  private readonly errorColors: ReturnType<typeof createColors>;
  private failure: Error | undefined;

  constructor(readonly streams: Streams) {
    const { stdout, stderr, env } = streams;
    const closing = new AbortController();
    this.closed = closing.signal;
    stdout.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE') this.failure ??= error;
      closing.abort();
    });
    // Nobody to tell it to.
    stderr.on('error', () => {});
    const plain = env.NO_COLOR !== undefined && env.NO_COLOR !== '';
    this.colors = createColors(stdout.isTTY === true && !plain);
    this.errorColors = createColors(stderr.isTTY === true && !plain);
  }

  /** Throws what made standard output fail, unless it was only closed. */
  check(): void {
    if (this.failure !== undefined) throw this.failure;
  }

  /** Writes to standard output. Await it: it takes as long as the reader does, so that nothing piles up here. */
  write(data: string | Uint8Array): Promise<void> | undefined {
    if (this.closed.aborted) return undefined;
    const { stdout } = this.streams;
    if (stdout.write(data)) return undefined;
    return new Promise((resolve) => {
      const done = () => {
        stdout.off('drain', done);
        this.closed.removeEventListener('abort', done);
        resolve();
      };
      stdout.on('drain', done);
      this.closed.addEventListener('abort', done);
    });
  }

  /** Writes a line to standard output. */
  line(text: string): Promise<void> | undefined {
    return this.write(`${text}\n`);
  }

  /** A remark, on standard error. */
  note(text: string): void {
    this.streams.stderr.write(`millrace: ${text}\n`);
  }

  /** An error, on standard error: message, code and remedy; as one line of JSON if that is what the caller asked for. */
  error({ message, code, remedy }: Omit<Shown, 'exit'>, json = false): void {
    const { stderr } = this.streams;
    if (json) {
      stderr.write(`${JSON.stringify({ error: { message, code: code ?? null, remedy: remedy ?? null } })}\n`);
      return;
    }
    const { red, dim } = this.errorColors;
    stderr.write(`${red('millrace:')} ${message}${code === undefined ? '' : ` (${code})`}\n`);
    if (remedy !== undefined) stderr.write(`  ${dim(remedy)}\n`);
  }

  /** Resolves when everything is written, or nobody reads it. */
  async flush(): Promise<void> {
    const { stdout, stderr } = this.streams;
    await Promise.all(
      [stdout, stderr].map(
        (stream) =>
          new Promise<void>((resolve) => {
            if (stream.destroyed || stream.writableLength === 0) resolve();
            else {
              stream.once('close', () => resolve());
              stream.write('', () => resolve());
            }
          }),
      ),
    );
  }
}
