#include "soft/ring_frame.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if_arp.h>
#include <string.h>

#include <algorithm>

#include "soft/packet.h"

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

bool cut_segments(const RingFrame& whole,
                  const std::function<void(uint8_t* frame, uint32_t bytes)>& piece) {
  PacketFields fields;
  PacketLayout layout;
  parse_frame(whole.frame, whole.bytes, &fields, &layout);
  const uint32_t each = whole.net.segment_bytes;
  const bool udp = (fields.outer.layers & kLayerUdp) != 0 && layout.l4 != 0;
  constexpr uint32_t kUdpBytes = 8;
  if (whole.net.segmented != kUdpSegmented || !udp || each == 0 ||
      layout.l4 + kUdpBytes + each > kMaxFrame)
    return false;
  uint8_t cut[kMaxFrame];
  const uint32_t headers = layout.l4 + kUdpBytes;
  const uint8_t* payload = whole.frame + headers;
  uint32_t left = layout.l4_bytes - kUdpBytes;
  const auto put = [&](uint32_t at, uint32_t value) {
    const uint16_t big = htons(static_cast<uint16_t>(value));
    memcpy(cut + at, &big, sizeof(big));
  };
  while (left > 0) {
    const uint32_t n = std::min(left, each);
    memcpy(cut, whole.frame, headers);
    memcpy(cut + headers, payload, n);
    const bool v4 = (fields.outer.layers & kLayerIpv4) != 0;
    const uint32_t l4_bytes = kUdpBytes + n;
    put(layout.ip + (v4 ? 2 : 4),
        v4 ? layout.ip_header + l4_bytes : layout.l4 - layout.ip - 40 + l4_bytes);
    put(layout.l4 + 4, l4_bytes);
    piece(cut, headers + n);
    payload += n;
    left -= n;
  }
  return true;
}

}  // namespace millrace::soft
