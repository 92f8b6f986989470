#pragma once

#include <cstdint>
#include <span>

#include "soft/packet.h"

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

/** Cuts UDP that the sender's system left to be cut on its way (GSO), a datagram at a time. */
class Segments {
 public:
  /** False: this can't be cut (TCP, or what contradicts itself). The frame's memory stays as it is
   * while there are some left. */
  bool start(const RingFrame& whole);
  bool left() const { return left_ != 0; }
  /** The next datagram in a frame of its own, until the next call. */
  std::span<uint8_t> next();

 private:
  PacketLayout layout_;
  bool v4_ = false;
  uint32_t each_ = 0;
  uint32_t left_ = 0;                 ///< bytes
  const uint8_t* payload_ = nullptr;  ///< of what is left
  uint8_t cut_[kMaxFrame];            ///< begins with the headers
};

}  // namespace millrace::soft
