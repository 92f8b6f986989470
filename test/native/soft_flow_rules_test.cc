// Rules as data: reading ibv_flow_attr, and who wins a frame (VERBS 3). The flows of real QPs are
// in soft_flow_test.cc.
#include <endian.h>

#include <algorithm>

#include "base/rng.h"
#include "flow_builder.h"
#include "frame_builder.h"
#include "soft/flow_index.h"
#include "soft/flow_spec.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

using soft::FlowIndex;
using soft::FlowKind;
using soft::FlowRule;

int code_of(FlowBuilder& flow) {
  base::Result<soft::FlowRequest> read = soft::read_flow(flow.attr());
  if (read.ok()) return 0;
  EXPECT_FALSE(read.status().detail.empty());
  return read.status().code;
}

FlowRule rule_of(FlowBuilder& flow, uint32_t qpn, uint64_t order) {
  base::Result<soft::FlowRequest> read = soft::read_flow(flow.attr());
  EXPECT_TRUE(read.ok()) << read.status().detail;
  if (!read.ok()) return {};
  FlowRule rule = read.value().rule;
  rule.qpn = qpn;
  rule.order = order;
  return rule;
}

/** QPs that get a copy, in order; "drop" shows as 0. */
std::vector<uint32_t> winners(const FlowIndex& index, const std::vector<uint8_t>& frame) {
  soft::PacketFields fields;
  soft::PacketLayout layout;
  EXPECT_TRUE(soft::parse_frame(frame.data(), frame.size(), &fields, &layout));
  FlowIndex::Result result;
  index.match(fields, soft::is_multicast_frame(frame.data()), &result);
  std::vector<uint32_t> out;
  if (result.dropped_by != nullptr) out.push_back(0);
  for (const soft::FlowEntry* rule : result.winners) out.push_back(rule->qpn);
  return out;
}

using Qpns = std::vector<uint32_t>;
constexpr uint32_t kGroup = 0xEF010107;  // 239.1.1.7

TEST(SoftFlowRules, WhatIsInvalidSaysWhy) {
  FlowBuilder good;
  good.eth(kMacB).ipv4(0, kGroup).udp(5001);
  EXPECT_EQ(code_of(good), 0);
  good.attr()->comp_mask = 1;
  EXPECT_EQ(code_of(good), EINVAL);
  good.attr()->comp_mask = 0;
  good.attr()->size = static_cast<uint16_t>(good.attr()->size - 4);
  EXPECT_EQ(code_of(good), EINVAL);
  good.attr()->size = static_cast<uint16_t>(good.attr()->size + 4);
  good.attr()->num_of_specs = 2;
  EXPECT_EQ(code_of(good), EINVAL) << "bytes are left over";
  good.attr()->num_of_specs = 4;
  EXPECT_EQ(code_of(good), EINVAL) << "a spec is missing";
  good.attr()->num_of_specs = 3;
  const uint16_t size = good.attr()->size;
  good.attr()->size = sizeof(ibv_flow_attr);
  EXPECT_EQ(code_of(good), 0) << "as pyverbs leaves it";
  good.attr()->size = size;
  good.attr()->flags = 1;
  EXPECT_EQ(code_of(good), EINVAL);
  good.attr()->flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
  EXPECT_EQ(code_of(good), EOPNOTSUPP);

  FlowBuilder contradiction;
  contradiction.eth(kMacB, 0x86DD).ipv4(0, kGroup);
  EXPECT_EQ(code_of(contradiction), EINVAL);
  FlowBuilder agreement;
  agreement.eth(kMacB, 0x0800).ipv4(0, kGroup);
  EXPECT_EQ(code_of(agreement), 0);
  FlowBuilder twice;
  twice.udp(1).udp(2);
  EXPECT_EQ(code_of(twice), EINVAL);
  FlowBuilder unknown;
  unknown.raw(0x77, 16);
  EXPECT_EQ(code_of(unknown), EOPNOTSUPP);
  FlowBuilder short_spec;
  short_spec.raw(IBV_FLOW_SPEC_ETH, 12);
  EXPECT_EQ(code_of(short_spec), EINVAL);
  for (ibv_flow_attr_type type :
       {IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_SNIFFER}) {
    FlowBuilder with_spec(type);
    with_spec.udp(1);
    EXPECT_EQ(code_of(with_spec), EINVAL);
    FlowBuilder with_tag(type);
    with_tag.tag(7);
    EXPECT_EQ(code_of(with_tag), EINVAL);
    FlowBuilder plain(type);
    EXPECT_EQ(code_of(plain), 0);
  }
  FlowBuilder dropped_and_tagged;
  dropped_and_tagged.udp(1).tag(1).drop();
  EXPECT_EQ(code_of(dropped_and_tagged), EINVAL);
}

