// Extended CQs (ibv_create_cq_ex(3)), resizing, overrun, moderation.
#include <algorithm>
#include <atomic>
#include <thread>

#include "soft_support.h"

namespace millrace::test {
namespace {

constexpr uint64_t kAllFlags = uint64_t{IBV_WC_STANDARD_FLAGS} |
                               IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                               IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

ibv_cq_ex* extended(ibv_cq* cq) { return reinterpret_cast<ibv_cq_ex*>(cq); }

int start(ibv_cq_ex* cq) {
  ibv_poll_cq_attr attr = {};
  return ibv_start_poll(cq, &attr);
}

/** An endpoint that sends to itself, with extended CQs. */
Endpoint::Options loop_options() {
  Endpoint::Options options;
  options.wc_flags = kAllFlags;
  return options;
}

int send_imm(Endpoint& end, uint32_t imm, uint64_t wr_id, uint32_t bytes = 4) {
  ibv_sge sge = {reinterpret_cast<uintptr_t>(end.buffer), bytes, end.send_mr->lkey};
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.imm_data = imm;
  wr.qp_type.xrc.remote_srqn = end.srqn();
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.initiator.get(), &wr, &bad);
}

uint64_t raw_clock(ibv_context* context) {
  ibv_values_ex values = {};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  EXPECT_EQ(ibv_query_rt_values_ex(context, &values), 0);
  return static_cast<uint64_t>(values.raw_clock.tv_sec) * 1'000'000'000u +
         static_cast<uint64_t>(values.raw_clock.tv_nsec);
}

uint64_t wallclock() {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

TEST(SoftCqEx, EveryFieldOfAReceiveAndOfASend) {
  Fabric fabric;
  Endpoint end(loop_options());
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ASSERT_EQ(send_imm(end, 0xABCD, 7, 100), 0);
  const uint64_t raw_before = raw_clock(end.context.get()), wall_before = wallclock();
  ibv_cq_ex* cq = extended(end.cq.get());
  ASSERT_EQ(start(cq), 0);
  EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
  EXPECT_LT(cq->wr_id, end.options.slots);
  EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_vendor_err(cq), 0u);
  EXPECT_EQ(ibv_wc_read_byte_len(cq), 100u);
  EXPECT_EQ(ibv_wc_read_imm_data(cq), 0xABCDu);
  EXPECT_EQ(ibv_wc_read_qp_num(cq), end.target_qpn()) << "VERBS 2.11";
  EXPECT_EQ(ibv_wc_read_src_qp(cq), end.initiator->qp_num);
  EXPECT_EQ(ibv_wc_read_wc_flags(cq), static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(ibv_wc_read_sl(cq), 0);
  EXPECT_EQ(ibv_wc_read_dlid_path_bits(cq), 0);
  EXPECT_EQ(ibv_wc_read_flow_tag(cq), 0u);
  EXPECT_EQ(ibv_wc_read_cvlan(cq), 0);
  const uint64_t stamp = ibv_wc_read_completion_ts(cq);
  const uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq);
  EXPECT_GE(stamp, raw_before) << "the clock is that of ibv_query_rt_values_ex(3)";
  EXPECT_LE(stamp, raw_clock(end.context.get()));
  EXPECT_GE(wall, wall_before);
  EXPECT_LE(wall, wallclock());
  EXPECT_EQ(ibv_wc_read_completion_ts(cq), stamp) << "it is the completion's, not the reading's";
  EXPECT_EQ(ibv_next_poll(cq), ENOENT);
  ibv_end_poll(cq);

  ibv_cq_ex* sent = extended(end.send_cq.get());
  ASSERT_EQ(start(sent), 0);
  EXPECT_EQ(sent->wr_id, 7u);
  EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(sent), IBV_WC_SEND);
  EXPECT_EQ(ibv_wc_read_qp_num(sent), end.initiator->qp_num);
  ibv_end_poll(sent);
}

TEST(SoftCqEx, AnEmptyCqStartsNoSession) {
  Fabric fabric;
  Endpoint end(loop_options());
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ibv_cq_ex* cq = extended(end.cq.get());
  EXPECT_EQ(start(cq), ENOENT);
  EXPECT_EQ(start(cq), ENOENT) << "the first attempt holds nothing";
  ibv_poll_cq_attr attr = {};
  attr.comp_mask = 1;
  EXPECT_EQ(ibv_start_poll(cq, &attr), EINVAL);
  ASSERT_EQ(send_imm(end, 1, 1), 0);
  EXPECT_EQ(ibv_start_poll(cq, &attr), EINVAL) << "and took nothing";
  EXPECT_EQ(start(cq), 0);
  EXPECT_EQ(ibv_wc_read_imm_data(cq), 1u);
  ibv_end_poll(cq);
}

