#include "soft/packet.h"

#include <string.h>

#include "soft/checksum.h"

namespace millrace::soft {
namespace {

constexpr uint16_t kTypeIpv4 = 0x0800;
constexpr uint16_t kTypeIpv6 = 0x86DD;
constexpr uint16_t kTypeVlan = 0x8100;
constexpr uint16_t kTypeServiceVlan = 0x88A8;
constexpr uint16_t kTypeMpls = 0x8847;
constexpr uint16_t kTypeMplsMulticast = 0x8848;
constexpr uint16_t kTypeBridged = 0x6558;  ///< Ethernet inside GRE

constexpr uint8_t kProtocolTcp = 6;
constexpr uint8_t kProtocolUdp = 17;
constexpr uint8_t kProtocolGre = 47;
constexpr uint8_t kProtocolEsp = 50;
constexpr uint8_t kIpv6HopByHop = 0;
constexpr uint8_t kIpv6Routing = 43;
constexpr uint8_t kIpv6Fragment = 44;
constexpr uint8_t kIpv6Destination = 60;
constexpr int kMaxExtensions = 8;
constexpr int kMaxVlanTags = 2;

constexpr uint16_t kPortVxlan = 4789;
constexpr uint16_t kPortMpls = 6635;

constexpr uint16_t kGreChecksum = 0x8000;
constexpr uint16_t kGreKey = 0x2000;
constexpr uint16_t kGreSequence = 0x1000;
constexpr uint16_t kGreVersion = 0x0007;

uint16_t get16(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }

/** What is left of a frame. take() never gives more than there is. */
class Reader {
 public:
  Reader(const uint8_t* data, size_t bytes) : start_(data), at_(data), left_(bytes) {}
  size_t left() const { return left_; }
  uint32_t offset() const { return static_cast<uint32_t>(at_ - start_); }
  const uint8_t* peek(size_t n) const { return n <= left_ ? at_ : nullptr; }
  const uint8_t* take(size_t n) {
    if (n > left_) return nullptr;
    const uint8_t* here = at_;
    at_ += n;
    left_ -= n;
    return here;
  }
  /** What follows `n` bytes is padding. */
  void cut(size_t n) {
    if (n < left_) left_ = n;
  }

 private:
  const uint8_t* start_;
  const uint8_t* at_;
  size_t left_;
};

class Parser {
 public:
  Parser(Reader reader, PacketFields* fields, PacketLayout* layout)
      : in_(reader), fields_(fields), out_(&fields->outer), layout_(layout) {}

  bool ethernet() {
    const uint8_t* header = in_.take(14);
    if (header == nullptr) return false;
    memcpy(out_->dst_mac, header, 6);
    memcpy(out_->src_mac, header + 6, 6);
    memcpy(&out_->ether_type, header + 12, 2);
    out_->layers |= kLayerEth;
    uint16_t type = get16(header + 12);
    for (int tag = 0; tag < kMaxVlanTags && (type == kTypeVlan || type == kTypeServiceVlan);
         ++tag) {
      const uint8_t* vlan = in_.take(4);
      if (vlan == nullptr) return true;
      if (tag == 0) memcpy(&out_->vlan_tag, vlan, 2);
      memcpy(&out_->ether_type, vlan + 2, 2);
      out_->layers |= kLayerVlan;
      type = get16(vlan + 2);
    }
    payload_of_type(type);
    return true;
  }

 private:
  bool outermost() const { return out_ == &fields_->outer; }

  /**
   * A header says how much follows. Less is padding; more is a frame that was cut off, or a lie:
   * its headers count, as they do for an adapter, but nothing can be said of its checksums.
   */
  void within(size_t bytes) {
    truncated_ |= bytes > in_.left();
    in_.cut(bytes);
  }

  void payload_of_type(uint16_t type) {
    if (type == kTypeIpv4) {
      ipv4();
    } else if (type == kTypeIpv6) {
      ipv6();
    } else if (type == kTypeMpls || type == kTypeMplsMulticast) {
      mpls();
    }
  }

  void mpls() {
    const uint8_t* entry = in_.take(4);
    if (entry == nullptr) return;
    memcpy(&out_->mpls, entry, 4);
    out_->layers |= kLayerMpls;
  }

