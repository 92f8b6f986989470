// RC: a receive queue of the QP's own, SEND, WRITE and READ, and what an error does to both ends.
#include <atomic>
#include <thread>

#include "soft/qp.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

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

TEST(SoftRc, TooLongForTheReceiver) {
  Fabric fabric;
  Pair pair;
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, pair.b.options.slot_bytes + 1, 1);
  EXPECT_EQ(pair.a.run(wr), IBV_WC_REM_INV_REQ_ERR);  // VERBS 2.13
  ibv_wc wc = {};
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(wc.wr_id, 0u);
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
}

TEST(SoftRc, KeysOfTheReceiver) {
  Fabric fabric;
  Pair pair;
  // A WQE whose element is outside of its region; then the responder's own completion says why.
  ASSERT_EQ(pair.b.modify(IBV_QPS_RESET), 0);
  ASSERT_EQ(pair.b.init(), 0);
  ibv_sge place = {reinterpret_cast<uintptr_t>(pair.b.slots) - 1, 64, pair.b.mr->lkey};
  ibv_recv_wr receive = {};
  receive.sg_list = &place;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(pair.b.qp.get(), &receive, &bad), 0);
  ASSERT_EQ(pair.b.rtr(pair.a.qpn()), 0);
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  EXPECT_EQ(pair.a.run(wr), IBV_WC_REM_OP_ERR);
  ibv_wc wc = {};
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
}

/** What a one-sided WR ends with, each on a fresh connection. */
ibv_wc_status try_remote(Pair& pair, ibv_wr_opcode opcode, uint64_t address, uint32_t rkey,
                         uint32_t bytes = 8) {
  for (Connected* end : {&pair.a, &pair.b}) EXPECT_EQ(end->modify(IBV_QPS_RESET), 0);
  EXPECT_EQ(pair.a.connect(pair.b.qpn()), 0);
  EXPECT_EQ(pair.b.connect(pair.a.qpn()), 0);
  ibv_send_wr wr = pair.a.wr(opcode, bytes, 1);
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  return pair.a.run(wr);
}

