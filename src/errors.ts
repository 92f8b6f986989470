/**
 * Every error that millrace raises, in one table.
 *
 * A code is part of the API: it is never renamed, and programs may switch on it. `docs/errors.md` is generated from
 * CODES by `scripts/gen-errors.mjs`; a test asserts that the two agree.
 */

/** The largest thing that an error affects. */
export type ErrorScope = 'operation' | 'channel' | 'member';

/** One row of the table. */
export interface CodeEntry {
  /** The largest thing affected: this call, this channel, or the whole member. */
  readonly scope: ErrorScope;
  /** Whether the same call can succeed later without a change to the program. */
  readonly retryable: boolean;
  /** A few words, for lists. */
  readonly title: string;
  /** What is known to lead here. */
  readonly cause: string;
  /** What to do about it. */
  readonly remedy: string;
}

const define = <T extends Record<string, CodeEntry>>(table: T): { readonly [K in keyof T]: CodeEntry } =>
  table;

/** The code table. Sorted by area: arguments, life cycle, sending, receiving, codecs, cluster, steering, regions, native. */
export const CODES = define({
  // ---- arguments ---------------------------------------------------------------------------------------------------
  ERR_UNKNOWN_OPTION: {
    scope: 'operation',
    retryable: false,
    title: 'An option does not exist',
    cause: 'An options object has a property that the call does not know, most often a spelling mistake.',
    remedy: 'Use the name that the message suggests.',
  },
  ERR_INVALID_OPTION: {
    scope: 'operation',
    retryable: false,
    title: 'An option has a value of the wrong kind or out of range',
    cause:
      'The value is not of the type that the option takes, or lies outside the range that the message states.',
    remedy: 'Pass a value within the stated type and range.',
  },
  ERR_INVALID_ARGUMENT: {
    scope: 'operation',
    retryable: false,
    title: 'An argument has the wrong type',
    cause: 'A function was called with an argument that it cannot use.',
    remedy: 'Pass what the message asks for.',
  },
  ERR_CHANNEL_NAME: {
    scope: 'operation',
    retryable: false,
    title: 'A channel name is not valid',
    cause:
      'The name is empty, longer than 255 bytes of UTF-8, has an empty token (a leading, trailing or doubled dot), or contains a control character, white space at an end, or a wildcard (* or >).',
    remedy: 'Use dot-separated, non-empty tokens; use member.pattern() to subscribe with wildcards.',
  },
  ERR_PATTERN: {
    scope: 'operation',
    retryable: false,
    title: 'A pattern is not valid',
    cause: 'A token mixes a wildcard with other characters, or > is not the last token, or a token is empty.',
    remedy: 'Use * for exactly one token and > once, at the end, for one or more tokens.',
  },
  ERR_CHANNEL_OPTIONS: {
    scope: 'operation',
    retryable: false,
    title: 'A channel was opened again with other options',
    cause:
      'The same name in one member is one channel object, and its options were already decided by an earlier call.',
    remedy: 'Open the channel once and share it, or pass the same options. The message shows both sets.',
  },

  ERR_DELIVERY: {
    scope: 'operation',
    retryable: false,
    title: 'An option does not go with how the channel delivers',
    cause:
      "A channel with delivery 'multicast' was given a policy that would wait for, or select messages for, one subscriber; or one on lanes was given an option of multicast.",
    remedy: "Leave the option out, use overflow 'drop-oldest' and `pace`, or change `delivery`.",
  },

  // ---- life cycle --------------------------------------------------------------------------------------------------
  ERR_MEMBER_CLOSED: {
    scope: 'member',
    retryable: false,
    title: 'The member has left the domain',
    cause: 'leave() or close() was called, or the member failed earlier; status$ shows why.',
    remedy: 'Join again.',
  },
  ERR_CHANNEL_CLOSED: {
    scope: 'channel',
    retryable: false,
    title: 'The channel was closed',
    cause: 'close() was called on this channel object.',
    remedy: 'Open it again with member.channel().',
  },
  ERR_PUBLISHING_ENDED: {
    scope: 'channel',
    retryable: false,
    title: "This member's publishing on the channel has ended",
    cause: 'complete() or error() was called on the channel, perhaps by source$.subscribe(channel).',
    remedy: 'Do not publish after the end; close the channel and open it again to start anew.',
  },
  ERR_ABORTED: {
    scope: 'operation',
    retryable: true,
    title: 'The call was aborted by its signal',
    cause: 'The AbortSignal that was passed fired; its reason is the cause of this error.',
    remedy: 'Nothing, if the abort was meant.',
  },
  ERR_TIMEOUT: {
    scope: 'operation',
    retryable: true,
    title: 'The call did not finish in its time',
    cause: 'The condition that the message names did not become true within the stated time.',
    remedy: 'Look at what the message says is missing; a longer time-out helps only if it is merely slow.',
  },
  ERR_FORKED: {
    scope: 'member',
    retryable: false,
    title: 'The process was forked',
    cause: 'A member belongs to the process that joined; a child made by fork() has no claim on its device.',
    remedy:
      'Start a new program in the child (exec), as fork() and spawn() of node:child_process do, and join there. JavaScript itself does not go on in a raw fork(): V8 withholds its memory from the child.',
  },

  // ---- sending -----------------------------------------------------------------------------------------------------
  ERR_REFUSED: {
    scope: 'operation',
    retryable: true,
    title: 'A message was refused',
    cause:
      "The queue for a subscriber with overflow 'wait' is full (maxQueueBytes), or the send arena has no room at the moment.",
    remedy:
      'Wait with whenWritable(), raise maxQueueBytes, or let the slow subscriber choose a policy that drops.',
  },
  ERR_MESSAGE_TOO_LARGE: {
    scope: 'operation',
    retryable: false,
    title: 'A message is too large',
    cause:
      'The payload, or the loan, exceeds the whole pool (poolBytes), or the headers exceed a slot; the message says which, and the limit.',
    remedy: 'Join with larger poolBytes, or split the message; put less into headers.',
  },
  ERR_POOL_FULL: {
    scope: 'operation',
    retryable: true,
    title: 'No block of the pool is free',
    cause: 'All blocks that the pool may have (poolBytes) are lent, or held by subscribers.',
    remedy:
      'Wait with whenWritable(), discard loans that are not published, let subscribers release sooner, or join with larger poolBytes.',
  },
  ERR_LOAN: {
    scope: 'operation',
    retryable: false,
    title: 'A loan cannot be published',
    cause:
      "It was published or discarded before, is of another member, its memory was transferred to another ArrayBuffer, or the channel is multicast or of another codec than 'bytes'.",
    remedy: 'Ask the channel for a loan for each message.',
  },
  ERR_LEASE_RELEASED: {
    scope: 'operation',
    retryable: false,
    title: 'A lease was used after its release',
    cause: 'use(), retain() or value came after the last release(), or after use() had returned.',
    remedy: 'Call retain() before the lease is released, or copy what is needed longer.',
  },
  ERR_LEASE_POSTED: {
    scope: 'operation',
    retryable: false,
    title: 'A lease or a loan was posted to another thread, or cloned',
    cause:
      'postMessage() or structuredClone() was given a lease or a loan; it belongs to the member that received or lent it.',
    remedy:
      'Post a copy of its bytes, let the worker join and use the channel itself, or share memory with a region: post region.handle, and open it there.',
  },
  ERR_PEER_LOST: {
    scope: 'operation',
    retryable: true,
    title: 'A peer was lost while a message was on its way',
    cause:
      'The peer left or died before the message was known to be in its inbox; `ambiguous` says whether it may have received it.',
    remedy: 'Publish again if a duplicate does no harm.',
  },
  ERR_REENTRANT_ENCODE: {
    scope: 'operation',
    retryable: false,
    title: 'A codec published while it was encoding',
    cause:
      'An encoder, a getter or a toJSON called next(), offer() or publish() of the same member while a message was being written.',
    remedy: 'Publish after the encoder has returned.',
  },

  // ---- receiving ---------------------------------------------------------------------------------------------------
  ERR_GAP: {
    scope: 'channel',
    retryable: false,
    title: 'Messages are missing',
    cause: 'failOnGap() saw a gap: the message says from which publisher, which sequence numbers and why.',
    remedy:
      "Subscribe with overflow 'wait', use replay, or leave failOnGap() out and handle gaps from messages$.",
  },
  ERR_CODEC_MISMATCH: {
    scope: 'channel',
    retryable: false,
    title: 'A peer uses another codec on this channel',
    cause:
      'The codec, or the layout of a struct codec, that the peer announced differs from the one this channel was opened with.',
    remedy: 'Open the channel with the same codec in both programs. Nothing of that peer is decoded.',
  },
  ERR_DELIVERY_MISMATCH: {
    scope: 'channel',
    retryable: false,
    title: 'A peer delivers this channel in another way',
    cause:
      "One of the two opened the channel with delivery 'multicast' and the other without. A pattern whose overflow is 'wait' does not hear multicast channels.",
    remedy:
      "Open the channel with the same delivery in both programs; give a pattern another overflow than 'wait'.",
  },
  ERR_SCHEMA_MISMATCH: {
    scope: 'channel',
    retryable: false,
    title: 'A peer announced another schema for this channel',
    cause: 'Both sides named a schema (schemaId) and the names differ.',
    remedy: 'Use the same schema version in both programs.',
  },

  ERR_PEER_INPUT: {
    scope: 'operation',
    retryable: false,
    title: 'A peer sent something that is not valid',
    cause:
      'A record or a control message of that peer failed its checks, or its inbox refused ours; the message says which. Only that peer is concerned.',
    remedy:
      'Where the message lists causes (IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR), look at those. Else run the same version of the library in all members; report it if they are.',
  },
  ERR_SUBSCRIPTION_LATE: {
    scope: 'operation',
    retryable: false,
    title: 'Messages of a peer overtook its subscriptions',
    cause:
      'What a peer subscribed to before it sent a message is known to whoever receives that message. These messages waited for such subscriptions as long as the limit in the message allows, and were then delivered without them: the control connection of that peer is very slow or broken, or the peer was stopped between the two.',
    remedy:
      'Look for a stopped or overloaded process. Answers that were published meanwhile may not have reached that peer; let it ask again.',
  },

  // ---- codecs and schemas ------------------------------------------------------------------------------------------
  ERR_ENCODE: {
    scope: 'operation',
    retryable: false,
    title: 'A value could not be encoded',
    cause: 'The codec, or code of the value itself (a getter, toJSON), threw; that error is the cause.',
    remedy: 'Publish a value that the codec supports; docs/codecs.md has the table.',
  },
  ERR_DECODE: {
    scope: 'operation',
    retryable: false,
    title: 'A message could not be decoded',
    cause:
      'The bytes do not follow the codec, refer to an unknown definition, or exceed a limit of bytes, depth or records.',
    remedy:
      'Check that the publisher uses the same library version and codec; the message was counted and skipped.',
  },
  ERR_SCHEMA: {
    scope: 'operation',
    retryable: false,
    title: 'A value does not satisfy the schema',
    cause: 'Standard Schema validation found the issues that the message lists.',
    remedy: "Correct the value, or open the channel with validate: 'off' or 'first'.",
  },
  ERR_SCHEMA_ASYNC: {
    scope: 'operation',
    retryable: false,
    title: 'An asynchronous schema was given',
    cause: "The schema's validate() returned a promise; messages are validated in order and cannot wait.",
    remedy: 'Use a schema without asynchronous refinements, and check those after receiving.',
  },
  ERR_CODEC_UNKNOWN: {
    scope: 'operation',
    retryable: false,
    title: 'A codec name is not known',
    cause: 'The codec option is neither a built-in name nor an object with encoder() and decoder().',
    remedy: "Use 'msgpackr', 'bytes', 'json', struct({...}) or custom({...}).",
  },

  ERR_CODEC_VALUE: {
    scope: 'operation',
    retryable: false,
    title: 'A codec does not support a value',
    cause:
      'The value, or a part of it, has no form in this codec: a symbol, a cycle, a string given to bytes, a missing struct field, an extension type registered with msgpackr itself.',
    remedy:
      'Publish a value that the codec supports (docs/codecs.md has the table), or use custom({ name, encode, decode }).',
  },
  ERR_CODEC_RANGE: {
    scope: 'operation',
    retryable: false,
    title: 'A value does not fit its field',
    cause:
      'A field of a struct is out of the range of its type, or longer than the layout allows; the message names field, type and range.',
    remedy: 'Publish a value within the range, or give the field a wider type in both programs.',
  },
  ERR_CODEC_REENTRANT: {
    scope: 'operation',
    retryable: false,
    title: 'An encoder was used while it was encoding',
    cause: 'A getter, a toJSON or a custom codec encoded again with the encoder that was calling it.',
    remedy: 'Publish after the encoder has returned. Nothing was written and no definition was kept.',
  },
  ERR_CODEC_MALFORMED: {
    scope: 'operation',
    retryable: false,
    title: 'Bytes do not follow the codec',
    cause:
      'The payload ends in the middle of a value, goes on after it, or has something that the codec never writes.',
    remedy: 'Check that both programs use the same version and codec; the message was counted and skipped.',
  },
  ERR_CODEC_LIMIT: {
    scope: 'operation',
    retryable: false,
    title: 'A payload exceeds a limit of the decoder',
    cause:
      'It has more bytes, deeper nesting or more record definitions than the limit that the message states.',
    remedy: 'Publish flatter or smaller values. Cyclic values never end and always exceed the depth.',
  },
  ERR_CODEC_DEFINITION: {
    scope: 'operation',
    retryable: false,
    title: 'A record definition is missing or contradicts an earlier one',
    cause:
      'A payload refers to a record that its publisher has not defined, or a publisher defined the same number twice with different fields.',
    remedy:
      'Report it if both programs use this library: definitions are sent before the messages that need them.',
  },
  ERR_SCHEMA_TRANSFORM: {
    scope: 'channel',
    retryable: false,
    title: 'A schema that changes values needs every value validated',
    cause:
      "The schema's output differs from the value that was given (a default, a coercion, a transformation), and validate is 'first', so later values would pass unchanged.",
    remedy: "Use validate: 'all', or a schema that only checks.",
  },

  // ---- cluster -----------------------------------------------------------------------------------------------------
  ERR_DOMAIN_NAME: {
    scope: 'member',
    retryable: false,
    title: 'A domain name is not valid',
    cause: 'The name is empty, too long, or contains a control character.',
    remedy: 'Use a short printable name; MILLRACE_DOMAIN sets the default.',
  },
  ERR_FOLDER_OWNER: {
    scope: 'member',
    retryable: false,
    title: 'The registry folder belongs to someone else',
    cause: 'The folder exists and its owner or mode is not ours (0700), so its content cannot be trusted.',
    remedy: 'Remove the folder as its owner, or set MILLRACE_SHM_DIR to a folder of your own.',
  },
  ERR_FOLDER_ACCESS: {
    scope: 'member',
    retryable: false,
    title: 'The folder for shared memory cannot be used',
    cause: 'It does not exist, is not a folder, is read-only, or this user may not write to it.',
    remedy: 'Set MILLRACE_SHM_DIR to an existing folder on a tmpfs that this user may write to.',
  },
  ERR_REGISTRY: {
    scope: 'member',
    retryable: false,
    title: 'The registry folder failed',
    cause:
      'A system call on the registry folder or on the control socket failed as the message says, or somebody removed what is in use.',
    remedy: 'Follow the message; let nothing but this library change the folder.',
  },
  ERR_OUT_OF_FILES: {
    scope: 'member',
    retryable: true,
    title: 'No file descriptor is left',
    cause:
      'A system call failed with EMFILE (the limit of the process) or ENFILE (of the system); the message states the limit.',
    remedy:
      'Raise it with ulimit -n, or close files. A member takes one connection for each other member of its domain.',
  },
  ERR_SOCKET_PATH: {
    scope: 'member',
    retryable: false,
    title: "The control socket's path is too long",
    cause:
      "A Unix socket's address holds 107 bytes, and /proc, through which it could be shortened, is not mounted.",
    remedy: 'Set MILLRACE_SHM_DIR to a folder with a shorter path, or use a shorter domain name.',
  },
  ERR_LAYOUT_VERSION: {
    scope: 'operation',
    retryable: false,
    title: 'Another version is in use beside this one',
    cause:
      'Members of the same domain run a version of this library with another layout of shared memory; both work, but not with each other. Or the software device of other processes has another layout in the same folder, as between two builds before a release; then join() fails and names both.',
    remedy:
      'Use one version in all programs of a domain. Where join() failed: stop the other programs (what they leave is replaced), or set MILLRACE_FABRIC to another name.',
  },
  ERR_PROTOCOL_VERSION: {
    scope: 'operation',
    retryable: false,
    title: 'A peer speaks another version of the control protocol',
    cause: 'Its hello states a version that this one does not know.',
    remedy: 'Use one version in all programs of a domain.',
  },
  ERR_PEER_REFUSED: {
    scope: 'operation',
    retryable: true,
    title: 'A peer cannot be connected to',
    cause:
      'It, or this member, refused the connection for the reason in the message; other peers are not affected.',
    remedy: 'Follow the message. Where the reason can go away by itself, the connection is tried again.',
  },
  ERR_CONTROL_MALFORMED: {
    scope: 'operation',
    retryable: true,
    title: 'A peer sent a malformed control message',
    cause:
      'The bytes on the control connection of the named peer are not a message; the connection was dropped and is made anew.',
    remedy: 'Look for another program writing to the socket; otherwise report it with the message.',
  },
  ERR_CONTROL_TOO_LARGE: {
    scope: 'operation',
    retryable: false,
    title: 'A control message is too large',
    cause: 'A subscription, an announcement or an inspection takes more than 1 MiB as JSON.',
    remedy: 'Make the schema, or the list that it carries, smaller.',
  },
  ERR_CONTROL_BACKLOG: {
    scope: 'operation',
    retryable: true,
    title: 'A peer does not read its control messages',
    cause:
      'More unread control messages than the stated limit wait for it; most likely it is stopped, or busy in a loop that never yields.',
    remedy: 'It was disconnected, and is connected again, as a newcomer, when it reads.',
  },

  // ---- steering ----------------------------------------------------------------------------------------------------
  ERR_STEERING_RULE: {
    scope: 'operation',
    retryable: false,
    title: 'A steering rule is not valid',
    cause:
      'A field of the rule has a value that it can not have, fields contradict each other, or two rules of the set do; the message names rule, field and, from a file, the line. All that is wrong is in details.problems.',
    remedy:
      'Follow the message; millrace steer validate FILE shows the same without a device. docs/steering.md has the fields.',
  },
  ERR_STEERING_FILE: {
    scope: 'operation',
    retryable: true,
    title: 'A file for steering can not be read',
    cause:
      'A file of rules is not there, may not be read, or is no YAML or JSON; or a capture is no pcap or pcapng of an Ethernet interface. The message names file, place and cause.',
    remedy: 'Correct the file. Where it is watched, the rules from before stay until then.',
  },
  ERR_STEERING_UNKNOWN: {
    scope: 'operation',
    retryable: false,
    title: 'There is no steering rule of that name',
    cause: 'remove() was called with a name that no rule of this member has.',
    remedy: 'Use a name out of steering.rules.',
  },
  ERR_STEERING_REFUSED: {
    scope: 'operation',
    retryable: false,
    title: 'The device refused a steering rule',
    cause:
      'ibv_create_flow failed with the errno that the message names: EPERM (the process lacks CAP_NET_RAW), ENOMEM (the flow table is full), ENXIO (steering is off), ENODEV (no such network interface), EINVAL or EOPNOTSUPP (a rule that this device can not match), or what a UDP socket says where those stand in (EADDRINUSE, EADDRNOTAVAIL, EACCES). No rule of that call is in force; those from before are.',
    remedy: 'Follow the message, which says what to do for that errno.',
  },

  // ---- regions -----------------------------------------------------------------------------------------------------
  ERR_REGION_HANDLE: {
    scope: 'operation',
    retryable: false,
    title: "A text is not a region's handle",
    cause: 'openRegion() was given something that no region ever had as its handle.',
    remedy: 'Pass region.handle as it is.',
  },
  ERR_REGION_GONE: {
    scope: 'operation',
    retryable: false,
    title: 'A region is not there (any more)',
    cause:
      "Its last holder closed it, or ended and was swept, or the handle is another host's or of another MILLRACE_SHM_DIR.",
    remedy: 'Keep the region open in one process at least for as long as others may open it.',
  },
  ERR_REGION_ACCESS: {
    scope: 'operation',
    retryable: false,
    title: 'A region does not grant the access that was asked for',
    cause:
      "The kernel compared the asked access with the file's mode and refused; the message names both, and whether this user counts as user, group or other.",
    remedy: "Ask for less, or let the region's maker grant more in its access option.",
  },
  ERR_REGION_RESHARE: {
    scope: 'operation',
    retryable: false,
    title: 'A region that was opened cannot be shared again',
    cause: 'Rights to a region are granted by its maker alone, when it makes it.',
    remedy: 'Pass on the handle that the region was opened with.',
  },
  ERR_REGION_CLOSED: {
    scope: 'operation',
    retryable: false,
    title: 'A region was closed',
    cause: 'close() was called on this region, or its member left the domain.',
    remedy: 'Open it again by its handle.',
  },
  ERR_REGION_LIMIT: {
    scope: 'operation',
    retryable: false,
    title: 'A limit of the process stands in the way of a region',
    cause:
      'RLIMIT_FSIZE or RLIMIT_AS is lower than the region needs; the message states which, and its value.',
    remedy: 'Raise the limit that the message names, or make the region smaller.',
  },
  ERR_REGION_BUFFER: {
    scope: 'operation',
    retryable: false,
    title: "A region's bytes cannot be shown as an ArrayBuffer",
    cause:
      'This host refuses memory that is not its own (Electron; MILLRACE_EXTERNAL_BUFFERS=0), or the region is larger than its largest typed array.',
    remedy: 'Use Node.js, and regions within the limit that the message states.',
  },

  // ---- native ------------------------------------------------------------------------------------------------------
  ERR_NATIVE_LOAD: {
    scope: 'member',
    retryable: false,
    title: 'The native addon could not be loaded',
    cause: 'There is no prebuilt addon for this platform and libc, or the dynamic loader refused it.',
    remedy: 'See the list of platforms in the README; build from source with npm run build.',
  },
  ERR_NATIVE_ABI: {
    scope: 'member',
    retryable: false,
    title: 'The native addon is of another version',
    cause: 'The addon and the TypeScript code state different layouts of the rows they share.',
    remedy: 'Install the package again, so that both come from one version.',
  },
  ERR_DEVICE: {
    scope: 'member',
    retryable: false,
    title: 'The RDMA device cannot be used',
    cause:
      'No device has the name that was given (device, MILLRACE_DEVICE), it cannot be opened, its port has no GID, it lacks what lanes take, or a variable that describes the software device has no such value; the message says which.',
    remedy: "Run millrace doctor for what there is; use device: 'soft' for members of one host.",
  },
  ERR_NATIVE: {
    scope: 'operation',
    retryable: false,
    title: 'The transport failed',
    cause:
      'A native call failed with the errno that the message names, or a work request with the completion status that it names. Of IBV_WC_RETRY_EXC_ERR (nobody acknowledged) and IBV_WC_RNR_RETRY_EXC_ERR (there was no receive) it lists likely causes and where to look.',
    remedy: 'Follow the message; report it if it looks like a fault of the library.',
  },
  ERR_SHM_FULL: {
    scope: 'member',
    retryable: true,
    title: 'Shared memory is full',
    cause:
      'posix_fallocate in the shared-memory folder failed with ENOSPC; the message states what was needed and what is free.',
    remedy: 'Give the container more with --shm-size, or set MILLRACE_SHM_DIR to another tmpfs.',
  },
  ERR_MEMLOCK: {
    scope: 'member',
    retryable: false,
    title: 'The limit of locked memory is too low',
    cause:
      'Registering memory failed and RLIMIT_MEMLOCK is lower than what was asked for; the message states both.',
    remedy: 'Raise it: ulimit -l, or --ulimit memlock=-1 for a container.',
  },
  ERR_INTERNAL: {
    scope: 'member',
    retryable: false,
    title: 'A fault of the library',
    cause: 'An invariant that the message names did not hold.',
    remedy: 'Please report it with the message.',
  },
});

