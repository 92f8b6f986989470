import type { Io } from './io.js';

/** What every command is given. */
export interface Context {
  readonly io: Io;
  /** Fires at the first SIGINT, SIGTERM or SIGHUP. */
  readonly interrupted: AbortSignal;
  /** Gives SIGINT, SIGTERM and SIGHUP back to the command, whose exit code they then don't decide. */
  readonly releaseSignals: () => void;
}

/** An abort for several reasons: it fires when one of the signals does. */
export function anyOf(...signals: readonly AbortSignal[]): AbortController {
  const controller = new AbortController();
  for (const signal of signals) {
    if (signal.aborted) controller.abort(signal.reason);
    else signal.addEventListener('abort', () => controller.abort(signal.reason), { once: true });
  }
  return controller;
}
