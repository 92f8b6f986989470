/**
 * A member on the bare addon, for tests of the addon alone: no cluster, no channels. What one endpoint makes for another
 * (its card, its tunnel messages) is carried by the test. Plain JavaScript, so that child processes and workers can use
 * it without a build.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

/** @typedef {import('../../src/native/binding.js').Native} Native */
/** @typedef {import('../../src/native/open-options.js').OpenOptions} OpenOptions */
/** @typedef {{ peer: number, incarnation: number, offer: string }} Card */

const root = new URL('../../', import.meta.url).pathname;
const paths = ['build/Release/millrace.node', 'prebuilds/linux-x64-glibc/millrace.node'];

/** The addon's file: what was built last, or the build to be tested (one with a sanitizer, say). */
export const addonPath =
  process.env.MILLRACE_TEST_ADDON ??
  paths.map((path) => join(root, path)).find(existsSync) ??
  join(root, paths[0]);

/** @type {Native} */
export const native = createRequire(import.meta.url)(addonPath);

/**
 * A shared-memory folder and a fabric of this test's own, set in this process's environment (children inherit it).
 * @returns {{ base: string, folder: string, leftovers(): string[], remove(): void }}
 */
export function ownFabric() {
  const base = mkdtempSync(join(process.env.MILLRACE_SHM_DIR ?? '/dev/shm', 'a-'));
  const folder = join(base, 'domain');
  mkdirSync(folder, { mode: 0o700 });
  process.env.MILLRACE_SHM_DIR = base;
  process.env.MILLRACE_FABRIC = `t${randomBytes(6).toString('hex')}`;
  return {
    base,
    folder,
    /** Everything below the folder, but the domain's folder itself. */
    leftovers: () =>
      /** @type {string[]} */ (readdirSync(base, { recursive: true }))
        .filter((name) => name !== 'domain')
        .sort(),
    remove: () => rmSync(base, { recursive: true, force: true }),
  };
}

const HEADER = 32;

/** One member. Every call is for one thread. */
export class Endpoint {
  /**
   * @param {string} folder
   * @param {Partial<OpenOptions>} [options]
   * @param {Native} [addon]
   */
  constructor(folder, options = {}, addon = native) {
    this.native = addon;
    this.incarnation = randomBytes(6).readUIntBE(0, 6) + 1;
    this.handle = addon.open({
      device: 'soft',
      folder,
      incarnation: this.incarnation,
      slotBytes: 4096,
      slots: 64,
      maxSlots: 1024,
      arenaBytes: 1 << 18,
      ...options,
    });
    this.buffers = addon.buffers(this.handle);
    this.bytes = new Uint8Array(this.buffers.arena);
    this.view = new DataView(this.buffers.arena);
    this.target = new Uint8Array(1 << 16);
    this.head = 0;
    this.rows = 0;
    this.sequence = 0;
    /** Records taken, by peer. @type {Map<number, { count: number, last: number }>} */
    this.received = new Map();
    /** Records that did not follow their predecessor. */
    this.disorder = 0;
    /** Times that the target had too little room. */
    this.refused = 0;
    /** Rows of other kinds than FRAME, TUNNEL and NEED_ROOM. @type {number[][]} */
    this.events = [];
    /** Carries a message to that peer's endpoint. @type {(peer: number, message: Uint8Array) => void} */
    this.onTunnel = () => {};
    /** @type {(peer: number, payload: Uint8Array) => void} */
    this.onRecord = () => {};
  }

  /** What the peer's `connect` needs. @returns {Card} */
  card() {
    const { peer, offer } = this.native.offer(this.handle);
    return { peer, incarnation: this.incarnation, offer: Buffer.from(offer).toString('base64') };
  }

  /** @param {number} peer the index in our own card @param {Card} theirs */
  connect(peer, theirs) {
    this.native.connect(this.handle, peer, theirs.incarnation, Buffer.from(theirs.offer, 'base64'));
  }

