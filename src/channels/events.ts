import { Observable, type OperatorFunction, type Subscriber } from 'rxjs';
import { MillraceError } from '../errors.js';
import { readHeaders } from './headers.js';
import { encodedOf } from './lending/held.js';
import type { Holdings } from './lending/holdings.js';
import type { Lease } from './lending/lease.js';
import type { Listening } from './listening.js';
import type { MessageAt, Origin, Rich } from './subscription.js';
import type { ChannelEvent, GapEvent, MessageEvent, PatternMessage } from './types.js';

/** Everything about a message, as an object of its own. */
export function messageEvent<T>(origin: Origin, value: T, at: MessageAt): MessageEvent<T> {
  return {
    type: 'message',
    channel: origin.name,
    publisher: origin.peer.identity,
    sequence: at.sequence,
    time: at.time,
    headers: readHeaders(at),
    value,
    bytes:
      at.held === null
        ? new Uint8Array(at.bytes.buffer, at.headersEnd, at.payloadEnd - at.headersEnd)
        : encodedOf(at.held),
    replayed: at.replayed,
  };
}

/** What a pattern's subscribers get. */
export function patternMessage<T>(origin: Origin, value: T, at: MessageAt): PatternMessage<T> {
  return {
    channel: origin.name,
    value,
    publisher: origin.peer.identity,
    sequence: at.sequence,
    time: at.time,
  };
}

/** An Observable whose subscribers are `Rich`: completes when the channel ends. */
export function richObservable<V>(
  listening: () => Listening | null,
  make: (subscriber: Subscriber<V>) => Rich<unknown>,
): Observable<V> {
  return new Observable<V>((subscriber) => {
    const found = listening();
    if (found === null) return subscriber.complete();
    return found.rich(make(subscriber));
  });
}

/** Ends a subscriber as its channel ends. */
export function endOf(subscriber: Subscriber<unknown>): (error?: Error) => void {
  return (error) => (error === undefined ? subscriber.complete() : subscriber.error(error));
}

/** The ordered union of messages, gaps and publishers' comings and goings. */
export function events$<T>(listening: () => Listening | null): Observable<ChannelEvent<T>> {
  return richObservable<ChannelEvent<T>>(listening, (subscriber) => ({
    message: (origin, value, at) => subscriber.next(messageEvent(origin, value as T, at)),
    gap: (_origin, event) => subscriber.next(event),
    joined: (_origin, event) => subscriber.next(event),
    left: (_origin, event) => subscriber.next(event),
    ended: endOf(subscriber),
  }));
}

/** Messages as leases. Whoever has unsubscribed meanwhile gets none. */
export function leases$<T>(listening: () => Listening | null, holdings: Holdings): Observable<Lease<T>> {
  return richObservable<Lease<T>>(listening, (subscriber) => {
    const subscribed = holdings.here('leases().subscribe()');
    return {
      leases: true,
      message(origin, value, at) {
        if (subscriber.closed) return;
        subscriber.next(
          at.held === null
            ? holdings.copied<T>(origin, value, at)
            : holdings.lease<T>(at.held, at, subscribed),
        );
      },
      ended: endOf(subscriber),
    };
  });
}

/**
 * Lets everything of `messages$` through but gaps; the first gap is an error, ERR_GAP.
 *
 * @example channel.messages$.pipe(failOnGap())
 */
export function failOnGap<E extends { readonly type: string }>(): OperatorFunction<
  E,
  Exclude<E, { readonly type: 'gap' }>
> {
  return (source) =>
    new Observable((subscriber) =>
      source.subscribe({
        next(event) {
          if (event.type !== 'gap') return subscriber.next(event as Exclude<E, { readonly type: 'gap' }>);
          const { channel, publisher, from, to, count, reason } = event as unknown as GapEvent;
          subscriber.error(
            new MillraceError(
              'ERR_GAP',
              `Channel ${JSON.stringify(channel)}: ${count} messages of ${publisher.name} (${from} to ${to}) are missing: ${reason}.`,
              { details: { channel, publisher, from, to, count, reason } },
            ),
          );
        },
        error: (error) => subscriber.error(error),
        complete: () => subscriber.complete(),
      }),
    );
}

/** Values in arrays: what one turn delivered, at most `max` at a time. */
export function batches$<V>(
  listening: () => Listening | null,
  max: number,
  map: (origin: Origin, value: unknown, at: MessageAt) => V,
): Observable<V[]> {
  return richObservable<V[]>(listening, (subscriber) => {
    let batch: V[] = [];
    const send = () => {
      if (batch.length === 0) return;
      const full = batch;
      batch = [];
      subscriber.next(full);
    };
    return {
      message(origin, value, at) {
        batch.push(map(origin, value, at));
        if (batch.length >= max) send();
      },
      endOfTurn: send,
      ended(error) {
        send();
        endOf(subscriber)(error);
      },
    };
  });
}
