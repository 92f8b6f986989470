#pragma once

#include <sys/socket.h>

#include <cstdint>

namespace millrace::soft {

/** The longest that come in front of a payload: Ethernet, IPv6, UDP. */
inline constexpr uint32_t kMostHeaders = 14 + 40 + 8;

/** A datagram in a frame. */
struct UdpFrame {
  uint8_t* frame = nullptr;
  uint32_t bytes = 0;  ///< 0: the datagram was too long
  uint32_t interface = 0;
};

/**
 * The frame around a datagram, made again from what recvmsg() said of it; without checksums. What a
 * control message that is missing or too short would have said is zero.
 * @param message its msg_name holds a sockaddr_storage
 * @param port that the socket is bound to, in network order
 * @param payload has kMostHeaders of room in front of it
 */
UdpFrame frame_of(const msghdr& message, uint16_t port, uint8_t* payload, uint32_t bytes);

}  // namespace millrace::soft
