#include "transport/frame.h"

namespace millrace::transport {

HeaderFault check_header(const FrameHeader& header, uint32_t frame_bytes, uint64_t self,
                         uint32_t max_lanes) {
  if (frame_bytes < kFrameHeaderBytes) return HeaderFault::kShort;
  if (header.magic != kFrameMagic) return HeaderFault::kMagic;
  if (header.version != kFrameVersion) return HeaderFault::kVersion;
  if ((header.flags & ~kKnownFlags) != 0) return HeaderFault::kFlags;
  // An answer is a control frame that needs no answer itself; anything else would start a ping-pong
  // (R13).
  if ((header.flags & kFlagAnswer) != 0 &&
      (header.flags & (kFlagControl | kFlagWait)) != kFlagControl) {
    return HeaderFault::kFlags;
  }
  if (header.lane >= max_lanes) return HeaderFault::kLane;
  if (header.receiver != self || header.sender == 0) return HeaderFault::kIncarnation;
  if (header.sequence == 0) return HeaderFault::kSequence;
  if (header.body_bytes != frame_bytes - kFrameHeaderBytes ||
      header.body_bytes % kRecordAlign != 0) {
    return HeaderFault::kLength;
  }
  const bool control = (header.flags & kFlagControl) != 0;
  if (control != (header.body_bytes == 0)) return HeaderFault::kLength;
  if ((header.records == 0) != control) return HeaderFault::kRecords;
  if (header.records > header.body_bytes / kRecordHeaderBytes) return HeaderFault::kRecords;
  return HeaderFault::kNone;
}

bool check_group_header(const FrameHeader& header, uint32_t frame_bytes, uint64_t tag) {
  return frame_bytes > kFrameHeaderBytes && header.magic == kFrameMagic &&
         header.version == kFrameVersion && header.flags == kFlagGroup && header.receiver == tag &&
         header.sender != 0 && header.body_bytes == frame_bytes - kFrameHeaderBytes &&
         header.body_bytes % kRecordAlign == 0;
}

bool check_records(const uint8_t* body, uint32_t bytes, uint32_t records, uint32_t kinds) {
  uint32_t at = 0;
  uint32_t count = 0;
  while (at < bytes) {
    const uint32_t size = record_bytes(body + at, bytes - at);
    if (size == 0) return false;
    if (kinds != 0) {
      const uint8_t kind = body[at + offsetof(RecordHeader, kind)];
      if (kind >= 32 || (kinds & (1u << kind)) == 0) return false;
    }
    at += size;
    ++count;
  }
  return count == records;
}

std::optional<RemoteDescriptor> decode_remote(std::span<const uint8_t> bytes) {
  RemoteDescriptor found;
  if (bytes.size() < sizeof(found)) return std::nullopt;
  std::memcpy(&found, bytes.data(), sizeof(found));
  constexpr uint64_t kMax = (uint64_t{1} << 53) - 1;  // what JavaScript counts to
  if (found.form != kRemoteForm || found.serial == 0 || found.serial > kMax) return std::nullopt;
  if (found.bytes == 0 || found.bytes > kMax || found.address == 0 ||
      found.address + found.bytes < found.address) {
    return std::nullopt;
  }
  return found;
}

}  // namespace millrace::transport