  void ipv4() {
    const uint32_t offset = in_.offset();
    const uint8_t* header = in_.peek(20);
    if (header == nullptr || header[0] >> 4 != 4) return;
    const size_t header_bytes = static_cast<size_t>(header[0] & 15) * 4;
    const size_t total = get16(header + 2);
    if (header_bytes < 20 || total < header_bytes || header_bytes > in_.left()) return;
    within(total);
    in_.take(header_bytes);
    memcpy(out_->src_ip, header + 12, 4);
    memcpy(out_->dst_ip, header + 16, 4);
    out_->protocol = header[9];
    out_->traffic_class = header[1];
    out_->hop_limit = header[8];
    out_->ip_flags = static_cast<uint8_t>(((header[6] & 0x40) != 0 ? kIpDontFragment : 0) |
                                          ((header[6] & 0x20) != 0 ? kIpMoreFragments : 0));
    out_->layers |= kLayerIpv4;
    const bool fragment = (get16(header + 6) & 0x3FFF) != 0;  // an offset, or more to come
    if (outermost()) {
      layout_->ip = offset;
      layout_->ip_header = static_cast<uint32_t>(header_bytes);
      layout_->fragment = fragment;
    }
    if (!fragment) transport();
  }

  void ipv6() {
    const uint32_t offset = in_.offset();
    const uint8_t* header = in_.peek(40);
    if (header == nullptr || header[0] >> 4 != 6) return;
    const size_t payload = get16(header + 4);
    in_.take(40);
    within(payload);
    memcpy(out_->src_ip, header + 8, 16);
    memcpy(out_->dst_ip, header + 24, 16);
    const uint8_t label[4] = {0, static_cast<uint8_t>(header[1] & 15), header[2], header[3]};
    memcpy(&out_->flow_label, label, 4);
    out_->traffic_class = static_cast<uint8_t>(header[0] << 4 | header[1] >> 4);
    out_->hop_limit = header[7];
    out_->protocol = header[6];
    out_->layers |= kLayerIpv6;
    bool fragment = false;
    const bool complete = extensions(&fragment);
    if (outermost()) {
      layout_->ip = offset;
      layout_->ip_header = in_.offset() - offset;
      layout_->fragment = fragment;
    }
    if (complete && !fragment) transport();
  }

  /** False: cut off, or more of them than anybody sends. */
  bool extensions(bool* fragment) {
    for (int n = 0; n <= kMaxExtensions; ++n) {
      const uint8_t kind = out_->protocol;
      if (kind == kIpv6Fragment) {
        const uint8_t* header = in_.take(8);
        if (header == nullptr) return false;
        out_->protocol = header[0];
        *fragment |= (get16(header + 2) & 0xFFF9) != 0;  // offset, M
        if (*fragment) return true;
      } else if (kind == kIpv6HopByHop || kind == kIpv6Routing || kind == kIpv6Destination) {
        const uint8_t* header = in_.peek(8);
        if (header == nullptr) return false;
        if (in_.take((static_cast<size_t>(header[1]) + 1) * 8) == nullptr) return false;
        out_->protocol = header[0];
      } else {
        return true;
      }
    }
    return false;
  }

  void transport() {
    switch (out_->protocol) {
      case kProtocolTcp:
        tcp();
        break;
      case kProtocolUdp:
        udp();
        break;
      case kProtocolGre:
        gre();
        break;
      case kProtocolEsp:
        esp();
        break;
      default:
        break;
    }
  }

  void ports(const uint8_t* header, Layer layer) {
    memcpy(&out_->src_port, header, 2);
    memcpy(&out_->dst_port, header + 2, 2);
    out_->layers |= layer;
    if (outermost() && !truncated_) {
      layout_->l4 = in_.offset();
      layout_->l4_bytes = static_cast<uint32_t>(in_.left());
    }
  }

  void tcp() {
    const uint8_t* header = in_.peek(20);
    if (header == nullptr) return;
    const size_t header_bytes = static_cast<size_t>(header[12] >> 4) * 4;
    if (header_bytes < 20 || header_bytes > in_.left()) return;
    ports(header, kLayerTcp);
  }

  void udp() {
    const uint8_t* header = in_.peek(8);
    if (header == nullptr) return;
    const size_t bytes = get16(header + 4);
    if (bytes < 8) return;
    within(bytes);
    ports(header, kLayerUdp);
    in_.take(8);
    if (get16(header + 2) == kPortVxlan) {
      vxlan();
    } else if (get16(header + 2) == kPortMpls) {
      mpls();
    }
  }

