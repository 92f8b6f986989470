#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "verbs/faults.h"
#include "verbs/open.h"
#include "verbs/owners.h"

/** The fault decorator behaves as a device may: these are the promises of faults.h, on bare verbs.
 */
namespace millrace::verbs {
namespace {

int close_domain(ibv_xrcd* xrcd) { return ibv_close_xrcd(xrcd); }

/** One XRC SRQ and one connected pair in this process, on a context with faults. */
class Pair {
 public:
  static constexpr int kDepth = 256;

  explicit Pair(const FaultPlan& plan) {
    setenv("MILLRACE_FABRIC", ("faults-" + std::to_string(getpid())).c_str(), 1);
    auto opened = open_device("soft");
    EXPECT_TRUE(opened.ok()) << opened.status().detail;
    context = ContextPtr(opened.take());
    EXPECT_TRUE(install_faults(context.get(), plan).ok());
    ibv_xrcd_init_attr domain{};
    domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    domain.fd = -1;
    domain.oflags = O_CREAT;
    xrcd = Owner<ibv_xrcd, close_domain>(ibv_open_xrcd(context.get(), &domain));
    EXPECT_TRUE(xrcd) << strerror(errno);
    pd = PdPtr(ibv_alloc_pd(context.get()));
    channel = ChannelPtr(ibv_create_comp_channel(context.get()));
    receive_cq = CqPtr(ibv_create_cq(context.get(), kDepth, nullptr, channel.get(), 0));
    send_cq = CqPtr(ibv_create_cq(context.get(), kDepth, nullptr, channel.get(), 0));
    ibv_srq_init_attr_ex attr{};
    attr.attr.max_wr = kDepth;
    attr.attr.max_sge = 1;
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_XRC;
    attr.pd = pd.get();
    attr.xrcd = xrcd.get();
    attr.cq = receive_cq.get();
    srq = SrqPtr(ibv_create_srq_ex(context.get(), &attr));
    EXPECT_TRUE(srq) << strerror(errno);
    EXPECT_EQ(ibv_get_srq_num(srq.get(), &srq_number), 0);
    ibv_qp_init_attr_ex t{};
    t.qp_type = IBV_QPT_XRC_RECV;
    t.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    t.xrcd = xrcd.get();
    target = QpPtr(ibv_create_qp_ex(context.get(), &t));
    ibv_qp_init_attr_ex i{};
    i.qp_type = IBV_QPT_XRC_SEND;
    i.comp_mask = IBV_QP_INIT_ATTR_PD;
    i.pd = pd.get();
    i.send_cq = send_cq.get();
    i.cap.max_send_wr = kDepth;
    i.cap.max_send_sge = 1;
    initiator = QpPtr(ibv_create_qp_ex(context.get(), &i));
    EXPECT_TRUE(target && initiator) << strerror(errno);
    memory.resize(kDepth * 2);
    mr = MrPtr(ibv_reg_mr(pd.get(), memory.data(), memory.size() * sizeof(uint64_t),
                          IBV_ACCESS_LOCAL_WRITE));
    connect();
    for (uint64_t k = 0; k < kDepth; ++k) receive(k);
  }
  ~Pair() {
    to_error();
    drain_sends();
    initiator.close();
    target.close();
    srq.close();
    send_cq.close();
    receive_cq.close();
    channel.close();
    mr.close();
    pd.close();
    xrcd.close();
    remove_faults(context.get());
  }

