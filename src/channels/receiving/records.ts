import { MillraceError } from '../../errors.js';
import { readDone, readSubscribed } from '../bodies.js';
import type { Codec } from '../codec/codec.js';
import { announced, builtin } from '../codecs.js';
import type { Faults } from '../faults.js';
import type { Batch } from '../frames.js';
import { reportMismatch } from '../mismatch.js';
import { RANGES } from '../multicast/reorder.js';
import type { Peer } from '../peer.js';
import type { Feedback } from '../sending/feedback.js';
import type { Status } from '../status.js';
import { type LocalSubscription, Origin } from '../subscription.js';
import {
  type DoneBody,
  GAP_REASONS,
  KIND,
  RECORD_BYTES,
  type SubscribedBody,
  sequenceAt,
  WORD,
} from '../wire.js';
import type { Accounts } from './accounts.js';
import { asMillraceError, type Origins } from './origins.js';
import type { Sequencing } from './sequencing.js';

/** What a decoder takes at most: what a typed array can have. A publisher's pool is the limit that counts. */
const LARGEST_BODY = 2 ** 32;

/** What control records cause. */
export interface RecordsHost {
  /** What subscribers of this member say. */
  readonly feedback: Feedback;
  readonly shortage: {
    /** A receiver has given back blocks, for which this member waits. */
    returned(peer: Peer): void;
    /** A receiver elsewhere has read what was offered to it, or does not want it. */
    landed(peer: Peer, serial: number): void;
  };
  readonly holdings: {
    /** A publisher is short of blocks. */
    vacate(peer: Peer): void;
  };
  readonly subscribing: {
    /** Sends a CONSUMED record. */
    report(origin: Origin, delivered: number, bytes: number): void;
    /** Listens to a multicast channel's group until the returned function is called. */
    listen(channel: string, status: Status): () => void;
    /** Tells one peer that a subscription is over. */
    unsubscribe(peer: Peer, id: number): void;
  };
  readonly faults: Faults;
}

/** The control records of frames, in order with the messages. What they say is checked before it is used (I9). */
export class ControlRecords {
  constructor(
    private readonly host: RecordsHost,
    private readonly origins: Origins,
    private readonly accounts: Accounts,
    private readonly sequencing: Sequencing,
  ) {}

  /** Takes the control record at `pos` of a frame. */
  take(peer: Peer, batch: Batch, pos: number): void {
    const { origins } = this;
    const { u32, f64 } = batch;
    const word = pos >>> 2;
    const channel = u32[word]!;
    const payload = u32[word + WORD.LENGTH]!;
    const start = pos + RECORD_BYTES + (u32[word + WORD.BITS]! >>> 16);
    const text = () => Buffer.from(batch.buffer, start, payload).toString('utf8');
    switch (u32[word + WORD.BITS]! & 0xff) {
      case KIND.NONE:
      case KIND.AFTER:
        return;
      case KIND.CONSUMED:
        return this.consumed(peer, u32, f64, word);
      case KIND.SUBSCRIBED:
        return this.#subscribed(peer, batch, pos, payload);
      case KIND.RELEASED:
        return this.host.shortage.returned(peer);
      case KIND.VACATE:
        return this.host.holdings.vacate(peer);
      case KIND.LANDED:
        return this.landed(peer, batch, pos);
      case KIND.REPAIR:
      case KIND.MISSED:
        return this.#ranges(peer, batch, word, start, payload);
    }
    const origin = origins.of(peer)?.get(channel);
    if (origin === undefined || origin.closed) {
      this.origins.strays++;
      return;
    }
    switch (u32[word + WORD.BITS]! & 0xff) {
      case KIND.DEFINE:
        try {
          origin.decoder.define(batch.bytes.slice(start, start + payload));
        } catch (error) {
          // An id is immutable: a different second definition is an error against that publisher.
          this.host.faults.of(peer, asMillraceError(error, origin));
        }
        return;
      case KIND.GAP: {
        if (payload < 24) return this.#bad(peer, `a GAP of ${payload} bytes`);
        const at = start >>> 3;
        return this.#gapRecord(origin, f64[at]!, f64[at + 1]!, u32[(start >>> 2) + 5]!);
      }
      case KIND.DONE:
        return this.#done(origin, text(), sequenceAt(u32, word));
      case KIND.HEARTBEAT:
        return origin.reorder?.sent(sequenceAt(u32, word));
      case KIND.REPORT:
        // Datagrams come in no order with this record.
        origin.owes = origin.reorder === null ? origin.last : Math.max(origin.owes, sequenceAt(u32, word));
        origin.asked = true;
        return this.accounts.touch(origin);
      default:
        this.origins.strays++; // a later version's: reserved kinds are skipped
    }
  }

