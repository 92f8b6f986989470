import type { StandardSchemaV1 } from '@standard-schema/spec';
import { MillraceRangeError, MillraceTypeError } from '../errors.js';
import type { FaultOptions } from '../native/open-options.js';
import { checkNames, flag, integer, invalid, oneOf } from '../suggest.js';
import { type Codec, type CodecOption, resolveCodec } from './codec/index.js';
import { isPrintable } from './names.js';
import { isOverflow, type Overflow, POLICIES } from './overflow/index.js';
import type { WaitMode } from './pump.js';
import { type ValidateMode, validator } from './schema.js';
import type { Delivery } from './wire.js';

/** What join() takes besides the domain's name. */
export interface JoinOptions {
  /**
   * This member's name, for people: shown to others and by `millrace ls`. 1 to 256 characters, none of them a control
   * character. The program's name and pid unless given.
   */
  readonly name?: string;
  /** `'soft'` (the software device over shared memory), `'auto'`, or an RDMA device's name. MILLRACE_DEVICE unless given. */
  readonly device?: string;
  /** How the member waits for messages; `'adaptive'` unless given. */
  readonly mode?: WaitMode;
  /** Bytes of an inbox slot: 4,096 to 1 MiB, a multiple of 64; 16,384 unless given. Larger messages go through the pool. */
  readonly slotBytes?: number;
  /** Inbox slots to start with; 128 unless given. */
  readonly slots?: number;
  /** Inbox slots at most; 4,096 unless given. */
  readonly maxSlots?: number;
  /** Bytes of the send arena; 1 MiB, or eight slots if that is more. */
  readonly arenaBytes?: number;
  /**
   * Bytes that the pool of blocks for large messages and loans may grow to, in shared memory; 1 GiB unless given. Nothing is
   * taken before the first.
   */
  readonly poolBytes?: number;
  /** Bytes of the pool that one subscriber may hold, or one block that is larger; half of poolBytes unless given. */
  readonly heldBytes?: number;
  /** Aborts the join. Has no effect once it has resolved. */
  readonly signal?: AbortSignal;
  /** @internal Faults that the device is told to make, for tests. */
  readonly faults?: FaultOptions;
}

/** What a subscriber's side of a channel, or a pattern, can be told. */
export interface SubscriberOptions {
  /**
   * What publishers do when this subscriber is slower than they are; `'wait'` unless given. With `delivery: 'multicast'` only
   * `'drop-oldest'`, which it then is.
   */
  readonly overflow?: Overflow;
  /** Bytes that a publisher may have on the way to this subscriber; 1 MiB unless given. */
  readonly windowBytes?: number;
  /**
   * Messages that a publisher keeps for subscribers that come later, and that this subscriber wants when it comes: the
   * smaller of the two numbers is what it gets. 0 unless given.
   */
  readonly replay?: number;
  /** Bytes of kept messages at most; 1 MiB unless given. */
  readonly replayBytes?: number;
  /** Whether own subscribers hear this member's own messages; false unless given. */
  readonly echo?: boolean;
}

/** What member.channel() takes. */
export interface ChannelOptions<T = unknown> extends SubscriberOptions {
  /** `'msgpackr'` unless given. Must be the same at all members. */
  readonly codec?: CodecOption<T>;
  /** A Standard Schema (zod, valibot, arktype …) that types and checks the values. */
  readonly schema?: StandardSchemaV1;
  /** A name and version of the schema; members that both name one must name the same. */
  readonly schemaId?: string;
  /** Which values are checked, when publishing and when receiving; `'all'` unless given. */
  readonly validate?: ValidateMode;
  /** Bytes queued for one slow subscriber at most; 4 MiB unless given. */
  readonly maxQueueBytes?: number;
  /** How long a full `wait` subscriber may refuse this publisher, in ms; then it is skipped, with a gap. No bound unless given. */
  readonly maxWait?: number;
  /** `'own'`: queue pairs of its own, so that bulk on other channels doesn't hold it up. `'shared'` unless given. */
  readonly lane?: 'shared' | 'own';
  /**
   * `'multicast'`: each message is sent once, however many listen, over datagrams; what gets lost is repaired on the lane, or
   * is a gap. `'lane'` unless given. Must be the same at all members.
   */
  readonly delivery?: Delivery;
  /** Multicast: bytes per second that this publisher sends; beyond that it queues, then refuses. No bound unless given. */
  readonly pace?: number;
  /**
   * Multicast: messages that a publisher keeps for repair, and that a subscriber holds while it waits for one. 4,096 unless
   * given.
   */
  readonly repair?: number;
  /** The same in bytes; 1 MiB unless given. */
  readonly repairBytes?: number;
}

