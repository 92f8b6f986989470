// Error completions, receiver-not-ready, timeouts: VERBS 2.9 to 2.14.
#include "soft_support.h"

namespace millrace::test {
namespace {

/** Sends one message and gives its completion's status. */
ibv_wc_status send_one(Endpoint& end, uint32_t srqn) {
  const uint64_t value = 1;
  EXPECT_EQ(end.send(srqn, &value, sizeof(value), 99), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.wr_id, 99u);
  return wc.status;
}

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  return attr.qp_state;
}

int reset(Endpoint& end) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RESET;
  return ibv_modify_qp(end.initiator.get(), &attr, IBV_QP_STATE);
}

TEST(SoftErrors, WrongSrqNumber) {  // VERBS 2.9, 2.14
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const uint32_t srqn = end.srqn();
  for (uint32_t wrong : {0u, 0xFFFFFFu, srqn + 1, srqn + 4096}) {
    EXPECT_EQ(send_one(end, wrong), IBV_WC_REM_INV_REQ_ERR) << wrong;
    EXPECT_EQ(state_of(end.initiator.get()), IBV_QPS_ERR);
    // In ERR everything is flushed, signaled or not.
    const uint32_t value = 1;
    EXPECT_EQ(end.send(srqn, &value, sizeof(value), 5, 0), 0);
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll_sent(&wc));
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    // Re-armed, the lane works again, and the target need not be touched.
    ASSERT_EQ(reset(end), 0);
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    EXPECT_EQ(send_one(end, srqn), IBV_WC_SUCCESS);
  }
  EXPECT_EQ(send_one(end, srqn | 0xFF000000u), IBV_WC_SUCCESS) << "VERBS 2.5: 24 bits count";
}

TEST(SoftErrors, SrqDestroyedUnderAConnectedInitiator) {  // VERBS 2.14: a stale number
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const uint32_t srqn = end.srqn();
  EXPECT_EQ(send_one(end, srqn), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll(&wc));
  ASSERT_EQ(end.srq.close(), 0);
  EXPECT_EQ(send_one(end, srqn), IBV_WC_REM_INV_REQ_ERR);
}