/** A stable error code. */
export type ErrorCode = keyof typeof CODES;

/** What an error can carry besides its message. */
export interface ErrorDetails {
  /** The lower error that led here. */
  cause?: unknown;
  /** The errno as a positive or negative number; kept negative, as Node does. */
  errno?: number;
  /** The errno's name, such as `ENOSPC`. */
  errnoName?: string;
  /** Only for lost peers: true if the message may have been received nevertheless. */
  ambiguous?: boolean;
  /** Overrides the table's `retryable` where the case at hand is known better. */
  retryable?: boolean;
  /** Further measured facts: names of peers and channels, limits, sizes. Copied onto `details`. */
  details?: Readonly<Record<string, unknown>>;
}

const BRAND = Symbol.for('millrace.error');

/** What all errors of this library have besides what every error has. */
export interface ErrorFields {
  /** Stable code; a row of docs/errors.md. */
  code: ErrorCode;
  /** The largest thing affected. */
  scope: ErrorScope;
  /** Whether the same call can succeed later. */
  retryable: boolean;
  /** Negative errno where a system call failed. */
  errno?: number;
  /** Name of the errno, such as `EMFILE`. */
  errnoName?: string;
  /** Set on lost peers: the message may have arrived. */
  ambiguous?: boolean;
  /** Measured facts behind the message. */
  details: Readonly<Record<string, unknown>>;
}