TEST(SoftRc, RemoteKeysBoundsAndRights) {
  Fabric fabric;
  Pair pair;
  const uint64_t at = reinterpret_cast<uintptr_t>(pair.b.slots);
  const uint64_t end = at + size_t{pair.b.options.slots} * pair.b.options.slot_bytes + 65536;
  const uint32_t rkey = pair.b.mr->rkey;
  for (ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    SCOPED_TRACE(opcode);
    EXPECT_EQ(try_remote(pair, opcode, at, rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(try_remote(pair, opcode, end - 8, rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(try_remote(pair, opcode, end - 7, rkey), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(try_remote(pair, opcode, at - 1, rkey), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(try_remote(pair, opcode, ~uint64_t{0} - 3, rkey), IBV_WC_REM_ACCESS_ERR);  // wraps
    EXPECT_EQ(try_remote(pair, opcode, at, rkey ^ 1), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(try_remote(pair, opcode, at, pair.a.mr->rkey),
              IBV_WC_REM_ACCESS_ERR);  // another's PD
    // Nothing is nothing: neither key nor address are looked at.
    EXPECT_EQ(try_remote(pair, opcode, 0, 0, 0), IBV_WC_SUCCESS);
  }
  // A region that does not grant it.
  verbs::MrPtr poor(ibv_reg_mr(pair.b.pd.get(), pair.b.buffer, 64, IBV_ACCESS_LOCAL_WRITE));
  const uint64_t there = reinterpret_cast<uintptr_t>(pair.b.buffer);
  EXPECT_EQ(try_remote(pair, IBV_WR_RDMA_WRITE, there, poor->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(try_remote(pair, IBV_WR_RDMA_READ, there, poor->rkey), IBV_WC_REM_ACCESS_ERR);
  // A QP that does not.
  pair.b.options.access = IBV_ACCESS_REMOTE_READ;
  EXPECT_EQ(try_remote(pair, IBV_WR_RDMA_WRITE, at, rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(try_remote(pair, IBV_WR_RDMA_READ, at, rkey), IBV_WC_SUCCESS);
  pair.b.options.access = IBV_ACCESS_REMOTE_WRITE;
  EXPECT_EQ(try_remote(pair, IBV_WR_RDMA_READ, at, rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST(SoftRc, ReadsNeedDepthAtBothEnds) {
  Fabric fabric;
  Connected::Options none;
  none.depth = 0;
  {
    Pair pair(none, Connected::Options{});
    EXPECT_EQ(try_remote(pair, IBV_WR_RDMA_READ, reinterpret_cast<uintptr_t>(pair.b.buffer),
                         pair.b.mr->rkey),
              IBV_WC_LOC_QP_OP_ERR);
  }
  Pair pair(Connected::Options{}, none);
  EXPECT_EQ(try_remote(pair, IBV_WR_RDMA_READ, reinterpret_cast<uintptr_t>(pair.b.buffer),
                       pair.b.mr->rkey),
            IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(pair.b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_REQ_ERR);
  ibv_ack_async_event(&event);
}

TEST(SoftRc, AnEmptyQueueIsRetriedThenFails) {
  Fabric fabric;
  Connected::Options options;
  options.post = false;
  options.rnr_retry = 1;
  Pair pair(options);
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  EXPECT_EQ(pair.a.run(wr), IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);  // the responder is not at fault
}

TEST(SoftRc, WaitingSendsGoOnInOrderWhenReceivesArePosted) {
  Fabric fabric;
  Connected::Options options;
  options.post = false;
  Pair pair(options);
  for (uint64_t i = 0; i < 8; ++i) {
    memcpy(pair.a.buffer + 8 * i, &i, 8);
    ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, i);
    pair.a.sge.addr += 8 * i;
    ASSERT_EQ(pair.a.send(wr), 0);
  }
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(pair.a.send_cq.get(), 1, &wc), 0);
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(pair.b.post(i), 0);
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(pair.a.poll_sent(&wc));
    EXPECT_EQ(wc.wr_id, i);
    ASSERT_TRUE(pair.b.poll_received(&wc));
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(memcmp(pair.b.slot(static_cast<uint32_t>(i)), &i, 8), 0);
  }
}

TEST(SoftRc, ListsInlineUnsignaledSolicited) {
  Fabric fabric;
  Connected::Options options;
  options.channel = true;
  Pair pair(options);
  ibv_send_wr list[3];
  uint64_t values[3] = {10, 11, 12};
  ibv_sge places[3];
  for (int i = 0; i < 3; ++i) {
    list[i] = pair.a.wr(IBV_WR_SEND, 8, static_cast<uint64_t>(i));
    places[i] = {reinterpret_cast<uintptr_t>(&values[i]), 8, 0};  // inline: no key
    list[i].sg_list = &places[i];
    list[i].send_flags = IBV_SEND_INLINE | IBV_SEND_FENCE;
    list[i].next = i < 2 ? &list[i + 1] : nullptr;
  }
  list[1].send_flags |= IBV_SEND_SOLICITED;
  list[2].send_flags |= IBV_SEND_SIGNALED;
  ASSERT_EQ(ibv_req_notify_cq(pair.b.recv_cq.get(), 1), 0);
  ASSERT_EQ(pair.a.send(list[0]), 0);
  values[0] = values[1] = values[2] = 0;
  ibv_wc wc = {};
  ASSERT_TRUE(pair.a.poll_sent(&wc));
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(ibv_poll_cq(pair.a.send_cq.get(), 1, &wc), 0);
  ibv_cq* which = nullptr;
  void* user = nullptr;
  ASSERT_EQ(ibv_get_cq_event(pair.b.recv_channel.get(), &which, &user), 0);
  EXPECT_EQ(which, pair.b.recv_cq.get());
  ibv_ack_cq_events(which, 1);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(pair.b.poll_received(&wc));
    const uint64_t expected = 10 + i;
    EXPECT_EQ(memcmp(pair.b.slot(static_cast<uint32_t>(i)), &expected, 8), 0);
  }
}

TEST(SoftRc, WhatIsRefusedAtOnce) {
  Fabric fabric;
  Pair pair;
  ibv_send_wr* bad = nullptr;
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8);
  wr.num_sge = 5;
  EXPECT_EQ(ibv_post_send(pair.a.qp.get(), &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  wr = pair.a.wr(IBV_WR_SEND, pair.a.options.max_inline + 1);
  wr.send_flags = IBV_SEND_INLINE;
  EXPECT_EQ(pair.a.send(wr), EINVAL);
  wr = pair.a.wr(IBV_WR_RDMA_READ, 8);
  wr.send_flags = IBV_SEND_INLINE;
  EXPECT_EQ(pair.a.send(wr), EINVAL);
  wr = pair.a.wr(IBV_WR_TSO, 8);
  EXPECT_EQ(pair.a.send(wr), EINVAL);
  // The receive queue's limits, and its states.
  EXPECT_EQ(pair.b.post(0), ENOMEM);
  ibv_recv_wr receive = {};
  receive.num_sge = 5;
  ibv_recv_wr* bad_receive = nullptr;
  ibv_wc wc = {};
  ibv_send_wr one = pair.a.wr(IBV_WR_SEND, 8);
  ASSERT_EQ(pair.a.run(one), IBV_WC_SUCCESS);
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(ibv_post_recv(pair.b.qp.get(), &receive, &bad_receive), EINVAL);
  EXPECT_EQ(bad_receive, &receive);
  ASSERT_EQ(pair.b.modify(IBV_QPS_RESET), 0);
  EXPECT_EQ(pair.b.post(0), EINVAL);
  EXPECT_EQ(pair.b.send(one), EINVAL);
  ASSERT_EQ(pair.b.init(), 0);
  EXPECT_EQ(pair.b.post(0), 0);
  EXPECT_EQ(pair.b.send(one), EINVAL);
}

TEST(SoftRc, WhatOthersDependOnIsBusy) {
  Fabric fabric;
  Connected end;
  EXPECT_EQ(ibv_destroy_cq(end.recv_cq.get()), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(end.send_cq.get()), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(end.pd.get()), EBUSY);
  EXPECT_EQ(ibv_close_device(end.context), EBUSY);
}

TEST(SoftRc, WhatAQueuePairNeeds) {
  Fabric fabric;
  Connected end;
  ibv_qp_init_attr good = {};
  good.qp_type = IBV_QPT_RC;
  good.send_cq = end.send_cq.get();
  good.recv_cq = end.recv_cq.get();
  const auto refused = [&](const ibv_qp_init_attr& attr, int error) {
    ibv_qp_init_attr copy = attr;
    errno = 0;
    EXPECT_EQ(ibv_create_qp(end.pd.get(), &copy), nullptr);
    EXPECT_EQ(errno, error);
  };
  ibv_qp_init_attr attr = good;
  attr.send_cq = nullptr;
  refused(attr, EINVAL);
  attr = good;
  attr.recv_cq = nullptr;
  refused(attr, EINVAL);
  attr = good;
  attr.cap.max_recv_wr = 16385;
  refused(attr, EINVAL);
  attr = good;
  attr.cap.max_recv_sge = 31;
  refused(attr, EINVAL);
  attr = good;
  attr.cap.max_send_wr = 16385;
  refused(attr, EINVAL);
  Connected other;
  attr = good;
  attr.recv_cq = other.recv_cq.get();
  refused(attr, EINVAL);  // of another context
  // What one gets is told, and is at least what was asked for.
  attr = good;
  attr.cap.max_send_wr = 3;
  attr.cap.max_recv_wr = 5;
  verbs::QpPtr qp(ibv_create_qp(end.pd.get(), &attr));
  ASSERT_TRUE(qp);
  EXPECT_GE(attr.cap.max_send_wr, 3u);
  EXPECT_GE(attr.cap.max_recv_wr, 5u);
  EXPECT_GE(attr.cap.max_recv_sge, 1u);
  ibv_qp_attr now = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(qp.get(), &now, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(init.recv_cq, end.recv_cq.get());
  EXPECT_EQ(init.cap.max_recv_wr, attr.cap.max_recv_wr);
  EXPECT_EQ(now.qp_state, IBV_QPS_RESET);
}

TEST(SoftRc, DrainingTheSendQueue) {
  Fabric fabric;
  Connected::Options options;
  options.post = false;
  Pair pair(options);
  for (uint64_t i = 0; i < 2; ++i) {
    ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, i);
    ASSERT_EQ(pair.a.send(wr), 0);
  }
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(pair.a.qp.get(), &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(pair.a.qp.get(), &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_SQD);
  EXPECT_EQ(attr.sq_draining, 1);  // the first one had begun: it waits for a receive
  for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(pair.b.post(i), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(pair.a.poll_sent(&wc));
  EXPECT_EQ(wc.wr_id, 0u);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(pair.a.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
  EXPECT_EQ(event.element.qp, pair.a.qp.get());
  ibv_ack_async_event(&event);
  // The second one had not, and one that is posted now waits, too.
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 2);
  ASSERT_EQ(pair.a.send(wr), 0);
  EXPECT_EQ(ibv_poll_cq(pair.a.send_cq.get(), 1, &wc), 0);
  ASSERT_EQ(pair.a.modify(IBV_QPS_RTS), 0);
  for (uint64_t i = 1; i < 3; ++i) {
    ASSERT_TRUE(pair.a.poll_sent(&wc));
    EXPECT_EQ(wc.wr_id, i);
  }
}

TEST(SoftRc, ForeignMemory) {
  Fabric fabric;
  Connected::Options options;
  options.foreign = true;
  Pair pair(options);
  memcpy(pair.a.buffer, "foreign", 8);
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(pair.b.slot(0), "foreign", 8), 0);
}

TEST(SoftRc, AQueuePairConnectedToItself) {
  Fabric fabric;
  Connected one;
  ASSERT_EQ(one.connect(one.qpn()), 0);
  ibv_send_wr wr = one.wr(IBV_WR_SEND, 8, 1);
  ASSERT_EQ(one.run(wr), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(one.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
}

/** 10,000 open QPs: what a message costs does not depend on them. Counted, not timed: a poll
 * visits only QPs that have work. */
TEST(SoftRc, ManyQueuePairsAreOpen) {
  Fabric fabric;
  Pair pair;
  std::vector<verbs::QpPtr> idle;
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_RC;
  attr.send_cq = pair.a.send_cq.get();
  attr.recv_cq = pair.a.recv_cq.get();
  attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
  for (int i = 0; i < 10'000; ++i) {
    idle.emplace_back(ibv_create_qp(pair.a.pd.get(), &attr));
    ASSERT_TRUE(idle.back()) << i << ": " << soft::last_error().detail;
  }
  soft::signal_at_step(0, 0);
  for (uint64_t i = 0; i < 16; ++i) {
    ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, i);
    ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
    ibv_wc wc = {};
    ASSERT_TRUE(pair.b.poll_received(&wc));
  }
  EXPECT_LT(soft::steps_passed(), 16u * 40);
  EXPECT_EQ(soft::Context::of(pair.a.context).waiting_qps.load(), 0u);
}

/** Threads at both ends, with delays at the steps of the protocol: everything arrives, in order. */
TEST(SoftRc, ThreadsAtBothEnds) {
  Fabric fabric;
  setenv("MILLRACE_SOFT_DELAYS", "7", 1);
  {
    Pair pair;
    constexpr uint64_t kCount = 2000;
    std::thread sender([&] {
      for (uint64_t i = 0; i < kCount; ++i) {
        ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, i);
        memcpy(pair.a.buffer, &i, 8);
        if (pair.a.run(wr) != IBV_WC_SUCCESS) break;
      }
    });
    for (uint64_t i = 0; i < kCount; ++i) {
      ibv_wc wc = {};
      ASSERT_TRUE(pair.b.poll_received(&wc));
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(memcmp(pair.b.slot(static_cast<uint32_t>(wc.wr_id)), &i, 8), 0);
      ASSERT_EQ(pair.b.post(static_cast<uint32_t>(wc.wr_id)), 0);
    }
    sender.join();
  }
  unsetenv("MILLRACE_SOFT_DELAYS");
}

/** One thread puts the responder at fault while another polls it and a third connects it anew
 * (R31): a fault of one connection never ends the next. */
TEST(SoftRc, FaultsRaceWithResets) {
  Fabric fabric;
  setenv("MILLRACE_SOFT_DELAYS", "11", 1);
  {
    Connected::Options options;
    options.timeout = 1;
    options.retry_cnt = 1;
    Pair pair(options);
    std::atomic<bool> stop{false};
    std::thread poller([&] {
      ibv_wc wc[8];
      while (!stop.load()) {
        ibv_poll_cq(pair.b.recv_cq.get(), 8, wc);
        sched_yield();
      }
    });
    for (int round = 0; round < 200; ++round) {
      std::thread bad([&] {
        ibv_send_wr wr = pair.a.wr(IBV_WR_RDMA_WRITE, 8, 1);
        wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(pair.b.buffer);
        wr.wr.rdma.rkey = pair.b.mr->rkey ^ 1;
        const ibv_wc_status status = pair.a.run(wr);
        EXPECT_TRUE(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_RETRY_EXC_ERR)
            << ibv_wc_status_str(status);
      });
      if (round % 2 != 0) sched_yield();
      EXPECT_EQ(pair.b.modify(IBV_QPS_RESET), 0);
      bad.join();
      EXPECT_EQ(pair.b.connect(pair.a.qpn()), 0);
      ASSERT_EQ(pair.a.modify(IBV_QPS_RESET), 0);
      ASSERT_EQ(pair.a.connect(pair.b.qpn()), 0);
      ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 2);
      ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS) << round;
      EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
      ASSERT_EQ(pair.b.modify(IBV_QPS_RESET), 0);
      ASSERT_EQ(pair.a.modify(IBV_QPS_RESET), 0);
      ASSERT_EQ(pair.a.connect(pair.b.qpn()), 0);
      ASSERT_EQ(pair.b.connect(pair.a.qpn()), 0);
    }
    stop.store(true);
    poller.join();
  }
  unsetenv("MILLRACE_SOFT_DELAYS");
}

}  // namespace
}  // namespace millrace::test