TEST(SoftFlowRules, TheBestPriorityWinsAndTheIdenticalOnesShare) {
  FlowBuilder by_port(IBV_FLOW_ATTR_NORMAL, 5), by_group(IBV_FLOW_ATTR_NORMAL, 3);
  by_port.udp(5001);
  by_group.ipv4(0, kGroup);
  const FlowIndex index({rule_of(by_port, 10, 1), rule_of(by_port, 11, 2), rule_of(by_group, 20, 3),
                         rule_of(by_group, 21, 4)});
  EXPECT_EQ(index.masks(), 2u);
  EXPECT_EQ(winners(index, udp_frame(1, kGroup, 1, 5001, "x").data()), (Qpns{20, 21}));
  EXPECT_EQ(winners(index, udp_frame(1, kGroup + 1, 1, 5001, "x").data()), (Qpns{10, 11}));
  EXPECT_EQ(winners(index, udp_frame(1, kGroup + 1, 1, 5002, "x").data()), Qpns{});
}

TEST(SoftFlowRules, OfDifferingOnesAtOnePriorityTheOldest) {
  FlowBuilder by_port, by_group;
  by_port.udp(5001);
  by_group.ipv4(0, kGroup);
  const std::vector<uint8_t> frame = udp_frame(1, kGroup, 1, 5001, "x").data();
  EXPECT_EQ(winners(FlowIndex({rule_of(by_port, 1, 10), rule_of(by_group, 2, 11)}), frame),
            Qpns{1});
  EXPECT_EQ(winners(FlowIndex({rule_of(by_port, 1, 12), rule_of(by_group, 2, 11)}), frame),
            Qpns{2});
}

TEST(SoftFlowRules, DontTrapLetsTheFrameGoOn) {
  FlowBuilder watch(IBV_FLOW_ATTR_NORMAL, 0, IBV_FLOW_ATTR_FLAGS_DONT_TRAP),
      take(IBV_FLOW_ATTR_NORMAL, 1), never(IBV_FLOW_ATTR_NORMAL, 2);
  watch.udp(5001);
  take.ipv4(0, kGroup);
  never.ipv4(0, kGroup);
  const FlowIndex index({rule_of(watch, 1, 1), rule_of(take, 2, 2), rule_of(never, 3, 3)});
  EXPECT_EQ(winners(index, udp_frame(1, kGroup, 1, 5001, "x").data()), (Qpns{1, 2}));
}

TEST(SoftFlowRules, DefaultsComeAfterEveryRuleAndSniffersAlways) {
  FlowBuilder rule(IBV_FLOW_ATTR_NORMAL, 100), all(IBV_FLOW_ATTR_ALL_DEFAULT),
      multicast(IBV_FLOW_ATTR_MC_DEFAULT), sniffer(IBV_FLOW_ATTR_SNIFFER);
  rule.udp(5001);
  const FlowIndex index(
      {rule_of(rule, 1, 1), rule_of(all, 2, 2), rule_of(multicast, 3, 3), rule_of(sniffer, 4, 4)});
  EXPECT_EQ(winners(index, udp_frame(1, 2, 1, 5001, "x").data()), (Qpns{1, 4}));
  EXPECT_EQ(winners(index, udp_frame(1, 2, 1, 9, "x").data()), (Qpns{2, 4}));
  EXPECT_EQ(winners(index, udp_frame(1, kGroup, 1, 9, "x", kMacGroup).data()), (Qpns{2, 3, 4}));
  EXPECT_EQ(winners(FlowIndex({rule_of(multicast, 3, 3)}), udp_frame(1, 2, 1, 9, "x").data()),
            Qpns{});
}

