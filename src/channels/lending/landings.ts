import { type AnyMillraceError, type ErrorCode, MillraceError } from '../../errors.js';
import type { Native } from '../../native/binding.js';
import { nativeError } from '../../native/faults.js';
import { FETCH_END } from '../../native/tables.js';
import { deviceFailed, REMOTE_ACCESS } from '../completions.js';
import type { Fetches } from '../fetches.js';
import type { Peer } from '../peer.js';
import type { MessageAt, Origin } from '../subscription.js';
import type { StatusEvent } from '../types.js';
import type { Holdings } from './holdings.js';
import { Landing as OfOrigin } from './landing.js';

/** Payloads of a peer are read in the order of their descriptors, and so many bytes of them are asked for ahead. */
const AHEAD_BYTES = 8 * 2 ** 20;

type Landing = OfOrigin<Origin>;

/** What the landings need of their member. */
export interface LandingsHost {
  readonly native: Native;
  readonly handle: number;
  readonly holdings: Holdings;
  readonly fetches: Fetches;
  /** Tells a publisher that an offer is over: it may use the block again. */
  landed(peer: Peer, serial: number): void;
  /** What waits on that channel may go on. */
  ready(origin: Origin): void;
  /** Tells the channel's subscribers and the member. */
  tellOf(origin: Origin, event: StatusEvent): void;
}

/**
 * Large messages of members on other ports: nothing of those can be mapped, so each is read by RDMA READ into a block of this
 * member's pool, which is then held as any block is. What follows on the channel waits behind it (I4); other channels do not.
 *
 * An offer is over when its publisher was told so, which is exactly once, when no READ names the block any more; or when
 * either of the two is gone. In between the publisher does not use the block again.
 */
export class Landings {
  /** Those that are not being read yet, oldest first. */
  #waiting: Landing[] = [];
  /** There was no block for one of them. */
  #short = false;

  constructor(private readonly host: LandingsHost) {}

  /** Whether one waits for a block. */
  get waits(): boolean {
    return this.#short && this.#waiting.length > 0;
  }

  /** The message at `at` is to be read. Begins with it if there is room. */
  add(origin: Origin, at: MessageAt): Landing {
    const { bytes, view, sequence, headersEnd, payloadEnd } = at;
    const where = { bytes, view, sequence, headersEnd, payloadEnd };
    const offer = this.host.holdings.offerAt(at);
    const landing = new OfOrigin(origin, where, offer.serial, offer.bytes);
    // Serials of one channel only grow: what is offered twice is read once, and was or will be told of once.
    if (landing.serial > origin.offers) {
      origin.offers = landing.serial;
      origin.abandon = () => this.#abandon(origin);
      this.#waiting.push(landing);
      this.start();
    } else {
      landing.pending = false;
      landing.error =
        landing.serial === 0
          ? failure(landing, 'ERR_NATIVE', 'its publisher could not offer it')
          : failure(landing, 'ERR_DECODE', 'its offer was made before');
    }
    return landing;
  }

  /** Begins with those that wait, as far as there is room. */
  start(): void {
    this.#short = false;
    /** Whose turn it is not: none of a peer overtakes another, whose block it could take. */
    const busy = new Set<Peer>();
    for (const landing of [...this.#waiting]) {
      const { peer } = landing.origin;
      if (peer.reading > 0 && peer.reading + landing.bytes > AHEAD_BYTES) busy.add(peer);
      if (busy.has(peer)) continue;
      if (!this.#begin(landing)) {
        this.#short = true;
        return;
      }
      this.#waiting = this.#waiting.filter((one) => one !== landing);
    }
  }

  /** @returns false if it must wait */
  #begin(landing: Landing): boolean {
    try {
      const begun = this.host.holdings.land(landing.origin, landing.at);
      if (begun === null) return false;
      landing.held = begun.held;
      landing.fetch = begun.fetch;
    } catch (error) {
      this.#over(landing, this.#cause(landing, error));
      return true;
    }
    this.#follow(landing);
    return true;
  }

  /** Nobody wants it (any more). */
  drop(landing: Landing): void {
    if (landing.fetch !== 0) {
      // Its last row comes all the same, when the device writes to the block no more.
      if (landing.pending) this.host.native.cancelFetch(this.host.handle, landing.fetch);
      landing.pending = false;
      return;
    }
    if (landing.pending) {
      this.#waiting = this.#waiting.filter((one) => one !== landing);
      this.#tell(landing);
    }
    landing.pending = false;
    if (landing.held !== null) this.host.holdings.handed(landing.held);
    landing.held = null;
  }

  /** Of a message that nobody here subscribed to: it is not read. */
  decline(peer: Peer, serial: number): void {
    this.host.landed(peer, serial);
  }

  /** Its publisher is gone: what has not come from it by now does not come. */
  lost(origin: Origin): void {
    for (const { landing } of origin.line) {
      if (landing === null || !landing.pending) continue;
      landing.error = failure(landing, 'ERR_PEER_LOST', 'it left or died before all of it had come');
      this.drop(landing);
    }
  }

  #follow(landing: Landing): void {
    const { origin, bytes, at } = landing;
    origin.peer.reading += bytes;
    this.host.fetches.follow(landing.fetch, {
      progress: (done) => {
        const { name: channel, peer } = origin;
        const { sequence } = at;
        if (!landing.pending) return;
        this.host.tellOf(origin, {
          type: 'payload-progress',
          channel,
          peer: peer.identity,
          sequence,
          bytes,
          done,
        });
      },
      finish: (end, done, status) => {
        landing.fetch = 0;
        origin.peer.reading -= bytes;
        this.#tell(landing);
        if (!landing.pending) this.drop(landing);
        else if (end === FETCH_END.DONE) this.#over(landing, null);
        else if (end === FETCH_END.PEER_LOST || status === REMOTE_ACCESS)
          this.#over(
            landing,
            failure(landing, 'ERR_PEER_LOST', `it left or died when ${done} had come`, { done }),
          );
        else
          this.#over(
            landing,
            failure(landing, 'ERR_NATIVE', deviceFailed(done, status), {
              done,
              status,
            }),
          );
        this.start();
      },
      closed: () => {},
    });
  }

  #over(landing: Landing, error: AnyMillraceError | null): void {
    landing.error = error;
    // Before any of it came nobody was told.
    if (landing.held === null) this.#tell(landing);
    landing.pending = false;
    if (error !== null) this.drop(landing);
    this.host.ready(landing.origin);
  }

  #tell({ origin, serial }: Landing): void {
    this.host.landed(origin.peer, serial);
  }

  #cause(landing: Landing, error: unknown): AnyMillraceError {
    const { origin, bytes } = landing;
    const doing = `take ${bytes} bytes of ${origin.peer.info.name} on channel ${JSON.stringify(origin.name)}`;
    const known = nativeError(doing, this.host.native, error);
    if (known.errnoName !== 'E2BIG') return known;
    return new MillraceError('ERR_MESSAGE_TOO_LARGE', known.message, {
      cause: error,
      details: known.details,
    });
  }

  #abandon(origin: Origin): void {
    for (const { landing } of origin.line.splice(0)) if (landing !== null) this.drop(landing);
  }
}

function failure(
  { origin, at, bytes }: Landing,
  code: ErrorCode,
  why: string,
  details: object = {},
): AnyMillraceError {
  const channel = JSON.stringify(origin.name);
  return new MillraceError(
    code,
    `Message ${at.sequence} of ${origin.peer.info.name} on channel ${channel} (${bytes} bytes): ${why}.`,
    { details: { bytes, sequence: at.sequence, ...details } },
  );
}
