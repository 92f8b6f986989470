/** What is done with a member when the event loop has nothing left to do. */
export interface Leaver {
  /** Bounded by its own time-out; never rejects. */
  drain(): Promise<unknown>;
  leave(): Promise<void>;
}

const members = new Set<Leaver>();
let listening = false;

/**
 * When nothing holds the event loop any more, each member drains what is unsent (bounded by drain's time-out) and leaves, so
 * that a script that publishes and ends loses nothing. Leaving keeps the loop alive until it is done.
 */
function onBeforeExit(): void {
  const all = [...members];
  // First all of them drain: one may be the other's subscriber.
  void Promise.all(all.map((member) => member.drain())).then(() => all.map((member) => member.leave()));
}

/** Registers a member for the end of the process, or of the worker. @returns how to take it off */
export function leaveBeforeExit(member: Leaver): () => void {
  members.add(member);
  if (!listening) {
    listening = true;
    process.on('beforeExit', onBeforeExit);
  }
  return () => {
    members.delete(member);
    if (members.size > 0 || !listening) return;
    listening = false;
    process.off('beforeExit', onBeforeExit);
  };
}
