import { keyAt, type Overflow } from './overflow/index.js';
import type { Origin } from './subscription.js';

/** A decoded message that waits to be taken. */
export interface Item<V> {
  readonly value: V;
  readonly origin: Origin;
  readonly sequence: number;
  /** Bytes of its record. */
  readonly size: number;
  /** Its key under `latestBy`. */
  key: unknown;
}

/** What a subscriber with a buffer of its own has not taken yet. */
export interface ValueQueue<V> {
  readonly empty: boolean;
  /** Adds an item. What goes in its place, perhaps the item itself, is told to `dropped`. */
  push(item: Item<V>, payload: unknown): void;
  /** Removes the oldest; the queue must not be empty. */
  take(): Item<V>;
  clear(): void;
}

/**
 * Under `wait` nothing is dropped here: what is held counts against the publisher's window, which bounds it, and which slows
 * that publisher for all subscribers of this member.
 */
export class WaitingValues<V> implements ValueQueue<V> {
  #items: Item<V>[] = [];
  #head = 0;

  get empty(): boolean {
    return this.#head === this.#items.length;
  }

  push(item: Item<V>): void {
    this.#items.push(item);
  }

  take(): Item<V> {
    const item = this.#items[this.#head]!;
    this.#items[this.#head] = undefined as never;
    this.#head++;
    if (this.#head === this.#items.length) this.clear();
    else if (this.#head > 1024 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    }
    return item;
  }

  clear(): void {
    this.#items = [];
    this.#head = 0;
  }
}

/**
 * Under any other policy what is held here is bounded by itself, a window for each publisher, and drops by that policy: a slow
 * loop loses messages, and neither the publisher nor another subscriber of this member is slower for it.
 */
export class DroppingValues<V> implements ValueQueue<V> {
  /** In the order of their coming. */
  readonly #items = new Set<Item<V>>();
  readonly #of = new Map<Origin, { bytes: number; items: Set<Item<V>>; keys: Map<unknown, Item<V>> }>();
  readonly #path: readonly string[] | null;

  constructor(
    private readonly overflow: Overflow,
    private readonly maxBytes: number,
    private readonly dropped: (item: Item<V>) => void,
  ) {
    this.#path = typeof overflow === 'object' ? overflow.latestBy.split('.') : null;
  }

  get empty(): boolean {
    return this.#items.size === 0;
  }

  push(item: Item<V>, payload: unknown): void {
    let held = this.#of.get(item.origin);
    if (held === undefined) {
      held = { bytes: 0, items: new Set(), keys: new Map() };
    }
    const { items } = held;
    const full = () => items.size > 0 && held.bytes + item.size > this.maxBytes;
    if (this.overflow === 'drop-newest' && full()) return this.dropped(item);
    if (this.#path !== null) {
      item.key = keyAt(payload, this.#path);
      const old = held.keys.get(item.key);
      if (old !== undefined) this.#drop(old);
    }
    while (held.items.size > 0 && (this.overflow === 'latest' || full())) this.#drop(first(held.items));
    this.#of.set(item.origin, held);
    held.items.add(item);
    held.bytes += item.size;
    if (this.#path !== null) held.keys.set(item.key, item);
    this.#items.add(item);
  }

  take(): Item<V> {
    const item = first(this.#items);
    this.#remove(item);
    return item;
  }

  clear(): void {
    this.#items.clear();
    this.#of.clear();
  }

  #drop(item: Item<V>): void {
    this.#remove(item);
    this.dropped(item);
  }

  #remove(item: Item<V>): void {
    this.#items.delete(item);
    const held = this.#of.get(item.origin)!;
    held.items.delete(item);
    held.bytes -= item.size;
    if (this.#path !== null) held.keys.delete(item.key);
    if (held.items.size === 0) this.#of.delete(item.origin);
  }
}

function first<T>(set: ReadonlySet<T>): T {
  return set.values().next().value as T;
}
