#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

/**
 * The wire format of a frame, version 1, little endian: a 64-byte header that is written natively,
 * then a body of records, each 8-byte aligned, that TypeScript encodes once for all destinations.
 * Pure functions, no verbs; fuzzed by test/fuzz/frame_fuzz.cc. The record layout is shared with
 * src/channels/wire.ts.
 */
namespace millrace::transport {

static_assert(std::endian::native == std::endian::little, "the wire is written in place");

inline constexpr uint32_t kFrameMagic = 0x4D4C5231;
inline constexpr uint8_t kFrameVersion = 1;

/** Bits of FrameHeader::flags. */
enum FrameFlags : uint8_t {
  kFlagWait = 1,     ///< took the last credit: answer me (R13)
  kFlagAnswer = 2,   ///< the answer to a WAIT; used no credit, is worth none
  kFlagControl = 4,  ///< header only
};
inline constexpr uint8_t kKnownFlags = kFlagWait | kFlagAnswer | kFlagControl;
/** Of a datagram to a multicast group, alone; on a lane it is none. */
inline constexpr uint8_t kFlagGroup = 8;

struct FrameHeader {
  uint32_t magic;
  uint8_t version;
  uint8_t flags;
  uint16_t lane;      ///< the sender's number of the lane
  uint64_t sender;    ///< incarnation
  uint64_t receiver;  ///< incarnation; the group's tag in a datagram
  uint64_t sequence;  ///< per (sender, lane, receiver) or (sender, group), from 1
  uint32_t body_bytes;
  uint32_t records;
  uint32_t returned;         ///< credits burnt on recall, cumulative modulo 2^32 (R11)
  uint32_t recall_answered;  ///< number of the last recall that the sender has obeyed (R11)
  uint64_t
      used;  ///< credits used, burnt ones included; goes back when a re-arm finds frames lost (R14)
  uint64_t granted;  ///< what the sender of this frame grants to its receiver, cumulative; 0: says
                     ///< nothing
};
static_assert(sizeof(FrameHeader) == 64);
static_assert(offsetof(FrameHeader, lane) == 6 && offsetof(FrameHeader, sender) == 8);
static_assert(offsetof(FrameHeader, sequence) == 24 && offsetof(FrameHeader, body_bytes) == 32);
static_assert(offsetof(FrameHeader, returned) == 40 && offsetof(FrameHeader, granted) == 56);

inline constexpr uint32_t kFrameHeaderBytes = sizeof(FrameHeader);

/** Header of one record. Headers, then the payload follow; zero padding up to 8 bytes. */
struct RecordHeader {
  uint32_t channel;
  uint32_t payload_bytes;
  uint32_t sequence_low;
  uint32_t sequence_high;
  uint8_t kind;
  uint8_t flags;
  uint16_t header_bytes;
  uint32_t correlation;
  double time_ms;
};
static_assert(sizeof(RecordHeader) == 32);
static_assert(offsetof(RecordHeader, kind) == 16 && offsetof(RecordHeader, header_bytes) == 18);
static_assert(offsetof(RecordHeader, time_ms) == 24);

inline constexpr uint32_t kRecordHeaderBytes = sizeof(RecordHeader);
inline constexpr uint32_t kRecordAlign = 8;
static_assert(kFrameHeaderBytes % kRecordAlign == 0 && kRecordHeaderBytes % kRecordAlign == 0);

/** What is wrong with a frame header; kNone when nothing is. */
enum class HeaderFault {
  kNone,
  kShort,
  kMagic,
  kVersion,
  kFlags,
  kLane,
  kIncarnation,
  kSequence,
  kLength,
  kRecords
};

/**
 * Checks a header, a private copy (I9), of a frame of `frame_bytes` bytes that arrived at the
 * member `self`. The sender's incarnation and the sequence are only checked for being possible:
 * what they mean is the inbox's business.
 */
HeaderFault check_header(const FrameHeader& header, uint32_t frame_bytes, uint64_t self,
                         uint32_t max_lanes);

/** The same for a datagram of the group with that tag. */
bool check_group_header(const FrameHeader& header, uint32_t frame_bytes, uint64_t tag);

/** Kinds of records that native code looks at; src/channels/wire.ts has all. */
enum RecordKind : uint8_t { kRecordData = 1, kRecordHeartbeat = 8, kRecordFragment = 20 };

/**
 * Bytes of the record at `at` with its padding, or 0 when it does not fit in the `room` bytes
 * there. `at` needs no alignment.
 */
inline uint32_t record_bytes(const uint8_t* at, size_t room) {
  if (room < kRecordHeaderBytes) return 0;
  RecordHeader header;
  std::memcpy(&header, at, sizeof(header));
  const uint64_t exact = uint64_t{kRecordHeaderBytes} + header.header_bytes + header.payload_bytes;
  const uint64_t padded = (exact + (kRecordAlign - 1)) & ~uint64_t{kRecordAlign - 1};
  return padded <= room ? static_cast<uint32_t>(padded) : 0;
}

/**
 * Walks the records of a body, a private copy (I9). True when they fill exactly `bytes` and are
 * `records` in number, so that the lengths can be relied on afterwards; and when, where `kinds` is
 * given, all are of a kind below 32 whose bit it has.
 */
bool check_records(const uint8_t* body, uint32_t bytes, uint32_t records, uint32_t kinds = 0);

/** Flags of a DATA record by which its payload begins with a descriptor: of a block that the
 * receiver maps (holds.h), and, with the second one, of one that it reads from another port. */
enum RecordFlags : uint8_t { kRecordLarge = 8, kRecordRemote = 16 };

/** What RemoteDescriptor::form says in this version; another layout has another number. */
inline constexpr uint32_t kRemoteForm = 1;

/**
 * What is offered to a receiver on another port, which cannot map the publisher's pages: where to
 * read, until the receiver has said that the offer is over (a LANDED record with the serial).
 */
struct RemoteDescriptor {
  uint32_t form;     ///< kRemoteForm; 0, and all else: there is nothing
  uint32_t rkey;     ///< of the MR that the block is in
  uint64_t serial;   ///< of the offer, 1..2^53-1, never used again by this publisher
  uint64_t address;  ///< of the block
  uint64_t bytes;    ///< that are in use, > 0
};
static_assert(sizeof(RemoteDescriptor) == 32);

/** Checks one that a peer sent, a private copy (I9). Nothing when it is of another version, or
 * names no range of memory. */
std::optional<RemoteDescriptor> decode_remote(std::span<const uint8_t> bytes);

}  // namespace millrace::transport
