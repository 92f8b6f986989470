#pragma once

// ibv_flow_attr with its specs behind it, for tests.

#include <endian.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace millrace::test {

class FlowBuilder {
 public:
  explicit FlowBuilder(ibv_flow_attr_type type = IBV_FLOW_ATTR_NORMAL, uint16_t priority = 0,
                       uint32_t flags = 0)
      : bytes_(sizeof(ibv_flow_attr)) {
    attr()->type = type;
    attr()->priority = priority;
    attr()->flags = flags;
    attr()->port = 1;
    attr()->size = sizeof(ibv_flow_attr);
  }
  ibv_flow_attr* attr() { return reinterpret_cast<ibv_flow_attr*>(bytes_.data()); }

  FlowBuilder& eth(const uint8_t dst[6], unsigned ether_type = 0, const uint8_t* src = nullptr) {
    ibv_flow_spec_eth spec = {};
    spec.type = IBV_FLOW_SPEC_ETH;
    memcpy(spec.val.dst_mac, dst, 6);
    memset(spec.mask.dst_mac, 0xFF, 6);
    if (src != nullptr) {
      memcpy(spec.val.src_mac, src, 6);
      memset(spec.mask.src_mac, 0xFF, 6);
    }
    spec.val.ether_type = htobe16(static_cast<uint16_t>(ether_type));
    spec.mask.ether_type = ether_type != 0 ? 0xFFFF : 0;
    return add(spec);
  }
  /** Host order; a zero address is not matched on unless its mask says so. */
  FlowBuilder& ipv4(uint32_t src, uint32_t dst, uint32_t src_mask = 0,
                    uint32_t dst_mask = 0xFFFFFFFF) {
    ibv_flow_spec_ipv4 spec = {};
    spec.type = IBV_FLOW_SPEC_IPV4;
    spec.val = {htobe32(src), htobe32(dst)};
    spec.mask = {htobe32(src_mask), htobe32(dst_mask)};
    return add(spec);
  }
  FlowBuilder& udp(unsigned dst, unsigned mask = 0xFFFF, unsigned inner = 0) {
    return ports(IBV_FLOW_SPEC_UDP | inner, dst, mask);
  }
  FlowBuilder& tcp(unsigned dst, unsigned mask = 0xFFFF) {
    return ports(IBV_FLOW_SPEC_TCP, dst, mask);
  }
  FlowBuilder& tag(uint32_t id) {
    ibv_flow_spec_action_tag spec = {};
    spec.type = IBV_FLOW_SPEC_ACTION_TAG;
    spec.tag_id = id;
    return add(spec);
  }
  FlowBuilder& drop() {
    ibv_flow_spec_action_drop spec = {};
    spec.type = IBV_FLOW_SPEC_ACTION_DROP;
    return add(spec);
  }
  FlowBuilder& count(ibv_counters* counters) {
    ibv_flow_spec_counter_action spec = {};
    spec.type = IBV_FLOW_SPEC_ACTION_COUNT;
    spec.counters = counters;
    return add(spec);
  }
  /** A spec of any type and size, zeroed. */
  FlowBuilder& raw(uint32_t type, uint16_t size) {
    std::vector<uint8_t> spec(size);
    memcpy(spec.data(), &type, sizeof(type));
    memcpy(spec.data() + sizeof(type), &size, sizeof(size));
    return append(spec.data(), size);
  }

 private:
  FlowBuilder& ports(unsigned type, unsigned dst, unsigned mask) {
    ibv_flow_spec_tcp_udp spec = {};
    spec.type = static_cast<ibv_flow_spec_type>(type);
    spec.val.dst_port = htobe16(static_cast<uint16_t>(dst));
    spec.mask.dst_port = htobe16(static_cast<uint16_t>(mask));
    return add(spec);
  }
  template <class T>
  FlowBuilder& add(T& spec) {
    spec.size = sizeof(T);
    return append(&spec, sizeof(T));
  }
  FlowBuilder& append(const void* spec, size_t size) {
    const uint8_t* at = static_cast<const uint8_t*>(spec);
    bytes_.insert(bytes_.end(), at, at + size);
    ++attr()->num_of_specs;
    attr()->size = static_cast<uint16_t>(attr()->size + size);
    return *this;
  }

  std::vector<uint8_t> bytes_;
};

}  // namespace millrace::test
