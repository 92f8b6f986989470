#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "transport/frame.h"

using namespace millrace::transport;

/**
 * The bytes are a frame as it lies in a slot. What the checks let through must be safe to walk:
 * every record inside the body, the lengths adding up, the count right.
 */
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kSelf = 7;
  constexpr uint32_t kLanes = 32;
  if (size > 1 << 20) return 0;
  FrameHeader header{};
  std::memcpy(&header, data, size < sizeof(header) ? size : sizeof(header));
  const HeaderFault fault = check_header(header, static_cast<uint32_t>(size), kSelf, kLanes);
  if (size < sizeof(header) && fault == HeaderFault::kNone) std::abort();
  // The walk must be safe for whatever the header says, so it runs in any case; the copy is exactly
  // as large as the body.
  const size_t body_bytes = size < sizeof(header) ? size : size - sizeof(header);
  std::unique_ptr<uint8_t[]> body(new uint8_t[body_bytes]);
  std::memcpy(body.get(), data + (size - body_bytes), body_bytes);
  const bool good = check_records(body.get(), static_cast<uint32_t>(body_bytes), header.records);
  // Nothing is both, and of a group's kinds only what is good anyway.
  if (check_group_header(header, static_cast<uint32_t>(size), kSelf) &&
      (fault == HeaderFault::kNone || size <= sizeof(header)))
    std::abort();
  if (check_records(body.get(), static_cast<uint32_t>(body_bytes), header.records,
                    1u << kRecordData) &&
      !good)
    std::abort();
  if (fault != HeaderFault::kNone) return 0;
  if (header.lane >= kLanes || header.receiver != kSelf || header.body_bytes != body_bytes)
    std::abort();
  if (!good) return 0;
  uint32_t at = 0;
  uint32_t count = 0;
  volatile uint32_t sum = 0;  // every byte is read, so that the sanitizer looks
  for (; at < body_bytes; ++count) {
    const uint32_t bytes = record_bytes(body.get() + at, body_bytes - at);
    if (bytes < kRecordHeaderBytes || bytes % kRecordAlign != 0 || at + bytes > body_bytes)
      std::abort();
    RecordHeader record;
    std::memcpy(&record, body.get() + at, sizeof(record));
    if (uint64_t{record.header_bytes} + record.payload_bytes > bytes - kRecordHeaderBytes)
      std::abort();
    // A descriptor from elsewhere names a range of memory, or is refused.
    const std::span<const uint8_t> payload(
        body.get() + at + kRecordHeaderBytes + record.header_bytes, record.payload_bytes);
    const auto remote = decode_remote(payload);
    if (remote && (payload.size() < sizeof(*remote) || remote->form != kRemoteForm ||
                   remote->serial == 0 || remote->bytes == 0 || remote->bytes > uint64_t{1} << 53 ||
                   remote->address + remote->bytes <= remote->address))
      std::abort();
    for (uint32_t i = 0; i < bytes; ++i) sum = sum + body[at + i];
    at += bytes;
  }
  if (at != body_bytes || count != header.records) std::abort();
  return 0;
}