TEST(SoftErrors, SrqOfAnotherDomain) {  // VERBS 2.9
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  // A second SRQ in a private domain of its own.
  ibv_xrcd_init_attr domain = {};
  domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain.fd = -1;
  domain.oflags = O_CREAT;
  verbs::XrcdPtr other(ibv_open_xrcd(end.context.get(), &domain));
  ASSERT_TRUE(other);
  ibv_srq_init_attr_ex attr = {};
  attr.attr.max_wr = 4;
  attr.attr.max_sge = 1;
  attr.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  attr.srq_type = IBV_SRQT_XRC;
  attr.pd = end.pd.get();
  attr.xrcd = other.get();
  attr.cq = end.cq.get();
  verbs::SrqPtr srq(ibv_create_srq_ex(end.context.get(), &attr));
  ASSERT_TRUE(srq);
  uint32_t number = 0;
  ASSERT_EQ(ibv_get_srq_num(srq.get(), &number), 0);
  EXPECT_EQ(send_one(end, number), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(other.close(), EBUSY);
}

TEST(SoftErrors, TooLongForTheReceiver) {  // VERBS 2.13
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  std::vector<char> big(end.options.slot_bytes + 1);
  ASSERT_EQ(end.send(end.srqn(), big.data(), static_cast<uint32_t>(big.size())), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_REM_INV_REQ_ERR);
  ASSERT_TRUE(end.poll(&wc));
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
}

TEST(SoftErrors, LocalKeys) {
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const auto try_sge = [&](uint64_t addr, uint32_t length, uint32_t lkey) {
    EXPECT_EQ(reset(end), 0);
    EXPECT_EQ(end.connect(end.target_qpn()), 0);
    ibv_sge sge = {addr, length, lkey};
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.qp_type.xrc.remote_srqn = end.srqn();
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), 0);
    ibv_wc wc = {};
    EXPECT_TRUE(end.poll_sent(&wc));
    return wc.status;
  };
  const uint64_t at = reinterpret_cast<uintptr_t>(end.buffer);
  const uint32_t lkey = end.send_mr->lkey;
  EXPECT_EQ(try_sge(at, 8, lkey), IBV_WC_SUCCESS);
  EXPECT_EQ(try_sge(at, 8, lkey ^ 1), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(try_sge(at, 8, 0xFFFFFFFF), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(try_sge(at - 1, 8, lkey), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(try_sge(at + 65536 - 7, 8, lkey), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(try_sge(~uint64_t{0} - 3, 8, lkey), IBV_WC_LOC_PROT_ERR);
  // None of them has cost a WQE.
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll(&wc));
  EXPECT_EQ(ibv_poll_cq(end.cq.get(), 1, &wc), 0);
  // Another PD, and a key that is not any more.
  verbs::PdPtr other(ibv_alloc_pd(end.context.get()));
  verbs::MrPtr mr(ibv_reg_mr(other.get(), end.buffer, 64, IBV_ACCESS_LOCAL_WRITE));
  EXPECT_EQ(try_sge(at, 8, mr->lkey), IBV_WC_LOC_PROT_ERR);
  verbs::MrPtr gone(ibv_reg_mr(end.pd.get(), end.buffer, 64, IBV_ACCESS_LOCAL_WRITE));
  const uint32_t old = gone->lkey;
  EXPECT_EQ(try_sge(at, 8, old), IBV_WC_SUCCESS);
  ASSERT_EQ(gone.close(), 0);
  EXPECT_EQ(try_sge(at, 8, old), IBV_WC_LOC_PROT_ERR);
}

TEST(SoftErrors, TheReceiversKeys) {
  Fabric fabric;
  Endpoint::Options options;
  options.post = false;
  Endpoint end(options);
  const auto try_slot = [&](uint64_t addr, uint32_t length, uint32_t lkey,
                            ibv_wc_status* received) {
    EXPECT_EQ(reset(end), 0);
    EXPECT_EQ(end.connect(end.target_qpn()), 0);
    ibv_sge sge = {addr, length, lkey};
    ibv_recv_wr wr = {};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_srq_recv(end.srq.get(), &wr, &bad), 0);
    const ibv_wc_status sent = send_one(end, end.srqn());
    ibv_wc wc = {};
    EXPECT_TRUE(end.poll(&wc));
    *received = wc.status;
    return sent;
  };
  const uint64_t at = reinterpret_cast<uintptr_t>(end.slots);
  ibv_wc_status received = IBV_WC_SUCCESS;
  EXPECT_EQ(try_slot(at, 8, end.slots_mr->lkey, &received), IBV_WC_SUCCESS);
  EXPECT_EQ(received, IBV_WC_SUCCESS);
  EXPECT_EQ(try_slot(at, 8, end.slots_mr->lkey ^ 2, &received), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(received, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(try_slot(at - 8, 8, end.slots_mr->lkey, &received), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(received, IBV_WC_LOC_PROT_ERR);
  verbs::MrPtr readonly(ibv_reg_mr(end.pd.get(), end.slots, 64, IBV_ACCESS_REMOTE_READ));
  EXPECT_EQ(try_slot(at, 8, readonly->lkey, &received), IBV_WC_REM_OP_ERR);
  verbs::PdPtr other(ibv_alloc_pd(end.context.get()));
  verbs::MrPtr foreign(ibv_reg_mr(other.get(), end.slots, 64, IBV_ACCESS_LOCAL_WRITE));
  EXPECT_EQ(try_slot(at, 8, foreign->lkey, &received),
            IBV_WC_REM_OP_ERR);  // the SRQ's PD counts (VERBS 2.10)
}

TEST(SoftErrors, ReceiverNotReadyFailsAtOnceWithoutRetries) {
  Fabric fabric;
  Endpoint::Options options;
  options.post = false;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn(), 0), 0);
  EXPECT_EQ(send_one(end, end.srqn()), IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST(SoftErrors, ReceiverNotReadyUsesItsBudget) {  // VERBS 2.13
  Fabric fabric;
  Endpoint::Options options;
  options.post = false;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn(), 3), 0);
  ibv_qp_attr attr = {};
  attr.min_rnr_timer = 19;  // 7.68 ms
  ASSERT_EQ(ibv_modify_qp(end.target.get(), &attr, IBV_QP_MIN_RNR_TIMER), 0);
  const uint64_t start = base::now_ns();
  EXPECT_EQ(send_one(end, end.srqn()), IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_GE(base::now_ns() - start, uint64_t{3} * 7'680'000u);
}

TEST(SoftErrors, TimersRunWhileTheProgramSleeps) {
  Fabric fabric;
  Endpoint::Options options;
  options.post = false;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn(), 1), 0);
  ASSERT_EQ(ibv_req_notify_cq(end.send_cq.get(), 0), 0);
  const uint32_t value = 1;
  ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value), 1, 0), 0);
  ibv_cq* which = nullptr;
  void* user = nullptr;
  ASSERT_EQ(ibv_get_cq_event(end.send_channel.get(), &which, &user), 0);  // blocks; nobody polls
  ibv_ack_cq_events(which, 1);
  ibv_wc wc = {};
  ASSERT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST(SoftErrors, WaitingKeepsTheOrderAndTheData) {
  Fabric fabric;
  Endpoint::Options options;
  options.post = false;
  options.max_send_wr = 8;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  // Eight wait, inline ones and others; the ninth is refused. Inline data may be overwritten at
  // once.
  for (uint64_t i = 0; i < 9; ++i) {
    uint64_t value = i;
    ibv_sge sge = {reinterpret_cast<uintptr_t>(&value), sizeof(value), 0};
    ibv_send_wr wr = {};
    wr.wr_id = i;
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = static_cast<uint32_t>(i);
    wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.qp_type.xrc.remote_srqn = end.srqn();
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), i < 8 ? 0 : ENOMEM);
    if (i == 8) {
      EXPECT_EQ(bad, &wr);
    }
    value = ~uint64_t{0};
  }
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), 0);
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_EQ(end.post(i), 0);
    ASSERT_TRUE(end.poll_sent(&wc));
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_TRUE(end.poll(&wc));
    EXPECT_EQ(wc.imm_data, i);
    EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_IMM);
    uint64_t value = 0;
    memcpy(&value, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(value));
    EXPECT_EQ(value, i);
  }
}