  /**
   * Encodes one record for several peers. False, and nothing done, when there is no room now.
   * @param {number[]} peers @param {number} payloadBytes @param {number} [lane]
   */
  send(peers, payloadBytes, lane = 0) {
    const length = (HEADER + payloadBytes + 7) & ~7;
    const size = this.bytes.length;
    let at = this.head % size;
    let head = this.head;
    if (at + length > size) {
      head += size - at;
      at = 0;
    }
    if (head + length - (this.buffers.counters[0] ?? 0) > size || this.rows + peers.length > 4096)
      return false;
    const { view } = this;
    this.sequence += 1;
    this.bytes.fill(this.sequence & 255, at + HEADER, at + length);
    view.setUint32(at, 1, true);
    view.setUint32(at + 4, payloadBytes, true);
    view.setUint32(at + 8, this.sequence, true);
    view.setUint32(at + 12, 0, true);
    view.setUint32(at + 16, 1, true); // kind DATA, no flags, no headers
    view.setUint32(at + 20, 0, true);
    view.setFloat64(at + 24, 0, true);
    this.bytes.fill(0, at + HEADER + payloadBytes, at + length);
    for (const peer of peers) this.buffers.sends.set([peer, at, length, lane], this.rows++ * 4);
    this.head = head + length;
    return true;
  }

  /** @returns {number} bits of FLUSH */
  flush() {
    this.buffers.counters[17] = this.head;
    const rows = this.rows;
    this.rows = 0;
    return this.native.flush(this.handle, rows);
  }

  /** Takes what is there. @returns {number} the number of rows */
  poll(frames = 256) {
    const rows = this.native.poll(this.handle, this.target, 0, frames);
    const { events } = this.buffers;
    for (let i = 0; i < rows; i++) {
      const [kind, peer, a, b, c] = /** @type {number[]} */ ([...events.subarray(i * 8, i * 8 + 8)]);
      if (kind === 1) this.#records(peer, a, a + b, c);
      else if (kind === 5) this.onTunnel(peer, this.target.slice(a, a + b));
      else if (kind === 2) {
        this.refused += 1;
        this.target = new Uint8Array(Math.max(a, this.target.length));
      } else {
        this.events.push([kind, peer, a, b]);
      }
    }
    return rows;
  }

  /** @param {number} peer @param {number} from @param {number} to @param {number} count */
  #records(peer, from, to, count) {
    const view = new DataView(this.target.buffer, this.target.byteOffset);
    const seen = this.received.get(peer) ?? { count: 0, last: 0 };
    this.received.set(peer, seen);
    let records = 0;
    for (let at = from; at < to; records++) {
      const bytes = view.getUint32(at + 4, true);
      const sequence = view.getUint32(at + 8, true);
      const payload = this.target.subarray(at + HEADER, at + HEADER + bytes);
      if (sequence !== seen.last + 1 || payload.some((byte) => byte !== (sequence & 255))) this.disorder += 1;
      seen.last = sequence;
      seen.count += 1;
      this.onRecord(peer, payload);
      at += (HEADER + bytes + 7) & ~7;
    }
    if (records !== count) this.disorder += 1;
  }

  close() {
    this.native.close(this.handle);
  }
}

/** Connects two endpoints of one thread. @param {Endpoint} a @param {Endpoint} b @returns {[number, number]} their indexes */
export function link(a, b) {
  const ours = a.card();
  const theirs = b.card();
  a.connect(ours.peer, theirs);
  b.connect(theirs.peer, ours);
  const carry = (
    /** @type {Endpoint} */ from,
    /** @type {number} */ index,
    /** @type {Endpoint} */ to,
    /** @type {number} */ at,
  ) => {
    const before = from.onTunnel;
    from.onTunnel = (peer, message) =>
      peer === index ? to.native.tunnel(to.handle, at, message) : before(peer, message);
  };
  carry(a, ours.peer, b, theirs.peer);
  carry(b, theirs.peer, a, ours.peer);
  // Lanes over RC come up by an ask and its answer. With XRC there is nothing to carry.
  while (a.poll() + b.poll() > 0);
  return [ours.peer, theirs.peer];
}

/** Open descriptors of this process. */
export const openFiles = () => readdirSync('/proc/self/fd').length;