/** What member.pattern() takes. */
export interface PatternOptions<T = unknown> extends SubscriberOptions {
  /** Decode only publishers of this codec; any built-in one unless given. */
  readonly codec?: CodecOption<T>;
  readonly schema?: StandardSchemaV1;
  readonly schemaId?: string;
  readonly validate?: ValidateMode;
}

/** Options of a channel with everything filled in. */
export interface ChannelSettings {
  readonly overflow: Overflow;
  readonly windowBytes: number;
  readonly replay: number;
  readonly replayBytes: number;
  readonly echo: boolean;
  /** null: any built-in one (patterns). */
  readonly codec: Codec<unknown> | null;
  readonly schema: StandardSchemaV1 | null;
  readonly schemaId: string | null;
  readonly validate: ValidateMode;
  readonly maxQueueBytes: number;
  readonly maxWait: number;
  readonly lane: 'shared' | 'own';
  readonly delivery: Delivery;
  /** Bytes per second; Infinity: no bound. */
  readonly pace: number;
  readonly repair: number;
  readonly repairBytes: number;
}

const KIB = 1024;
const MIB = 1024 * KIB;

// ---- values ----------------------------------------------------------------------------------------------------------

/** What a timer of Node.js can wait for: about 24 days. It takes a longer time for none at all. */
const LONGEST_MS = 2 ** 31 - 1;

/** A time in ms, Infinity allowed, or the default. @throws MillraceTypeError, MillraceRangeError ERR_INVALID_OPTION */
export function milliseconds(call: string, name: string, value: unknown, standard: number): number {
  if (value === undefined) return standard;
  if (typeof value !== 'number' || Number.isNaN(value))
    invalid(call, name, value, 'a number of milliseconds');
  if (value < 0 || (value > LONGEST_MS && Number.isFinite(value))) {
    throw new MillraceRangeError(
      'ERR_INVALID_OPTION',
      `${call}: ${name} must be from 0 to ${LONGEST_MS} ms, or Infinity, not ${value}.`,
      { details: { option: name, value, least: 0, most: LONGEST_MS } },
    );
  }
  return value;
}

/** An AbortSignal or undefined. */
export function abortSignal(call: string, value: unknown): AbortSignal | undefined {
  if (value === undefined || value instanceof AbortSignal) return value;
  invalid(call, 'signal', value, 'an AbortSignal');
}

function overflowOf(call: string, value: unknown, standard: Overflow): Overflow {
  if (value === undefined) return standard;
  if (isOverflow(value)) return value;
  if (
    typeof value === 'object' &&
    value !== null &&
    'latestBy' in value &&
    typeof value.latestBy === 'function'
  ) {
    invalid(
      call,
      'overflow.latestBy',
      value.latestBy,
      "a property path such as 'order.id', since the publisher evaluates it and functions don't travel",
    );
  }
  // A word gets the nearest one as a proposal.
  if (typeof value === 'string') return oneOf(call, 'overflow', value, 'wait', POLICIES);
  const words = POLICIES.map((one) => `'${one}'`).join(', ');
  invalid(call, 'overflow', value, `one of ${words}, or { latestBy: path }`);
}

const SUBSCRIBER = ['overflow', 'windowBytes', 'replay', 'replayBytes', 'echo'] as const;
const READING = ['codec', 'schema', 'schemaId', 'validate'] as const;
const MULTICAST = ['pace', 'repair', 'repairBytes'] as const;
const CHANNEL = [
  ...READING,
  ...SUBSCRIBER,
  'maxQueueBytes',
  'maxWait',
  'lane',
  'delivery',
  ...MULTICAST,
] as const;
const PATTERN = [...READING, ...SUBSCRIBER] as const;

