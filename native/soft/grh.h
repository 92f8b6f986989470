#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace millrace::soft {

/** Bytes in front of every datagram in the receiver's buffer. */
inline constexpr size_t kGrhBytes = 40;

/** What the network header of a datagram says. */
struct NetworkHeader {
  ibv_gid source = {};
  ibv_gid destination = {};
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  ibv_gid_type type = IBV_GID_TYPE_IB;
};

/**
 * Writes the 40 bytes as hardware leaves them: a GRH; on RoCE v2 an IPv6 header, or, when the GIDs
 * are IPv4-mapped, zeros and then an IPv4 header in the last 20 bytes. `payload` is the number of
 * bytes that follow.
 */
void write_network_header(const NetworkHeader& header, uint32_t payload, uint8_t out[kGrhBytes]);

/**
 * Reads them back. IPv4 is told from the rest by its version, length and checksum; v1 and v2 over
 * IPv6 by the next header. False: neither.
 */
bool read_network_header(const uint8_t in[kGrhBytes], NetworkHeader* header);

}  // namespace millrace::soft
