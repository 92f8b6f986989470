import type { ReadableStream, WritableStream } from 'node:stream/web';
import { Observable, type Observer, type Subscriber } from 'rxjs';
import { type AnyMillraceError, type MillraceError, MillraceRangeError } from '../errors.js';
import { checkNames, describe, integer } from '../suggest.js';
import { doneBody } from './bodies.js';
import {
  type DrainOptions,
  drainOptions,
  type FlushOptions,
  headersOf,
  READY_MS,
  type ReadyOptions,
  type SendOptions,
} from './calls.js';
import type { Engine } from './engine.js';
import { batches$, events$, leases$ } from './events.js';
import { ChannelIterator } from './iterate.js';
import type { Lease } from './lending/lease.js';
import { Loan } from './lending/loan.js';
import { Listening } from './listening.js';
import { abortSignal, type ChannelSettings, milliseconds } from './options.js';
import { publishOn } from './publishing.js';
import type { AnyOutChannel, OutChannel } from './sending/outbound.js';
import { memberLeft, notEncoded, publishingEnded } from './sending/refusals.js';
import { REFUSED } from './sending/tally.js';
import { Publication, whenDelivered } from './settle.js';
import { Status } from './status.js';
import { type InboundCounts, wantedOf } from './subscription.js';
import type {
  ChannelEvent,
  ChannelStats,
  DrainReport,
  Headers,
  PublishReceipt,
  StatusEvent,
} from './types.js';
import { whenPresent, whenWritable } from './waiting.js';
import { readableOf, writableOf } from './webstreams.js';

/** What a channel needs of its member. */
export interface ChannelHost {
  readonly engine: Engine;
  /** Its name is free again. */
  forget(channel: Channel<unknown, never>): void;
}

/**
 * A named, typed stream of a domain. As an Observable it gives what other members publish (and, with `echo`, this one); as an
 * Observer it publishes. Hot: a subscriber hears what comes after it subscribed, and what `replay` keeps.
 *
 * It completes on close() and when the member leaves, and errors only on a fatal local fault. What heals, refusals and codec
 * errors go to `status$`.
 */
export class Channel<T, In = T> extends Observable<T> implements Observer<In>, AsyncIterable<T> {
  /** The channel's name. */
  readonly name: string;
  /** Messages, gaps, and publishers that join and leave, in order. */
  readonly messages$: Observable<ChannelEvent<T>>;
  /** What happens besides messages: refusals, drops, codec errors, subscribers, publishers that are done. */
  readonly status$: Observable<StatusEvent>;
  readonly #host: ChannelHost;
  readonly #engine: Engine;
  readonly #settings: ChannelSettings;
  readonly #status: Status;
  readonly #listening: Listening;
  readonly #counts: InboundCounts;
  #out: OutChannel<In> | null = null;
  #closed = false;
  /** Why it cannot publish: the device refused what that takes, or the codec made no encoder. */
  #openError: AnyMillraceError | null = null;
  /** Messages for a channel that was closed before it ever published. */
  #refusedClosed = 0;

  /** @internal Channels are made by member.channel(): to others the constructor is private. */
  static of<T, In>(host: ChannelHost, name: string, settings: ChannelSettings): Channel<T, In> {
    return new Channel<T, In>(host, name, settings);
  }

