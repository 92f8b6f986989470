#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::soft {

/** RFC 1071 over network-order bytes; `start` is a sum that was begun elsewhere. */
inline uint16_t internet_checksum(const uint8_t* data, size_t bytes, uint32_t start = 0) {
  uint64_t sum = start;
  for (size_t i = 0; i + 1 < bytes; i += 2)
    sum += static_cast<uint32_t>(data[i] << 8 | data[i + 1]);
  if (bytes % 2 != 0) sum += static_cast<uint32_t>(data[bytes - 1] << 8);
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

}  // namespace millrace::soft
