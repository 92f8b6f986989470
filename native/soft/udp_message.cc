#include "soft/udp_message.h"

#include <netinet/in.h>
#include <string.h>

namespace millrace::soft {
namespace {

void put16(uint8_t* at, uint32_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

struct Ends {
  bool v6 = false;
  const uint8_t* source = nullptr;
  const uint8_t* destination = nullptr;
  uint16_t source_port = 0, port = 0;  ///< network order
};

/** Ethernet, IPv4 or IPv6 and UDP in front of a payload. @return how many bytes */
uint32_t put_headers(const Ends& ends, uint32_t payload, uint8_t* out) {
  const uint32_t ip = ends.v6 ? 40 : 20, udp = 8 + payload;
  const uint32_t total = 14 + ip + 8;
  memset(out, 0, total);
  uint8_t* const network = out + 14;
  put16(out + 12, ends.v6 ? 0x86DD : 0x0800);
  if (ends.v6) {
    if (ends.destination[0] == 0xFF) {  // RFC 2464
      out[0] = out[1] = 0x33;
      memcpy(out + 2, ends.destination + 12, 4);
    }
    network[0] = 0x60;
    put16(network + 4, udp);
    network[6] = IPPROTO_UDP;
    network[7] = 64;
    memcpy(network + 8, ends.source, 16);
    memcpy(network + 24, ends.destination, 16);
  } else {
    if ((ends.destination[0] & 0xF0) == 0xE0) {  // RFC 1112
      out[0] = 0x01;
      out[2] = 0x5E;
      out[3] = ends.destination[1] & 0x7F;
      memcpy(out + 4, ends.destination + 2, 2);
    }
    network[0] = 0x45;
    put16(network + 2, ip + udp);
    network[8] = 64;
    network[9] = IPPROTO_UDP;
    memcpy(network + 12, ends.source, 4);
    memcpy(network + 16, ends.destination, 4);
  }
  uint8_t* const transport = network + ip;
  memcpy(transport, &ends.source_port, 2);
  memcpy(transport + 2, &ends.port, 2);
  put16(transport + 4, udp);
  return total;
}

/** What the last control message of a kind says that is whole. */
template <class T>
T said(const msghdr& message, int level, int type) {
  T out = {};
  const auto* const end = static_cast<const uint8_t*>(message.msg_control) + message.msg_controllen;
  auto* const walked = const_cast<msghdr*>(&message);  // by glibc, which changes nothing
  for (cmsghdr* one = CMSG_FIRSTHDR(walked); one != nullptr; one = CMSG_NXTHDR(walked, one)) {
    if (one->cmsg_level != level || one->cmsg_type != type) continue;
    const uint8_t* const data = CMSG_DATA(one);
    if (one->cmsg_len < CMSG_LEN(sizeof(T)) || data + sizeof(T) > end) continue;
    memcpy(&out, data, sizeof(T));
  }
  return out;
}

}  // namespace

UdpFrame frame_of(const msghdr& message, uint16_t port, uint8_t* payload, uint32_t bytes) {
  const auto info4 = said<in_pktinfo>(message, IPPROTO_IP, IP_PKTINFO);
  const auto info6 = said<in6_pktinfo>(message, IPPROTO_IPV6, IPV6_PKTINFO);
  sockaddr_in from4 = {};
  sockaddr_in6 from6 = {};
  Ends ends;
  ends.port = port;
  UdpFrame out;
  const bool v4 = static_cast<const sockaddr*>(message.msg_name)->sa_family == AF_INET;
  if (v4) {
    memcpy(&from4, message.msg_name, sizeof(from4));
    ends.source_port = from4.sin_port;
    ends.source = reinterpret_cast<const uint8_t*>(&from4.sin_addr);
    ends.destination = reinterpret_cast<const uint8_t*>(&info4.ipi_addr);
    out.interface = static_cast<uint32_t>(info4.ipi_ifindex);
  } else {
    memcpy(&from6, message.msg_name, sizeof(from6));
    const uint32_t mapped = IN6_IS_ADDR_V4MAPPED(&from6.sin6_addr) ? 12 : 0;
    ends.v6 = mapped == 0;
    ends.source_port = from6.sin6_port;
    ends.source = from6.sin6_addr.s6_addr + mapped;
    ends.destination = info6.ipi6_addr.s6_addr + mapped;
    out.interface = info6.ipi6_ifindex;
  }
  out.frame = payload - (ends.v6 ? kMostHeaders : kMostHeaders - 20);
  out.bytes = put_headers(ends, bytes, out.frame) + bytes;
  return out;
}

}  // namespace millrace::soft
