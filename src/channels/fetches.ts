import { type ErrorCode, MillraceError } from '../errors.js';
import type { Native } from '../native/binding.js';
import { nativeError } from '../native/faults.js';
import { FETCH_END } from '../native/tables.js';
import type { FetchOptions, RegionOffer } from '../regions/options.js';
import type { Region } from '../regions/region.js';
import { aborted } from './calls.js';
import { deviceFailed, REMOTE_ACCESS } from './completions.js';
import type { Peer } from './peer.js';

/** What fetches need of their member. */
export interface FetchHost {
  readonly native: Native;
  readonly handle: number;
  peerOf(incarnation: number): Peer | undefined;
  /** Keeps the event loop until it is called. */
  hold(): () => void;
  wake(): void;
}

/** Who started a fetch, and hears of it. */
export interface Running {
  progress(bytes: number): unknown;
  /** Its last word: the device writes to the target no more. */
  finish(end: number, done: number, status: number): void;
  /** The member is gone. */
  closed(): void;
}

/** Payloads that are being read out of the memory of members elsewhere. */
export class Fetches {
  readonly #running = new Map<number, Running>();

  constructor(private readonly host: FetchHost) {}

  /** member.fetch(), its arguments checked. */
  start(offer: RegionOffer, into: Region, options: FetchOptions, at: number): Promise<void> {
    const { native, handle } = this.host;
    const { signal, onProgress } = options;
    const { address, rkey, bytes, incarnation } = offer;
    const peer = this.host.peerOf(incarnation);
    const from = peer?.info.name ?? `the member ${incarnation}`;
    const failed = (code: ErrorCode, why: string, details: object) =>
      new MillraceError(code, `fetch(): ${bytes} bytes of ${from}: ${why}.`, {
        details: { bytes, incarnation, ...details },
      });
    return new Promise((resolve, reject) => {
      if (signal?.aborted === true) throw aborted('fetch()', signal);
      if (peer === undefined) throw failed('ERR_PEER_LOST', 'it is no peer of this member (any more)', {});
      let number: number;
      try {
        number = native.fetch(handle, peer.index, { address, rkey, bytes }, into.number, at);
      } catch (error) {
        throw nativeError(`fetch ${bytes} bytes of ${from}`, native, error);
      }
      // Its last row comes all the same, when the device writes to the region no more.
      const cancel = () => {
        native.cancelFetch(handle, number);
        this.host.wake();
      };
      signal?.addEventListener('abort', cancel, { once: true });
      const over = () => {
        signal?.removeEventListener('abort', cancel);
      };
      this.follow(number, {
        // What it throws is its caller's, and no matter of the transport, which is in the middle of a poll.
        progress: (done) => onProgress !== undefined && queueMicrotask(() => onProgress(done)),
        finish: (end, done, status) => {
          over();
          if (end === FETCH_END.DONE) resolve();
          else if (end === FETCH_END.CANCELLED) reject(aborted('fetch()', signal!));
          else if (end === FETCH_END.PEER_LOST)
            reject(failed('ERR_PEER_LOST', `it left or died when ${done} had come`, { done }));
          else if (status === REMOTE_ACCESS)
            reject(
              failed(
                'ERR_REGION_GONE',
                `its region was closed when ${done} had come, or the offer is none of offer()`,
                { done, status },
              ),
            );
          else reject(failed('ERR_NATIVE', deviceFailed(done, status), { done, status }));
        },
        closed: () => {
          over();
          reject(failed('ERR_MEMBER_CLOSED', 'this member left the domain', {}));
        },
      });
    });
  }

  /** Tells how a fetch of the addon goes on. */
  follow(number: number, running: Running): void {
    const release = this.host.hold();
    this.#running.set(number, {
      progress: (done) => running.progress(done),
      finish: (end, done, status) => {
        this.#running.delete(number);
        release();
        running.finish(end, done, status);
      },
      closed: () => {
        release();
        running.closed();
      },
    });
    this.host.wake();
  }

  /** A FETCH row. */
  row(number: number, end: number, done: number, status: number): void {
    const running = this.#running.get(number);
    if (end === FETCH_END.NONE) running?.progress(done);
    else running?.finish(end, done, status);
  }

  /** The member's end: the native side is being closed, and nothing is read after that. */
  close(): void {
    for (const running of [...this.#running.values()]) running.closed();
  }
}