TEST(SoftCqEx, BothWaysOfPollingMix) {
  Fabric fabric;
  Endpoint end(loop_options());
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  for (uint32_t i = 0; i < 6; ++i) ASSERT_EQ(send_imm(end, i, i), 0);
  ibv_cq_ex* cq = extended(end.cq.get());
  ibv_wc wc = {};
  ASSERT_EQ(ibv_poll_cq(end.cq.get(), 1, &wc), 1);
  EXPECT_EQ(wc.imm_data, 0u);
  ASSERT_EQ(start(cq), 0);
  EXPECT_EQ(ibv_wc_read_imm_data(cq), 1u);
  ASSERT_EQ(ibv_poll_cq(end.cq.get(), 1, &wc), 1) << "inside a session, too";
  EXPECT_EQ(wc.imm_data, 2u);
  EXPECT_EQ(ibv_wc_read_imm_data(cq), 1u) << "the session's completion stays";
  ASSERT_EQ(ibv_next_poll(cq), 0);
  EXPECT_EQ(ibv_wc_read_imm_data(cq), 3u);
  ibv_end_poll(cq);
  ibv_wc rest[4] = {};
  ASSERT_EQ(ibv_poll_cq(end.cq.get(), 4, rest), 2);
  EXPECT_EQ(rest[0].imm_data, 4u);
  EXPECT_EQ(rest[1].imm_data, 5u);
}

TEST(SoftCqEx, ThreadsShareOneWithoutMixingFields) {
  Fabric fabric;
  Endpoint::Options options = loop_options();
  options.slots = 256;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  constexpr uint32_t kCount = 20'000;
  std::vector<std::atomic<int>> seen(kCount);
  std::atomic<uint32_t> total{0};
  ibv_cq_ex* cq = extended(end.cq.get());
  const auto poller = [&] {
    while (total.load() < kCount) {
      if (start(cq) != 0) {
        sched_yield();
        continue;
      }
      do {
        const uint32_t imm = ibv_wc_read_imm_data(cq);
        EXPECT_EQ(ibv_wc_read_byte_len(cq), 1 + imm % 100) << "of another completion";
        seen[imm].fetch_add(1);
        total.fetch_add(1);
        EXPECT_EQ(end.post(static_cast<uint32_t>(cq->wr_id)), 0);
      } while (ibv_next_poll(cq) == 0);
      ibv_end_poll(cq);
    }
  };
  std::thread a(poller), b(poller);
  ibv_wc wc = {};
  for (uint32_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(send_imm(end, i, i, 1 + i % 100), 0);
    ASSERT_TRUE(end.poll_sent(&wc));
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  a.join();
  b.join();
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(seen[i].load(), 1) << i;
}

TEST(SoftCqEx, WhatCanBeAskedFor) {
  Fabric fabric;
  Endpoint::Options options;
  options.receive = options.send = false;
  Endpoint end(options);
  const auto create = [&](const std::function<void(ibv_cq_init_attr_ex&)>& change) {
    ibv_cq_init_attr_ex attr = {};
    attr.cqe = 10;
    change(attr);
    ibv_cq_ex* cq = ibv_create_cq_ex(end.context.get(), &attr);
    return verbs::CqPtr(cq != nullptr ? ibv_cq_ex_to_cq(cq) : nullptr);
  };
  for (uint64_t flag = 1; flag <= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK; flag <<= 1) {
    verbs::CqPtr cq = create([&](auto& attr) { attr.wc_flags = flag; });
    EXPECT_EQ(static_cast<bool>(cq), flag != IBV_WC_EX_WITH_TM_INFO) << flag;
    if (!cq) {
      EXPECT_EQ(errno, EOPNOTSUPP) << flag;
    }
  }
  for (uint32_t flag : {IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN}) {
    EXPECT_TRUE(create([&](auto& attr) {
      attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
      attr.flags = flag;
    }));
  }
  EXPECT_TRUE(create([](auto& attr) { attr.flags = 1u << 31; })) << "without its mask it is unread";
  const auto refused = [&](int code, const std::function<void(ibv_cq_init_attr_ex&)>& change) {
    errno = 0;
    EXPECT_FALSE(create(change));
    EXPECT_EQ(errno, code) << soft::last_error().detail;
  };
  refused(EOPNOTSUPP, [](auto& attr) { attr.wc_flags = uint64_t{1} << 40; });
  refused(EINVAL, [](auto& attr) { attr.comp_mask = 1u << 7; });
  refused(EINVAL, [](auto& attr) {
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    attr.flags = 1u << 31;
  });
  refused(EINVAL, [](auto& attr) { attr.cqe = 0; });
  refused(EINVAL, [](auto& attr) { attr.cqe = 65537; });
  refused(EINVAL, [](auto& attr) { attr.cqe = ~0u; });
  refused(EINVAL, [](auto& attr) { attr.comp_vector = 1; });
  refused(EINVAL, [](auto& attr) { attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD; });
  refused(EINVAL, [&](auto& attr) {
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    attr.parent_domain = end.pd.get();  // a PD is none
  });
  ibv_parent_domain_init_attr parent_attr = {};
  parent_attr.pd = end.pd.get();
  verbs::PdPtr parent(ibv_alloc_parent_domain(end.context.get(), &parent_attr));
  ASSERT_TRUE(parent);
  verbs::CqPtr cq = create([&](auto& attr) {
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    attr.parent_domain = parent.get();
  });
  ASSERT_TRUE(cq);
  EXPECT_EQ(parent.close(), EBUSY) << "the CQ was made with it";
  EXPECT_EQ(cq.close(), 0);
  EXPECT_EQ(parent.close(), 0);
}

TEST(SoftCqEx, AnOverrunSendCqSaysSoAndStops) {
  Fabric fabric;
  Endpoint::Options options = loop_options();
  options.cqe = 2;
  options.slots = 2;
  Endpoint end(options);
  fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(send_imm(end, 0, i), 0);
    ibv_wc received = {};
    ASSERT_TRUE(end.poll(&received));
    ASSERT_EQ(end.post(static_cast<uint32_t>(received.wr_id)), 0);
  }
  ibv_async_event event = {};
  EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN) << "it is full, not overrun";
  for (uint64_t i = 2; i < 4; ++i) ASSERT_EQ(send_imm(end, 0, i), 0);
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, end.send_cq.get());
  ibv_ack_async_event(&event);
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL) << "it can't say what became of its work";
  EXPECT_EQ(event.element.qp, end.initiator.get());
  ibv_ack_async_event(&event);
  EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), -1) << "once for each CQ and QP";
  ibv_qp_attr state = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(end.initiator.get(), &state, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(state.qp_state, IBV_QPS_ERR);
  // What it holds can be polled; then both ways of polling say why there is no more.
  ibv_wc wc = {};
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), 1);
    EXPECT_EQ(wc.wr_id, i);
  }
  EXPECT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), -EIO);
  EXPECT_EQ(start(extended(end.send_cq.get())), EIO);
  EXPECT_NE(soft::last_error().detail.find("overrun"), std::string::npos);
}

