#include "soft/flow_spec.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include <algorithm>

namespace millrace::soft {
namespace {

constexpr const char* kWhat = "create a flow";
constexpr uint32_t kHeaderBytes = 8;  ///< of a spec without anything in it: type, size, padding
constexpr size_t kMaxSpecs = 32;
constexpr size_t kMaxBytes = sizeof(ibv_flow_attr) + kMaxSpecs * sizeof(ibv_flow_spec);

base::Status wrong(std::string detail) {
  return base::Status::error(EINVAL, kWhat, std::move(detail));
}

/** One spec of the caller's, with its position for messages. */
struct Spec {
  uint32_t type = 0;
  uint16_t size = 0;
  unsigned index = 0;
  const uint8_t* bytes = nullptr;

  /** A copy as the structure that its type says. EINVAL if the size is another one. */
  template <class T>
  base::Status as(T* out) const {
    if (size != sizeof(T)) {
      return wrong(base::format("spec %u (type %#x) has size %u and must have %zu", index, type,
                                size, sizeof(T)));
    }
    memcpy(static_cast<void*>(out), bytes, sizeof(T));
    return base::Status::success();
  }
};

/** Sets one field of value and mask. */
template <class T>
void set(T& value, T& mask, T v, T m) {
  value = static_cast<T>(v & m);
  mask = m;
}

void set_bytes(uint8_t* value, uint8_t* mask, const uint8_t* v, const uint8_t* m, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    value[i] = v[i] & m[i];
    mask[i] = m[i];
  }
}

class Builder {
 public:
  explicit Builder(FlowRequest* out) : out_(out) {}

  base::Status add(const Spec& spec) {
    switch (spec.type) {
      case IBV_FLOW_SPEC_ACTION_TAG:
        return tag(spec);
      case IBV_FLOW_SPEC_ACTION_DROP:
        return drop(spec);
      case IBV_FLOW_SPEC_ACTION_COUNT:
        return count(spec);
      default:
        break;
    }
    const bool inner = (spec.type & IBV_FLOW_SPEC_INNER) != 0;
    FlowMatch& match = out_->rule.match;
    value_ = inner ? &match.value.inner : &match.value.outer;
    mask_ = inner ? &match.mask.inner : &match.mask.outer;
    const uint32_t type = spec.type & ~static_cast<uint32_t>(IBV_FLOW_SPEC_INNER);
    base::Status status = header(spec, type);
    any_ |= status.ok();
    return status;
  }

  base::Status finish() {
    for (const bool inner : {false, true}) {
      FlowMatch& match = out_->rule.match;
      HeaderFields& value = inner ? match.value.inner : match.value.outer;
      HeaderFields& mask = inner ? match.mask.inner : match.mask.outer;
      // An ether_type that contradicts the IP spec matches nothing (VERBS 3).
      const uint32_t layers = value.layers;
      const uint16_t wanted = (layers & kLayerIpv4) != 0   ? htobe16(0x0800)
                              : (layers & kLayerIpv6) != 0 ? htobe16(0x86DD)
                                                           : uint16_t{0};
      if (wanted != 0 && mask.ether_type != 0 && (wanted & mask.ether_type) != value.ether_type) {
        return wrong(base::format("ether_type %#06x (mask %#06x) contradicts the %s spec",
                                  be16toh(value.ether_type), be16toh(mask.ether_type),
                                  (layers & kLayerIpv4) != 0 ? "IPv4" : "IPv6"));
      }
      mask.layers = value.layers;
    }
    return base::Status::success();
  }
  bool any() const { return any_; }

 private:
  /** A second spec of one kind, or one that excludes another. */
  base::Status claim(const Spec& spec, Layer layer, uint32_t excludes) {
    if ((value_->layers & (layer | excludes)) != 0) {
      return wrong(base::format("spec %u (type %#x) repeats or contradicts an earlier one",
                                spec.index, spec.type));
    }
    value_->layers |= layer;
    return base::Status::success();
  }

