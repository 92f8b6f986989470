import { Observable, type Subscriber } from 'rxjs';
import type { Datagram } from './datagram.js';

/**
 * What rules steer to one channel of datagrams: a hot stream. It is a rule's target (`to`), has no memory, and completes as
 * its member leaves. What comes while nobody is subscribed is dropped.
 */
export class Datagrams extends Observable<Datagram> {
  /** The channel's name, which rules in files name it by. */
  readonly name: string;
  readonly #subscribers = new Set<Subscriber<Datagram>>();
  #ended = false;

  /** @internal */
  constructor(name: string, onSubscribers: () => void) {
    super((subscriber) => {
      if (this.#ended) {
        subscriber.complete();
        return;
      }
      this.#subscribers.add(subscriber);
      onSubscribers();
      return () => {
        if (this.#subscribers.delete(subscriber)) onSubscribers();
      };
    });
    this.name = name;
  }

  /** Whether anybody listens. */
  get observed(): boolean {
    return this.#subscribers.size > 0;
  }

  /** @internal */
  deliver(datagram: Datagram): void {
    for (const subscriber of this.#subscribers) subscriber.next(datagram);
  }

  /** @internal */
  end(): void {
    this.#ended = true;
    for (const subscriber of [...this.#subscribers]) subscriber.complete();
  }
}
