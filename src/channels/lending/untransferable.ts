import * as threads from 'node:worker_threads';

const { markAsUntransferable } = threads as Partial<typeof threads>;

/**
 * Memory that is given back by detaching it must not be moved to another ArrayBuffer, or thread, meanwhile. Hosts that only look
 * like Node.js may lack the call; then what was moved stays held until it is collected.
 */
export function untransferable(buffer: ArrayBuffer): ArrayBuffer {
  markAsUntransferable?.(buffer);
  return buffer;
}