  base::Status header(const Spec& spec, uint32_t type) {
    switch (type) {
      case IBV_FLOW_SPEC_ETH: {
        ibv_flow_spec_eth s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerEth, 0); !bad.ok()) return bad;
        set_bytes(value_->dst_mac, mask_->dst_mac, s.val.dst_mac, s.mask.dst_mac, 6);
        set_bytes(value_->src_mac, mask_->src_mac, s.val.src_mac, s.mask.src_mac, 6);
        set(value_->ether_type, mask_->ether_type, s.val.ether_type, s.mask.ether_type);
        set(value_->vlan_tag, mask_->vlan_tag, s.val.vlan_tag, s.mask.vlan_tag);
        if (s.mask.vlan_tag != 0) value_->layers |= kLayerVlan;
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_IPV4: {
        ibv_flow_spec_ipv4 s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerIpv4, kLayerIpv6); !bad.ok()) return bad;
        ipv4(s.val.src_ip, s.mask.src_ip, s.val.dst_ip, s.mask.dst_ip);
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_IPV4_EXT: {
        ibv_flow_spec_ipv4_ext s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerIpv4, kLayerIpv6); !bad.ok()) return bad;
        ipv4(s.val.src_ip, s.mask.src_ip, s.val.dst_ip, s.mask.dst_ip);
        set(value_->protocol, mask_->protocol, s.val.proto, s.mask.proto);
        set(value_->traffic_class, mask_->traffic_class, s.val.tos, s.mask.tos);
        set(value_->hop_limit, mask_->hop_limit, s.val.ttl, s.mask.ttl);
        set(value_->ip_flags, mask_->ip_flags, s.val.flags, s.mask.flags);
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_IPV6: {
        ibv_flow_spec_ipv6 s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerIpv6, kLayerIpv4); !bad.ok()) return bad;
        set_bytes(value_->src_ip, mask_->src_ip, s.val.src_ip, s.mask.src_ip, 16);
        set_bytes(value_->dst_ip, mask_->dst_ip, s.val.dst_ip, s.mask.dst_ip, 16);
        set(value_->flow_label, mask_->flow_label, s.val.flow_label, s.mask.flow_label);
        set(value_->protocol, mask_->protocol, s.val.next_hdr, s.mask.next_hdr);
        set(value_->traffic_class, mask_->traffic_class, s.val.traffic_class, s.mask.traffic_class);
        set(value_->hop_limit, mask_->hop_limit, s.val.hop_limit, s.mask.hop_limit);
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_TCP:
      case IBV_FLOW_SPEC_UDP: {
        ibv_flow_spec_tcp_udp s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        const Layer layer = type == IBV_FLOW_SPEC_TCP ? kLayerTcp : kLayerUdp;
        if (base::Status bad = claim(spec, layer, kLayerTcp | kLayerUdp); !bad.ok()) return bad;
        set(value_->dst_port, mask_->dst_port, s.val.dst_port, s.mask.dst_port);
        set(value_->src_port, mask_->src_port, s.val.src_port, s.mask.src_port);
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_ESP: {
        ibv_flow_spec_esp s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerEsp, 0); !bad.ok()) return bad;
        set(value_->esp_spi, mask_->esp_spi, s.val.spi, s.mask.spi);
        set(value_->esp_sequence, mask_->esp_sequence, s.val.seq, s.mask.seq);
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_GRE: {
        ibv_flow_spec_gre s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerGre, kLayerVxlan); !bad.ok()) return bad;
        set(value_->gre_flags, mask_->gre_flags, s.val.c_ks_res0_ver, s.mask.c_ks_res0_ver);
        set(value_->gre_protocol, mask_->gre_protocol, s.val.protocol, s.mask.protocol);
        set(value_->gre_key, mask_->gre_key, s.val.key, s.mask.key);
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_MPLS: {
        ibv_flow_spec_mpls s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerMpls, 0); !bad.ok()) return bad;
        set(value_->mpls, mask_->mpls, s.val.label, s.mask.label);
        return base::Status::success();
      }
      case IBV_FLOW_SPEC_VXLAN_TUNNEL: {
        ibv_flow_spec_tunnel s;
        if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
        if (base::Status bad = claim(spec, kLayerVxlan, kLayerGre); !bad.ok()) return bad;
        set(value_->vni, mask_->vni, s.val.tunnel_id, s.mask.tunnel_id);
        return base::Status::success();
      }
      default:
        return base::Status::error(
            EOPNOTSUPP, kWhat,
            base::format("spec %u has type %#x, which this device does not know", spec.index,
                         spec.type));
    }
  }

  void ipv4(uint32_t src, uint32_t src_mask, uint32_t dst, uint32_t dst_mask) {
    const auto put = [](uint8_t* value, uint8_t* mask, uint32_t v, uint32_t m) {
      v &= m;
      memcpy(value, &v, 4);
      memcpy(mask, &m, 4);
    };
    put(value_->src_ip, mask_->src_ip, src, src_mask);
    put(value_->dst_ip, mask_->dst_ip, dst, dst_mask);
  }

  base::Status tag(const Spec& spec) {
    ibv_flow_spec_action_tag s;
    if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
    FlowRule& rule = out_->rule;
    if (rule.tagged || rule.drop)
      return wrong(base::format("spec %u: a second tag, or a tag on what is dropped", spec.index));
    if (rule.kind != FlowKind::kNormal)
      return wrong("a tag needs a NORMAL rule; default rules and sniffers take none");
    rule.tagged = true;
    rule.tag = s.tag_id;
    return base::Status::success();
  }

  base::Status drop(const Spec& spec) {
    ibv_flow_spec_action_drop s;
    if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
    FlowRule& rule = out_->rule;
    if (rule.drop || rule.tagged || rule.dont_trap)
      return wrong(base::format("spec %u: DROP excludes TAG and DONT_TRAP", spec.index));
    if (rule.kind == FlowKind::kSniffer) return wrong("a sniffer steals nothing; it can't drop");
    rule.drop = true;
    return base::Status::success();
  }

  base::Status count(const Spec& spec) {
    ibv_flow_spec_counter_action s;
    if (base::Status bad = spec.as(&s); !bad.ok()) return bad;
    if (s.counters == nullptr)
      return wrong(base::format("spec %u: COUNT without counters", spec.index));
    out_->counters.push_back(s.counters);
    return base::Status::success();
  }

  FlowRequest* out_;
  HeaderFields* value_ = nullptr;
  HeaderFields* mask_ = nullptr;
  bool any_ = false;
};

}  // namespace