TEST(SoftCqEx, AReceiveCqIsFoundOverrunWhenItIsPolled) {
  Fabric fabric;
  Endpoint::Options options = loop_options();
  options.slots = 8;
  Endpoint end(options);
  fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ASSERT_EQ(ibv_resize_cq(end.cq.get(), 3), 0);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(send_imm(end, i, i), 0);
  ibv_wc wc[8] = {};
  EXPECT_GT(ibv_poll_cq(end.cq.get(), 8, wc), 0);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, end.cq.get());
  ibv_ack_async_event(&event);
}

TEST(SoftCqEx, IgnoringOverrunLosesCompletionsInSilence) {
  Fabric fabric;
  Endpoint end;
  fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 2;
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  verbs::CqPtr small(ibv_cq_ex_to_cq(ibv_create_cq_ex(end.context.get(), &attr)));
  ASSERT_TRUE(small);
  ibv_qp_init_attr_ex create = {};
  create.qp_type = IBV_QPT_XRC_SEND;
  create.comp_mask = IBV_QP_INIT_ATTR_PD;
  create.pd = end.pd.get();
  create.send_cq = small.get();
  create.cap.max_send_wr = 8;
  create.cap.max_send_sge = 1;
  end.initiator = verbs::QpPtr(ibv_create_qp_ex(end.context.get(), &create));
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(send_imm(end, 0, i), 0);
  ibv_async_event event = {};
  EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), -1);
  ibv_wc wc[4] = {};
  EXPECT_EQ(ibv_poll_cq(small.get(), 4, wc), 2);
  EXPECT_EQ(ibv_poll_cq(small.get(), 4, wc), 0) << "and goes on";
  ASSERT_EQ(send_imm(end, 0, 9), 0);
  ASSERT_EQ(ibv_poll_cq(small.get(), 4, wc), 1);
  EXPECT_EQ(wc[0].wr_id, 9u);
  end.initiator = verbs::QpPtr();
}

