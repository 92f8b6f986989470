import type { MillraceError } from '../../errors.js';
import type { Codec, Encoder } from '../codec/codec.js';
import { announced } from '../codecs.js';
import { writeHeaders } from '../headers.js';
import { Loan } from '../lending/loan.js';
import type { Block } from '../lending/pool.js';
import type { Groups } from '../multicast/groups.js';
import { type MulticastOptions, Sender, type SenderHost } from '../multicast/sender.js';
import type { Status } from '../status.js';
import type { Transport } from '../transport.js';
import type { Headers } from '../types.js';
import {
  type Delivery,
  type DoneBody,
  FLAG,
  KIND,
  payloadLimit,
  RECORD_BYTES,
  recordSize,
  writeHeader,
} from '../wire.js';
import { Audience, type AudienceChannel, type AudienceMember } from './audience.js';
import type { DestinationEnd, TicketMaker } from './expectations.js';
import { type LargeChannel, type LargeMember, LargeMessages } from './large.js';
import {
  type Full,
  notEncoded,
  notSelfContained,
  publishingEnded,
  reentrant,
  refused,
  tooLarge,
} from './refusals.js';
import { ReplayStore } from './replay.js';
import { Room, type RoomHost } from './room.js';
import { Tally } from './tally.js';

/** What a publishing channel needs of its member. */
export interface OutboundHost extends AudienceMember, LargeMember, RoomHost {
  /** Milliseconds since the epoch, taken once a turn. */
  stamp(): number;
  readonly groups: Groups;
  readonly agenda: AudienceMember['agenda'] &
    RoomHost['agenda'] & {
      /** Something is to be told at the end of the turn. */
      dirty(tally: Tally): void;
    };
  readonly shortage: AudienceMember['shortage'] & LargeMember['shortage'] & RoomHost['shortage'];
  readonly publishers: AudienceMember['publishers'] & {
    /** A closed channel has told all its subscribers. */
    finished(channel: AnyOutChannel): void;
  };
}

/** A publishing channel of whatever type. */
// biome-ignore lint/suspicious/noExplicitAny: a channel of T takes only T, which nobody who holds them all knows
export type AnyOutChannel = OutChannel<any>;

/** What a publisher of one channel is made of. */
export interface OutOptions<T> {
  readonly codec: Codec<T>;
  readonly schemaId: string | null;
  readonly maxQueueBytes: number;
  readonly maxWait: number;
  readonly replay: number;
  readonly replayBytes: number;
  readonly lane: number;
  /** null: on lanes. */
  readonly multicast: MulticastOptions | null;
  /** Throws what is wrong with a value; null if values are not checked. */
  readonly validate: ((value: unknown) => unknown) | null;
}

const utf8 = new TextEncoder();

/**
 * The publisher's side of one channel: encodes a value once and hands the record to every destination.
 *
 * Sequences are given out here and nowhere else; a value that is refused takes none, so whatever is missing at a
 * subscriber was dropped by its own policy and is told by its destination (I4).
 */
export class OutChannel<T> implements AudienceChannel, LargeChannel<T>, SenderHost {
  readonly lane: number;
  readonly maxQueueBytes: number;
  readonly maxWait: number;
  readonly encoder: Encoder<T>;
  readonly delivery: Delivery;
  /** The codec as it is announced. */
  readonly codecName: string;
  readonly counts = { publishedBytes: 0, refused: 0, encodeErrors: 0, dropped: 0 };
  readonly tally: Tally;
  readonly room: Room;
  readonly audience: Audience;
  /** How a multicast channel sends; null on lanes. */
  readonly sender: Sender | null;
  /** What is kept for later subscribers. */
  readonly kept: ReplayStore | null;
  /** Last sequence that was given out. */
  sequence = 0;
  ended: DoneBody['how'] | null = null;
  lastWord: Uint8Array | null = null;
  readonly #transport: Transport;
  readonly #large: LargeMessages<T>;
  readonly #limit: number;