TEST(SoftFlowRules, WhatIsDroppedReachesSniffersOnly) {
  FlowBuilder drop(IBV_FLOW_ATTR_NORMAL, 1), rule(IBV_FLOW_ATTR_NORMAL, 2),
      sniffer(IBV_FLOW_ATTR_SNIFFER);
  drop.udp(5001).drop();
  rule.ipv4(0, kGroup);
  const FlowIndex index({rule_of(drop, 1, 1), rule_of(rule, 2, 2), rule_of(sniffer, 3, 3)});
  EXPECT_EQ(winners(index, udp_frame(1, kGroup, 1, 5001, "x").data()), (Qpns{0, 3}));
  EXPECT_EQ(winners(index, udp_frame(1, kGroup, 1, 5002, "x").data()), (Qpns{2, 3}));
}

TEST(SoftFlowRules, OfTwoDefaultsTheOneThatDropsIsCounted) {
  FlowBuilder takes(IBV_FLOW_ATTR_ALL_DEFAULT, 1), drops(IBV_FLOW_ATTR_ALL_DEFAULT, 1);
  drops.drop();
  const FlowIndex index({rule_of(takes, 1, 1), rule_of(drops, 2, 2)});
  FlowIndex::Result result;
  index.match({}, false, &result);
  ASSERT_NE(result.dropped_by, nullptr);
  EXPECT_EQ(result.dropped_by->qpn, 2u);
  EXPECT_TRUE(result.winners.empty());
}

TEST(SoftFlowRules, ASpecAsksForItsHeader) {
  FlowBuilder any_tcp, inner;
  any_tcp.tcp(0, 0);
  inner.udp(6, 0xFFFF, IBV_FLOW_SPEC_INNER);
  const FlowIndex index({rule_of(any_tcp, 1, 1), rule_of(inner, 2, 2)});
  EXPECT_EQ(winners(index, udp_frame(1, 2, 3, 6, "x").data()), Qpns{});
  FrameBuilder tcp;
  tcp.ethernet(kMacA, kMacB, 0x0800).ipv4(1, 2, 6, 20).tcp(1, 2);
  EXPECT_EQ(winners(index, tcp.data()), Qpns{1});
  FrameBuilder in = udp_frame(1, 2, 3, 6, "x"), tunnel;
  const unsigned n = static_cast<unsigned>(in.data().size());
  tunnel.ethernet(kMacA, kMacB, 0x0800).ipv4(1, 2, 17, 16 + n).udp(9, 4789, 8 + n).vxlan(5);
  tunnel.data().insert(tunnel.data().end(), in.data().begin(), in.data().end());
  EXPECT_EQ(winners(index, tunnel.data()), Qpns{2});
}

/** The rules of VERBS 3 written down again, without tables. */
Qpns by_hand(std::vector<FlowRule> rules, const soft::PacketFields& fields) {
  const auto matches = [&fields](const FlowRule& rule) {
    const uint8_t* f = reinterpret_cast<const uint8_t*>(&fields);
    const uint8_t* v = reinterpret_cast<const uint8_t*>(&rule.match.value);
    const uint8_t* m = reinterpret_cast<const uint8_t*>(&rule.match.mask);
    for (size_t i = 0; i < sizeof(fields); ++i) {
      if ((f[i] & m[i]) != v[i]) return false;
    }
    return true;
  };
  std::erase_if(rules, [&](const FlowRule& rule) { return !matches(rule); });
  std::stable_sort(rules.begin(), rules.end(), [](const FlowRule& a, const FlowRule& b) {
    return a.priority != b.priority ? a.priority < b.priority : a.order < b.order;
  });
  Qpns out;
  while (!rules.empty()) {
    const FlowRule first = rules.front();
    const auto same = [&first](const FlowRule& rule) {
      return rule.priority == first.priority &&
             memcmp(&rule.match, &first.match, sizeof(rule.match)) == 0;
    };
    bool goes_on = true;
    for (const FlowRule& rule : rules) {
      if (!same(rule)) continue;
      if (rule.drop) return Qpns{0};
      if (std::find(out.begin(), out.end(), rule.qpn) == out.end()) out.push_back(rule.qpn);
      goes_on &= rule.dont_trap;
    }
    if (!goes_on) break;
    std::erase_if(rules, same);
  }
  return out;
}

