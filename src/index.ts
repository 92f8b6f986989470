export type {
  DrainOptions,
  FlushOptions,
  ReadyOptions,
  SendOptions,
} from './channels/calls.js';
export { Channel } from './channels/channel.js';
export {
  type Codec,
  CodecError,
  type CodecErrorCode,
  type CodecOption,
  type CustomCodec,
  custom,
  type DecodeLimits,
  type Decoder,
  type Encoder,
  type FieldType,
  type ScalarType,
  type StructSpec,
  type StructValue,
  struct,
} from './channels/codec/index.js';
export { failOnGap } from './channels/events.js';
export { Lease } from './channels/lending/lease.js';
export { Loan } from './channels/lending/loan.js';
export type { MemberResources } from './channels/member.js';
export type {
  ChannelOptions,
  JoinOptions,
  PatternOptions,
  SubscriberOptions,
} from './channels/options.js';
export type { Overflow } from './channels/overflow/index.js';
export { Pattern } from './channels/pattern.js';
export type { WaitMode } from './channels/pump.js';
export type {
  ChannelReport,
  MemberReport,
  RepairReport,
  SentReport,
  SubscriberReport,
} from './channels/report.js';
export { SchemaError, type SchemaIssue, type ValidateMode } from './channels/schema.js';
export type {
  ChannelEvent,
  ChannelStats,
  DrainReport,
  GapEvent,
  Headers,
  MessageEvent,
  PatternMessage,
  Publisher,
  PublisherJoinedEvent,
  PublisherLeftEvent,
  PublishReceipt,
  StatusEvent,
  Undelivered,
} from './channels/types.js';
export type { Delivery, GapReason } from './channels/wire.js';
export {
  type AnyMillraceError,
  CODES,
  type CodeEntry,
  type ErrorCode,
  type ErrorDetails,
  type ErrorFields,
  type ErrorScope,
  MillraceError,
  MillraceRangeError,
  MillraceTypeError,
} from './errors.js';
export { join } from './join.js';
export { Member } from './member.js';
export type { NativeResources } from './native/binding.js';
export type { NativePortCounters as PortCounters } from './native/port-calls.js';
export type {
  FetchOptions,
  OpenRegionOptions,
  RegionAccess,
  RegionOffer,
  RegionOptions,
  RegionRight,
  RegionRights,
} from './regions/options.js';
export type { Region } from './regions/region.js';
export { Datagram } from './steering/datagram.js';
export { Datagrams } from './steering/datagrams.js';
export { type Explanation, explain, type RuleVerdict } from './steering/explain.js';
export type { FieldName } from './steering/fields.js';
export type { FlowCounters } from './steering/flow-table.js';
export { decodePacket, type Packet } from './steering/packet.js';
export type { Problem } from './steering/problem.js';
export type {
  Action,
  MaskedAddress,
  MaskedNumber,
  Match,
  MatchInput,
  Position,
  Rule,
  RuleInput,
  RuleType,
  Target,
} from './steering/rule.js';
export { checkRules, type RuleSet } from './steering/set.js';
export { type RuleStats, Steering, type SteeringEvent, type WatchedFile } from './steering/steering.js';
