import { aborted } from './calls.js';
import type { Engine } from './engine.js';
import type { Listening } from './listening.js';
import type { Status } from './status.js';
import { Holder, type MessageAt, type Origin, type Rich } from './subscription.js';
import { DroppingValues, type Item, type ValueQueue, WaitingValues } from './value-queue.js';

/**
 * The `for await` side of a channel. What is not taken yet stays here, at most a window for each publisher.
 *
 * Under `wait` it counts against that window: a slow loop slows its publishers, and with them this member's other
 * subscribers, which share the window. Under any other policy a slow loop drops here, for itself alone.
 */
export class ChannelIterator<V> implements AsyncIterableIterator<V>, Rich<unknown> {
  readonly #engine: Engine;
  readonly #map: (origin: Origin, value: unknown, at: MessageAt) => V;
  readonly #holders = new Map<Origin, Holder>();
  readonly #status: Status | null;
  readonly #waits: boolean;
  readonly #queue: ValueQueue<V>;
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
    this.#status = listening?.status ?? null;
    const overflow = listening?.wanted.overflow ?? 'wait';
    this.#waits = overflow === 'wait';
    this.#queue =
      listening === null || overflow === 'wait'
        ? new WaitingValues()
        : new DroppingValues(overflow, listening.wanted.window, (item) => this.#dropped(item));
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
    if (!this.#queue.empty) return Promise.resolve({ done: false, value: this.#take() });
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
      holder = new Holder(this.#waits);
      this.#holders.set(origin, holder);
      origin.holders.push(holder);
    }
    if (holder.bytes === 0) holder.first = at.sequence;
    holder.bytes += at.size;
    this.#queue.push({ value: mapped, origin, sequence: at.sequence, size: at.size, key: undefined }, value);
  }

  /** Drops are told once a turn. */
  endOfTurn(): void {
    for (const [origin, holder] of this.#holders) {
      const { dropped: count } = holder;
      if (count === 0) continue;
      holder.dropped = 0;
      const { name: channel, peer } = origin;
      this.#status?.emit({
        type: 'dropped',
        at: 'subscriber',
        channel,
        peer: peer.identity,
        count,
        total: holder.droppedTotal,
        reason: 'overflow',
      });
    }
  }

  /** Nothing more comes; what is here can still be taken. */
  ended(error?: Error): void {
    this.#error = error;
    this.#finish();
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  #take(): V {
    const item = this.#queue.take();
    // The oldest of its publisher: everything before it was taken or dropped.
    const holder = this.#gone(item);
    if (holder !== undefined) holder.first = item.sequence + 1;
    return item.value;
  }

  #dropped(item: Item<V>): void {
    const holder = this.#gone(item);
    if (holder === undefined) return;
    holder.dropped++;
    holder.droppedTotal++;
  }

  /** It is not held any more. */
  #gone({ origin, size }: Item<V>): Holder | undefined {
    const holder = this.#holders.get(origin);
    if (holder === undefined) return undefined;
    holder.bytes -= size;
    this.#returned(origin);
    return holder;
  }

  #returned(origin: Origin): void {
    if (origin.closed) {
      this.#holders.delete(origin);
      return;
    }
    this.#engine.inbound.accounts.touch(origin);
    this.#engine.schedule();
  }

  /** Gives back what is held. */
  #drop(): void {
    this.#queue.clear();
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