function settings(
  call: string,
  given: ChannelOptions<never>,
  known: readonly string[],
  standardCodec: boolean,
): ChannelSettings {
  checkNames(call, given, known);
  const { codec, schema, schemaId } = given;
  const validate = oneOf(call, 'validate', given.validate, 'all', ['off', 'first', 'all'] as const);
  if (schema !== undefined) validator(schema, validate); // throws if it is none
  if (
    schemaId !== undefined &&
    (typeof schemaId !== 'string' || schemaId.length === 0 || schemaId.length > 255)
  ) {
    invalid(call, 'schemaId', schemaId, 'a string of 1 to 255 characters');
  }
  const delivery = oneOf(call, 'delivery', given.delivery, 'lane', ['lane', 'multicast'] as const);
  checkDelivery(call, delivery, given);
  return {
    overflow: overflowOf(call, given.overflow, delivery === 'lane' ? 'wait' : 'drop-oldest'),
    windowBytes: integer(call, 'windowBytes', given.windowBytes, MIB, 4 * KIB, 2 ** 40),
    replay: integer(call, 'replay', given.replay, 0, 0, 2 ** 32 - 1),
    replayBytes: integer(call, 'replayBytes', given.replayBytes, MIB, 0, 2 ** 40),
    echo: flag(call, 'echo', given.echo),
    codec: codec === undefined && !standardCodec ? null : (resolveCodec(codec) as unknown as Codec<unknown>),
    schema: schema ?? null,
    schemaId: schemaId ?? null,
    validate,
    maxQueueBytes: integer(call, 'maxQueueBytes', given.maxQueueBytes, 4 * MIB, 0, 2 ** 40),
    maxWait: milliseconds(call, 'maxWait', given.maxWait, Number.POSITIVE_INFINITY),
    lane: oneOf(call, 'lane', given.lane, 'shared', ['shared', 'own'] as const),
    delivery,
    pace:
      given.pace === undefined ? Number.POSITIVE_INFINITY : integer(call, 'pace', given.pace, 0, 1, 2 ** 40),
    repair: integer(call, 'repair', given.repair, 4096, 0, 2 ** 20),
    repairBytes: integer(call, 'repairBytes', given.repairBytes, MIB, 0, 2 ** 30),
  };
}

/**
 * Options that only one way of delivery has. A subscriber of a multicast channel can't slow its publisher, nor have it drop
 * for one subscriber alone: it loses the oldest, as datagrams are lost. A publisher is slowed by its own pace only.
 */
function checkDelivery(call: string, delivery: Delivery, given: ChannelOptions<never>): void {
  const refuse = (
    option: 'overflow' | 'lane' | 'maxWait' | (typeof MULTICAST)[number],
    why: string,
  ): never => {
    throw new MillraceTypeError('ERR_DELIVERY', `${call}: ${option} ${why}`, {
      details: { option, value: given[option], delivery },
    });
  };
  if (delivery === 'lane') {
    for (const name of MULTICAST)
      if (given[name] !== undefined) refuse(name, "is for delivery: 'multicast' only.");
    return;
  }
  if (given.overflow !== undefined && given.overflow !== 'drop-oldest')
    refuse(
      'overflow',
      "can only be 'drop-oldest' with delivery: 'multicast', since nobody waits for one of its subscribers; a publisher is slowed by `pace` alone.",
    );
  if (given.lane === 'own')
    refuse('lane', "is of no use with delivery: 'multicast': the group has a queue pair of its own.");
  if (given.maxWait !== undefined)
    refuse('maxWait', "is of no use with delivery: 'multicast': nobody waits for a subscriber.");
}

/** Checks and fills up a channel's options. @throws MillraceTypeError, MillraceRangeError */
export function channelSettings(name: string, given: object | undefined): ChannelSettings {
  return settings(`channel(${JSON.stringify(name)})`, (given ?? {}) as ChannelOptions<never>, CHANNEL, true);
}

/** Checks and fills up a pattern's options. @throws MillraceTypeError, MillraceRangeError */
export function patternSettings(text: string, given: object | undefined): ChannelSettings {
  return settings(`pattern(${JSON.stringify(text)})`, (given ?? {}) as ChannelOptions<never>, PATTERN, false);
}