  /** A CONSUMED record, which may be taken out of its order. */
  consumed(peer: Peer, u32: Uint32Array, f64: Float64Array, word: number): void {
    if (u32[word + WORD.LENGTH]! < 16) return this.#bad(peer, 'a short CONSUMED');
    const at = (word + RECORD_BYTES / 4 + (u32[word + WORD.BITS]! >>> 18)) >>> 1;
    this.host.feedback.consumed(peer, u32[word]!, u32[word + WORD.CORRELATION]!, f64[at]!, f64[at + 1]!);
  }

  /** REPAIR and MISSED: pairs of the first and the last sequence. */
  #ranges(peer: Peer, { u32, f64 }: Batch, word: number, start: number, payload: number): void {
    const ranges: [number, number][] = [];
    const count = payload / 16;
    for (let i = 0; i < count && i < RANGES; i++) {
      const from = f64[(start >>> 3) + i * 2]!;
      const to = f64[(start >>> 3) + i * 2 + 1]!;
      if (!(Number.isSafeInteger(from) && Number.isSafeInteger(to) && from >= 1 && to >= from))
        return this.#bad(peer, `a range from ${from} to ${to}`);
      ranges.push([from, to]);
    }
    if (ranges.length !== count || count === 0) return this.#bad(peer, `ranges of ${payload} bytes`);
    const channel = u32[word]!;
    const generation = u32[word + WORD.CORRELATION]!;
    if ((u32[word + WORD.BITS]! & 0xff) === KIND.REPAIR)
      this.host.feedback.repair(peer, channel, generation, ranges);
    else for (const [from, to] of ranges) this.host.feedback.missed(peer, channel, generation, from, to);
  }

  /** A LANDED record, which may be taken out of its order. */
  landed(peer: Peer, { u32, f64 }: Batch, pos: number): void {
    const start = pos + RECORD_BYTES + (u32[(pos >>> 2) + WORD.BITS]! >>> 16);
    const payload = u32[(pos >>> 2) + WORD.LENGTH]!;
    if (payload < 8 || payload % 8 !== 0) return this.#bad(peer, `a LANDED of ${payload} bytes`);
    for (let at = start >>> 3; at < (start + payload) >>> 3; at++) {
      const serial = f64[at]!;
      if (!(Number.isSafeInteger(serial) && serial >= 1)) return this.#bad(peer, `a LANDED of ${serial}`);
      this.host.shortage.landed(peer, serial);
    }
  }

  #gapRecord(origin: Origin, from: number, to: number, reason: number): void {
    if (!(Number.isSafeInteger(from) && Number.isSafeInteger(to) && from >= 1 && to >= from)) {
      return this.#bad(origin.peer, `a GAP from ${from} to ${to}`);
    }
    if (to < origin.next) return;
    if (origin.reorder !== null) return origin.reorder.lost(from, to, GAP_REASONS[reason] ?? 'lost');
    this.origins.missing(origin, from - 1, 'lost');
    this.origins.missing(origin, to, GAP_REASONS[reason] ?? 'lost');
    this.accounts.touch(origin);
  }

  /** "You are subscribed, live from `first` on": the first record of a stream, before its definitions and messages. */
  #subscribed(peer: Peer, batch: Batch, pos: number, payload: number): void {
    const start = pos + RECORD_BYTES;
    if (payload < 16) return this.#bad(peer, `a SUBSCRIBED of ${payload} bytes`);
    const id = batch.u32[start >>> 2]!;
    const generation = batch.u32[(start >>> 2) + 1]!;
    const first = batch.f64[(start >>> 3) + 1]!;
    const subscription = this.origins.locals.get(id);
    if (subscription === undefined) return; // unsubscribed meanwhile
    let body: SubscribedBody;
    try {
      body = readSubscribed(Buffer.from(batch.buffer, start + 16, payload - 16).toString('utf8'));
      if (!Number.isSafeInteger(first) || first < 1) throw new Error(`first live sequence ${first}`);
      if (!subscription.wanted.matches(body.name))
        throw new Error(`${body.name} is not what was subscribed to`);
    } catch (error) {
      return this.#bad(peer, `a SUBSCRIBED: ${(error as Error).message}`);
    }
    const number = batch.u32[pos >>> 2]!;
    const codec = this.#agree(peer, subscription, body);
    if (codec === null) return this.host.subscribing.unsubscribe(peer, id);
    const { origins } = this;
    let origin = origins.of(peer)?.get(number);
    if (origin === undefined || origin.generation !== generation) {
      if (origin !== undefined) origins.forget(origin);
      origin = new Origin(
        peer,
        number,
        body.name,
        body.codec,
        generation,
        codec.decoder({ bytes: LARGEST_BODY }),
        first,
        subscription.wanted.window,
        origins.countsOf(body.name),
      );
      origins.add(origin);
      if (body.delivery === 'multicast') {
        origin.reorder = this.sequencing.begin(origin, subscription);
        origin.stopListening = this.host.subscribing.listen(body.name, subscription.status);
      }
    }
    origin.attach(subscription, first);
    const event = {
      type: 'publisher-joined',
      channel: body.name,
      publisher: peer.identity,
      sequence: first,
    } as const;
    for (const rich of subscription.rich) rich.joined?.(origin, event);
    subscription.acknowledged();
  }

  /** The codec to read that publisher with; null when the two sides differ, which is reported and never decoded. */
  #agree(peer: Peer, subscription: LocalSubscription, body: SubscribedBody): Codec<unknown> | null {
    const { codec, schemaId, delivery } = subscription.wanted;
    if (delivery !== null && delivery !== body.delivery) {
      reportMismatch(subscription.status, 'delivery', body.name, peer, delivery, body.delivery);
      return null;
    }
    const known = codec ?? builtin(body.codec);
    if (known === null || announced(known.name) !== body.codec) {
      reportMismatch(
        subscription.status,
        'codec',
        body.name,
        peer,
        codec?.name ?? 'any built-in codec',
        body.codec,
      );
      return null;
    }
    if (schemaId !== null && body.schema !== null && schemaId !== body.schema) {
      reportMismatch(subscription.status, 'schema', body.name, peer, schemaId, body.schema);
      return null;
    }
    return known;
  }

  #done(origin: Origin, text: string, sequence: number): void {
    const body = readDone(text);
    if (body === null) return this.#bad(origin.peer, 'a DONE that is not valid');
    if (origin.reorder === null) return this.#ended(origin, body);
    origin.reorder.whenDone(sequence, () => {
      // It waits for this word, and a closed origin says no more.
      if (body.how === 'closed') this.host.subscribing.report(origin, origin.last, origin.consumed);
      this.#ended(origin, body);
    });
  }

  #ended(origin: Origin, body: DoneBody): void {
    if (body.how === 'closed') return this.origins.left(origin, 'closed');
    this.origins.tell(origin, {
      type: 'publisher-done',
      channel: origin.name,
      peer: origin.peer.identity,
      how: body.how,
      ...(body.error === undefined ? {} : { error: body.error }),
    });
  }

  #bad(peer: Peer, what: string): void {
    this.host.faults.of(
      peer,
      new MillraceError('ERR_PEER_INPUT', `${peer.info.name} (${peer.info.incarnation}) sent ${what}.`),
    );
  }
}
