// Slots of a packet socket's ring with anything in them: what is found lies inside, a tag that the
// kernel took out is where it was, and what is cut adds up to what it was cut from.
#include <linux/if_packet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "soft/packet.h"
#include "soft/ring_frame.h"

namespace {

using namespace millrace::soft;

void check_tag(const RingFrame& frame, uint16_t network_tag) {
  PacketFields fields;
  PacketLayout layout;
  if (!parse_frame(frame.frame, frame.bytes, &fields, &layout)) abort();
  const bool known = frame.tag_type == 0x8100 || frame.tag_type == 0x88A8;
  if (!known) return;
  if (frame.bytes < kMinFrame + kTagBytes) abort();
  if ((fields.outer.layers & kLayerVlan) != 0 && fields.outer.vlan_tag != network_tag) abort();
  if (layout.fragment && layout.l4 != 0) abort();
}

void check_pieces(const RingFrame& whole) {
  PacketFields before;
  PacketLayout at;
  parse_frame(whole.frame, whole.bytes, &before, &at);
  uint32_t bytes = 0;
  Segments segments;
  if (!segments.start(whole)) {
    if (segments.left()) abort();
    return;
  }
  while (segments.left()) {
    const std::span<uint8_t> next = segments.next();
    const uint8_t* piece = next.data();
    const auto length = static_cast<uint32_t>(next.size());
    if (length > kMaxFrame) abort();
    PacketFields fields;
    PacketLayout layout;
    if (!parse_frame(piece, length, &fields, &layout)) abort();
    if (layout.l4 != at.l4 || layout.l4 + layout.l4_bytes != length) abort();
    if (fields.outer.dst_port != before.outer.dst_port) abort();
    if (memcmp(piece + layout.l4 + 8, whole.frame + at.l4 + 8 + bytes, layout.l4_bytes - 8) != 0)
      abort();
    bytes += layout.l4_bytes - 8;
  }
  if (bytes != at.l4_bytes - 8) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeaders = TPACKET_ALIGN(sizeof(tpacket2_hdr)) + sizeof(sockaddr_ll);
  if (size < kHeaders) return 0;
  std::unique_ptr<uint8_t[]> slot(new uint8_t[size]);
  memcpy(slot.get(), data, size);
  RingFrame frame;
  if (read_slot(slot.get(), static_cast<uint32_t>(size), &frame) != SlotState::kFrame) return 0;
  if (frame.frame < slot.get() + kHeaders + kTagBytes ||
      frame.frame + frame.bytes > slot.get() + size)
    abort();
  const uint32_t bytes = frame.bytes;
  restore_tag(&frame);
  if (bytes < kMinFrame) return 0;
  if (frame.bytes != bytes + (frame.tagged ? kTagBytes : 0)) abort();
  if (frame.tagged) check_tag(frame, __builtin_bswap16(frame.tag));
  if (frame.net.segmented != kNotSegmented) check_pieces(frame);
  return 0;
}