TEST(SoftErrors, ErrFlushesWhatWaitsAndResetForgetsIt) {
  Fabric fabric;
  Endpoint::Options options;
  options.post = false;
  Endpoint end(options);
  ibv_wc wc = {};
  for (const bool to_reset : {false, true}) {
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(end.send(end.srqn(), &i, sizeof(i), i, 0), 0);
    ibv_qp_attr attr = {};
    attr.qp_state = to_reset ? IBV_QPS_RESET : IBV_QPS_ERR;
    ASSERT_EQ(ibv_modify_qp(end.initiator.get(), &attr, IBV_QP_STATE), 0);
    for (uint64_t i = 0; !to_reset && i < 3; ++i) {
      ASSERT_TRUE(end.poll_sent(&wc));
      EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(wc.wr_id, i);
    }
    EXPECT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), 0);
    ASSERT_EQ(reset(end), 0);
  }
  // RESET also purges completions that were not polled (VERBS 1, lesson 4).
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ASSERT_EQ(end.post(0), 0);
  const uint32_t value = 1;
  ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
  ASSERT_EQ(reset(end), 0);
  EXPECT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), 0);
  EXPECT_TRUE(end.poll(&wc));  // the receiver has it all the same
}

TEST(SoftErrors, NobodyAnswers) {
  Fabric fabric;
  Endpoint end;
  // There is no such target: the whole budget is used up, 4.096 us * 2^10 * 3.
  ASSERT_EQ(end.connect(end.target_qpn() + 5, 7, 10, 3), 0);
  const uint64_t start = base::now_ns();
  EXPECT_EQ(send_one(end, end.srqn()), IBV_WC_RETRY_EXC_ERR);
  EXPECT_GE(base::now_ns() - start, uint64_t{4096} * 1024 * 3);
  // A target that is not ready yet becomes ready within the budget.
  ASSERT_EQ(reset(end), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(end.target.get(), &attr, IBV_QP_STATE), 0);
  ASSERT_EQ(end.connect(end.target_qpn(), 7, 20, 7), 0);
  const uint32_t value = 1;
  ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), 0);
  ASSERT_EQ(end.ready(), 0);
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
}

