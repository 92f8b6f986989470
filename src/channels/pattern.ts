import type { ReadableStream } from 'node:stream/web';
import { Observable } from 'rxjs';
import { checkNames, integer } from '../suggest.js';
import type { Engine } from './engine.js';
import { batches$, endOf, events$, patternMessage, richObservable } from './events.js';
import { ChannelIterator } from './iterate.js';
import { Listening } from './listening.js';
import type { NamePattern } from './names.js';
import { abortSignal, type ChannelSettings } from './options.js';
import { Status } from './status.js';
import { wantedOf } from './subscription.js';
import type { ChannelEvent, PatternMessage, StatusEvent } from './types.js';
import { readableOf } from './webstreams.js';

/** What a pattern needs of its member. */
export interface PatternHost {
  readonly engine: Engine;
  forget(pattern: Pattern<unknown>): void;
}

/**
 * All channels whose name matches, now and later: `*` stands for one token, `>` at the end for one or more. Read-only. Each
 * value comes with its channel's name.
 *
 * Where a channel of this member is open under the very name, that channel's options decide the flow to both.
 */
export class Pattern<T> extends Observable<PatternMessage<T>> implements AsyncIterable<PatternMessage<T>> {
  /** The pattern as it was given. */
  readonly pattern: string;
  readonly messages$: Observable<ChannelEvent<T>>;
  readonly status$: Observable<StatusEvent>;
  readonly #host: PatternHost;
  readonly #settings: ChannelSettings;
  readonly #status: Status;
  readonly #listening: Listening;
  #closed = false;

  /** @internal Patterns are made by member.pattern(): to others the constructor is private. */
  static of<T>(host: PatternHost, pattern: NamePattern, settings: ChannelSettings): Pattern<T> {
    return new Pattern<T>(host, pattern, settings);
  }

  private constructor(host: PatternHost, pattern: NamePattern, settings: ChannelSettings) {
    const open = () => this.#open();
    const values = richObservable<PatternMessage<T>>(open, (subscriber) => ({
      message: (origin, value, at) => subscriber.next(patternMessage(origin, value as T, at)),
      ended: endOf(subscriber),
    }));
    super((subscriber) => values.subscribe(subscriber));
    this.pattern = pattern.text;
    this.#host = host;
    this.#settings = settings;
    this.#status = new Status(host.engine.status);
    this.#listening = new Listening(
      host.engine,
      wantedOf(settings, { pattern: pattern.text, matches: (name) => pattern.matches(name) }),
      this.#status,
    );
    this.messages$ = events$<T>(open);
    this.status$ = this.#status.events$;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** As Channel's. */
  [Symbol.asyncIterator](): AsyncIterableIterator<PatternMessage<T>> {
    return this.values();
  }

  /** As Channel's. */
  values(options: { signal?: AbortSignal } = {}): AsyncIterableIterator<PatternMessage<T>> {
    checkNames('values()', options, ['signal']);
    return new ChannelIterator<PatternMessage<T>>(
      this.#host.engine,
      this.#open(),
      (origin, value, at) => patternMessage(origin, value as T, at),
      abortSignal('values()', options.signal),
    );
  }

  /** As Channel's. */
  batches(options: { max?: number } = {}): Observable<PatternMessage<T>[]> {
    checkNames('batches()', options, ['max']);
    const max = integer('batches()', 'max', options.max, 4096, 1, 2 ** 31);
    return batches$(
      () => this.#open(),
      max,
      (origin, value, at) => patternMessage(origin, value as T, at),
    );
  }

  /** As Channel's. */
  readable(options: { signal?: AbortSignal } = {}): ReadableStream<PatternMessage<T>> {
    return readableOf(this.values(options));
  }

  /** Ends its subscribers and frees the pattern. Idempotent. */
  close(): void {
    this.end();
    this.#host.forget(this as unknown as Pattern<unknown>);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** @internal */
  end(error?: Error): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#listening.end(error);
    this.#status.complete();
  }

  /** @internal */
  get settings(): ChannelSettings {
    return this.#settings;
  }

  /** @internal */
  get listeners(): number {
    return this.#listening.count;
  }

  #open(): Listening | null {
    return this.#closed ? null : this.#listening;
  }
}
