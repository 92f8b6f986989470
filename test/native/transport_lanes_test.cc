#include "transport_support.h"

/** Lanes without a member: when the targets of RC lanes go. */
namespace millrace::transport {
namespace {

class RcTargets : public testing::Test {
 protected:
  RcTargets() : bench_(domain_) {
    auto queue = bench_.lanes->create_queue(16);
    EXPECT_TRUE(queue.ok());
    if (queue.ok()) bench_.queue = queue.take();
  }
  void SetUp() override {
    if (bench_.lanes->kind() != LaneKind::kRc) GTEST_SKIP() << "targets of XRC are re-armed";
    if (!test::immediate()) GTEST_SKIP() << "the events of this device come when they come";
  }

  /** The number of the target that is made for the n-th ask of a peer. */
  uint32_t accept(uint32_t peer, uint64_t ask) {
    auto target = bench_.lanes->accept(peer, 0, ask, bench_.lanes->port().address, {77, 1});
    EXPECT_TRUE(target.ok());
    return target.ok() ? target.value().number : 0;
  }

  test::Domain domain_;
  test::LaneBench bench_;
};

TEST_F(RcTargets, GoWhenTheLastReceiveHasCome) {
  const uint32_t first = accept(3, 1);
  EXPECT_EQ(bench_.lanes->origin(first), (Lanes::Origin{3, 0}));
  EXPECT_FALSE(bench_.lanes->retire(1000));
  const uint32_t second = accept(3, 2);
  EXPECT_EQ(bench_.lanes->queue_pairs(), 2u);
  EXPECT_EQ(bench_.lanes->origin(first), (Lanes::Origin{3, 0}));
  EXPECT_TRUE(bench_.lanes->retire(1000));
  EXPECT_EQ(bench_.lanes->queue_pairs(), 2u);  // the receive CQ is emptied first
  bench_.lanes->bury();
  EXPECT_EQ(bench_.lanes->queue_pairs(), 1u);
  EXPECT_EQ(bench_.lanes->origin(first).peer, Lanes::kNobody);
  EXPECT_EQ(bench_.lanes->origin(second), (Lanes::Origin{3, 0}));
}

TEST_F(RcTargets, OfAPeerThatIsGoneAreNobodys) {
  const uint32_t target = accept(3, 1);
  bench_.lanes->part(3);
  EXPECT_EQ(bench_.lanes->queue_pairs(), 1u);
  EXPECT_EQ(bench_.lanes->origin(target).peer, Lanes::kNobody);
  EXPECT_TRUE(bench_.lanes->retire(1000));
  bench_.lanes->bury();
  EXPECT_EQ(bench_.lanes->queue_pairs(), 0u);
}

TEST_F(RcTargets, GoAfterAWhileWhereNoEventComes) {
  (void)accept(3, 1);
  (void)accept(3, 2);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(bench_.context.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  ibv_ack_async_event(&event);
  const uint64_t now = 5'000;
  EXPECT_FALSE(bench_.lanes->retire(now));
  EXPECT_FALSE(bench_.lanes->retire(now + Lanes::kRetireNs - 1));
  EXPECT_EQ(bench_.lanes->queue_pairs(), 2u);
  EXPECT_TRUE(bench_.lanes->retire(now + Lanes::kRetireNs));
  bench_.lanes->bury();
  EXPECT_EQ(bench_.lanes->queue_pairs(), 1u);
}

TEST_F(RcTargets, AreNotKeptWithoutEnd) {
  for (uint64_t ask = 1; ask <= 200; ++ask) (void)accept(3, ask);
  EXPECT_LE(bench_.lanes->queue_pairs(), 40u);
}

}  // namespace
}  // namespace millrace::transport
