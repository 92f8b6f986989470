import type { RecordSource } from '../wire.js';
import type { Backlog, Dropped } from './policy.js';

interface Entry {
  readonly bytes: Uint8Array;
  readonly sequence: number;
}

/**
 * The queue holds the newest message of each key, in the order of their sequences: a newer one takes the old one's place in
 * the map's order at its end, never the old one's position (I4). Beyond the bound the oldest key goes.
 */
export class LatestBy implements Backlog {
  readonly waits = false;
  readonly keyPath: readonly string[];
  readonly #entries = new Map<unknown, Entry>();
  bytes = 0;
  lastTaken = 0;

  constructor(
    path: string,
    private readonly maxBytes: number,
    private readonly dropped: Dropped,
  ) {
    this.keyPath = path.split('.');
  }

  get count(): number {
    return this.#entries.size;
  }
  accepts(length: number): boolean {
    return this.#entries.size === 0 || this.bytes + length <= this.maxBytes;
  }

  push(source: RecordSource, start: number, length: number, sequence: number, key: unknown): void {
    const old = this.#entries.get(key);
    if (old !== undefined) this.#drop(key, old);
    while (!this.accepts(length)) {
      const [oldestKey, oldest] = this.#entries.entries().next().value!;
      this.#drop(oldestKey, oldest);
    }
    this.#entries.set(key, { bytes: source.bytes.slice(start, start + length), sequence });
    this.bytes += length;
  }

  shed(): boolean {
    if (this.#entries.size === 0) return false;
    this.#drop(...this.#head());
    return true;
  }

  forgo(): boolean {
    return this.shed();
  }

  headSize(): number {
    return this.#entries.size === 0 ? 0 : this.#head()[1].bytes.length;
  }
  headSequence(): number {
    return this.#head()[1].sequence;
  }

  take(target: Uint8Array, at: number, limit: number): number {
    if (this.#entries.size === 0) return 0;
    const [key, entry] = this.#head();
    if (entry.bytes.length > limit) return 0;
    target.set(entry.bytes, at);
    this.#entries.delete(key);
    this.bytes -= entry.bytes.length;
    this.lastTaken = entry.sequence;
    return entry.bytes.length;
  }

  clear(): void {
    this.#entries.clear();
    this.bytes = 0;
  }

  #head(): [unknown, Entry] {
    return this.#entries.entries().next().value!;
  }

  #drop(key: unknown, entry: Entry): void {
    this.#entries.delete(key);
    this.bytes -= entry.bytes.length;
    this.dropped(entry.sequence);
  }
}

/** The value at a property path; undefined where the path ends early. A getter that throws makes the key undefined. */
export function keyAt(value: unknown, path: readonly string[]): unknown {
  let at = value;
  try {
    for (const name of path) {
      if (typeof at !== 'object' || at === null) return undefined;
      at = (at as Record<string, unknown>)[name];
    }
    return typeof at === 'object' && at !== null ? JSON.stringify(at) : at;
  } catch {
    return undefined;
  }
}