TEST(SoftErrors, PostingInTheWrongState) {  // VERBS 2.4
  Fabric fabric;
  Endpoint end;
  const uint32_t value = 1;
  EXPECT_EQ(end.send(end.srqn(), &value, sizeof(value)), EINVAL);  // RESET
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ibv_send_wr wr = {};
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(end.target.get(), &wr, &bad), EINVAL);  // a target sends nothing
  EXPECT_EQ(bad, &wr);
  ibv_recv_wr recv = {};
  ibv_recv_wr* bad_recv = nullptr;
  EXPECT_EQ(ibv_post_recv(end.target.get(), &recv, &bad_recv), EINVAL);
  wr.opcode = IBV_WR_TSO;
  EXPECT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), EINVAL);
  wr.opcode = IBV_WR_SEND;
  wr.num_sge = 5;
  EXPECT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), EINVAL);
}

TEST(SoftErrors, SrqIsFull) {
  Fabric fabric;
  Endpoint end;
  EXPECT_EQ(end.post(0), ENOMEM);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  EXPECT_EQ(send_one(end, end.srqn()), IBV_WC_SUCCESS);
  EXPECT_EQ(end.post(0), ENOMEM) << "a WQE whose completion was not polled is not free";
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll(&wc));
  EXPECT_EQ(end.post(0), 0);
}

TEST(SoftErrors, SrqLimitEventIsOneShot) {  // VERBS 2.12
  Fabric fabric;
  Endpoint::Options options;
  options.slots = 8;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  ibv_srq_attr attr = {};
  attr.srq_limit = 6;
  ASSERT_EQ(ibv_modify_srq(end.srq.get(), &attr, IBV_SRQ_LIMIT), 0);
  ibv_async_event event = {};
  ibv_wc wc = {};
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(send_one(end, end.srqn()), IBV_WC_SUCCESS);
    ASSERT_TRUE(end.poll(&wc));
  }
  pollfd p = {end.context->async_fd, POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, 0), 1);
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event.element.srq, end.srq.get());
  ibv_ack_async_event(&event);
  EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), -1);
  ASSERT_EQ(ibv_query_srq(end.srq.get(), &attr), 0);
  EXPECT_EQ(attr.srq_limit, 0u);
  attr.srq_limit = 6;  // already below: at once
  ASSERT_EQ(ibv_modify_srq(end.srq.get(), &attr, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  ibv_ack_async_event(&event);
}

TEST(SoftErrors, CqOverrunIsReported) {
  Fabric fabric;
  Endpoint::Options options;
  options.cqe = 2;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  const uint32_t value = 1;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  ibv_ack_async_event(&event);
}

TEST(SoftErrors, ManyMoreMessagesThanTheRingHolds) {
  Fabric fabric;
  Endpoint::Options options;
  options.slots = 2048;
  options.slot_bytes = 8;
  options.max_send_wr = 2048;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  // The SRQ has room for all of them, the ring for 256: the rest waits for the receiver's polls
  // (R3).
  for (uint64_t i = 0; i < 2048; ++i) ASSERT_EQ(end.send(end.srqn(), &i, sizeof(i), i), 0);
  uint64_t sent = 0, received = 0;
  ASSERT_TRUE(eventually([&] {
    ibv_wc wc = {};
    while (ibv_poll_cq(end.send_cq.get(), 1, &wc) == 1) EXPECT_EQ(wc.wr_id, sent++);
    while (ibv_poll_cq(end.cq.get(), 1, &wc) == 1) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      ++received;
    }
    return sent == 2048 && received == 2048;
  })) << sent
      << " " << received;
}

}  // namespace
}  // namespace millrace::test