TEST(SoftFlowRules, TablesDecideAsTheRulesDo) {
  base::Rng random(20260101);
  const auto below = [&random](uint64_t n) { return static_cast<uint32_t>(random.next() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<FlowRule> rules;
    const uint32_t count = 1 + below(24);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t action = below(8);
      FlowBuilder flow(IBV_FLOW_ATTR_NORMAL, static_cast<uint16_t>(below(4)),
                       action == 1 ? IBV_FLOW_ATTR_FLAGS_DONT_TRAP : 0);
      if (below(2) != 0) flow.ipv4(0, below(3), 0, below(2) != 0 ? 0xFFFFFFFF : 0xFFFFFFFE);
      if (below(2) != 0) flow.udp(below(3), below(2) != 0 ? 0xFFFF : 0);
      if (action == 0) flow.drop();
      rules.push_back(rule_of(flow, 1 + below(6), i));
    }
    const FlowIndex index(rules);
    for (uint32_t dst = 0; dst < 3; ++dst) {
      for (unsigned port = 0; port < 3; ++port) {
        const std::vector<uint8_t> frame = udp_frame(1, dst, 1, port, "x").data();
        soft::PacketFields fields;
        soft::PacketLayout layout;
        ASSERT_TRUE(soft::parse_frame(frame.data(), frame.size(), &fields, &layout));
        ASSERT_EQ(winners(index, frame), by_hand(rules, fields)) << "round " << round;
      }
    }
  }
}

/** Every mask that two prefixes and the bits of a port make, all for one frame: more groups than
 * any set of rules has, of which each may hold the strongest rule. */
TEST(SoftFlowRules, ManyMasksThatAllMatchOneFrame) {
  base::Rng random(7);
  const std::vector<uint8_t> frame = udp_frame(0x0A090807, kGroup, 9, 5001, "x").data();
  soft::PacketFields fields;
  soft::PacketLayout layout;
  ASSERT_TRUE(soft::parse_frame(frame.data(), frame.size(), &fields, &layout));
  for (int round = 0; round < 4; ++round) {
    std::vector<FlowRule> rules;
    for (unsigned bits = 1; bits <= 32; ++bits) {
      for (unsigned port = 1; port <= 16; port += 3) {
        const uint32_t mask = ~0u << (32 - bits);
        const unsigned port_mask = 0xFFFFu << (16 - port) & 0xFFFF;
        FlowBuilder flow(
            IBV_FLOW_ATTR_NORMAL, static_cast<uint16_t>(random.below(1000)),
            IBV_FLOW_ATTR_FLAGS_DONT_TRAP * static_cast<uint32_t>(random.below(30) != 0));
        flow.ipv4(0, kGroup & mask, 0, mask).udp(5001 & port_mask, port_mask);
        rules.push_back(rule_of(flow, 1 + static_cast<uint32_t>(rules.size()), rules.size()));
      }
    }
    const FlowIndex index(rules);
    EXPECT_EQ(index.masks(), rules.size());
    EXPECT_EQ(winners(index, frame), by_hand(rules, fields)) << "round " << round;
  }
}

/** Large tables, in which rules differ in a few words, in many, or in none. */
TEST(SoftFlowRules, TenThousandRulesAreFoundEach) {
  std::vector<FlowRule> rules;
  std::vector<std::vector<uint8_t>> frames;
  for (uint32_t i = 0; i < 10'000; ++i) {
    FlowBuilder flow;
    const uint8_t mac[6] = {2,
                            0,
                            0,
                            static_cast<uint8_t>(i >> 16),
                            static_cast<uint8_t>(i >> 8),
                            static_cast<uint8_t>(i)};
    const uint32_t kind = i % 4;
    if (kind != 0) flow.eth(mac);
    if (kind != 1) flow.ipv4(i, kGroup + i, kind == 3 ? ~0u : 0).udp(1 + i);
    rules.push_back(rule_of(flow, 1 + i, i));
    frames.push_back(udp_frame(i, kGroup + i, 9, 1 + i, "x", mac).data());
  }
  const FlowIndex index(rules);
  EXPECT_EQ(index.masks(), 4u);
  for (uint32_t i = 0; i < frames.size(); ++i) ASSERT_EQ(winners(index, frames[i]), Qpns{1 + i});
  EXPECT_EQ(winners(index, udp_frame(1, kGroup - 1, 9, 1, "x").data()), Qpns{});
}

}  // namespace
}  // namespace millrace::test
