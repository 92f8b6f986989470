// RAW_PACKET QPs and their flows: what a rule needs, who gets a frame, and what dead processes
// leave (VERBS 3).
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/rng.h"
#include "datagram_support.h"
#include "flow_builder.h"
#include "frame_builder.h"
#include "soft/device.h"
#include "soft/flow.h"
#include "soft/layout.h"
#include "soft/process.h"
#include "soft/provider.h"

namespace millrace::test {
namespace {

constexpr uint32_t kGroup = 0xEF010107;

struct RawEnd : DatagramEnd {
  static Options raw(const char* device) {
    Options wanted;
    wanted.type = IBV_QPT_RAW_PACKET;
    wanted.device = device;
    wanted.slot_bytes = 9216;
    wanted.extended_cq = true;
    return wanted;
  }
  explicit RawEnd(const char* device = "soft0") : DatagramEnd(raw(device)) {}
  explicit RawEnd(const Options& wanted) : DatagramEnd(wanted) {}

  ibv_flow* flow(FlowBuilder& builder) {
    errno = 0;
    return ibv_create_flow(qp.get(), builder.attr());
  }
  /** The frame in a slot. */
  std::vector<uint8_t> frame(const ibv_wc& wc) const {
    return std::vector<uint8_t>(bytes(wc.wr_id), bytes(wc.wr_id) + wc.byte_len);
  }
};

class SoftFlow : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!soft::may_use_raw_frames()) GTEST_SKIP() << "needs CAP_NET_RAW";
  }
  Setting link_{"MILLRACE_SOFT_LINK", "ethernet"};
  Setting devices_{"MILLRACE_SOFT_DEVICES", "2"};
  Fabric fabric_;
};

TEST_F(SoftFlow, AFrameGoesToTheRuleThatItMatches) {
  RawEnd a, b, c;
  FlowBuilder to_b, to_c;
  to_b.eth(kMacB);
  to_c.eth(kMacGroup).ipv4(0, kGroup).udp(5001);
  ibv_flow* flow_b = b.flow(to_b);
  ibv_flow* flow_c = c.flow(to_c);
  ASSERT_TRUE(flow_b != nullptr && flow_c != nullptr) << soft::last_error().detail;
  const std::vector<uint8_t> unicast = udp_frame(1, 2, 3, 4, "to b").data();
  EXPECT_EQ(a.send_frame(unicast), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, unicast.size());
  EXPECT_EQ(b.frame(wc), unicast);
  EXPECT_EQ(wc.wc_flags & IBV_WC_GRH, 0u);
  EXPECT_EQ(wc.wc_flags & IBV_WC_IP_CSUM_OK, 0u) << "the IPv4 header has no checksum";
  EXPECT_TRUE(c.nothing());
  // With the checksums filled in by the device.
  EXPECT_EQ(a.send_frame(udp_frame(1, kGroup, 3, 5001, "to c", kMacGroup).data(), IBV_SEND_IP_CSUM),
            IBV_WC_SUCCESS);
  ASSERT_TRUE(c.receive(&wc));
  EXPECT_NE(wc.wc_flags & IBV_WC_IP_CSUM_OK, 0u);
  EXPECT_TRUE(b.nothing());
  EXPECT_TRUE(a.nothing());
  // No rule: lost, and counted.
  EXPECT_EQ(a.send_frame(udp_frame(1, kGroup, 3, 9, "lost", kMacGroup).data()), IBV_WC_SUCCESS);
  const soft::PortCounters counters = soft::read_port_counters(a.context.get());
  EXPECT_GE(counters.drops[static_cast<size_t>(soft::DropReason::kNoRule)], 1u);
  EXPECT_EQ(ibv_destroy_flow(flow_b), 0);
  EXPECT_EQ(ibv_destroy_flow(flow_c), 0);
  EXPECT_EQ(a.send_frame(unicast), IBV_WC_SUCCESS);
  EXPECT_TRUE(b.nothing()) << "a rule that is gone matches nothing";
}

