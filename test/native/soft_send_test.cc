// Sending: the plain path, between processes and within one.
#include "soft_support.h"

namespace millrace::test {
namespace {

MILLRACE_CHILD(sender) {
  // arguments: target QP number, SRQ number, how many, first value
  const uint32_t target = static_cast<uint32_t>(std::stoul(parent.arguments[0]));
  const uint32_t srqn = static_cast<uint32_t>(std::stoul(parent.arguments[1]));
  const uint64_t count = std::stoull(parent.arguments[2]);
  const uint64_t first = std::stoull(parent.arguments[3]);
  Endpoint::Options options;
  options.receive = false;
  Endpoint end(options);
  EXPECT_EQ(end.connect(target), 0);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t value = first + i;
    EXPECT_EQ(end.send(srqn, &value, sizeof(value), value), 0);
    ibv_wc wc = {};
    EXPECT_TRUE(end.poll_sent(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.wr_id, value);
    EXPECT_EQ(wc.opcode, IBV_WC_SEND);
    if (::testing::Test::HasFailure()) return 1;
  }
  parent.say("done");
  return 0;
}

TEST(SoftSend, WithinOneProcess) {  // VERBS 2.14: an SRQ number of the same process
  Fabric fabric;
  {
    Endpoint end;
    ASSERT_EQ(end.connect(end.target_qpn()), 0) << soft::last_error().detail;
    for (uint32_t round = 0; round < 1000; ++round) {
      ASSERT_EQ(end.send(end.srqn(), &round, sizeof(round), round), 0);
      ibv_wc wc = {};
      ASSERT_TRUE(end.poll_sent(&wc));
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS)
          << ibv_wc_status_str(wc.status) << " " << soft::last_error().detail;
      ASSERT_TRUE(end.poll(&wc));
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.opcode, IBV_WC_RECV);
      ASSERT_EQ(wc.byte_len, sizeof(round));
      ASSERT_EQ(wc.qp_num, end.target_qpn());
      ASSERT_EQ(wc.src_qp, end.initiator->qp_num);
      ASSERT_EQ(memcmp(end.slot(static_cast<uint32_t>(wc.wr_id)), &round, sizeof(round)), 0);
      ASSERT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
    }
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftSend, BetweenTwoProcesses) {
  Fabric fabric;
  {
    Endpoint end;
    Child child("sender",
                {std::to_string(end.target_qpn()), std::to_string(end.srqn()), "20000", "7"});
    for (uint64_t i = 0; i < 20000; ++i) {
      ibv_wc wc = {};
      ASSERT_TRUE(end.poll(&wc));
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      uint64_t value = 0;
      memcpy(&value, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(value));
      ASSERT_EQ(value, 7 + i);
      ASSERT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
    }
    EXPECT_EQ(child.hear(), "done");
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftSend, IntoForeignMemory) {
  Fabric fabric;
  Endpoint::Options options;
  options.foreign = true;
  Endpoint end(options);
  Child child("sender",
              {std::to_string(end.target_qpn()), std::to_string(end.srqn()), "500", "100"});
  for (uint64_t i = 0; i < 500; ++i) {
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll(&wc));
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    uint64_t value = 0;
    memcpy(&value, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(value));
    ASSERT_EQ(value, 100 + i);
    ASSERT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
  }
  EXPECT_EQ(child.wait(), 0);
}

TEST(SoftSend, EightInitiatorsKeepTheirOrder) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.slots = 32;
    Endpoint end(options);
    constexpr uint64_t kEach = 5000;
    std::vector<std::unique_ptr<Child>> children;
    for (uint64_t c = 0; c < 8; ++c) {
      children.push_back(std::make_unique<Child>(
          "sender",
          std::vector<std::string>{std::to_string(end.target_qpn()), std::to_string(end.srqn()),
                                   std::to_string(kEach), std::to_string(c << 32)}));
    }
    uint64_t next[8] = {};
    for (uint64_t i = 0; i < 8 * kEach; ++i) {
      ibv_wc wc = {};
      ASSERT_TRUE(end.poll(&wc)) << i;
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      uint64_t value = 0;
      memcpy(&value, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(value));
      ASSERT_LT(value >> 32, 8u);
      ASSERT_EQ(value & 0xFFFFFFFFu, next[value >> 32]++);
      ASSERT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
    }
    for (auto& child : children) EXPECT_EQ(child->wait(), 0);
  }
  EXPECT_FALSE(fabric.exists());
}

}  // namespace
}  // namespace millrace::test
