import type { Scheduled } from './clock.js';
import type { Engine } from './engine.js';
import type { Status } from './status.js';
import type { LocalSubscription, Plain, Rich, Wanted } from './subscription.js';

/** A subscription on the wire stays for so long after its last local subscriber, who often comes back at once. */
const LINGER_MS = 100;

/**
 * The local subscribers of one channel or pattern. Without replay they share one subscription on the wire; with replay each
 * has its own, since each gets the kept messages when it comes.
 */
export class Listening {
  #shared: LocalSubscription | null = null;
  readonly #subscriptions = new Set<LocalSubscription>();
  readonly #timers = new Map<LocalSubscription, Scheduled>();
  readonly #acknowledged = new Set<() => void>();
  #ended = false;

  constructor(
    private readonly engine: Engine,
    readonly wanted: Wanted,
    readonly status: Status,
  ) {}

  /** Local subscribers. */
  get count(): number {
    let count = 0;
    for (const { plain, rich } of this.#subscriptions) count += plain.length + rich.length;
    return count;
  }

  /** Adds a subscriber that wants values only. @returns how to remove it; harmless when called again */
  plain(subscriber: Plain<unknown>): () => void {
    return this.#attach(subscriber, (subscription) => subscription.addPlain(subscriber));
  }

  /** Adds any other subscriber. @returns how to remove it; harmless when called again */
  rich(subscriber: Rich<unknown>): () => void {
    return this.#attach(subscriber, (subscription) => subscription.addRich(subscriber));
  }

  /** Calls whenever a publisher acknowledged a subscription. */
  onAcknowledged(call: () => void): () => void {
    this.#acknowledged.add(call);
    return () => this.#acknowledged.delete(call);
  }

  /** Ends all subscribers and the subscriptions on the wire. */
  end(error?: Error): void {
    if (this.#ended) return;
    this.#ended = true;
    for (const timer of this.#timers.values()) this.engine.clock.clearTimeout(timer);
    this.#timers.clear();
    for (const subscription of [...this.#subscriptions]) {
      const { plain, rich } = subscription;
      this.#forget(subscription);
      for (const one of plain) {
        if (error === undefined) one.complete();
        else one.error(error);
      }
      for (const one of rich) one.ended(error);
    }
  }

  #attach(subscriber: Plain<unknown> | Rich<unknown>, add: (to: LocalSubscription) => void): () => void {
    const subscription = this.#subscription();
    add(subscription);
    const release = this.engine.keepalive.hold();
    return () => {
      release();
      if (subscription.remove(subscriber) && subscription.empty) this.#linger(subscription);
    };
  }

  #subscription(): LocalSubscription {
    const own = this.wanted.replay > 0;
    if (!own && this.#shared !== null) {
      this.#stopTimer(this.#shared);
      return this.#shared;
    }
    const subscription = this.engine.subscribing.subscribe(this.wanted, this.status);
    subscription.onAcknowledged.add(() => {
      for (const call of [...this.#acknowledged]) call();
    });
    this.#subscriptions.add(subscription);
    if (!own) this.#shared = subscription;
    return subscription;
  }

  #linger(subscription: LocalSubscription): void {
    if (this.#ended || !subscription.open) return;
    this.#stopTimer(subscription);
    const timer = this.engine.clock.setTimeout(() => this.#forget(subscription), LINGER_MS);
    timer.unref?.();
    this.#timers.set(subscription, timer);
  }

  #stopTimer(subscription: LocalSubscription): void {
    const timer = this.#timers.get(subscription);
    if (timer === undefined) return;
    this.#timers.delete(subscription);
    this.engine.clock.clearTimeout(timer);
  }

  #forget(subscription: LocalSubscription): void {
    this.#timers.delete(subscription);
    this.#subscriptions.delete(subscription);
    if (this.#shared === subscription) this.#shared = null;
    this.engine.subscribing.unsubscribeAll(subscription);
  }
}