  constructor(
    private readonly host: OutboundHost,
    readonly number: number,
    readonly name: string,
    readonly options: OutOptions<T>,
    readonly status: Status,
  ) {
    const { codec, multicast, replay, replayBytes } = options;
    this.#transport = host.transport;
    this.#limit = payloadLimit(host.transport.slotBytes);
    this.lane = options.lane;
    this.maxQueueBytes = options.maxQueueBytes;
    this.maxWait = options.maxWait;
    this.delivery = multicast === null ? 'lane' : 'multicast';
    this.encoder = codec.encoder({ selfContained: multicast !== null });
    this.codecName = announced(codec.name);
    this.tally = new Tally(name, status, this.counts, (tally) => host.agenda.dirty(tally));
    this.room = new Room(host, options.maxWait);
    this.audience = new Audience(host, this);
    this.sender = multicast === null ? null : new Sender(host, this, host.groups.send(name), multicast);
    this.kept = replay > 0 ? new ReplayStore(replay, replayBytes, (block) => host.pool.unref(block)) : null;
    this.#large = new LargeMessages(host, this);
  }

  // ---- publishing ----------------------------------------------------------------------------------------------------

  /**
   * Takes a value: validates, encodes once, hands it to every destination, keeps it for replay.
   * @returns its sequence, or one of REFUSED; then nothing was taken and `tally.lastError` is set
   */
  emit(value: T | Loan, headers: Headers | undefined, ticket: TicketMaker | null): number {
    const { host, room } = this;
    const { arena } = this.#transport;
    if (this.ended !== null) return this.refuseEnded();
    if (arena.encoding) return this.fail(reentrant(this.name));
    room.look();
    if (room.refused) {
      host.progress();
      if (room.refused) return this.refuse(null);
    }
    if (value instanceof Loan) return this.#emitLoan(value, headers, ticket);
    if (this.options.validate !== null) {
      arena.encoding = true; // a validator is user code, too
      try {
        this.options.validate(value);
      } catch (error) {
        return this.fail(error);
      } finally {
        arena.encoding = false;
      }
    }
    if (this.#unwanted) return ++this.sequence;
    if (host.seals.pending) host.seals.seal();

    const start = room.reserve();
    if (start < 0) return this.refuse('arena');
    const limit = this.#limit;
    let head = 0;
    let end: number;
    arena.encoding = true;
    try {
      if (headers !== undefined) head = writeHeaders(headers, arena.bytes, start + RECORD_BYTES, limit);
      this.audience.keysOf(value);
      const from = start + RECORD_BYTES + head;
      end = head < 0 ? -1 : this.encoder.encode(value, arena.bytes, from, start + RECORD_BYTES + limit);
    } catch (error) {
      return this.fail(error);
    } finally {
      arena.encoding = false;
    }
    if (head < 0) return this.fail(tooLarge(this.name, 'its headers', limit));
    if (end < 0) {
      if (this.sender === null) return this.#large.value(value, headers, ticket);
      const what = 'its encoded bytes (a multicast channel lends no blocks)';
      return this.fail(tooLarge(this.name, what, limit));
    }
    if (this.ended !== null) return this.refuseEnded(); // an encoder that closed the channel
    const payload = end - start - RECORD_BYTES - head;
    const size = recordSize(head, payload);
    for (let at = end; at < start + size; at++) arena.bytes[at] = 0;
    const defined = this.encoder.takeDefinitions();
    if (defined !== null) {
      if (this.sender !== null) return this.fail(notSelfContained(this.name, this.options.codec.name));
      this.define(defined, size);
    }
    if (!this.admits(size)) return this.refuse(null);
    return this.hand(start, size, head, payload, 0, null, ticket);
  }

  #emitLoan(loan: Loan, headers: Headers | undefined, ticket: TicketMaker | null): number {
    const fault = this.#large.fault(loan);
    if (fault !== null) return this.fail(fault);
    if (!this.#unwanted) return this.#large.loan(loan, headers, ticket);
    loan.discard();
    return ++this.sequence;
  }

  /** See Channel.loan(). */
  loan(bytes: number): Loan {
    return this.#large.lend(bytes);
  }

  /** Nobody listens, and nothing is kept. */
  get #unwanted(): boolean {
    return this.audience.destinations.length === 0 && this.kept === null;
  }

  // ---- the steps of it (LargeChannel) --------------------------------------------------------------------------------

  /**
   * New definitions: they lie behind the message in the arena, hence the message's room is committed first, and are sent
   * before it. They go out even if the message is then refused.
   */
  define(payload: Uint8Array, size: number): void {
    const { arena } = this.#transport;
    arena.pinned = arena.head;
    arena.commit(size);
    this.audience.define(payload);
  }