  void vxlan() {
    const uint8_t* header = in_.take(8);
    if (header == nullptr || (header[0] & 0x08) == 0) return;
    const uint8_t vni[4] = {0, header[4], header[5], header[6]};
    memcpy(&out_->vni, vni, 4);
    out_->layers |= kLayerVxlan;
    if (!enter()) return;
    ethernet();
  }

  void gre() {
    const uint8_t* header = in_.take(4);
    if (header == nullptr) return;
    const uint16_t flags = get16(header);
    if ((flags & kGreVersion) != 0) return;
    const uint16_t protocol = get16(header + 2);
    if ((flags & kGreChecksum) != 0 && in_.take(4) == nullptr) return;
    if ((flags & kGreKey) != 0) {
      const uint8_t* key = in_.take(4);
      if (key == nullptr) return;
      memcpy(&out_->gre_key, key, 4);
    }
    if ((flags & kGreSequence) != 0 && in_.take(4) == nullptr) return;
    memcpy(&out_->gre_flags, header, 2);
    memcpy(&out_->gre_protocol, header + 2, 2);
    out_->layers |= kLayerGre;
    if (protocol == kTypeMpls) {
      mpls();
      return;
    }
    if (!enter()) return;
    if (protocol == kTypeBridged) {
      ethernet();
    } else {
      payload_of_type(protocol);
    }
  }

  void esp() {
    const uint8_t* header = in_.take(8);
    if (header == nullptr) return;
    memcpy(&out_->esp_spi, header, 4);
    memcpy(&out_->esp_sequence, header + 4, 4);
    out_->layers |= kLayerEsp;
  }

  /** From here on the inner headers. False: a tunnel in a tunnel is not looked into. */
  bool enter() {
    if (!outermost()) return false;
    out_ = &fields_->inner;
    return true;
  }

  Reader in_;
  PacketFields* fields_;
  HeaderFields* out_;
  PacketLayout* layout_;
  bool truncated_ = false;  ///< a length goes beyond the end
};

/** Sum of the pseudo-header that TCP and UDP checksums cover. */
uint32_t pseudo_header(const PacketFields& fields, const PacketLayout& layout) {
  const HeaderFields& h = fields.outer;
  const size_t bytes = (h.layers & kLayerIpv4) != 0 ? 4 : 16;
  uint32_t sum = h.protocol + layout.l4_bytes;
  for (size_t i = 0; i < bytes; i += 2) sum += get16(h.src_ip + i) + get16(h.dst_ip + i);
  return sum;
}

uint32_t checksum_offset(const HeaderFields& h) { return (h.layers & kLayerTcp) != 0 ? 16 : 6; }

}  // namespace

bool parse_frame(const uint8_t* frame, size_t bytes, PacketFields* fields, PacketLayout* layout) {
  memset(fields, 0, sizeof(*fields));
  *layout = {};
  return Parser(Reader(frame, bytes), fields, layout).ethernet();
}

bool checksums_are_ok(const uint8_t* frame, const PacketFields& fields,
                      const PacketLayout& layout) {
  const HeaderFields& h = fields.outer;
  if (layout.l4 == 0) return false;
  if ((h.layers & kLayerIpv4) != 0 && internet_checksum(frame + layout.ip, layout.ip_header) != 0)
    return false;
  if ((h.layers & kLayerUdp) != 0 && get16(frame + layout.l4 + 6) == 0)
    return (h.layers & kLayerIpv4) != 0;  // none was computed, which IPv4 allows
  return internet_checksum(frame + layout.l4, layout.l4_bytes, pseudo_header(fields, layout)) == 0;
}

void fill_checksums(uint8_t* frame, const PacketFields& fields, const PacketLayout& layout) {
  const HeaderFields& h = fields.outer;
  const auto put = [](uint8_t* at, uint16_t value) {
    at[0] = static_cast<uint8_t>(value >> 8);
    at[1] = static_cast<uint8_t>(value);
  };
  if ((h.layers & kLayerIpv4) != 0) {
    uint8_t* ip = frame + layout.ip;
    put(ip + 10, 0);
    put(ip + 10, internet_checksum(ip, layout.ip_header));
  }
  if (layout.l4 == 0) return;
  uint8_t* sum = frame + layout.l4 + checksum_offset(h);
  put(sum, 0);
  uint16_t value =
      internet_checksum(frame + layout.l4, layout.l4_bytes, pseudo_header(fields, layout));
  if (value == 0 && (h.layers & kLayerUdp) != 0) value = 0xFFFF;  // 0 says that there is none
  put(sum, value);
}

}  // namespace millrace::soft
