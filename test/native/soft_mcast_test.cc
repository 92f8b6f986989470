// Multicast groups: who gets a copy, who does not, and what dead members leave (VERBS 1, lesson 6;
// VERBS 3).
#include "datagram_support.h"

namespace millrace::test {
namespace {

constexpr uint16_t kMlid = 0xC001;

int attach(DatagramEnd& end, const ibv_gid& gid, uint16_t lid = kMlid) {
  return ibv_attach_mcast(end.qp.get(), &gid, lid);
}
int detach(DatagramEnd& end, const ibv_gid& gid, uint16_t lid = kMlid) {
  return ibv_detach_mcast(end.qp.get(), &gid, lid);
}

std::string next_text(DatagramEnd& end) {
  ibv_wc wc = {};
  if (!end.receive(&wc)) return "nothing";
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_NE(wc.wc_flags & IBV_WC_GRH, 0u) << "a multicast datagram always has a GRH";
  std::string text = end.text(wc);
  EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
  return text;
}

TEST(SoftMcast, OneSendReachesEveryMember) {
  Fabric fabric;
  for (const char* layer : {"infiniband", "ethernet"}) {
    SCOPED_TRACE(layer);
    Setting link("MILLRACE_SOFT_LINK", layer);
    Setting devices("MILLRACE_SOFT_DEVICES", "2");
    const bool ethernet = layer[0] == 'e';
    DatagramEnd::Options other_port;
    other_port.device = "soft1";
    DatagramEnd a, b, c(other_port), outside;
    const ibv_gid group = group_gid(7, ethernet);
    for (DatagramEnd* end : {&a, &b, &c}) EXPECT_EQ(attach(*end, group), 0);
    EXPECT_EQ(attach(outside, group_gid(8, ethernet)), 0);
    verbs::AhPtr ah = a.ah_to_gid(group, ethernet ? 3 : 0, ethernet ? 0 : kMlid);
    EXPECT_EQ(a.send_and_wait(ah.get(), 0xFFFFFF, "to all"), IBV_WC_SUCCESS);
    // A sender that is in the group hears itself, unless it was created otherwise.
    for (DatagramEnd* end : {&a, &b, &c}) EXPECT_EQ(next_text(*end), "to all");
    EXPECT_TRUE(outside.nothing());
    EXPECT_EQ(detach(b, group), 0);
    EXPECT_EQ(a.send_and_wait(ah.get(), 0xFFFFFF, "to fewer"), IBV_WC_SUCCESS);
    EXPECT_EQ(next_text(c), "to fewer");
    EXPECT_EQ(next_text(a), "to fewer");
    EXPECT_TRUE(b.nothing());
    for (DatagramEnd* end : {&a, &c}) EXPECT_EQ(detach(*end, group), 0);
    EXPECT_EQ(detach(outside, group_gid(8, ethernet)), 0);
    // Nobody left: sent all the same.
    EXPECT_EQ(a.send_and_wait(ah.get(), 0xFFFFFF, "to nobody"), IBV_WC_SUCCESS);
    EXPECT_TRUE(a.nothing());
  }
}

TEST(SoftMcast, AttachingTwiceDeliversOneCopy) {
  Fabric fabric;
  DatagramEnd a, b;
  const ibv_gid group = group_gid(1);
  EXPECT_EQ(attach(b, group), 0);
  EXPECT_EQ(attach(b, group), 0);
  verbs::AhPtr ah = a.ah_to_gid(group, 0, kMlid);
  EXPECT_EQ(a.send_and_wait(ah.get(), 0xFFFFFF, "once"), IBV_WC_SUCCESS);
  EXPECT_EQ(next_text(b), "once");
  EXPECT_TRUE(b.nothing());
  EXPECT_EQ(detach(b, group), 0);
  EXPECT_EQ(detach(b, group), EINVAL);
}

TEST(SoftMcast, ASenderMayBlockItself) {
  Fabric fabric;
  DatagramEnd::Options options;
  options.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
  DatagramEnd a(options), b;
  const ibv_gid group = group_gid(1);
  EXPECT_EQ(attach(a, group), 0);
  EXPECT_EQ(attach(b, group), 0);
  verbs::AhPtr ah = a.ah_to_gid(group, 0, kMlid);
  EXPECT_EQ(a.send_and_wait(ah.get(), 0xFFFFFF, "not to me"), IBV_WC_SUCCESS);
  EXPECT_EQ(next_text(b), "not to me");
  EXPECT_TRUE(a.nothing());
  verbs::AhPtr back = b.ah_to_gid(group, 0, kMlid);
  EXPECT_EQ(b.send_and_wait(back.get(), 0xFFFFFF, "to you"), IBV_WC_SUCCESS);
  EXPECT_EQ(next_text(a), "to you");
  EXPECT_EQ(next_text(b), "to you");
  EXPECT_EQ(detach(a, group), 0);
  EXPECT_EQ(detach(b, group), 0);
}

TEST(SoftMcast, GroupsAreToldApartByLid) {
  Fabric fabric;
  DatagramEnd a, b, c;
  const ibv_gid group = group_gid(1);
  EXPECT_EQ(attach(b, group, 0xC001), 0);
  EXPECT_EQ(attach(c, group, 0xC002), 0);
  verbs::AhPtr ah = a.ah_to_gid(group, 0, 0xC002);
  EXPECT_EQ(a.send_and_wait(ah.get(), 0xFFFFFF, "second"), IBV_WC_SUCCESS);
  EXPECT_EQ(next_text(c), "second");
  EXPECT_TRUE(b.nothing());
  EXPECT_EQ(detach(b, group, 0xC001), 0);
  EXPECT_EQ(detach(c, group, 0xC002), 0);
}

TEST(SoftMcast, WhatIsRefused) {
  Fabric fabric;
  DatagramEnd a;
  const ibv_gid group = group_gid(1);
  EXPECT_EQ(attach(a, a.gid()), EINVAL) << "not a group";
  EXPECT_EQ(attach(a, group, 5), EINVAL) << "not a multicast LID";
  EXPECT_EQ(attach(a, group, 0xFFFF), EINVAL);
  EXPECT_EQ(detach(a, group), EINVAL) << "never attached";
  Endpoint xrc;
  EXPECT_EQ(ibv_attach_mcast(xrc.initiator.get(), &group, kMlid), EINVAL);  // VERBS 3: UD only
  EXPECT_EQ(attach(a, group), 0);
  EXPECT_EQ(a.qp.close(), EBUSY) << "VERBS 3: busy while attached";
  EXPECT_EQ(detach(a, group), 0);
  EXPECT_EQ(a.qp.close(), 0);
}

MILLRACE_CHILD(mcast_member) {
  const uint64_t step = std::stoull(parent.arguments[0]);
  DatagramEnd end;
  soft::signal_at_step(step, std::stoi(parent.arguments[1]));
  const ibv_gid group = group_gid(1);
  EXPECT_EQ(attach(end, group), 0);
  EXPECT_EQ(detach(end, group), 0);
  EXPECT_EQ(attach(end, group), 0);
  soft::signal_at_step(0, 0);
  parent.say("attached");
  parent.hear();
  return 0;
}

/** How many records of the table are free: attached to the end, then let go. */
uint32_t room(DatagramEnd& end) {
  uint32_t n = 0;
  ibv_gid gid = group_gid(2);
  const auto number = [&gid](uint32_t i) {
    gid.raw[8] = static_cast<uint8_t>(i >> 8);
    gid.raw[9] = static_cast<uint8_t>(i);
  };
  for (;; ++n) {
    number(n);
    if (attach(end, gid) != 0) break;
  }
  for (uint32_t i = 0; i < n; ++i) {
    number(i);
    EXPECT_EQ(detach(end, gid), 0);
  }
  return n;
}

TEST(SoftMcast, MembersKilledAtEveryStepLeaveNoRecord) {
  Fabric fabric;
  DatagramEnd end;
  const ibv_gid group = group_gid(1);
  EXPECT_EQ(attach(end, group), 0);
  verbs::AhPtr ah = end.ah_to_gid(group, 0, kMlid);
  const uint32_t free_records = room(end);
  EXPECT_GT(free_records, 100u);
  bool through = false;
  uint64_t step = 1;
  for (; !through && step < 200; ++step) {
    SCOPED_TRACE(step);
    Child child("mcast_member", {std::to_string(step), std::to_string(SIGKILL)});
    through = child.hear() == "attached";
    // Whatever it was at: others send, to it too while it lives.
    EXPECT_EQ(end.send_and_wait(ah.get(), 0xFFFFFF, "anybody?"), IBV_WC_SUCCESS);
    EXPECT_EQ(next_text(end), "anybody?");
    if (through) child.signal(SIGKILL);
    ASSERT_EQ(child.wait(), 128 + SIGKILL);
    EXPECT_EQ(end.send_and_wait(ah.get(), 0xFFFFFF, "and now?"), IBV_WC_SUCCESS);
    EXPECT_EQ(next_text(end), "and now?");
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  expect_walked(through, step - 1);
  // A newcomer reaps what the killed left.
  Child last("mcast_member", {"0", "9"});
  EXPECT_EQ(last.hear(), "attached");
  last.say("end");
  EXPECT_EQ(last.wait(), 0);
  EXPECT_EQ(room(end), free_records);
  EXPECT_EQ(detach(end, group), 0);
}

TEST(SoftMcast, AStoppedMemberHoldsNobodyUp) {  // the SIGSTOP twin
  Fabric fabric;
  DatagramEnd end;
  const ibv_gid group = group_gid(1);
  EXPECT_EQ(attach(end, group), 0);
  verbs::AhPtr ah = end.ah_to_gid(group, 0, kMlid);
  for (uint64_t step : {1u, 2u, 3u}) {
    Child child("mcast_member", {std::to_string(step), std::to_string(SIGSTOP)});
    ASSERT_TRUE(child.wait_stopped());
    for (int i = 0; i < 100; ++i) {  // more than it has WQEs
      EXPECT_EQ(end.send_and_wait(ah.get(), 0xFFFFFF, "go on"), IBV_WC_SUCCESS);
      EXPECT_EQ(next_text(end), "go on");
    }
    DatagramEnd another;
    EXPECT_EQ(attach(another, group), 0);
    EXPECT_EQ(end.send_and_wait(ah.get(), 0xFFFFFF, "to you"), IBV_WC_SUCCESS);
    EXPECT_EQ(next_text(another), "to you");
    EXPECT_EQ(next_text(end), "to you");
    EXPECT_EQ(detach(another, group), 0);
    child.signal(SIGCONT);
    EXPECT_EQ(child.hear(), "attached");
    EXPECT_EQ(end.send_and_wait(ah.get(), 0xFFFFFF, "welcome"), IBV_WC_SUCCESS);
    EXPECT_EQ(next_text(end), "welcome");
    child.say("end");
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_EQ(detach(end, group), 0);
}

}  // namespace
}  // namespace millrace::test
