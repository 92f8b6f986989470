import { MillraceError } from '../../errors.js';
import type { Encoder } from '../codec/codec.js';
import { writeHeaders } from '../headers.js';
import { Loan, noLoans, usedUp } from '../lending/loan.js';
import { pack } from '../lending/pack.js';
import { type Block, type Body, LARGE_BYTES, NO_FIELDS, type Pool, writeLarge } from '../lending/pool.js';
import type { Seals } from '../seals.js';
import type { Transport } from '../transport.js';
import type { Headers } from '../types.js';
import { type Delivery, FLAG, FRAME_BYTES, payloadLimit, RECORD_BYTES, recordSize } from '../wire.js';
import type { TicketMaker } from './expectations.js';
import { type Full, poolFull, tooLarge } from './refusals.js';
import type { Room } from './room.js';

/** What a large message's record takes, as it is estimated before it is packed. */
const ESTIMATE = recordSize(0, LARGE_BYTES + 256);

/** What large messages need of their member. */
export interface LargeMember {
  readonly transport: Transport;
  readonly pool: Pool;
  readonly seals: Seals;
  readonly shortage: {
    /** A block of the pool; what drop policies let go of makes room. Null when there is none. @throws as Pool.lend() */
    lend(bytes: number): Block | null;
  };
}

/** What large messages need of their channel. */
export interface LargeChannel<T> {
  readonly name: string;
  readonly options: { readonly codec: { readonly name: string } };
  readonly delivery: Delivery;
  readonly encoder: Encoder<T>;
  readonly room: Room;
  readonly audience: { readonly destinations: readonly unknown[] };
  /** complete(), error() or close() came first: not null. */
  readonly ended: string | null;
  readonly endError: Error;
  /** See OutChannel for all of these. */
  admits(size: number, block?: number): boolean;
  define(payload: Uint8Array, size: number): void;
  hand(
    start: number,
    size: number,
    head: number,
    payload: number,
    flags: number,
    block: Block | null,
    ticket: TicketMaker | null,
  ): number;
  refuse(what: Full | null): number;
  refuseShort(error: MillraceError): number;
  refuseEnded(): number;
  fail(error: unknown): number;
}

/**
 * Large messages of one channel, which lie in a block of the pool each, whatever the number of subscribers: loans as they are,
 * and values that don't fit a slot. Each destination gets a record with its own descriptor.
 */
export class LargeMessages<T> {
  /** The system's last refusal of memory: not the value's fault. */
  #short: MillraceError | null = null;

  constructor(
    private readonly member: LargeMember,
    private readonly channel: LargeChannel<T>,
  ) {}

  /** See Channel.loan(). */
  lend(bytes: number): Loan {
    const { member, channel } = this;
    if (channel.ended !== null) throw channel.endError;
    const never = this.#never;
    if (never !== null) throw never;
    const block = this.#block(bytes);
    if (block !== null) return new Loan(member.pool, block);
    channel.room.wantsBlock();
    throw poolFull(bytes, member.pool.limit);
  }

  /** Publishes a loan that is wanted by somebody. What is refused stays the caller's. @returns as OutChannel.emit() */
  loan(loan: Loan, headers: Headers | undefined, ticket: TicketMaker | null): number {
    const body = { start: 0, end: loan.length, fields: NO_FIELDS };
    return this.#publish(loan.block, loan, body, headers, ticket);
  }

  /** What is wrong with publishing that loan; null: nothing. */
  fault(loan: Loan): Error | null {
    const never = this.#never;
    if (never !== null) return never;
    if (!loan.of(this.member.pool)) return usedUp('it is of another member');
    return loan.length === 0 ? usedUp('it was published or discarded before') : null;
  }

  /** Why no loan can be published here; null: they can. */
  get #never(): Error | null {
    const { name, options, delivery } = this.channel;
    if (options.codec.name !== 'bytes') return noLoans(name, "has another codec than 'bytes'");
    return delivery === 'multicast' ? noLoans(name, 'is multicast') : null;
  }

  /** Publishes a value that is larger than a slot. @returns as OutChannel.emit() */
  value(value: T, headers: Headers | undefined, ticket: TicketMaker | null): number {
    const { member, channel } = this;
    const { arena } = member.transport;
    // Not copied in vain: of bytes the size is known before.
    const least = (value as { byteLength?: unknown } | null)?.byteLength;
    if (!channel.admits(ESTIMATE, typeof least === 'number' ? least : 1)) return channel.refuse(null);
    let packed: ReturnType<typeof pack>;
    arena.encoding = true;
    try {
      packed = pack(channel.options.codec.name, channel.encoder, value, member.pool, (bytes) =>
        this.#block(bytes),
      );
    } catch (error) {
      const short = this.#short;
      return short !== null && error === short ? channel.refuseShort(short) : channel.fail(error);
    } finally {
      arena.encoding = false;
    }
    if (packed === null) {
      channel.room.wantsBlock();
      return channel.refuse('pool');
    }
    return this.#publish(packed.block, null, packed, headers, ticket);
  }

  /** A block of the pool. Null when there is none. @throws as Pool.lend() */
  #block(bytes: number): Block | null {
    try {
      return this.member.shortage.lend(bytes);
    } catch (error) {
      if (error instanceof MillraceError && error.retryable) {
        this.#short = error;
        this.channel.room.wantsMemory();
      }
      throw error;
    }
  }

  /** The caller's reference to the block ends here, but a loan that is refused stays as it is. */
  #publish(
    block: Block,
    loan: Loan | null,
    body: Body,
    headers: Headers | undefined,
    ticket: TicketMaker | null,
  ): number {
    const { member, channel } = this;
    let ours = loan === null;
    try {
      if (channel.ended !== null) return channel.refuseEnded(); // an encoder that closed the channel
      const { arena, slotBytes } = member.transport;
      if (member.seals.pending) member.seals.seal();
      const limit = payloadLimit(slotBytes);
      // As many records as there are destinations, and room for the headers, whose size is not known yet.
      const most = slotBytes - FRAME_BYTES;
      const start = channel.room.reserve(most);
      if (start < 0) return channel.refuse('arena');
      const head =
        headers === undefined
          ? 0
          : writeHeaders(headers, arena.bytes, start + RECORD_BYTES, limit - LARGE_BYTES);
      const payload = LARGE_BYTES + body.fields.length;
      const size = recordSize(head, payload);
      if (head < 0 || size > most) return channel.fail(tooLarge(channel.name, 'its headers', limit));
      const records = size * Math.max(1, channel.audience.destinations.length);
      // The place may be another one now; then the headers are written again.
      const at = channel.room.reserve(records);
      if (at < 0) return channel.refuse('arena');
      if (headers !== undefined) writeHeaders(headers, arena.bytes, at + RECORD_BYTES, limit);
      for (let i = at + RECORD_BYTES + head + payload; i < at + size; i++) arena.bytes[i] = 0;
      writeLarge(arena.view, at + RECORD_BYTES + head, body);
      const defined = channel.encoder.takeDefinitions();
      if (defined !== null) channel.define(defined, records);
      if (!channel.admits(size, block.bytes)) return channel.refuse(null);
      if (loan !== null) {
        try {
          loan.seal();
        } catch (error) {
          return channel.fail(error);
        }
        ours = true;
      }
      return channel.hand(at, size, head, payload, FLAG.LARGE, block, ticket);
    } finally {
      if (ours) member.pool.unref(block);
    }
  }
}
