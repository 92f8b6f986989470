// RC: a receive queue of the QP's own, SEND, WRITE and READ, and what an error does to both ends.
#include "soft_support.h"

namespace millrace::test {
namespace {

/** Two connected ends in this process. */
struct Pair {
  explicit Pair(const Connected::Options& options = {}) : Pair(options, options) {}
  Pair(const Connected::Options& left, const Connected::Options& right) : a(left), b(right) {
    EXPECT_EQ(a.connect(b.qpn()), 0) << soft::last_error().detail;
    EXPECT_EQ(b.connect(a.qpn()), 0) << soft::last_error().detail;
  }
  Connected a, b;
};

TEST(SoftRc, SendsArriveInOrderInTheQpsOwnQueue) {
  Fabric fabric;
  Pair pair;
  for (uint64_t i = 0; i < 100; ++i) {
    memcpy(pair.a.buffer, &i, sizeof(i));
    ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, sizeof(i), i);
    ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
    ibv_wc wc = {};
    ASSERT_TRUE(pair.b.poll_received(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.wr_id, i % pair.b.options.slots);  // WQEs are used in the order of their posting
    EXPECT_EQ(wc.byte_len, sizeof(i));
    EXPECT_EQ(wc.qp_num, pair.b.qpn());
    EXPECT_EQ(memcmp(pair.b.slot(static_cast<uint32_t>(wc.wr_id)), &i, sizeof(i)), 0);
    ASSERT_EQ(pair.b.post(static_cast<uint32_t>(wc.wr_id)), 0);
  }
}

TEST(SoftRc, BothDirectionsAndImmediateData) {
  Fabric fabric;
  Pair pair;
  for (Connected* from : {&pair.a, &pair.b}) {
    Connected& to = from == &pair.a ? pair.b : pair.a;
    ibv_send_wr wr = from->wr(IBV_WR_SEND_WITH_IMM, 8, 1);
    wr.imm_data = htobe32(0x12345678);
    ASSERT_EQ(from->run(wr), IBV_WC_SUCCESS);
    ibv_wc wc = {};
    ASSERT_TRUE(to.poll_received(&wc));
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_NE(wc.wc_flags & IBV_WC_WITH_IMM, 0u);
    EXPECT_EQ(wc.imm_data, htobe32(0x12345678));
    // WRITE with immediate data consumes a WQE, but not its buffer.
    wr = from->wr(IBV_WR_RDMA_WRITE_WITH_IMM, 8, 2);
    wr.imm_data = htobe32(7);
    wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(to.buffer) + 4096;
    wr.wr.rdma.rkey = to.mr->rkey;
    memcpy(from->buffer, "writeimm", 8);
    ASSERT_EQ(from->run(wr), IBV_WC_SUCCESS);
    ASSERT_TRUE(to.poll_received(&wc));
    EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(wc.byte_len, 8u);
    EXPECT_EQ(memcmp(to.buffer + 4096, "writeimm", 8), 0);
  }
}

TEST(SoftRc, WriteAndRead) {
  Fabric fabric;
  Pair pair;
  memcpy(pair.a.buffer, "one way ", 8);
  ibv_send_wr wr = pair.a.wr(IBV_WR_RDMA_WRITE, 8, 1);
  wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(pair.b.buffer) + 100;
  wr.wr.rdma.rkey = pair.b.mr->rkey;
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(pair.b.buffer + 100, "one way ", 8), 0);
  memset(pair.a.buffer, 0, 8);
  wr = pair.a.wr(IBV_WR_RDMA_READ, 8, 2);
  wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(pair.b.buffer) + 100;
  wr.wr.rdma.rkey = pair.b.mr->rkey;
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(pair.a.buffer, "one way ", 8), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(pair.b.recv_cq.get(), 1, &wc), 0);  // the other end hears nothing of it
}

TEST(SoftRc, ResponderGoesToErrAndFlushesInOrder) {
  Fabric fabric;
  Pair pair;
  // One arrives, then a WRITE with a wrong key: the arrival comes before the flushed receives.
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  wr = pair.a.wr(IBV_WR_RDMA_WRITE, 8, 2);
  wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(pair.b.buffer);
  wr.wr.rdma.rkey = pair.b.mr->rkey ^ 1;
  EXPECT_EQ(pair.a.run(wr), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  for (uint32_t i = 0; i < pair.b.options.slots; ++i) {
    ibv_wc wc = {};
    ASSERT_TRUE(pair.b.poll_received(&wc));
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.status, i == 0 ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.qp_num, pair.b.qpn());
  }
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
  // The requester's receives are flushed, too.
  for (uint32_t i = 0; i < pair.a.options.slots; ++i) {
    ibv_wc wc = {};
    ASSERT_TRUE(pair.a.poll_received(&wc));
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  }
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(pair.b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, pair.b.qp.get());
  ibv_ack_async_event(&event);
  // Posted in ERR: flushed at once.
  EXPECT_EQ(pair.b.post(3), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  // And after RESET both serve again.
  for (Connected* end : {&pair.a, &pair.b}) ASSERT_EQ(end->modify(IBV_QPS_RESET), 0);
  ASSERT_EQ(pair.a.connect(pair.b.qpn()), 0);
  ASSERT_EQ(pair.b.connect(pair.a.qpn()), 0);
  wr = pair.a.wr(IBV_WR_SEND, 8, 5);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
}

TEST(SoftRc, ResetTakesBackWhatHasArrived) {
  Fabric fabric;
  Pair pair;
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  ASSERT_EQ(pair.b.modify(IBV_QPS_RESET), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(pair.b.recv_cq.get(), 1, &wc), 0);  // VERBS 1, lesson 4
  ASSERT_EQ(pair.b.connect(pair.a.qpn()), 0);               // has room for all its receives again
  wr = pair.a.wr(IBV_WR_SEND, 8, 2);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.wr_id, 0u);
}

TEST(SoftRc, NobodyAnswers) {
  Fabric fabric;
  Connected::Options options;
  options.timeout = 1;
  options.retry_cnt = 1;
  Pair pair(options);
  ASSERT_EQ(pair.b.modify(IBV_QPS_ERR), 0);
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  EXPECT_EQ(pair.a.run(wr), IBV_WC_RETRY_EXC_ERR);
}

TEST(SoftRc, NotConnectedToUs) {
  Fabric fabric;
  Connected::Options options;
  options.timeout = 1;
  options.retry_cnt = 1;
  Pair pair(options);
  Connected third(options);
  ASSERT_EQ(third.connect(pair.b.qpn()), 0);  // one-sided: b's destination is a
  ibv_send_wr wr = third.wr(IBV_WR_SEND, 8, 1);
  EXPECT_EQ(third.run(wr), IBV_WC_RETRY_EXC_ERR);
}

}  // namespace
}  // namespace millrace::test
