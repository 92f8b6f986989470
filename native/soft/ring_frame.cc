#include "soft/ring_frame.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if_arp.h>
#include <string.h>

#include <algorithm>

namespace millrace::soft {

SlotState read_slot(uint8_t* slot, uint32_t size, RingFrame* out) {
  constexpr uint32_t kAddress = TPACKET_ALIGN(sizeof(tpacket2_hdr));
  tpacket2_hdr header;
  sockaddr_ll from;
  memcpy(&header, slot, sizeof(header));
  memcpy(&from, slot + kAddress, sizeof(from));
  *out = {};
  out->interface = static_cast<uint32_t>(from.sll_ifindex);
  out->outgoing = from.sll_pkttype == PACKET_OUTGOING;
  out->twice = out->outgoing && from.sll_hatype == ARPHRD_LOOPBACK;
  out->checked = (header.tp_status & (TP_STATUS_CSUMNOTREADY | TP_STATUS_CSUM_VALID)) != 0;
  out->tagged = (header.tp_status & TP_STATUS_VLAN_VALID) != 0;
  out->tag_type = (header.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0 ? header.tp_vlan_tpid
                                                                      : uint16_t{ETH_P_8021Q};
  out->tag = header.tp_vlan_tci;
  if ((header.tp_status & TP_STATUS_COPY) != 0) return SlotState::kCopied;
  constexpr uint32_t kFirst = kAddress + sizeof(from) + sizeof(out->net);
  if (header.tp_snaplen < header.tp_len || header.tp_mac < kFirst || header.tp_mac > size ||
      header.tp_snaplen > size - header.tp_mac)
    return SlotState::kCutOff;
  out->frame = slot + header.tp_mac;
  out->bytes = header.tp_snaplen;
  memcpy(&out->net, out->frame - sizeof(out->net), sizeof(out->net));
  return SlotState::kFrame;
}

void restore_tag(RingFrame* frame) {
  if (!frame->tagged || frame->bytes < kMinFrame) return;
  constexpr size_t kAddresses = 12;
  frame->frame -= kTagBytes;
  memmove(frame->frame, frame->frame + kTagBytes, kAddresses);
  const uint16_t tag[2] = {htons(frame->tag_type), htons(frame->tag)};
  memcpy(frame->frame + kAddresses, tag, sizeof(tag));
  frame->bytes += kTagBytes;
}

namespace {
constexpr uint32_t kUdpBytes = 8;
}

bool Segments::start(const RingFrame& whole) {
  PacketFields fields;
  left_ = 0;
  parse_frame(whole.frame, whole.bytes, &fields, &layout_);
  each_ = whole.net.segment_bytes;
  v4_ = (fields.outer.layers & kLayerIpv4) != 0;
  const bool udp = (fields.outer.layers & kLayerUdp) != 0 && layout_.l4 != 0;
  const uint32_t headers = layout_.l4 + kUdpBytes;
  if (whole.net.segmented != kUdpSegmented || !udp || each_ == 0 || headers + each_ > kMaxFrame)
    return false;
  memcpy(cut_, whole.frame, headers);
  payload_ = whole.frame + headers;
  left_ = layout_.l4_bytes - kUdpBytes;
  return true;
}

std::span<uint8_t> Segments::next() {
  const uint32_t headers = layout_.l4 + kUdpBytes;
  const uint32_t n = std::min(left_, each_);
  const auto put = [&](uint32_t at, uint32_t value) {
    const uint16_t big = htons(static_cast<uint16_t>(value));
    memcpy(cut_ + at, &big, sizeof(big));
  };
  put(layout_.ip + (v4_ ? 2 : 4),
      (v4_ ? layout_.ip_header : layout_.l4 - layout_.ip - 40) + kUdpBytes + n);
  put(layout_.l4 + 4, kUdpBytes + n);
  memcpy(cut_ + headers, payload_, n);
  payload_ += n;
  left_ -= n;
  return {cut_, headers + n};
}

}  // namespace millrace::soft
