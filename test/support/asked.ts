import type { ChildProcess } from 'node:child_process';

interface Answer {
  readonly id: number;
  readonly result?: unknown;
  readonly error?: { readonly message: string; readonly code?: string };
}

/** A program that answers requests over IPC: `{ id, what, argument }` with `{ id, result }` or `{ id, error }`. */
export class Asked {
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, (answer: Answer) => void>();
  #next = 1;

  private constructor(child: ChildProcess) {
    this.#child = child;
    child.on('message', (answer: Answer) => {
      this.#waiting.get(answer.id)?.(answer);
      this.#waiting.delete(answer.id);
    });
    child.on('exit', (code, signal) => {
      const error = { message: `the program ended (${code ?? signal})` };
      for (const answer of this.#waiting.values()) answer({ id: -1, error });
    });
  }

  /** Waits for its first words. */
  static async start(child: ChildProcess): Promise<Asked> {
    const asked = new Asked(child);
    await asked.#answer(0);
    return asked;
  }

  async ask<T = unknown>(what: string, argument?: unknown): Promise<T> {
    const id = this.#next++;
    const answer = this.#answer(id);
    this.#child.send({ id, what, argument });
    return (await answer) as T;
  }

  async #answer(id: number): Promise<unknown> {
    const { result, error } = await new Promise<Answer>((resolve) => this.#waiting.set(id, resolve));
    if (error !== undefined) throw Object.assign(new Error(error.message), { code: error.code });
    return result;
  }
}
