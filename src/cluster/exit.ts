/**
 * What is to be done when the environment ends without a `leave()`: one listener on the process (or the worker) for all
 * members, so that many members do not look like a leak of listeners.
 */
const actions = new Set<() => void>();

function run(): void {
  for (const action of [...actions]) action();
}

/**
 * Runs `action` at `process.exit()`, at the natural end and after an uncaught exception; not after a signal.
 * @returns a function that takes it back
 */
export function atExit(action: () => void): () => void {
  if (actions.size === 0) process.on('exit', run);
  actions.add(action);
  return () => {
    actions.delete(action);
    if (actions.size === 0) process.off('exit', run);
  };
}