TEST_F(SoftFlow, EachPortHasRulesOfItsOwn) {
  RawEnd a, b, c("soft1");
  FlowBuilder strong, weak(IBV_FLOW_ATTR_NORMAL, 9), sniffer(IBV_FLOW_ATTR_SNIFFER);
  strong.udp(5001);
  weak.udp(5001);
  ibv_flow* first = b.flow(strong);
  ibv_flow* second = c.flow(weak);
  ibv_flow* third = a.flow(sniffer);
  ASSERT_TRUE(first != nullptr && second != nullptr && third != nullptr);
  EXPECT_EQ(a.send_frame(udp_frame(1, 2, 3, 5001, "both").data()), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  for (RawEnd* end : {&a, &b, &c}) {
    ASSERT_TRUE(end->receive(&wc));
    EXPECT_TRUE(end->nothing());
  }
  for (ibv_flow* flow : {first, second, third}) EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(SoftFlow, TagsAndCounts) {
  RawEnd a, b;
  ibv_counters_init_attr init = {};
  ibv_counters* counters = ibv_create_counters(b.context.get(), &init);
  ASSERT_NE(counters, nullptr);
  ibv_counter_attach_attr packets = {IBV_COUNTER_PACKETS, 1, 0}, bytes = {IBV_COUNTER_BYTES, 0, 0};
  EXPECT_EQ(ibv_attach_counters_point_flow(counters, &packets, nullptr), 0);
  EXPECT_EQ(ibv_attach_counters_point_flow(counters, &bytes, nullptr), 0);
  FlowBuilder rule;
  rule.udp(5001).tag(0x123456).count(counters);
  ibv_flow* flow = b.flow(rule);
  ASSERT_NE(flow, nullptr) << soft::last_error().detail;
  const std::vector<uint8_t> frame = udp_frame(1, 2, 3, 5001, "tagged").data();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(a.send_frame(frame), IBV_WC_SUCCESS);
  ibv_poll_cq_attr poll = {};
  ASSERT_TRUE(eventually([&] { return ibv_start_poll(b.cq_ex, &poll) == 0; }));
  EXPECT_EQ(ibv_wc_read_flow_tag(b.cq_ex), 0x123456u);
  EXPECT_EQ(ibv_wc_read_byte_len(b.cq_ex), frame.size());
  EXPECT_EQ(ibv_wc_read_wc_flags(b.cq_ex) & (IBV_WC_WITH_IMM | 0x80u), 0u);
  ibv_end_poll(b.cq_ex);
  uint64_t values[2] = {};
  EXPECT_EQ(ibv_read_counters(counters, values, 2, 0), 0);
  EXPECT_EQ(values[1], 3u);
  EXPECT_EQ(values[0], 3 * frame.size());
  EXPECT_EQ(ibv_read_counters(counters, values, 1, 0), EINVAL);
  EXPECT_EQ(ibv_destroy_counters(counters), EBUSY);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_read_counters(counters, values, 2, 0), 0);
  EXPECT_EQ(values[1], 3u) << "what was counted stays";
  EXPECT_EQ(ibv_destroy_counters(counters), 0);
}

TEST_F(SoftFlow, DropDontTrapAndDefaults) {
  RawEnd a, b, c;
  FlowBuilder drop(IBV_FLOW_ATTR_NORMAL, 1),
      watch(IBV_FLOW_ATTR_NORMAL, 0, IBV_FLOW_ATTR_FLAGS_DONT_TRAP),
      rest(IBV_FLOW_ATTR_ALL_DEFAULT);
  drop.udp(1).drop();
  watch.udp(2);
  ibv_flow* flows[] = {b.flow(drop), b.flow(watch), c.flow(rest)};
  for (ibv_flow* flow : flows) ASSERT_NE(flow, nullptr) << soft::last_error().detail;
  EXPECT_EQ(a.send_frame(udp_frame(1, 2, 3, 1, "dropped").data()), IBV_WC_SUCCESS);
  EXPECT_TRUE(b.nothing());
  EXPECT_TRUE(c.nothing());
  EXPECT_EQ(a.send_frame(udp_frame(1, 2, 3, 2, "both").data()), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  EXPECT_TRUE(b.receive(&wc));
  EXPECT_TRUE(c.receive(&wc));
  EXPECT_EQ(a.send_frame(udp_frame(1, 2, 3, 3, "rest").data()), IBV_WC_SUCCESS);
  EXPECT_TRUE(c.receive(&wc));
  EXPECT_TRUE(b.nothing());
  for (ibv_flow* flow : flows) EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(SoftFlow, FramesThatAreTooShortOrTooLong) {
  RawEnd a;
  EXPECT_EQ(a.send_frame(std::vector<uint8_t>(13)), IBV_WC_LOC_LEN_ERR);
  RawEnd b;
  EXPECT_EQ(b.send_frame(std::vector<uint8_t>(9217)), IBV_WC_LOC_LEN_ERR);
  RawEnd c;
  EXPECT_EQ(c.send_frame(std::vector<uint8_t>(9216)), IBV_WC_SUCCESS);
}

TEST_F(SoftFlow, WhatIsRefused) {
  RawEnd a;
  FlowBuilder rule;
  rule.udp(5001);
  rule.attr()->port = 2;
  EXPECT_EQ(a.flow(rule), nullptr);
  EXPECT_EQ(errno, EINVAL);
  rule.attr()->port = 1;
  {
    Setting off("MILLRACE_SOFT_STEERING", "0");
    EXPECT_EQ(a.flow(rule), nullptr);
    EXPECT_EQ(errno, ENXIO);
  }
  ibv_qp_init_attr other = {};
  other.qp_type = IBV_QPT_RC;
  other.send_cq = other.recv_cq = a.send_cq.get();
  verbs::QpPtr rc(ibv_create_qp(a.pd.get(), &other));
  ASSERT_TRUE(rc);
  EXPECT_EQ(ibv_create_flow(rc.get(), rule.attr()), nullptr);
  EXPECT_EQ(errno, EINVAL) << "VERBS 3: for UD and RAW_PACKET only";
  ibv_flow* flow = a.flow(rule);
  ASSERT_NE(flow, nullptr);
  EXPECT_EQ(a.qp.close(), EBUSY);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(a.qp.close(), 0);
}

TEST_F(SoftFlow, AnInfiniBandPortHasNoFrames) {
  Setting infiniband("MILLRACE_SOFT_LINK", "infiniband");
  DatagramEnd ud;
  FlowBuilder rule;
  rule.udp(1);
  EXPECT_EQ(ibv_create_flow(ud.qp.get(), rule.attr()), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  attr.send_cq = attr.recv_cq = ud.cq.get();
  EXPECT_EQ(ibv_create_qp(ud.pd.get(), &attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(SoftFlow, MasksOfItsTransitions) {
  DatagramEnd::Options options = RawEnd::raw("soft0");
  options.ready = false;
  RawEnd a(options);
  EXPECT_EQ(a.to(IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_PKEY_INDEX), EINVAL);
  EXPECT_EQ(a.to(IBV_QPS_INIT), EINVAL);
  EXPECT_EQ(a.to(IBV_QPS_INIT, IBV_QP_PORT), 0);
  EXPECT_EQ(a.to(IBV_QPS_RTR, IBV_QP_QKEY), EINVAL);
  EXPECT_EQ(a.to(IBV_QPS_RTR), 0);
  EXPECT_EQ(a.to(IBV_QPS_RTS), 0);
  ibv_send_wr imm = {}, *bad = nullptr;
  imm.opcode = IBV_WR_SEND_WITH_IMM;
  EXPECT_EQ(ibv_post_send(a.qp.get(), &imm, &bad), EINVAL) << "a frame has no immediate data";
}

MILLRACE_CHILD(no_capability) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  EXPECT_EQ(syscall(SYS_capget, &header, data), 0);
  for (auto* set : {&data[0].effective, &data[0].permitted, &data[0].inheritable})
    *set &= ~(1u << CAP_NET_RAW);
  EXPECT_EQ(syscall(SYS_capset, &header, data), 0);
  DatagramEnd ud;
  FlowBuilder rule;
  rule.udp(1);
  EXPECT_EQ(ibv_create_flow(ud.qp.get(), rule.attr()), nullptr);
  EXPECT_EQ(errno, EPERM);
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  attr.send_cq = attr.recv_cq = ud.cq.get();
  EXPECT_EQ(ibv_create_qp(ud.pd.get(), &attr), nullptr);
  EXPECT_EQ(errno, EPERM);
  return 0;
}

TEST_F(SoftFlow, WithoutTheCapabilityNothing) {
  Child child("no_capability");
  EXPECT_EQ(child.wait(), 0);
}

/** What it costs to make a rule does not grow with their number: neither looks for a free record,
 * nor filters for the kernel. */
TEST_F(SoftFlow, TenThousandRulesAreMadeInAFewLooksEach) {
  RawEnd end(RawEnd::raw("soft@lo"));
  soft::Process& process = *soft::Context::of(end.context.get()).process;
  base::Rng random(3);
  constexpr uint32_t kRules = 10'000;
  std::vector<ibv_flow*> flows;
  const auto make = [&] {
    FlowBuilder rule;
    // Groups: nobody holds a port for those.
    rule.ipv4(0, 0xEF000000 | static_cast<uint32_t>(random.below(1 << 24)))
        .udp(1 + static_cast<unsigned>(random.below(65535)));
    flows.push_back(end.flow(rule));
    ASSERT_NE(flows.back(), nullptr) << soft::last_error().detail;
  };
  for (uint32_t i = 0; i < kRules; ++i) make();
  EXPECT_LE(process.flow_looks, 4 * kRules);
  const auto programs = [&] { return soft::feed_counters(end.context.get()).value().programs; };
  EXPECT_LE(programs(), 20u);
  // One after the other, in any order, as rules are replaced.
  const uint64_t before = process.flow_looks;
  for (uint32_t i = 0; i < 1000; ++i) {
    const size_t which = random.below(flows.size());
    EXPECT_EQ(ibv_destroy_flow(flows[which]), 0);
    flows[which] = flows.back();
    flows.pop_back();
    make();
  }
  EXPECT_EQ(process.flow_looks - before, 1000u);
  // The next look narrows the filter, in one go.
  EXPECT_TRUE(end.nothing());
  EXPECT_LE(programs(), 21u);
  for (ibv_flow* flow : flows) EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

/** Ports are held with sockets, but those of many rules leave descriptors to the rest of the
 * process. */
TEST_F(SoftFlow, ManyPortsAreNotAllHeld) {
  RawEnd end(RawEnd::raw("soft@lo"));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<ibv_flow*> flows;
  for (unsigned port = 20'000; port < 20'400; ++port) {
    FlowBuilder rule;
    rule.ipv4(0, 0x7F000001).udp(port);
    flows.push_back(end.flow(rule));
    EXPECT_NE(flows.back(), nullptr) << soft::last_error().detail;
  }
  const base::Fd another(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(another.valid());
  EXPECT_LT(another.get(), 140);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (ibv_flow* flow : flows) EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

/** The table is the fabric's: whoever comes when it is full gets ENOMEM, and nothing of him stays.
 */
TEST_F(SoftFlow, AFullTableIsENOMEM) {
  RawEnd end, other;
  std::vector<ibv_flow*> flows;
  FlowBuilder rule;
  rule.udp(5001);
  while (ibv_flow* flow = end.flow(rule)) flows.push_back(flow);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(soft::last_error().detail, "all 16384 rules of the fabric are in use");
  EXPECT_EQ(flows.size(), soft::kFlows);
  EXPECT_EQ(other.flow(rule), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(other.qp.close(), 0) << "no rule leads there";
  EXPECT_EQ(ibv_destroy_flow(flows.back()), 0);
  flows.pop_back();
  RawEnd third;
  ibv_flow* last = third.flow(rule);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(ibv_destroy_flow(last), 0);
  for (ibv_flow* flow : flows) EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

MILLRACE_CHILD(flow_maker) {
  RawEnd end;
  soft::signal_at_step(std::stoull(parent.arguments[0]), std::stoi(parent.arguments[1]));
  FlowBuilder rule;
  rule.udp(5001);
  ibv_flow* flow = end.flow(rule);
  EXPECT_NE(flow, nullptr);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  flow = end.flow(rule);
  EXPECT_NE(flow, nullptr);
  soft::signal_at_step(0, 0);
  parent.say("made");
  parent.hear();
  return 0;
}

TEST_F(SoftFlow, MakersKilledAtEveryStepLeaveNoRule) {
  RawEnd a, b;
  FlowBuilder weaker(IBV_FLOW_ATTR_NORMAL, 5);
  weaker.udp(5001);
  ibv_flow* flow = b.flow(weaker);
  ASSERT_NE(flow, nullptr);
  const std::vector<uint8_t> frame = udp_frame(1, 2, 3, 5001, "x").data();
  bool through = false;
  uint64_t step = 1;
  for (; !through && step < 200; ++step) {
    SCOPED_TRACE(step);
    Child child("flow_maker", {std::to_string(step), std::to_string(SIGKILL)});
    through = child.hear() == "made";
    if (through) {  // its rule is the stronger one
      EXPECT_EQ(a.send_frame(frame), IBV_WC_SUCCESS);
      EXPECT_TRUE(b.nothing());
      child.signal(SIGKILL);
    }
    ASSERT_EQ(child.wait(), 128 + SIGKILL);
    // With its process the rule goes, and the weaker one counts again.
    ibv_wc wc = {};
    EXPECT_TRUE(eventually([&] {
      EXPECT_EQ(a.send_frame(frame), IBV_WC_SUCCESS);
      if (ibv_poll_cq(b.cq.get(), 1, &wc) != 1) return false;
      return b.post(static_cast<uint32_t>(wc.wr_id)) == 0;
    }));
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  expect_walked(through, step - 1);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

}  // namespace
}  // namespace millrace::test
