import type { Batch } from '../frames.js';
import type { Landings } from '../lending/landings.js';
import type { Peer } from '../peer.js';
import type { Origin } from '../subscription.js';
import { FLAG, KIND, WORD } from '../wire.js';
import { type Budget, NO_DEADLINE } from './budget.js';
import type { Handover } from './handover.js';
import type { Origins } from './origins.js';
import type { ControlRecords } from './records.js';

/** Control records that have their place among a channel's messages. */
const IN_ORDER: ReadonlySet<number> = new Set([KIND.DEFINE, KIND.GAP, KIND.DONE, KIND.REPORT]);

/** What lines need of their member. */
export interface LinesHost {
  readonly landings: Landings;
  readonly transport: { readonly closed: boolean };
  /** A turn follows: what is ready may be delivered then. */
  wake(): void;
}

/**
 * What waits behind a large message of a member elsewhere, channel by channel, until that has been read: `origin.line`, whose
 * first is such a message.
 */
export class Lines {
  /** Channels whose line may go on. */
  readonly #ready = new Set<Origin>();

  constructor(
    private readonly host: LinesHost,
    private readonly origins: Origins,
    private readonly records: ControlRecords,
    private readonly handover: Handover,
    private readonly budget: Budget,
  ) {}

  /** Nothing may go on. */
  get atRest(): boolean {
    return this.#ready.size === 0;
  }

  /** The line of that channel may go on. Delivers nothing: it may be called from within next(). */
  ready(origin: Origin): void {
    this.#ready.add(origin);
    this.host.wake();
  }

  /** The message at `pos` waits, for its own payload or behind others. */
  add(origin: Origin, batch: Batch, pos: number, flags: number): void {
    const remote = (flags & FLAG.REMOTE) !== 0;
    const landing = remote ? this.host.landings.add(origin, this.handover.locate(batch, pos)) : null;
    origin.line.push({ batch, pos, landing });
    if (landing?.pending === false) this.#ready.add(origin);
  }

  /** Whether the control record at `pos` waits its turn as well. */
  takes(peer: Peer, batch: Batch, pos: number): boolean {
    const word = pos >>> 2;
    if (!IN_ORDER.has(batch.u32[word + WORD.BITS]! & 0xff)) return false;
    const line = this.origins.of(peer)?.get(batch.u32[word]!)?.line;
    if (line === undefined || line.length === 0) return false;
    line.push({ batch, pos, landing: null });
    return true;
  }

  /** Hands on what may go on. @returns false if the time is up before the end of that */
  deliver(deadline: number): boolean {
    for (const origin of this.#ready) if (!this.#advance(origin, deadline)) return false;
    return true;
  }

  /** The publisher is gone: hands on what has come of it, however late it is, and gaps for what does not come. */
  end(origin: Origin): void {
    this.host.landings.lost(origin);
    this.#advance(origin, NO_DEADLINE);
  }

  #advance(origin: Origin, deadline: number): boolean {
    const { line, peer } = origin;
    while (line.length > 0 && line[0]!.landing?.pending !== true) {
      const { batch, pos, landing } = line.shift()!;
      const word = pos >>> 2;
      const bits = batch.u32[word + WORD.BITS]!;
      const message = (bits & 0xff) === KIND.DATA;
      if (message) {
        const at = this.handover.locate(batch, pos);
        at.landing = landing;
        const flags = (bits >>> 8) & 0xff;
        if ((flags & FLAG.REPLAY) === 0) this.handover.live(origin, at, flags);
        else this.handover.replayed(origin, at, flags, batch.u32[word + WORD.CORRELATION]!);
      } else this.records.take(peer, batch, pos);
      if (this.host.transport.closed) return false;
      if (message && this.budget.spend(deadline)) return false;
    }
    this.#ready.delete(origin);
    return true;
  }
}
