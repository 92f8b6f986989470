import { ReadableStream, WritableStream } from 'node:stream/web';

/** A Web stream of what an iterator gives; pulls one value at a time, so the iterator's bound is the stream's. */
export function readableOf<V>(iterator: AsyncIterableIterator<V>): ReadableStream<V> {
  return new ReadableStream<V>(
    {
      async pull(controller) {
        const { done, value } = await iterator.next();
        if (done === true) controller.close();
        else controller.enqueue(value);
      },
      async cancel() {
        await iterator.return?.();
      },
    },
    { highWaterMark: 0 },
  );
}

/** What a Web stream writes to. */
export interface Sink<V> {
  offer(value: V): boolean;
  whenWritable(signal?: AbortSignal): Promise<void>;
  /** Throws what the last offer was refused for, unless that passes with time. */
  throwRefusal(): void;
  complete(): void;
  error(error: unknown): void;
  flush(): Promise<unknown>;
}

/**
 * A Web stream that publishes. Its backpressure is the channel's; closing it completes this member's publishing, aborting it
 * is `error(reason)`.
 */
export function writableOf<V>(sink: Sink<V>): WritableStream<V> {
  const stop = new AbortController();
  return new WritableStream<V>(
    {
      async write(value) {
        while (!sink.offer(value)) {
          sink.throwRefusal();
          await sink.whenWritable(stop.signal);
        }
      },
      async close() {
        sink.complete();
        await sink.flush();
      },
      abort(reason) {
        stop.abort(reason);
        sink.error(reason);
      },
    },
    { highWaterMark: 1 },
  );
}
