import { type ChildProcess, spawn } from 'node:child_process';
import { constants } from 'node:os';
import { dropinFolder } from '../native/dropin.js';
import type { Context } from './context.js';
import { Outcome } from './exit.js';

/** Options of `millrace verbs`. */
export interface VerbsOptions {
  readonly link?: 'infiniband' | 'ethernet';
  readonly devices?: number;
  readonly fabric?: string;
}

/** What shells end with when a program is not there, or is none. */
const NOT_FOUND = 127;
const NOT_EXECUTABLE = 126;

/** What another process may send to end the program, or to tell it something. */
const PASSED_ON = ['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP', 'SIGUSR2', 'SIGCONT', 'SIGWINCH'] as const;
/** What a terminal sends to all processes in its foreground, so to the program as well. */
const FROM_TERMINAL = new Set<string>(['SIGINT', 'SIGQUIT', 'SIGHUP', 'SIGWINCH']);

/**
 * `millrace verbs`: runs a program of libibverbs on the software device. It keeps standard input, output and error, gets
 * the signals that this process gets, and its end is this process's end: the exit code, or the signal.
 * @returns the program's exit code; 126 and 127 as shells have it
 */
export async function verbs(
  name: string,
  words: readonly string[],
  options: VerbsOptions,
  { io, interrupted, releaseSignals }: Context,
): Promise<number> {
  const { env } = io.streams;
  if (interrupted.aborted) return 0; // by a signal, which decides the exit code
  const child = spawn(name, words, {
    stdio: 'inherit',
    env: environment(env, dropinFolder(), options),
  });
  // In this order: where nobody listened for a moment, Node.js would throw away a signal that has come meanwhile.
  const stop = passOn(child);
  releaseSignals();
  const end = await new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve, reject) => {
    child.once('error', (error: NodeJS.ErrnoException) => reject(explain(name, error)));
    child.once('exit', (code, signal) => resolve({ code, signal }));
  }).finally(stop);
  if (end.signal === null) return end.code ?? 0;
  // The same end for whoever waits for this process. Some signals don't end Node.js: then the number has to do.
  process.kill(process.pid, end.signal);
  return 128 + constants.signals[end.signal];
}

/** The program's environment. Exported for its test. */
export function environment(
  env: NodeJS.ProcessEnv,
  folder: string,
  { link, devices, fabric }: VerbsOptions,
): NodeJS.ProcessEnv {
  const path = env.LD_LIBRARY_PATH;
  return {
    ...env,
    LD_LIBRARY_PATH: path ? `${folder}:${path}` : folder,
    ...(link === undefined ? {} : { MILLRACE_SOFT_LINK: link }),
    ...(devices === undefined ? {} : { MILLRACE_SOFT_DEVICES: String(devices) }),
    ...(fabric === undefined ? {} : { MILLRACE_FABRIC: fabric }),
  };
}

/** Sends on what this process is sent. @returns what ends that */
function passOn(child: ChildProcess): () => void {
  const handlers = PASSED_ON.map((signal) => {
    const handler = () => {
      if (process.stdin.isTTY && FROM_TERMINAL.has(signal)) return;
      child.kill(signal);
    };
    process.on(signal, handler);
    return [signal, handler] as const;
  });
  return () => {
    for (const [signal, handler] of handlers) process.off(signal, handler);
  };
}

function explain(name: string, error: NodeJS.ErrnoException): Error {
  switch (error.code) {
    case 'ENOENT':
      return new Outcome(NOT_FOUND, `There is no program "${name}" (not a file, not on the PATH).`);
    case 'EACCES':
      return new Outcome(NOT_EXECUTABLE, `"${name}" may not be executed (EACCES).`);
    default:
      return error;
  }
}