/** Options of join with everything filled in but the domain. */
export interface JoinSettings {
  readonly name: string;
  readonly device: string;
  readonly mode: WaitMode;
  readonly slotBytes: number;
  readonly slots: number;
  readonly maxSlots: number;
  readonly arenaBytes: number;
  readonly poolBytes: number;
  readonly heldBytes: number;
  readonly signal: AbortSignal | undefined;
  readonly faults: FaultOptions | undefined;
}

const JOIN = [
  'name',
  'device',
  'mode',
  'slotBytes',
  'slots',
  'maxSlots',
  'arenaBytes',
  'poolBytes',
  'heldBytes',
  'signal',
  'faults',
] as const;

/** Checks and fills up join's options. @throws MillraceTypeError, MillraceRangeError */
export function joinSettings(given: JoinOptions, standardName: string): JoinSettings {
  const call = 'join()';
  checkNames(call, given, JOIN);
  const { name = standardName, device = process.env.MILLRACE_DEVICE || 'soft' } = given;
  if (typeof name !== 'string' || name.length === 0 || name.length > 256 || !isPrintable(name)) {
    invalid(call, 'name', name, 'a string of 1 to 256 characters, without control characters');
  }
  if (typeof device !== 'string' || device.length === 0) invalid(call, 'device', device, 'a device name');
  const slotBytes = integer(call, 'slotBytes', given.slotBytes, 16 * KIB, 4 * KIB, MIB, 64);
  const slots = integer(call, 'slots', given.slots, 128, 16, 16384);
  const least = Math.max(64 * KIB, 4 * slotBytes);
  const poolBytes = integer(call, 'poolBytes', given.poolBytes, 1024 * MIB, 64 * KIB, 2 ** 40);
  return {
    name,
    device,
    mode: oneOf(call, 'mode', given.mode, 'adaptive', ['adaptive', 'event', 'spin'] as const),
    slotBytes,
    slots,
    maxSlots: integer(call, 'maxSlots', given.maxSlots, Math.max(4096, slots), slots, 16384),
    arenaBytes: integer(
      call,
      'arenaBytes',
      given.arenaBytes,
      Math.max(MIB, 8 * slotBytes),
      least,
      2 ** 30,
      4096,
    ),
    poolBytes,
    heldBytes: integer(call, 'heldBytes', given.heldBytes, Math.floor(poolBytes / 2), 1, 2 ** 40),
    signal: abortSignal(call, given.signal),
    faults: given.faults,
  };
}

// ---- the same channel twice ------------------------------------------------------------------------------------------

function show(settings: ChannelSettings): string {
  const parts = Object.entries(settings).flatMap(([name, value]) => {
    if (value === null) return [];
    if (name === 'codec') return [`codec: ${(value as Codec<unknown>).name}`];
    if (name === 'schema') return [`schema: ${(value as StandardSchemaV1)['~standard'].vendor}`];
    return [`${name}: ${typeof value === 'object' ? JSON.stringify(value) : String(value)}`];
  });
  return `{ ${parts.join(', ')} }`;
}

/** Two structs of one layout are the same codec, wherever they were made. */
function sameLayout(a: Codec<unknown> | null, b: Codec<unknown> | null): boolean {
  return a !== null && b !== null && a.name === b.name && a.name.startsWith('struct:');
}

/**
 * The same name is the same channel; other options would silently be without effect, so they are an error.
 * @throws MillraceTypeError ERR_CHANNEL_OPTIONS, with both sets of options
 */
export function checkSame(what: string, have: ChannelSettings, given: ChannelSettings): void {
  const differ = (Object.keys(have) as (keyof ChannelSettings)[]).filter((name) => {
    const a = have[name];
    const b = given[name];
    if (name === 'schema') return a !== b;
    if (name === 'codec') return a !== b && !sameLayout(have.codec, given.codec);
    return JSON.stringify(a) !== JSON.stringify(b);
  });
  if (differ.length === 0) return;
  throw new MillraceTypeError(
    'ERR_CHANNEL_OPTIONS',
    `${what} is open already with other options (${differ.join(', ')}): open with ${show(have)}, now asked for ${show(given)}. ` +
      'Share the one that is open, or close it first.',
    { details: { differ } },
  );
}