TEST(SoftCqEx, ResizingKeepsWhatIsInIt) {
  Fabric fabric;
  Endpoint end(loop_options());
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ASSERT_EQ(ibv_resize_cq(end.send_cq.get(), 4), 0);
  EXPECT_EQ(end.send_cq->cqe, 4);
  ibv_wc wc[8] = {};
  // Its head is not at the start when it grows.
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(send_imm(end, 0, i), 0);
  ASSERT_EQ(ibv_poll_cq(end.send_cq.get(), 3, wc), 3);
  for (uint64_t i = 3; i < 7; ++i) ASSERT_EQ(send_imm(end, 0, i), 0);
  EXPECT_EQ(ibv_resize_cq(end.send_cq.get(), 3), EINVAL) << "it holds four";
  EXPECT_EQ(end.send_cq->cqe, 4);
  ASSERT_EQ(ibv_resize_cq(end.send_cq.get(), 6), 0);
  for (uint64_t i = 7; i < 9; ++i) ASSERT_EQ(send_imm(end, 0, i), 0);
  ASSERT_EQ(ibv_poll_cq(end.send_cq.get(), 8, wc), 6);
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(wc[i].wr_id, 3 + i);
  EXPECT_EQ(ibv_resize_cq(end.send_cq.get(), 1), 0);
  EXPECT_EQ(ibv_resize_cq(end.send_cq.get(), 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(end.send_cq.get(), 65537), EINVAL);
  // Received completions count, though they lie elsewhere.
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), 8), EINVAL) << "nine have arrived";
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), 9), 0);
  EXPECT_EQ(ibv_poll_cq(end.cq.get(), 8, wc), 8);
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), 1), 0);
  EXPECT_EQ(ibv_poll_cq(end.cq.get(), 8, wc), 1);
}

TEST(SoftCqEx, ModerationHoldsAnEventBackForCountOrTime) {
  Fabric fabric;
  Endpoint end(loop_options());
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ibv_device_attr_ex device = {};
  ASSERT_EQ(ibv_query_device_ex(end.context.get(), nullptr, &device), 0);
  EXPECT_GE(device.cq_mod_caps.max_cq_count, 3);
  EXPECT_GE(device.cq_mod_caps.max_cq_period, 60'000);
  ibv_modify_cq_attr attr = {};
  attr.attr_mask = 1u << 5;
  EXPECT_EQ(ibv_modify_cq(end.cq.get(), &attr), EINVAL);
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate.cq_count = 3;
  attr.moderate.cq_period = 60'000;
  ASSERT_EQ(ibv_modify_cq(end.cq.get(), &attr), 0);
  ibv_cq* which = nullptr;
  void* user = nullptr;
  ASSERT_EQ(ibv_req_notify_cq(end.cq.get(), 0), 0);
  fcntl(end.channel->fd, F_SETFL, O_NONBLOCK);
  const uint64_t started = base::now_ns();
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_EQ(send_imm(end, i, i), 0);
    const int got = ibv_get_cq_event(end.channel.get(), &which, &user);
    if (got == 0) {
      // A machine that was held up for so long has nothing to hold back.
      ASSERT_GE(base::now_ns() - started, 60'000'000u);
      ibv_ack_cq_events(which, 1);
      GTEST_SKIP() << "the machine was held up for longer than the period";
    }
  }
  ASSERT_EQ(send_imm(end, 2, 2), 0);
  ASSERT_EQ(ibv_get_cq_event(end.channel.get(), &which, &user), 0) << "the third does it";
  EXPECT_EQ(which, end.cq.get());
  ibv_ack_cq_events(which, 1);
  ibv_wc wc[4] = {};
  EXPECT_EQ(ibv_poll_cq(end.cq.get(), 4, wc), 3);

  // By time: the descriptor becomes readable again without anything else happening.
  attr.moderate.cq_count = 1000;
  attr.moderate.cq_period = 2'000;
  ASSERT_EQ(ibv_modify_cq(end.cq.get(), &attr), 0);
  ASSERT_EQ(ibv_req_notify_cq(end.cq.get(), 0), 0);
  const uint64_t sent = base::now_ns();
  ASSERT_EQ(send_imm(end, 3, 3), 0);
  while (ibv_get_cq_event(end.channel.get(), &which, &user) != 0) {
    pollfd p = {end.channel->fd, POLLIN, 0};
    ASSERT_EQ(poll(&p, 1, kDeadlineMs), 1);
  }
  EXPECT_GE(base::now_ns() - sent, 2'000'000u);
  ibv_ack_cq_events(which, 1);
  // Off: at once.
  attr.moderate = {};
  ASSERT_EQ(ibv_modify_cq(end.cq.get(), &attr), 0);
  ASSERT_EQ(ibv_poll_cq(end.cq.get(), 4, wc), 1);
  ASSERT_EQ(ibv_req_notify_cq(end.cq.get(), 0), 0);
  ASSERT_EQ(send_imm(end, 4, 4), 0);
  ASSERT_EQ(ibv_get_cq_event(end.channel.get(), &which, &user), 0);
  ibv_ack_cq_events(which, 1);
}

}  // namespace
}  // namespace millrace::test
