#pragma once

#include <cstdint>
#include <functional>

namespace millrace::soft {

/** struct virtio_net_hdr; the kernel's own header is none for C++. */
struct NetHeader {
  uint8_t flags;
  uint8_t segmented;
  uint16_t header_bytes;
  uint16_t segment_bytes;
  uint16_t checksum_start;
  uint16_t checksum_offset;
};
static_assert(sizeof(NetHeader) == 10);
inline constexpr uint8_t kNeedsChecksum = 1;  ///< VIRTIO_NET_HDR_F_NEEDS_CSUM
inline constexpr uint8_t kNotSegmented = 0;   ///< VIRTIO_NET_HDR_GSO_NONE
inline constexpr uint8_t kUdpSegmented = 5;   ///< VIRTIO_NET_HDR_GSO_UDP_L4

inline constexpr uint32_t kTagBytes = 4;

/** A frame of a packet socket, and what is known of it beside its bytes. */
struct RingFrame {
  uint8_t* frame = nullptr;
  uint32_t bytes = 0;
  uint32_t interface = 0;
  bool outgoing = false;
  bool twice = false;    ///< outgoing on a loopback interface, which shows it coming in as well
  bool checked = false;  ///< its checksums are right, or nobody computed them (the sender is local)
  bool tagged = false;   ///< the kernel has taken its outermost VLAN tag out
  uint16_t tag_type = 0, tag = 0;
  NetHeader net = {};
};

enum class SlotState {
  kFrame,
  kCopied,  ///< too long for the slot; it is in the socket's own queue, with `net` in front
  kCutOff,
};

/**
 * Reads a slot of a TPACKET_V2 ring with PACKET_VNET_HDR, as the kernel has filled it. In front of
 * the frame there is room for a tag then. Any thread.
 */
SlotState read_slot(uint8_t* slot, uint32_t size, RingFrame* out);

/** Puts the tag back that the kernel took out. Uses the kTagBytes in front of the frame. */
void restore_tag(RingFrame* frame);

/**
 * Cuts UDP that the sender's system left to be cut on its way (GSO): calls `piece` with each
 * datagram in a frame of its own. False: this can't be cut (TCP, or what contradicts itself).
 */
bool cut_segments(const RingFrame& whole,
                  const std::function<void(uint8_t* frame, uint32_t bytes)>& piece);

}  // namespace millrace::soft
