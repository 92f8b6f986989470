// What recvmsg() may say of a datagram, with anything in it: nothing beyond the control messages is
// read, and the frame that is made is UDP with the ports and the payload that were given.
#include <netinet/in.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "soft/packet.h"
#include "soft/udp_message.h"

// A byte with the length of the control messages, the sender's address, the messages, the payload.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::soft;
  constexpr size_t kAddress = sizeof(sockaddr_in6);
  constexpr size_t kMost = 9000;
  if (size < 1 + kAddress || size > kMost) return 0;
  sockaddr_storage from = {};
  memcpy(&from, data + 1, kAddress);
  from.ss_family = from.ss_family % 2 == 0 ? AF_INET : AF_INET6;
  const uint8_t* rest = data + 1 + kAddress;
  const size_t controls = std::min<size_t>(data[0], size - 1 - kAddress);
  const size_t bytes = size - 1 - kAddress - controls;
  // On the heap, to the byte: what reads beyond them is found.
  std::unique_ptr<uint8_t[]> control(new uint8_t[controls]);
  std::copy(rest, rest + controls, control.get());
  std::unique_ptr<uint8_t[]> memory(new uint8_t[kMostHeaders + bytes]);
  uint8_t* const payload = memory.get() + kMostHeaders;
  std::copy(rest + controls, rest + controls + bytes, payload);
  msghdr message = {};
  message.msg_name = &from;
  message.msg_namelen = sizeof(from);
  message.msg_control = control.get();
  message.msg_controllen = controls;

  constexpr uint16_t kPort = 0x8913;
  const UdpFrame made = frame_of(message, kPort, payload, static_cast<uint32_t>(bytes));
  if (made.frame < memory.get() || made.frame + made.bytes != payload + bytes) abort();
  PacketFields fields;
  PacketLayout layout;
  if (!parse_frame(made.frame, made.bytes, &fields, &layout)) abort();
  if ((fields.outer.layers & kLayerUdp) == 0 || layout.fragment) abort();
  if (layout.l4_bytes != bytes + 8 || layout.l4 + layout.l4_bytes != made.bytes) abort();
  const auto& in = reinterpret_cast<const sockaddr_in&>(from);
  if (fields.outer.dst_port != kPort || fields.outer.src_port != in.sin_port) abort();
  if (!std::equal(payload, payload + bytes, rest + controls)) abort();
  return 0;
}
