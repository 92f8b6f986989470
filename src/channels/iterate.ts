import { MillraceError } from '../errors.js';
import type { Engine } from './engine.js';
import type { Listening } from './listening.js';
import { Holder, type MessageAt, type Origin, type Rich } from './subscription.js';

/** The error of a call whose signal fired. */
export function aborted(what: string, signal: AbortSignal): MillraceError {
  return new MillraceError('ERR_ABORTED', `${what} was aborted by its signal.`, { cause: signal.reason });
}

/**
 * The `for await` side of a channel. What is not taken yet stays here and counts against the byte windows of its publishers,
 * so the buffer is bounded by the window a publisher, and the subscriber's overflow policy decides at the publisher what
 * happens beyond.
 */
export class ChannelIterator<V> implements AsyncIterableIterator<V>, Rich<unknown> {
  readonly #engine: Engine;
  readonly #map: (origin: Origin, value: unknown, at: MessageAt) => V;
  readonly #holders = new Map<Origin, Holder>();
  #items: { value: V; origin: Origin; sequence: number; size: number }[] = [];
  #head = 0;
  #waiting: { resolve(result: IteratorResult<V>): void; reject(error: unknown): void }[] = [];
  #detach: () => void = () => {};
  #ended = false;
  #error: Error | undefined;

  constructor(
    engine: Engine,
    listening: Listening | null,
    map: (origin: Origin, value: unknown, at: MessageAt) => V,
    signal: AbortSignal | undefined,
  ) {
    this.#engine = engine;
    this.#map = map;
    if (listening === null) {
      this.#ended = true;
      return;
    }
    if (signal?.aborted === true) {
      this.ended(aborted('The iteration', signal));
      return;
    }
    const onAbort = () => {
      this.#drop();
      this.ended(aborted('The iteration', signal!));
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    const detach = listening.rich(this);
    this.#detach = () => {
      this.#detach = () => {};
      signal?.removeEventListener('abort', onAbort);
      detach();
    };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<V>> {
    if (this.#head < this.#items.length) return Promise.resolve({ done: false, value: this.#take() });
    if (this.#error !== undefined) {
      const error = this.#error;
      this.#error = undefined;
      return Promise.reject(error);
    }
    if (this.#ended) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  return(): Promise<IteratorResult<V>> {
    this.#drop();
    this.#error = undefined;
    this.#finish();
    return Promise.resolve({ done: true, value: undefined });
  }

  throw(error: unknown): Promise<IteratorResult<V>> {
    void this.return();
    return Promise.reject(error);
  }

  // ---- Rich ----------------------------------------------------------------------------------------------------------

  message(origin: Origin, value: unknown, at: MessageAt): void {
    const mapped = this.#map(origin, value, at);
    const waiting = this.#waiting.shift();
    if (waiting !== undefined) return waiting.resolve({ done: false, value: mapped });
    let holder = this.#holders.get(origin);
    if (holder === undefined) {
      holder = new Holder();
      this.#holders.set(origin, holder);
      origin.holders.push(holder);
    }
    if (holder.bytes === 0) holder.first = at.sequence;
    holder.bytes += at.size;
    this.#items.push({ value: mapped, origin, sequence: at.sequence, size: at.size });
  }

  /** Nothing more comes; what is here can still be taken. */
  ended(error?: Error): void {
    this.#error = error;
    this.#finish();
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  #take(): V {
    const item = this.#items[this.#head]!;
    this.#items[this.#head] = undefined as never;
    this.#head++;
    if (this.#head === this.#items.length) {
      this.#items = [];
      this.#head = 0;
    } else if (this.#head > 1024 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    }
    const holder = this.#holders.get(item.origin);
    if (holder !== undefined) {
      holder.bytes -= item.size;
      holder.first = item.sequence + 1;
      this.#returned(item.origin);
    }
    return item.value;
  }

  #returned(origin: Origin): void {
    if (origin.closed) {
      this.#holders.delete(origin);
      return;
    }
    this.#engine.inbound.touch(origin);
    this.#engine.schedule();
  }

  /** Gives back what is held. */
  #drop(): void {
    this.#items = [];
    this.#head = 0;
    for (const [origin, holder] of this.#holders) {
      const at = origin.holders.indexOf(holder);
      if (at >= 0) origin.holders.splice(at, 1);
      this.#returned(origin);
    }
    this.#holders.clear();
  }

  #finish(): void {
    this.#ended = true;
    this.#detach();
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const one of waiting) {
      const error = this.#error;
      this.#error = undefined;
      if (error !== undefined) one.reject(error);
      else one.resolve({ done: true, value: undefined });
    }
  }
}
