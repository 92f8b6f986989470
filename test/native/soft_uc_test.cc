// UC: what it delivers, and that it is silent about what it does not.
#include "soft_support.h"

namespace millrace::test {
namespace {

Connected::Options unreliable() {
  Connected::Options options;
  options.type = IBV_QPT_UC;
  return options;
}

TEST(SoftUc, SendsAndWrites) {
  Fabric fabric;
  Pair pair(unreliable());
  for (ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    memcpy(pair.a.buffer, "unreliab", 8);
    ibv_send_wr wr = pair.a.wr(opcode, 8, opcode);
    wr.imm_data = htobe32(5);
    wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(pair.b.buffer);
    wr.wr.rdma.rkey = pair.b.mr->rkey;
    ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
    ibv_wc wc = {};
    ASSERT_TRUE(pair.b.poll_received(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, 8u);
    EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM,
              opcode == IBV_WR_SEND ? 0u : static_cast<unsigned>(IBV_WC_WITH_IMM));
  }
  EXPECT_EQ(memcmp(pair.b.buffer, "unreliab", 8), 0);
  EXPECT_EQ(memcmp(pair.b.slot(0), "unreliab", 8), 0);
}

TEST(SoftUc, NothingIsLostWhileReceivesArePosted) {
  Fabric fabric;
  Connected::Options options = unreliable();
  options.slots = options.max_recv_wr = 1000;
  options.slot_bytes = 16;
  Pair pair(options);
  for (uint64_t i = 0; i < 1000; ++i) {  // none is polled meanwhile
    ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, i);
    ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  }
  for (uint64_t i = 0; i < 1000; ++i) {
    ibv_wc wc = {};
    ASSERT_EQ(ibv_poll_cq(pair.b.recv_cq.get(), 1, &wc), 1) << i;
    EXPECT_EQ(wc.wr_id, i);
  }
}

TEST(SoftUc, WhatIsNotDeliveredIsDropped) {
  Fabric fabric;
  Connected::Options options = unreliable();
  options.post = false;
  Pair pair(options);
  // No receive: no RNR, it is lost.
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  EXPECT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  ASSERT_EQ(pair.b.post(0), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(pair.b.recv_cq.get(), 1, &wc), 0);
  // A WRITE with a wrong key changes nothing, and neither end fails.
  memset(pair.b.buffer, 0x11, 8);
  wr = pair.a.wr(IBV_WR_RDMA_WRITE, 8, 2);
  wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(pair.b.buffer);
  wr.wr.rdma.rkey = pair.b.mr->rkey ^ 1;
  EXPECT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(static_cast<uint8_t>(pair.b.buffer[0]), 0x11);
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
  // Nobody there.
  ASSERT_EQ(pair.b.modify(IBV_QPS_ERR), 0);
  wr = pair.a.wr(IBV_WR_SEND, 8, 3);
  EXPECT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
}

TEST(SoftUc, TooLongIsTheResponders) {
  Fabric fabric;
  Pair pair(unreliable());
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, pair.b.options.slot_bytes + 1, 1);
  EXPECT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
}

TEST(SoftUc, WhatItHasNot) {
  Fabric fabric;
  Pair pair(unreliable());
  for (ibv_wr_opcode opcode :
       {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    ibv_send_wr wr = pair.a.wr(opcode, 8);
    EXPECT_EQ(pair.a.send(wr), EINVAL) << opcode;
  }
  // Attributes of a reliable connection.
  Connected one(unreliable());
  ASSERT_EQ(one.init(), 0);
  ASSERT_EQ(one.rtr(pair.a.qpn()), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(ibv_modify_qp(one.qp.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT),
            EINVAL);
  EXPECT_EQ(ibv_modify_qp(one.qp.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

}  // namespace
TEST(SoftUc, AWaiterThatComesBackLateDoesNotWriteIntoAnotherQueue) {
  // An RC queue with one WQE and a UC queue with two take the same room, but where the one has its
  // park entries the other has the words of its WQEs (R25).
  Fabric fabric;
  Connected::Options one;
  one.slots = one.max_recv_wr = 1;
  one.post = false;
  Pair gone(one);
  ibv_send_wr parked = gone.a.wr(IBV_WR_SEND, 8);
  ASSERT_EQ(gone.a.send(parked), 0);
  ASSERT_EQ(gone.b.qp.close(), 0);
  Connected::Options two;
  two.type = IBV_QPT_UC;
  two.slots = two.max_recv_wr = 2;
  Pair fresh(two);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(gone.a.send_cq.get(), 1, &wc), 0);  // lets go of its entry
  for (uint64_t i = 0; i < 2; ++i) {
    ibv_send_wr wr = fresh.a.wr(IBV_WR_SEND, 8);
    ASSERT_EQ(fresh.a.run(wr), IBV_WC_SUCCESS);
    ASSERT_TRUE(fresh.b.poll_received(&wc));
    EXPECT_EQ(wc.wr_id, i);
  }
}

}  // namespace millrace::test