function decorate(error: ErrorFields, code: ErrorCode, given: ErrorDetails | undefined): void {
  const entry = CODES[code];
  error.code = code;
  error.scope = entry.scope;
  error.retryable = given?.retryable ?? entry.retryable;
  error.details = given?.details ?? {};
  if (given?.errno !== undefined) error.errno = given.errno > 0 ? -given.errno : given.errno;
  if (given?.errnoName !== undefined) error.errnoName = given.errnoName;
  if (given?.ambiguous !== undefined) error.ambiguous = given.ambiguous;
  Object.defineProperty(error, BRAND, { value: true });
}

const options = (given: ErrorDetails | undefined): ErrorOptions | undefined =>
  given !== undefined && 'cause' in given ? { cause: given.cause } : undefined;

/** An error class of the language with the fields of this library. */
function coded<B extends ErrorConstructor>(
  Base: B,
  name: string,
): new (
  code: ErrorCode,
  message: string,
  given?: ErrorDetails,
) => InstanceType<B> & ErrorFields {
  class Coded extends (Base as ErrorConstructor) {
    constructor(code: ErrorCode, message: string, given?: ErrorDetails) {
      super(message, options(given));
      this.name = name;
      decorate(this as unknown as ErrorFields, code, given);
    }
  }
  return Coded as never;
}

/**
 * The base of all errors of this library. `instanceof MillraceError` also holds for MillraceTypeError and
 * MillraceRangeError, which extend TypeError and RangeError. Takes a row of CODES, and in words what failed, on what, the
 * exact cause, and what to do.
 */
export class MillraceError extends coded(Error, 'MillraceError') {
  /** True for every error of this library, from whichever copy of it. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    // biome-ignore lint/complexity/noThisInStatic: a subclass must keep the ordinary rule
    if (this !== MillraceError) return Function.prototype[Symbol.hasInstance].call(this, value);
    return typeof value === 'object' && value !== null && BRAND in value;
  }
}

/** A wrong argument or option: a TypeError with a code. */
export class MillraceTypeError extends coded(TypeError, 'MillraceTypeError') {}

/** An argument or option out of range: a RangeError with a code. */
export class MillraceRangeError extends coded(RangeError, 'MillraceRangeError') {}

/** Any error of this library. */
export type AnyMillraceError = MillraceError | MillraceTypeError | MillraceRangeError;
