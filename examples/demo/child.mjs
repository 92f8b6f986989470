/** What an example's processes share: the clock, and how they end. */

/** Milliseconds since the epoch with microseconds behind the point; comparable between processes of one host. */
export const now = () => performance.timeOrigin + performance.now();

/**
 * Reports to the process that started this one; resolves when the message is on its way.
 * @param {object} message
 */
export const tell = (message) =>
  new Promise((resolve) => {
    if (process.send && process.connected) process.send(message, resolve);
    else resolve(null);
  });

/**
 * Calls when the parent dies, also when it has died already, before anybody could listen; never in a process without one.
 * @param {() => void} call
 */
export function onOrphaned(call) {
  if (process.send && !process.connected) call();
  else process.on('disconnect', call);
}

/**
 * Runs `leave` once when this process is asked to end: Ctrl-C, a TERM signal, or the death of its parent. Then exits.
 * @param {() => Promise<void>} leave
 * @returns {(code: number, message?: object) => Promise<void>} ends the process in the same way; the message is told before,
 *   unless it is ending already
 */
export function endCleanly(leave) {
  let ending = false;
  /**
   * @param {number} code
   * @param {object} [message]
   */
  const end = async (code, message) => {
    if (ending) return;
    ending = true;
    if (message) await tell(message);
    // What is under way fails now, which is no news.
    process.on('uncaughtException', () => {});
    await leave().catch(console.error);
    process.exit(code);
  };
  process.on('SIGINT', () => end(130));
  process.on('SIGTERM', () => end(143));
  onOrphaned(() => end(1));
  return end;
}