  private constructor(host: ChannelHost, name: string, settings: ChannelSettings) {
    // RxJS calls this for each subscriber. It is fed straight from the delivery: no Subject in between.
    super(function (this: Observable<T>, subscriber: Subscriber<T>) {
      return (this as Channel<T, In>).#subscribed(subscriber);
    });
    this.name = name;
    this.#host = host;
    this.#engine = host.engine;
    this.#settings = settings;
    this.#status = new Status(host.engine.status);
    this.#counts = host.engine.inbound.origins.count(name);
    this.#listening = new Listening(host.engine, wantedOf(settings, { channel: name }), this.#status);
    this.messages$ = events$<T>(() => this.#open());
    this.status$ = this.#status.events$;
  }

  /** Whether close() was called, or the member has left. */
  get closed(): boolean {
    return this.#closed;
  }

  // ---- publishing ----------------------------------------------------------------------------------------------------

  /**
   * Publishes a value to every subscriber. Never blocks and never throws: when it is refused (a `wait` subscriber is full, the
   * value cannot be encoded, the publishing has ended) that is counted, and shows on `status$` once a turn. A loan is used up
   * either way.
   */
  next(value: In | Loan): void {
    if (this.#emit(value, undefined) < 0 && value instanceof Loan) value.discard();
  }

  /**
   * Lends a block of the member's pool, to be filled and published without a copy (codec `'bytes'`): subscribers on this host
   * read these very pages. The caller owns it until it is published or discarded.
   * @throws MillraceError ERR_POOL_FULL (wait with whenWritable()), ERR_MESSAGE_TOO_LARGE (more than poolBytes), ERR_SHM_FULL,
   *   ERR_CHANNEL_CLOSED, ERR_LOAN (the channel's codec is not 'bytes', or it is multicast); MillraceRangeError ERR_INVALID_ARGUMENT
   */
  loan(bytes: number): Loan {
    if (!Number.isSafeInteger(bytes) || bytes < 1) {
      throw new MillraceRangeError(
        'ERR_INVALID_ARGUMENT',
        `loan(): bytes must be an integer from 1 on, not ${describe(bytes)}.`,
      );
    }
    const out = this.#publisher();
    if (out === null) throw this.#closedError();
    return out.loan(bytes);
  }

  /**
   * Publishes a value, or takes nothing and returns false. Then `whenWritable()` tells when to try again, unless the value
   * itself is the reason, which `status$` says.
   */
  offer(value: In | Loan, options?: SendOptions): boolean {
    return this.#emit(value, headersOf('offer()', options)) > 0;
  }

  /**
   * Publishes a value and waits until it is in the inbox of everyone who subscribes now.
   * @returns its sequence, how many have it, and for how many their policy dropped it
   * @throws MillraceError (rejects) when it is refused: ERR_REFUSED, ERR_ENCODE, ERR_MESSAGE_TOO_LARGE …; ERR_PEER_LOST when
   *   a subscriber died, with `ambiguous` set if it may have it
   */
  publish(value: In | Loan, options?: SendOptions): Promise<PublishReceipt> {
    let headers: Headers | undefined;
    try {
      headers = headersOf('publish()', options);
    } catch (error) {
      return Promise.reject(error);
    }
    const out = this.#publisher();
    if (out === null) return Promise.reject(this.#closedError());
    const publication = new Publication(this.name);
    const sequence = out.emit(value, headers, (destinations) => publication.to(destinations));
    if (sequence < 0) return Promise.reject(out.tally.lastError);
    publication.taken(sequence);
    return this.#held(publication.promise);
  }

  /** Ends this member's publishing: peers see `publisher-done`. Subscribing goes on. */
  complete(): void {
    this.#publisher()?.end({ how: 'complete' });
  }

  /** Ends this member's publishing with an error, whose name, message and code peers see in `publisher-done`. */
  error(error: unknown): void {
    this.#publisher()?.end(doneBody(error));
  }

  /**
   * Resolves when a message would be taken: at once, or when slow `wait` subscribers have room again.
   * @throws MillraceError (rejects) ERR_ABORTED; ERR_PUBLISHING_ENDED, ERR_CHANNEL_CLOSED or ERR_MEMBER_CLOSED when that will
   *   never be; MillraceTypeError ERR_INVALID_OPTION for what is no signal
   */
  async whenWritable(signal?: AbortSignal): Promise<void> {
    abortSignal('whenWritable()', signal);
    const out = this.#publisher();
    if (out === null) throw this.#closedError();
    return whenWritable(this.#engine, out, signal);
  }

  /**
   * Waits until everything published here so far is delivered: handed to every subscriber's `next`. No time-out; a subscriber
   * that dies or leaves is reported and not waited for.
   */
  async flush(options?: FlushOptions): Promise<DrainReport> {
    checkNames('flush()', options, ['signal']);
    return this.#drain(Number.POSITIVE_INFINITY, abortSignal('flush()', options?.signal));
  }

  /** flush() with a time-out (5 s unless given): resolves to what was not delivered, per peer. Rejects only for wrong options. */
  async drain(options?: number | DrainOptions): Promise<DrainReport> {
    const { timeout, signal } = drainOptions(options);
    return this.#drain(timeout, signal);
  }

  /**
   * Waits until this publisher has so many subscribers, or this subscriber was acknowledged by so many publishers.
   * @returns how many there are
   * @throws (rejects) MillraceError ERR_TIMEOUT, ERR_ABORTED, ERR_CHANNEL_CLOSED; MillraceTypeError ERR_UNKNOWN_OPTION,
   *   ERR_INVALID_OPTION
   */
  async ready(options: ReadyOptions = {}): Promise<{ subscribers: number; publishers: number }> {
    checkNames('ready()', options, ['subscribers', 'publishers', 'timeout', 'signal']);
    const publishers = integer('ready()', 'publishers', options.publishers, 0, 0, 2 ** 31);
    const standard = options.publishers === undefined ? 1 : 0;
    const subscribers = integer('ready()', 'subscribers', options.subscribers, standard, 0, 2 ** 31);
    const timeout = milliseconds('ready()', 'timeout', options.timeout, READY_MS);
    const signal = abortSignal('ready()', options.signal);
    const out = subscribers > 0 ? this.#publisher() : this.#out;
    if (this.#closed) throw this.#closedError();
    return whenPresent(
      this.#engine,
      this.name,
      { subscribers, publishers },
      { timeout, signal },
      (sign) => {
        const stops = [
          out?.audience.onChange(sign),
          this.#listening.onAcknowledged(sign),
          this.#onClose(sign),
        ];
        return () => {
          for (const stop of stops) stop?.();
        };
      },
      () => ({
        subscribers: out?.audience.destinations.length ?? 0,
        publishers: this.#publishers(),
      }),
      () => (this.#closed ? this.#closedError() : null),
    );
  }

  // ---- other ways to read ----------------------------------------------------------------------------------------------

  /**
   * The values as `for await` takes them. At most a window of each publisher waits here to be taken. Beyond it a slow loop
   * slows the publisher (`overflow: 'wait'`), or drops for itself alone, as `overflow` says. Leaving the loop unsubscribes.
   */
  [Symbol.asyncIterator](): AsyncIterableIterator<T> {
    return this.values();
  }

  /** The same with a signal: when it fires the loop throws ERR_ABORTED. */
  values(options: { signal?: AbortSignal } = {}): AsyncIterableIterator<T> {
    checkNames('values()', options, ['signal']);
    return new ChannelIterator<T>(
      this.#engine,
      this.#open(),
      (_origin, value) => value as T,
      abortSignal('values()', options.signal),
    );
  }

  /** The values in arrays: what one turn delivered, at most `max` (4,096 unless given) at a time. */
  batches(options: { max?: number } = {}): Observable<T[]> {
    checkNames('batches()', options, ['max']);
    const max = integer('batches()', 'max', options.max, 4096, 1, 2 ** 31);
    return batches$<T>(
      () => this.#open(),
      max,
      (_origin, value) => value as T,
    );
  }

  /**
   * Messages as leases: of a large one the bytes are the publisher's own pages, until release(). Use it where messages are
   * looked at and let go, `channel.leases().subscribe((lease) => lease.use((bytes) => …))`. Operators that drop or keep values
   * must release: a lease that is merely forgotten holds its block until it is collected, with a warning.
   */
  leases(): Observable<Lease<T>> {
    return leases$<T>(() => this.#open(), this.#engine.holdings);
  }

  /** A Web stream of the values; cancelling it unsubscribes. */
  readable(options: { signal?: AbortSignal } = {}): ReadableStream<T> {
    return readableOf(this.values(options));
  }

  /** A Web stream that publishes; closing it is complete(), aborting it error(). */
  writable(): WritableStream<In> {
    return writableOf<In>({
      offer: (value) => this.offer(value),
      whenWritable: (signal) => this.whenWritable(signal),
      throwRefusal: () => {
        if (this.#closed || this.#out === null) throw this.#closedError();
        if (this.#out.tally.lastCode !== REFUSED.FULL) throw this.#out.tally.lastError as MillraceError;
      },
      complete: () => this.complete(),
      error: (error) => this.error(error),
      flush: () => this.flush(),
    });
  }

  // ---- state and end -----------------------------------------------------------------------------------------------------

  /** Counts since the channel was opened. */
  stats(): ChannelStats {
    const out = this.#out;
    const { received, receivedBytes, missing, decodeErrors, duplicates } = this.#counts;
    return {
      published: out?.sequence ?? 0,
      publishedBytes: out?.counts.publishedBytes ?? 0,
      refused: (out?.counts.refused ?? 0) + this.#refusedClosed,
      encodeErrors: out?.counts.encodeErrors ?? 0,
      dropped: out?.counts.dropped ?? 0,
      received,
      receivedBytes,
      missing,
      decodeErrors,
      duplicates,
      subscribers: out?.audience.destinations.length ?? 0,
      publishers: this.#publishers(),
      queuedBytes: out?.queuedBytes ?? 0,
    };
  }

  /**
   * Closes the channel in this member: own subscribers complete, publishing ends (what is queued is still sent), and the name
   * is free. Idempotent. To know that everything was delivered, drain() before, or `await using`.
   */
  close(): void {
    this.end();
    this.#host.forget(this as unknown as Channel<unknown, never>);
  }

  /** drain() and close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.drain();
    this.close();
  }

  /** @internal Ends it without its member. */
  end(error?: Error): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#listening.end(error);
    this.#engine.inbound.origins.uncount(this.name);
    if (this.#out !== null && !this.#engine.closed) this.#engine.publishers.unpublish(this.#out);
    for (const call of [...this.#closeCalls]) call();
    this.#status.complete();
  }

  /** @internal What it was opened with. */
  get settings(): ChannelSettings {
    return this.#settings;
  }

  /** @internal Its publishing half, if it has published. */
  get out(): AnyOutChannel | null {
    return this.#out;
  }

  /** @internal Local subscribers. */
  get listeners(): number {
    return this.#listening.count;
  }

  // ---- inside --------------------------------------------------------------------------------------------------------

  readonly #closeCalls = new Set<() => void>();

  #onClose(call: () => void): () => void {
    this.#closeCalls.add(call);
    return () => this.#closeCalls.delete(call);
  }

  #emit(value: In | Loan, headers: Headers | undefined): number {
    const out = this.#out ?? this.#publisher();
    if (out !== null) return out.emit(value, headers, null);
    this.#refusedClosed++;
    return REFUSED.ENDED;
  }

  /** A channel becomes a publisher when it is first used as one: pure subscribers are no publishers to anybody. */
  #publisher(): OutChannel<In> | null {
    if (this.#closed) return null;
    if (this.#out !== null || this.#openError !== null) return this.#out;
    try {
      this.#out = publishOn<In>(this.#engine, this.name, this.#settings, this.#status);
    } catch (error) {
      // Anything else than a typed error is the codec's own.
      this.#openError = notEncoded(this.name, this.#settings.codec?.name ?? '', error);
      this.#status.emit({ type: 'fault', error: this.#openError });
    }
    return this.#out;
  }

  #publishers(): number {
    let count = 0;
    for (const _ of this.#engine.inbound.origins.named(this.name)) count++;
    return count;
  }

  #open(): Listening | null {
    return this.#closed ? null : this.#listening;
  }

  #subscribed(subscriber: Subscriber<T>): (() => void) | undefined {
    if (this.#closed) {
      subscriber.complete();
      return undefined;
    }
    return this.#listening.plain(subscriber);
  }

  #drain(timeout: number, signal: AbortSignal | undefined): Promise<DrainReport> {
    return whenDelivered(
      this.#engine,
      this.#out === null || this.#engine.closed ? [] : [this.#out],
      timeout,
      signal,
    );
  }

  #held<V>(promise: Promise<V>): Promise<V> {
    const release = this.#engine.keepalive.hold();
    promise.then(release, release);
    return promise;
  }

  #closedError(): AnyMillraceError {
    if (this.#openError !== null) return this.#openError;
    return this.#engine.closed ? memberLeft(this.name) : publishingEnded(this.name, 'closed');
  }
}
