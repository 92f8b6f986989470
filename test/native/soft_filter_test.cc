// The kernel's filter in front of a port that a network interface feeds: it never keeps out what a
// rule matches, and keeps out most of the rest. The program runs in the kernel, on a socket pair.
#include <linux/filter.h>
#include <sys/socket.h>

#include "base/rng.h"
#include "flow_builder.h"
#include "frame_builder.h"
#include "soft/coarse_filter.h"
#include "soft/flow_index.h"
#include "soft/flow_spec.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

/** A program at work. */
class Kernel {
 public:
  explicit Kernel(const soft::CoarseFilter& filter) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair_), 0);
    std::vector<sock_filter> program = filter.program();
    EXPECT_LE(program.size(), size_t{BPF_MAXINSNS});
    const sock_fprog value = {static_cast<unsigned short>(program.size()), program.data()};
    EXPECT_EQ(setsockopt(pair_[1], SOL_SOCKET, SO_ATTACH_FILTER, &value, sizeof(value)), 0)
        << strerror(errno);
  }
  ~Kernel() {
    close(pair_[0]);
    close(pair_[1]);
  }
  Kernel(const Kernel&) = delete;

  bool passes(const std::vector<uint8_t>& frame) {
    send(pair_[0], frame.data(), frame.size(), 0);
    uint8_t byte;
    return recv(pair_[1], &byte, 1, 0) > 0;
  }

 private:
  int pair_[2] = {-1, -1};
};

soft::FlowRule rule_of(FlowBuilder& flow) {
  base::Result<soft::FlowRequest> read = soft::read_flow(flow.attr());
  EXPECT_TRUE(read.ok()) << read.status().detail;
  return read.value().rule;
}

soft::FlowRule udp_rule(uint32_t dst, unsigned port, uint32_t mask = ~0u) {
  FlowBuilder flow;
  if (mask != 0) flow.ipv4(0, dst, 0, mask);
  if (port != 0) flow.udp(port);
  return rule_of(flow);
}

constexpr uint32_t kGroup = 0xEF010107;  // 239.1.1.7

TEST(SoftFilter, LetsThroughWhatRulesMatchAndLittleElse) {
  soft::CoarseFilter filter;
  EXPECT_FALSE(Kernel(filter).passes(udp_frame(1, kGroup, 9, 5001, "x").data()));
  EXPECT_TRUE(filter.add(udp_rule(kGroup, 5001).match));
  EXPECT_FALSE(filter.add(udp_rule(kGroup, 5001).match));
  EXPECT_TRUE(filter.add(udp_rule(0x0A000000, 6000, 0xFF000000).match));
  Kernel kernel(filter);
  EXPECT_TRUE(kernel.passes(udp_frame(1, kGroup, 9, 5001, "x").data()));
  EXPECT_TRUE(kernel.passes(udp_frame(1, 0x0A123456, 9, 6000, "x").data()));
  EXPECT_FALSE(kernel.passes(udp_frame(1, kGroup + 1, 9, 5001, "x").data()));
  EXPECT_FALSE(kernel.passes(udp_frame(1, kGroup, 9, 5002, "x").data()));
  EXPECT_FALSE(kernel.passes(FrameBuilder().ethernet(kMacB, kMacA, 0x0806).fill(28).data()));
  const auto six = [](int next) {
    return FrameBuilder()
        .ethernet(kMacB, kMacA, 0x86DD)
        .ipv6(1, 2, next, 12)
        .udp(9, 5001, 4)
        .fill(4);
  };
  EXPECT_FALSE(kernel.passes(six(17).data()));
  // Fragments and what is cut off have no port to look at: they pass, to be counted.
  const auto fragment =
      FrameBuilder().ethernet(kMacB, kMacA, 0x0800).ipv4(1, kGroup, 17, 8, 0, 0x2000).fill(8);
  EXPECT_TRUE(kernel.passes(fragment.data()));
  std::vector<uint8_t> whole = udp_frame(1, kGroup, 9, 5001, "payload").data();
  for (size_t bytes = 14; bytes < whole.size(); ++bytes)
    EXPECT_TRUE(kernel.passes({whole.begin(), whole.begin() + static_cast<long>(bytes)})) << bytes;
  // With options the ports are further back.
  const auto options = FrameBuilder()
                           .ethernet(kMacB, kMacA, 0x0800)
                           .ipv4(1, kGroup, 17, 12, 8)
                           .udp(9, 5001, 4)
                           .fill(4);
  EXPECT_TRUE(kernel.passes(options.data()));
}

TEST(SoftFilter, RulesOfOtherKindsLetEverythingThrough) {
  soft::CoarseFilter filter;
  FlowBuilder arp;
  arp.eth(kMacB, 0x0806);
  EXPECT_TRUE(filter.add(rule_of(arp).match));
  EXPECT_FALSE(filter.add_all());
  Kernel kernel(filter);
  EXPECT_TRUE(kernel.passes(FrameBuilder().ethernet(kMacB, kMacA, 0x0806).fill(28).data()));
}

TEST(SoftFilter, ManyRulesFitAndNoneIsKeptOut) {
  const char* wanted = getenv("MILLRACE_FILTER_RULES");
  const uint64_t rules = wanted != nullptr ? std::stoul(wanted) : 3000;
  base::Rng rng(7);
  soft::CoarseFilter filter;
  std::vector<std::vector<uint8_t>> matching;
  for (uint64_t i = 0; i < rules; ++i) {
    const auto dst = static_cast<uint32_t>(rng.next());
    const auto port = 1 + static_cast<unsigned>(rng.below(65535));
    if (i % 2 == 0) {
      filter.add(udp_rule(dst, port).match);
      matching.push_back(udp_frame(1, dst, 9, port, "x").data());
      continue;
    }
    const auto last = static_cast<uint8_t>(i);
    soft::FlowMatch six = udp_rule(0, port, 0).match;
    const auto frame =
        FrameBuilder().ethernet(kMacB, kMacA, 0x86DD).ipv6(1, last, 17, 8).udp(9, port, 0);
    six.value.outer.layers |= soft::kLayerIpv6;
    six.mask.outer.layers |= soft::kLayerIpv6;
    memcpy(six.value.outer.dst_ip, frame.data().data() + 14 + 24, 16);
    memset(six.mask.outer.dst_ip, 0xFF, 16);
    filter.add(six);
    matching.push_back(frame.data());
  }
  Kernel kernel(filter);
  for (const std::vector<uint8_t>& frame : matching) ASSERT_TRUE(kernel.passes(frame));
}

}  // namespace
}  // namespace millrace::test