  /** Whether a record of that size, and a block of so many bytes, can be taken. */
  admits(size: number, block = 0): boolean {
    return this.sender === null ? this.audience.admits(size, block) : this.sender.admits(size);
  }

  /**
   * The record at `start` of the arena is complete but for its own header: gives it its sequence and hands it to every
   * destination. One with a block lies there as often as there are destinations, each `size` bytes behind the last.
   * @param head bytes of its headers, in front of the payload
   * @returns the sequence
   */
  hand(
    start: number,
    size: number,
    head: number,
    payload: number,
    flags: number,
    block: Block | null,
    ticket: TicketMaker | null,
  ): number {
    const { arena } = this.#transport;
    const sequence = ++this.sequence;
    const bits = KIND.DATA | ((head === 0 ? flags : flags | FLAG.HEADERS) << 8) | (head << 16);
    writeHeader(arena.u32, arena.f64, start, this.number, payload, sequence, bits, 0, this.host.stamp());
    this.counts.publishedBytes += block === null ? size : size + block.bytes;
    if (this.kept !== null) this.kept.keep(arena, start, size, block);
    const { destinations } = this.audience;
    const count = destinations.length;
    if (count > 0) {
      const stride = block === null ? 0 : size;
      // Several destinations point at one record, or at neighbours: a flush in between must not free them.
      if (arena.pinned < 0) {
        arena.pinned = arena.head;
        arena.commit(block === null ? size : size * count);
      }
      if (block !== null)
        for (let i = 1; i < count; i++) arena.bytes.copyWithin(start + i * size, start, start + size);
      const made = ticket === null ? null : ticket(count);
      if (this.sender === null) {
        for (let i = 0; i < count; i++)
          destinations[i]!.take(start + i * stride, size, sequence, made, block);
      } else {
        this.sender.take(start, size, sequence);
        if (made !== null) for (const one of destinations) one.expect(sequence, made);
      }
      this.host.schedule();
    }
    arena.pinned = -1;
    return sequence;
  }

  /** A message finds no room: `what` is full, or, with null, a subscriber or the pace. */
  refuse(what: Full | null): number {
    this.#transport.arena.pinned = -1;
    const full = what ?? (this.sender === null ? 'subscriber' : 'pace');
    const { destinations } = this.audience;
    return this.tally.full(() => refused(this.name, full, this.maxQueueBytes, destinations));
  }

  /** The system has no memory for a message. */
  refuseShort(error: MillraceError): number {
    this.#transport.arena.pinned = -1;
    return this.tally.short(error);
  }

  /** A message comes too late. */
  refuseEnded(): number {
    this.#transport.arena.pinned = -1;
    return this.tally.ended(() => this.endError);
  }

  /** A message can't be sent. */
  fail(error: unknown): number {
    this.#transport.arena.pinned = -1;
    return this.tally.failed(notEncoded(this.name, this.options.codec.name, error));
  }

  // ---- state and end -------------------------------------------------------------------------------------------------

  /** Whether a message may be taken now, as far as is known without its size. */
  get writable(): boolean {
    return this.ended === null && this.room.open;
  }

  get queuedBytes(): number {
    return this.audience.queuedBytes + (this.sender?.queuedBytes ?? 0);
  }

  /** What is wrong with publishing now that it has ended. */
  get endError(): MillraceError {
    return publishingEnded(this.name, this.ended!);
  }

  /** Ends this member's publishing; `body` is told to the subscribers behind the last message. */
  end(body: DoneBody): void {
    if (this.ended === 'closed' || (this.ended !== null && body.how !== 'closed')) return;
    this.ended = body.how;
    if (body.how === 'closed') this.kept?.clear();
    const lastWord = utf8.encode(JSON.stringify(body));
    this.lastWord = lastWord;
    if (this.sender === null) this.audience.finish(lastWord);
    else this.sender.whenSent(() => this.audience.finish(this.lastWord!));
    this.room.tell();
  }

  /** Its last subscriber was told that it is closed. */
  finished(): void {
    this.host.publishers.finished(this);
  }

  /** The member is gone: nobody waits any more. */
  close(why: DestinationEnd): void {
    this.ended = 'closed';
    this.audience.end(why);
    this.kept?.clear();
    this.sender?.close();
    this.room.tell();
  }
}
