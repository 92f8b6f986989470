import { MillraceError } from '../errors.js';
import type { Engine } from './engine.js';
import type { Destination } from './sending/destination.js';
import type { DeliveryWaiter, DestinationEnd, Ticket } from './sending/expectations.js';
import type { AnyOutChannel } from './sending/outbound.js';
import type { DrainReport, PublishReceipt, Undelivered } from './types.js';

/** publish(): what became of one message at each destination. */
export class Publication implements Ticket {
  readonly promise: Promise<PublishReceipt>;
  sequence = 0;
  #left = 0;
  #received = 0;
  #dropped = 0;
  #resolve!: (receipt: PublishReceipt) => void;
  #reject!: (error: Error) => void;

  constructor(private readonly channel: string) {
    this.promise = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  /** It goes to so many destinations. */
  to(destinations: number): this {
    this.#left = destinations;
    return this;
  }

  /** It was taken; with nobody there it is done at once. */
  taken(sequence: number): void {
    this.sequence = sequence;
    if (this.#left === 0) this.#settle();
  }

  arrived(): void {
    this.#received++;
    this.#one();
  }

  dropped(): void {
    this.#dropped++;
    this.#one();
  }

  lost(why: DestinationEnd, ambiguous: boolean): void {
    // Whoever left or unsubscribed is no current subscriber any more.
    if (why === 'left' || why === 'unsubscribed') return this.#one();
    const what =
      why === 'closed' ? 'this member left the domain' : `a peer ${why === 'died' ? 'died' : 'was refused'}`;
    this.#reject(
      new MillraceError(
        why === 'closed' ? 'ERR_MEMBER_CLOSED' : 'ERR_PEER_LOST',
        `Message ${this.sequence} on ${JSON.stringify(this.channel)}: ${what} before it was known to be in its inbox; ` +
          (ambiguous ? 'it may have arrived.' : 'it had not been sent.'),
        { ambiguous, details: { channel: this.channel, sequence: this.sequence } },
      ),
    );
    this.#one();
  }

  #one(): void {
    this.#left--;
    if (this.#left === 0) this.#settle();
  }

  /** Resolves on a microtask, when `taken` has been called for certain. */
  #settle(): void {
    const { sequence } = this;
    if (sequence > 0) this.#resolve({ sequence, received: this.#received, dropped: this.#dropped });
    else
      queueMicrotask(() =>
        this.#resolve({ sequence: this.sequence, received: this.#received, dropped: this.#dropped }),
      );
  }
}

/**
 * flush() and drain(): waits until everything that these channels have published is handed to every subscriber.
 * Resolves to what was not; never rejects.
 */
export function whenDelivered(
  engine: Engine,
  channels: readonly AnyOutChannel[],
  timeout: number,
  signal: AbortSignal | undefined,
): Promise<DrainReport> {
  return new Promise((resolve) => {
    const open = new Map<Destination, { channel: string; sequence: number }>();
    const undelivered: Undelivered[] = [];
    const release = engine.keepalive.hold();
    const say = (destination: Destination, reason: Undelivered['reason'], ambiguous: boolean) => {
      const { channel, sequence } = open.get(destination)!;
      open.delete(destination);
      const from = destination.delivered + 1;
      if (from > sequence) return;
      undelivered.push({
        channel,
        peer: destination.peer.identity,
        from,
        to: sequence,
        count: sequence - from + 1,
        reason,
        ambiguous,
      });
    };
    const finish = () => {
      if (timer !== null) engine.clock.clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      release();
      resolve({ complete: undelivered.length === 0, undelivered });
    };
    const giveUp = (reason: 'timeout' | 'aborted') => {
      for (const destination of [...open.keys()]) {
        destination.forget(waiter);
        say(destination, reason, true);
      }
      finish();
    };
    const onAbort = () => giveUp('aborted');
    const waiter: DeliveryWaiter<Destination> = {
      delivered(destination) {
        open.delete(destination);
        if (open.size === 0) finish();
      },
      ended(destination, why: DestinationEnd) {
        // Whoever unsubscribed wanted no more.
        if (why === 'unsubscribed') open.delete(destination);
        else say(destination, why === 'refused' ? 'died' : why, true);
        if (open.size === 0) finish();
      },
    };
    const timer = Number.isFinite(timeout) ? engine.clock.setTimeout(() => giveUp('timeout'), timeout) : null;
    signal?.addEventListener('abort', onAbort, { once: true });
    for (const channel of channels) {
      for (const destination of channel.audience.destinations) {
        if (destination.delivered < channel.sequence) {
          open.set(destination, { channel: channel.name, sequence: channel.sequence });
        }
      }
    }
    if (open.size === 0) return finish();
    if (signal?.aborted === true) return giveUp('aborted');
    for (const [destination, { sequence }] of [...open]) destination.whenDelivered(sequence, waiter);
    engine.schedule();
  });
}