  void connect() {
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(context.get(), 1, &port), 0);
    ibv_gid gid{};
    (void)ibv_query_gid(context.get(), 1, 0, &gid);
    const auto up = [&](ibv_qp* qp, bool sends, uint32_t dest) {
      ibv_qp_attr a{};
      const auto step = [&](ibv_qp_state state, int mask) {
        a.qp_state = state;
        ASSERT_EQ(ibv_modify_qp(qp, &a, mask | IBV_QP_STATE), 0) << "state " << state;
      };
      step(IBV_QPS_RESET, 0);
      a.port_num = 1;
      a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
      step(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      a.path_mtu = port.active_mtu;
      a.dest_qp_num = dest;
      a.ah_attr.port_num = 1;
      a.ah_attr.dlid = port.lid;
      a.ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
      a.ah_attr.grh.dgid = gid;
      a.max_dest_rd_atomic = 1;
      a.min_rnr_timer = 12;
      step(IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            (sends ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
      a.timeout = 14;
      a.retry_cnt = 7;
      a.rnr_retry = 7;
      a.max_rd_atomic = 1;
      step(IBV_QPS_RTS,
           IBV_QP_TIMEOUT | IBV_QP_SQ_PSN |
               (sends ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
    };
    up(target.get(), false, initiator->qp_num);
    up(initiator.get(), true, target->qp_num);
  }
  void to_error() {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    (void)ibv_modify_qp(initiator.get(), &a, IBV_QP_STATE);
  }

  int receive(uint64_t k) {
    ibv_sge sge{reinterpret_cast<uint64_t>(&memory[k]), 8, mr->lkey};
    ibv_recv_wr wr{};
    ibv_recv_wr* bad = nullptr;
    wr.wr_id = k;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    return ibv_post_srq_recv(srq.get(), &wr, &bad);
  }
  /** Posts `count` sends as one list, numbered from `first`. */
  int send(uint64_t first, int count) {
    std::vector<ibv_send_wr> wrs(static_cast<size_t>(count));
    std::vector<ibv_sge> sges(static_cast<size_t>(count));
    for (size_t i = 0; i < wrs.size(); ++i) {
      uint64_t& word = memory[kDepth + (first + i) % kDepth];
      word = first + i;
      sges[i] = {reinterpret_cast<uint64_t>(&word), 8, mr->lkey};
      wrs[i] = {};
      wrs[i].wr_id = first + i;
      wrs[i].sg_list = &sges[i];
      wrs[i].num_sge = 1;
      wrs[i].opcode = IBV_WR_SEND;
      wrs[i].send_flags = IBV_SEND_SIGNALED;
      wrs[i].qp_type.xrc.remote_srqn = srq_number;
      wrs[i].next = i + 1 < wrs.size() ? &wrs[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(initiator.get(), wrs.data(), &bad);
  }
  std::vector<ibv_wc> poll_sends() {
    std::vector<ibv_wc> out(32);
    out.resize(static_cast<size_t>(std::max(0, ibv_poll_cq(send_cq.get(), 32, out.data()))));
    return out;
  }
  void drain_sends() {
    for (int i = 0; i < 100; ++i) (void)poll_sends();
  }
  /** The numbers that arrived; their slots are posted again. */
  std::vector<uint64_t> poll_receives() {
    std::vector<uint64_t> out;
    ibv_wc wcs[32];
    for (int n; (n = ibv_poll_cq(receive_cq.get(), 32, wcs)) > 0;) {
      for (int i = 0; i < n; ++i) {
        out.push_back(memory[wcs[i].wr_id]);
        EXPECT_EQ(receive(wcs[i].wr_id), 0);
      }
    }
    return out;
  }

  ContextPtr context;
  Owner<ibv_xrcd, close_domain> xrcd;
  PdPtr pd;
  ChannelPtr channel;
  CqPtr receive_cq, send_cq;
  SrqPtr srq;
  QpPtr target, initiator;
  MrPtr mr;
  uint32_t srq_number = 0;
  std::vector<uint64_t> memory;
};

/** Sends on and on; after an error, looks whether it was a device's, and connects anew. */
void walk(const FaultPlan& plan, uint64_t sends, bool ambiguous_may_arrive) {
  Pair pair(plan);
  uint64_t next = 1;
  uint64_t last_arrived = 0;
  uint64_t succeeded = 0;
  const uint64_t deadline = base::now_ns() + 60'000'000'000u;
  while (next <= sends) {
    const uint64_t first = next;
    const int count = 1 + static_cast<int>(next % 20);
    ASSERT_EQ(pair.send(first, count), 0);
    next += static_cast<uint64_t>(count);
    // Every WR has exactly one completion, in order; after the first error all the rest are
    // flushed.
    uint64_t expect = first;
    bool failed = false;
    uint64_t failed_at = 0;
    while (expect < next) {
      for (const ibv_wc& wc : pair.poll_sends()) {
        ASSERT_EQ(wc.wr_id, expect);
        ++expect;
        if (failed) {
          ASSERT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        } else if (wc.status != IBV_WC_SUCCESS) {
          ASSERT_NE(wc.status, IBV_WC_WR_FLUSH_ERR) << "the first error says what it was";
          failed = true;
          failed_at = wc.wr_id;
        } else {
          ++succeeded;
        }
      }
      ASSERT_LT(base::now_ns(), deadline);
    }
    if (failed) {
      ASSERT_EQ(pair.initiator->state, IBV_QPS_ERR);
    }
    // What arrived: all that succeeded, in order, and perhaps the one that failed.
    const uint64_t good = failed ? failed_at - 1 : next - 1;
    uint64_t got = 0;
    while (last_arrived < good) {
      for (uint64_t number : pair.poll_receives()) {
        ASSERT_GT(number, last_arrived);
        last_arrived = number;
        ++got;
      }
      ASSERT_LT(base::now_ns(), deadline);
      (void)pair.poll_sends();
    }
    if (!ambiguous_may_arrive) {
      ASSERT_EQ(last_arrived, good);
    } else {
      ASSERT_LE(last_arrived, failed ? failed_at : good);
    }
    if (failed) {
      ASSERT_NO_FATAL_FAILURE(pair.connect());
      // What came after the last look, in the time of the old connection.
      for (uint64_t number : pair.poll_receives()) last_arrived = std::max(last_arrived, number);
      last_arrived = std::max(last_arrived, next - 1);
    }
  }
  EXPECT_GT(succeeded, sends / 4);
}

TEST(Faults, WithoutAnyNothingChanges) { walk({1}, 5000, false); }
TEST(Faults, ErrorsFlushWhatFollowsAndDeliverNothing) {
  for (uint64_t seed = 1; seed <= 5; ++seed) walk({seed, 0.05}, 2000, false);
}
TEST(Faults, AmbiguousOnesMayHaveArrived) {
  for (uint64_t seed = 1; seed <= 5; ++seed) walk({seed, 0, 0.05}, 2000, true);
}
TEST(Faults, DelaysKeepTheOrder) {
  for (uint64_t seed = 1; seed <= 5; ++seed) walk({seed, 0, 0, 0.3}, 2000, false);
}
TEST(Faults, DeadNumbersFailAsTheDeviceSaysIt) {
  for (uint64_t seed = 1; seed <= 5; ++seed) walk({seed, 0, 0, 0, 0, 0.05}, 2000, false);
}
TEST(Faults, WithheldReceivesComeBack) {
  for (uint64_t seed = 1; seed <= 5; ++seed) walk({seed, 0, 0, 0, 0.5}, 2000, false);
}
TEST(Faults, AllTogether) {
  for (uint64_t seed = 1; seed <= 10; ++seed)
    walk({.seed = seed,
          .error = 0.02,
          .ambiguous = 0.02,
          .delay = 0.2,
          .rnr = 0.2,
          .dead_srq = 0.02,
          .max_delay_polls = 5},
         2000, true);
}

TEST(Faults, TheSameSeedDoesTheSame) {
  const auto counts = [](uint64_t seed) {
    Pair pair(
        {.seed = seed, .error = 0.1, .ambiguous = 0.1, .delay = 0.1, .rnr = 0.1, .dead_srq = 0.1});
    for (uint64_t i = 0; i < 300; ++i) {
      (void)pair.send(i, 1);
      (void)pair.poll_sends();
      (void)pair.poll_receives();
      if (pair.initiator->state == IBV_QPS_ERR) {
        pair.drain_sends();
        pair.connect();
      }
    }
    return fault_counts(pair.context.get());
  };
  const FaultCounts one = counts(5), same = counts(5), other = counts(6);
  EXPECT_EQ(one.errors, same.errors);
  EXPECT_EQ(one.ambiguous, same.ambiguous);
  EXPECT_EQ(one.delayed, same.delayed);
  EXPECT_EQ(one.dead_srqs, same.dead_srqs);
  EXPECT_GT(one.errors * one.ambiguous * one.delayed * one.dead_srqs, 0u);
  EXPECT_NE(one.errors * 1000 + one.delayed, other.errors * 1000 + other.delayed);
}

TEST(Faults, ArmingLetsGoWhatIsDelayed) {
  Pair pair({.seed = 3, .delay = 1.0, .max_delay_polls = 1'000'000});
  ASSERT_EQ(pair.send(1, 5), 0);
  EXPECT_TRUE(pair.poll_sends().empty());
  EXPECT_TRUE(pair.poll_receives().empty());
  ASSERT_EQ(ibv_req_notify_cq(pair.receive_cq.get(), 0), 0);
  EXPECT_EQ(pair.poll_receives().size(), 5u);
  EXPECT_EQ(pair.poll_sends().size(), 5u);
}

TEST(Faults, PlansAreCheckedAndInstalledOnce) {
  setenv("MILLRACE_FABRIC", ("faults-" + std::to_string(getpid())).c_str(), 1);
  ContextPtr context(open_device("soft").take());
  EXPECT_EQ(install_faults(context.get(), {1, 1.5}).code, EINVAL);
  EXPECT_EQ(install_faults(context.get(), {1, -0.1}).code, EINVAL);
  const auto before = context->ops.post_send;
  EXPECT_TRUE(install_faults(context.get(), {1}).ok());
  EXPECT_NE(context->ops.post_send, before);
  EXPECT_EQ(install_faults(context.get(), {1}).code, EEXIST);
  remove_faults(context.get());
  remove_faults(context.get());
  EXPECT_EQ(context->ops.post_send, before);
  EXPECT_EQ(fault_counts(context.get()).errors, 0u);
}

}  // namespace
}  // namespace millrace::verbs
