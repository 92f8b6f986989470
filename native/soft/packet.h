#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

// What rules match on, and how a frame is read into it. Plain data without padding, so that it can
// be compared, masked and hashed as 64-bit words and may lie in shared memory. Multi-byte fields
// are in network order, as they are in frames and in ibv_flow_spec. No dependence on the device:
// whatever delivers frames (a QP of the fabric, a network interface) uses the same code.

namespace millrace::soft {

/** Headers that were found (or that a rule asks for). */
enum Layer : uint32_t {
  kLayerEth = 1u << 0,
  kLayerVlan = 1u << 1,
  kLayerIpv4 = 1u << 2,
  kLayerIpv6 = 1u << 3,
  kLayerTcp = 1u << 4,
  kLayerUdp = 1u << 5,
  kLayerEsp = 1u << 6,
  kLayerGre = 1u << 7,
  kLayerMpls = 1u << 8,
  kLayerVxlan = 1u << 9,
};

/** ibv_flow_ipv4_ext_filter::flags */
inline constexpr uint8_t kIpDontFragment = 2;
inline constexpr uint8_t kIpMoreFragments = 4;

/** One stack of headers; what is not there is zero. */
struct HeaderFields {
  uint8_t dst_mac[6];
  uint8_t src_mac[6];
  uint16_t ether_type;  ///< of what follows all VLAN tags
  uint16_t vlan_tag;    ///< of the outermost tag
  uint8_t src_ip[16];   ///< IPv4: the first four bytes
  uint8_t dst_ip[16];
  uint32_t flow_label;
  uint8_t protocol;  ///< IPv6: of what follows the extension headers
  uint8_t traffic_class;
  uint8_t hop_limit;
  uint8_t ip_flags;  ///< kIp..., IPv4 only
  uint16_t dst_port;
  uint16_t src_port;
  uint32_t layers;  ///< Layer bits, host order
  uint32_t esp_spi;
  uint32_t esp_sequence;
  uint16_t gre_flags;
  uint16_t gre_protocol;
  uint32_t gre_key;
  uint32_t mpls;  ///< the whole first entry
  uint32_t vni;
};
static_assert(sizeof(HeaderFields) == 88);

struct PacketFields {
  HeaderFields outer;
  HeaderFields inner;  ///< inside a tunnel (VXLAN, GRE)
  /** Where the frame came in, host order: inode of the network namespace and index of the interface
   * of an attached port (feed.h). 0: it was sent by a QP of the fabric. Not read from the frame. */
  uint32_t net;
  uint32_t interface;

  static constexpr size_t kWords = 23;
};
static_assert(sizeof(PacketFields) == PacketFields::kWords * 8);
static_assert(std::has_unique_object_representations_v<PacketFields>);

/** What a rule matches: a field counts where the mask has bits; `value` has no others. */
struct FlowMatch {
  PacketFields value = {};
  PacketFields mask = {};
};

/** Where things are in a frame, of the outer headers; 0: not there. */
struct PacketLayout {
  uint32_t ip = 0;
  uint32_t ip_header = 0;  ///< bytes, with options
  uint32_t l4 = 0;         ///< TCP or UDP, not in a fragment or a frame that was cut off
  uint32_t l4_bytes = 0;   ///< header and payload, without Ethernet's padding
  bool fragment = false;
};

/** The longest frame that a port carries: a jumbo frame without its check sequence. */
inline constexpr uint32_t kMaxFrame = 9216;
inline constexpr uint32_t kMinFrame = 14;

/**
 * Reads a frame's headers, never beyond `bytes`. Reading ends where a header is cut off or
 * contradicts itself; what was read before stays. Lengths of payloads that go beyond the frame are
 * not held against its headers, as adapters do. A fragment has no TCP or UDP header (VERBS 3).
 * One tunnel is looked into. False: not even an Ethernet header. Any thread.
 */
bool parse_frame(const uint8_t* frame, size_t bytes, PacketFields* fields, PacketLayout* layout);

/** Bit 0 of the destination's first byte: multicast and broadcast. */
inline bool is_multicast_frame(const uint8_t* frame) { return (frame[0] & 1) != 0; }

/** Whether the IPv4 header's checksum and that of TCP or UDP are right; false when there are none.
 */
bool checksums_are_ok(const uint8_t* frame, const PacketFields& fields, const PacketLayout& layout);
/** Fills in both checksums (IBV_SEND_IP_CSUM). Does nothing where there are none. */
void fill_checksums(uint8_t* frame, const PacketFields& fields, const PacketLayout& layout);

}  // namespace millrace::soft
