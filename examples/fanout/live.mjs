/**
 * Snapshots for browsers. Each gets the newest one when it has room for it: a browser that is slower than they come misses
 * some, which is counted, and holds no more of this process's memory than its bound and one snapshot.
 */

/** Bytes on the way to one browser, beyond which it gets no more. */
const BOUND = 256 * 1024;
/** A browser that has had no room for so long, in ms, is let go; the page connects again by itself. */
const PATIENCE_MS = 30_000;

/**
 * What this needs of a WebSocket (that of the package ws).
 * @typedef {object} Socket
 * @property {number} bufferedAmount
 * @property {(text: string) => void} send
 * @property {() => void} terminate
 * @property {(event: 'close' | 'error', listener: () => void) => unknown} on
 */

export class Live {
  /** @type {Map<Socket, { fullSince: number | null }>} */
  #sockets = new Map();
  #bound;
  #now;
  #skipped = 0;
  #ended = 0;
  #newest = '';

  /** @param {{ bound?: number, now?: () => number }} options bytes, and a clock in ms */
  constructor({ bound = BOUND, now = () => performance.now() } = {}) {
    this.#bound = bound;
    this.#now = now;
  }

  /** Browsers that are here, snapshots that they missed since they had no room, and browsers that were let go for it. */
  get counts() {
    return { connected: this.#sockets.size, skipped: this.#skipped, ended: this.#ended };
  }

  /**
   * A browser has come. It gets the newest snapshot at once.
   * @param {Socket} socket that is open
   */
  add(socket) {
    this.#sockets.set(socket, { fullSince: null });
    socket.on('close', () => this.#sockets.delete(socket));
    // It is closed right after.
    socket.on('error', () => {});
    if (this.#newest !== '') socket.send(this.#newest);
  }

  /** @param {object} snapshot as JSON has it */
  push(snapshot) {
    this.#newest = JSON.stringify(snapshot);
    for (const [socket, state] of this.#sockets) this.#give(socket, state);
  }

  /** Lets all of them go. */
  close() {
    for (const socket of this.#sockets.keys()) socket.terminate();
    this.#sockets.clear();
  }

  /**
   * @param {Socket} socket
   * @param {{ fullSince: number | null }} state
   */
  #give(socket, state) {
    if (socket.bufferedAmount < this.#bound) {
      state.fullSince = null;
      socket.send(this.#newest);
      return;
    }
    this.#skipped++;
    const now = this.#now();
    state.fullSince ??= now;
    if (now - state.fullSince < PATIENCE_MS) return;
    this.#ended++;
    this.#sockets.delete(socket);
    socket.terminate();
  }
}