base::Result<FlowRequest> read_flow(const ibv_flow_attr* attr, size_t limit) {
  if (attr->comp_mask != 0)
    return wrong(base::format("comp_mask is %#x and must be 0", attr->comp_mask));
  constexpr uint32_t kKnownFlags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS;
  if ((attr->flags & ~kKnownFlags) != 0)
    return wrong(base::format("flags %#x has unknown bits", attr->flags));
  if ((attr->flags & IBV_FLOW_ATTR_FLAGS_EGRESS) != 0) {
    return base::Status::error(EOPNOTSUPP, kWhat,
                               "this device steers what arrives, not what is sent (EGRESS)");
  }
  FlowRequest out;
  out.port = attr->port;
  FlowRule& rule = out.rule;
  rule.priority = attr->priority;
  rule.dont_trap = (attr->flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP) != 0;
  uint32_t type;  // the caller's number, which need not be one of the enumeration's
  memcpy(&type, &attr->type, sizeof(type));
  switch (type) {
    case IBV_FLOW_ATTR_NORMAL:
      break;
    case IBV_FLOW_ATTR_ALL_DEFAULT:
      rule.kind = FlowKind::kAllDefault;
      break;
    case IBV_FLOW_ATTR_MC_DEFAULT:
      rule.kind = FlowKind::kMcDefault;
      break;
    case IBV_FLOW_ATTR_SNIFFER:
      rule.kind = FlowKind::kSniffer;
      break;
    default:
      return wrong(
          base::format("type %u is none of NORMAL, ALL_DEFAULT, MC_DEFAULT, SNIFFER", type));
  }
  if (rule.dont_trap && rule.kind != FlowKind::kNormal)
    return wrong("DONT_TRAP needs a NORMAL rule");
  if (attr->num_of_specs > kMaxSpecs)
    return wrong(base::format("%u specs, at most %zu", attr->num_of_specs, kMaxSpecs));

  Builder builder(&out);
  const uint8_t* at = reinterpret_cast<const uint8_t*>(attr + 1);
  const bool size_said = attr->size > sizeof(ibv_flow_attr);
  size_t left = std::min<size_t>(limit, size_said ? attr->size : kMaxBytes) - sizeof(ibv_flow_attr);
  for (unsigned i = 0; i < attr->num_of_specs; ++i) {
    Spec spec;
    spec.index = i;
    spec.bytes = at;
    if (left >= kHeaderBytes) {
      memcpy(&spec.type, at, sizeof(spec.type));
      memcpy(&spec.size, at + sizeof(spec.type), sizeof(spec.size));
    }
    if (left < kHeaderBytes || spec.size < kHeaderBytes || spec.size > left) {
      return wrong(base::format("spec %u of %u does not fit the attribute's size %u", i,
                                attr->num_of_specs, attr->size));
    }
    if (base::Status bad = builder.add(spec); !bad.ok()) return bad;
    at += spec.size;
    left -= spec.size;
  }
  if (size_said && left != 0) {
    return wrong(base::format("%zu bytes follow the last of %u specs", left, attr->num_of_specs));
  }
  if (rule.kind != FlowKind::kNormal && builder.any())
    return wrong("default rules and sniffers take no match specs");
  if (base::Status bad = builder.finish(); !bad.ok()) return bad;
  return out;
}

}  // namespace millrace::soft
