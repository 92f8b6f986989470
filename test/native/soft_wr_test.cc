// The ibv_wr_* calls (ibv_wr_post(3)) over RC, UC and XRC.
#include <thread>

#include "soft_support.h"

namespace millrace::test {
namespace {

constexpr uint64_t kRcOps =
    uint64_t{IBV_QP_EX_WITH_RDMA_WRITE} | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_WRITE |
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

verbs::QpPtr create(Connected& end, ibv_qp_type type,
                    const std::function<void(ibv_qp_init_attr_ex&)>& change) {
  ibv_qp_init_attr_ex attr = {};
  attr.qp_type = type;
  attr.send_cq = end.send_cq.get();
  attr.recv_cq = end.recv_cq.get();
  attr.cap.max_send_wr = end.options.max_send_wr;
  attr.cap.max_send_sge = 4;
  attr.cap.max_inline_data = end.options.max_inline;
  attr.cap.max_recv_wr = end.options.max_recv_wr;
  attr.cap.max_recv_sge = 4;
  attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.pd = end.pd.get();
  change(attr);
  return verbs::QpPtr(ibv_create_qp_ex(end.context, &attr));
}

/** Two connected ends whose QPs were created for the ibv_wr_* calls. */
struct WrPair {
  explicit WrPair(uint64_t ops = kRcOps, const Connected::Options& options = {})
      : a(options), b(options) {
    for (Connected* end : {&a, &b}) {
      end->qp = create(*end, options.type, [&](auto& attr) { attr.send_ops_flags = ops; });
      EXPECT_TRUE(end->qp) << soft::last_error().detail;
    }
    EXPECT_EQ(a.connect(b.qpn()), 0) << soft::last_error().detail;
    EXPECT_EQ(b.connect(a.qpn()), 0) << soft::last_error().detail;
    ex = ibv_qp_to_qp_ex(a.qp.get());
    EXPECT_NE(ex, nullptr);
    ex->wr_flags = IBV_SEND_SIGNALED;
  }
  void sge(uint32_t offset, uint32_t bytes) {
    ibv_wr_set_sge(ex, a.mr->lkey, reinterpret_cast<uintptr_t>(a.buffer) + offset, bytes);
  }
  uint64_t there(uint32_t offset) const { return reinterpret_cast<uintptr_t>(b.buffer) + offset; }
  ibv_wc sent() {
    ibv_wc wc = {};
    EXPECT_TRUE(a.poll_sent(&wc));
    return wc;
  }
  ibv_wc received() {
    ibv_wc wc = {};
    EXPECT_TRUE(b.poll_received(&wc));
    return wc;
  }
  Connected a, b;
  ibv_qp_ex* ex = nullptr;
};

TEST(SoftWr, EveryOperationInOneList) {
  Fabric fabric;
  WrPair pair;
  for (int i = 0; i < 64; ++i) pair.a.buffer[i] = std::byte(i);
  strcpy(reinterpret_cast<char*>(pair.b.buffer) + 8192, "to be read");
  ibv_wr_start(pair.ex);
  pair.ex->wr_id = 1;
  ibv_wr_send(pair.ex);
  pair.sge(0, 10);
  pair.ex->wr_id = 2;
  ibv_wr_send_imm(pair.ex, 77);
  const ibv_sge two[] = {
      {reinterpret_cast<uintptr_t>(pair.a.buffer) + 20, 5, pair.a.mr->lkey},
      {reinterpret_cast<uintptr_t>(pair.a.buffer) + 40, 5, pair.a.mr->lkey},
  };
  ibv_wr_set_sge_list(pair.ex, 2, two);
  pair.ex->wr_id = 3;
  ibv_wr_rdma_write(pair.ex, pair.b.mr->rkey, pair.there(100));
  pair.sge(0, 16);
  pair.ex->wr_id = 4;
  ibv_wr_rdma_write_imm(pair.ex, pair.b.mr->rkey, pair.there(200), 88);
  pair.sge(16, 16);
  pair.ex->wr_id = 5;
  ibv_wr_rdma_read(pair.ex, pair.b.mr->rkey, pair.there(8192));
  pair.sge(4096, 11);
  pair.ex->wr_id = 6;
  const uint64_t value = 0x1122334455667788;
  ibv_wr_atomic_write(pair.ex, pair.b.mr->rkey, pair.there(304), &value);
  const uint64_t counter = 40;
  memcpy(pair.b.buffer + 312, &counter, 8);
  pair.ex->wr_id = 7;
  ibv_wr_atomic_fetch_add(pair.ex, pair.b.mr->rkey, pair.there(312), 2);
  pair.sge(4200, 8);
  pair.ex->wr_id = 8;
  ibv_wr_atomic_cmp_swp(pair.ex, pair.b.mr->rkey, pair.there(312), 42, 7);
  pair.sge(4208, 8);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(pair.a.send_cq.get(), 1, &wc), 0) << "nothing happens before complete";
  ASSERT_EQ(ibv_wr_complete(pair.ex), 0) << soft::last_error().detail;
  const ibv_wc_opcode opcodes[] = {IBV_WC_SEND,       IBV_WC_SEND,      IBV_WC_RDMA_WRITE,
                                   IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_ATOMIC_WRITE,
                                   IBV_WC_FETCH_ADD,  IBV_WC_COMP_SWAP};
  for (uint64_t i = 0; i < 8; ++i) {
    wc = pair.sent();
    EXPECT_EQ(wc.wr_id, i + 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << i;
    EXPECT_EQ(wc.opcode, opcodes[i]);
  }
  wc = pair.received();
  EXPECT_EQ(wc.byte_len, 10u);
  EXPECT_EQ(memcmp(pair.b.slot(0), pair.a.buffer, 10), 0);
  wc = pair.received();
  EXPECT_EQ(wc.imm_data, 77u);
  EXPECT_EQ(wc.byte_len, 10u);
  EXPECT_EQ(memcmp(pair.b.slot(1), pair.a.buffer + 20, 5), 0);
  EXPECT_EQ(memcmp(pair.b.slot(1) + 5, pair.a.buffer + 40, 5), 0);
  EXPECT_EQ(memcmp(pair.b.buffer + 100, pair.a.buffer, 16), 0);
  wc = pair.received();
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, 88u);
  EXPECT_EQ(memcmp(pair.b.buffer + 200, pair.a.buffer + 16, 16), 0);
  EXPECT_STREQ(reinterpret_cast<char*>(pair.a.buffer) + 4096, "to be read");
  EXPECT_EQ(memcmp(pair.b.buffer + 304, &value, 8), 0);
  uint64_t words[3];
  memcpy(words, pair.a.buffer + 4200, 16);
  memcpy(words + 2, pair.b.buffer + 312, 8);
  EXPECT_EQ(words[0], 40u) << "what it was before the addition";
  EXPECT_EQ(words[1], 42u) << "and before the exchange";
  EXPECT_EQ(words[2], 7u);
}

TEST(SoftWr, InlineDataIsTheCallersAgainAtOnce) {
  Fabric fabric;
  WrPair pair;
  char text[] = "inline";
  ibv_wr_start(pair.ex);
  ibv_wr_send(pair.ex);
  ibv_wr_set_inline_data(pair.ex, text, sizeof(text));
  strcpy(text, "ABC");
  ibv_wr_send(pair.ex);
  const ibv_data_buf pieces[] = {{text, 3}, {const_cast<char*>("-"), 1}, {text, 4}};
  ibv_wr_set_inline_data_list(pair.ex, 3, pieces);
  strcpy(text, "XYZ");
  // Growing: what was set before must not move away under the list.
  for (int i = 0; i < 10; ++i) {
    ibv_wr_send(pair.ex);
    std::string big(60, static_cast<char>('a' + i));
    ibv_wr_set_inline_data(pair.ex, big.data(), big.size());
  }
  ASSERT_EQ(ibv_wr_complete(pair.ex), 0);
  pair.received();
  EXPECT_STREQ(reinterpret_cast<char*>(pair.b.slot(0)), "inline");
  pair.received();
  EXPECT_STREQ(reinterpret_cast<char*>(pair.b.slot(1)), "ABC-ABC");
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(pair.received().byte_len, 60u);
    EXPECT_EQ(static_cast<char>(pair.b.slot(static_cast<uint32_t>(i) + 2)[59]), 'a' + i);
  }
}

// All or nothing: a mistake in the list posts none of it, and the next list is none the worse.
TEST(SoftWr, AMistakePostsNothing) {
  Fabric fabric;
  WrPair pair(uint64_t{IBV_QP_EX_WITH_SEND});
  const auto refused = [&](int code, const std::function<void()>& build) {
    ibv_wr_start(pair.ex);
    ibv_wr_send(pair.ex);
    pair.sge(0, 8);
    build();
    EXPECT_EQ(ibv_wr_complete(pair.ex), code) << soft::last_error().detail;
    ibv_wc wc = {};
    EXPECT_EQ(ibv_poll_cq(pair.a.send_cq.get(), 1, &wc), 0);
    EXPECT_EQ(ibv_poll_cq(pair.b.recv_cq.get(), 1, &wc), 0);
  };
  refused(EINVAL, [&] { ibv_wr_send_imm(pair.ex, 1); });  // not in send_ops_flags
  refused(EINVAL, [&] { pair.sge(0, 8); });               // data twice
  refused(EINVAL, [&] {
    ibv_wr_send(pair.ex);
    std::vector<char> big(65);
    ibv_wr_set_inline_data(pair.ex, big.data(), big.size());
  });
  refused(EINVAL, [&] {
    ibv_wr_send(pair.ex);
    std::vector<ibv_sge> five(5);
    ibv_wr_set_sge_list(pair.ex, five.size(), five.data());
  });
  refused(EOPNOTSUPP, [&] { ibv_wr_send_tso(pair.ex, nullptr, 0, 0); });
  refused(ENOMEM, [&] {
    for (uint32_t i = 0; i < pair.a.options.max_send_wr; ++i) ibv_wr_send(pair.ex);
  });
  ibv_wr_start(pair.ex);
  pair.sge(0, 8);  // nothing to set it of
  EXPECT_EQ(ibv_wr_complete(pair.ex), EINVAL);
  ibv_wr_start(pair.ex);
  EXPECT_EQ(ibv_wr_complete(pair.ex), 0) << "an empty list";
  ibv_wr_start(pair.ex);
  ibv_wr_send(pair.ex);
  pair.sge(0, 8);
  ibv_wr_abort(pair.ex);
  ibv_wr_start(pair.ex);
  pair.ex->wr_id = 9;
  ibv_wr_send(pair.ex);
  pair.sge(0, 8);
  EXPECT_EQ(ibv_wr_complete(pair.ex), 0);
  EXPECT_EQ(pair.sent().wr_id, 9u);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(pair.a.send_cq.get(), 1, &wc), 0) << "what was aborted is gone";
}

TEST(SoftWr, StatesAndFlushing) {
  Fabric fabric;
  WrPair pair;
  Connected fresh;
  fresh.qp = create(fresh, IBV_QPT_RC, [](auto& attr) { attr.send_ops_flags = kRcOps; });
  ibv_qp_ex* reset = ibv_qp_to_qp_ex(fresh.qp.get());
  ibv_wr_start(reset);
  ibv_wr_send(reset);
  EXPECT_EQ(ibv_wr_complete(reset), EINVAL) << "in RESET";
  // A wrong key: the rest of the list is flushed, in order.
  ibv_wr_start(pair.ex);
  pair.ex->wr_flags = 0;
  for (uint64_t i = 0; i < 3; ++i) {
    pair.ex->wr_id = i;
    ibv_wr_rdma_write(pair.ex, pair.b.mr->rkey ^ (i == 1 ? 1 : 0), pair.there(0));
    pair.sge(0, 8);
  }
  ASSERT_EQ(ibv_wr_complete(pair.ex), 0);
  ibv_wc wc = pair.sent();
  EXPECT_EQ(wc.wr_id, 1u) << "success is not signaled";
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
  wc = pair.sent();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  ibv_wr_start(pair.ex);
  pair.ex->wr_id = 5;
  ibv_wr_send(pair.ex);
  pair.sge(0, 8);
  EXPECT_EQ(ibv_wr_complete(pair.ex), 0) << "posting in ERR is allowed";
  wc = pair.sent();
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

// What waits is kept with its data, as ibv_post_send() keeps it.
TEST(SoftWr, WhatWaitsKeepsItsData) {
  Fabric fabric;
  Connected::Options options;
  options.post = false;
  WrPair pair(kRcOps, options);
  ibv_wr_start(pair.ex);
  for (char c = 'a'; c < 'd'; ++c) {
    ibv_wr_send(pair.ex);
    char text[2] = {c, 0};
    ibv_wr_set_inline_data(pair.ex, text, 2);
  }
  ASSERT_EQ(ibv_wr_complete(pair.ex), 0);
  ibv_wr_start(pair.ex);  // builds over what the first list was built in
  for (char c = 'd'; c < 'g'; ++c) {
    ibv_wr_send(pair.ex);
    char text[2] = {c, 0};
    ibv_wr_set_inline_data(pair.ex, text, 2);
  }
  ASSERT_EQ(ibv_wr_complete(pair.ex), 0);
  for (uint32_t i = 0; i < 6; ++i) ASSERT_EQ(pair.b.post(i), 0);
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(pair.sent().status, IBV_WC_SUCCESS);
  for (uint32_t i = 0; i < 6; ++i)
    EXPECT_EQ(static_cast<char>(pair.b.slot(i)[0]), static_cast<char>('a' + i));
}

TEST(SoftWr, AtomicWriteIsEightAlignedBytes) {
  Fabric fabric;
  Connected::Options options;
  options.max_inline = 0;  // they are part of the request
  WrPair pair(kRcOps, options);
  const uint64_t value = 5;
  ibv_wr_start(pair.ex);
  ibv_wr_atomic_write(pair.ex, pair.b.mr->rkey, pair.there(8), &value);
  ASSERT_EQ(ibv_wr_complete(pair.ex), 0) << soft::last_error().detail;
  EXPECT_EQ(pair.sent().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(pair.b.buffer + 8, &value, 8), 0);
  ibv_wr_start(pair.ex);
  ibv_wr_atomic_write(pair.ex, pair.b.mr->rkey, pair.there(12), &value);
  ASSERT_EQ(ibv_wr_complete(pair.ex), 0);
  EXPECT_EQ(pair.sent().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST(SoftWr, XrcNamesTheSrqInEachRequest) {
  Fabric fabric;
  Endpoint end;
  ibv_qp_init_attr_ex attr = {};
  attr.qp_type = IBV_QPT_XRC_SEND;
  attr.send_cq = end.send_cq.get();
  attr.cap.max_send_wr = 16;
  attr.cap.max_send_sge = 1;
  attr.cap.max_inline_data = 64;
  attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.pd = end.pd.get();
  attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
  end.initiator = verbs::QpPtr(ibv_create_qp_ex(end.context.get(), &attr));
  ASSERT_TRUE(end.initiator) << soft::last_error().detail;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(end.initiator.get());
  ASSERT_NE(ex, nullptr);
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(ex);
  ibv_wr_set_xrc_srqn(ex, end.srqn());
  char text[] = "by xrc";
  ibv_wr_set_inline_data(ex, text, sizeof(text));
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  ASSERT_TRUE(end.poll(&wc));
  EXPECT_STREQ(reinterpret_cast<char*>(end.slot(static_cast<uint32_t>(wc.wr_id))), "by xrc");
}

TEST(SoftWr, WhatQpsCanBeAskedFor) {
  Fabric fabric;
  Connected end;
  EXPECT_EQ(ibv_qp_to_qp_ex(end.qp.get()), nullptr) << "made without send_ops_flags";
  const auto refused = [&](ibv_qp_type type,
                           const std::function<void(ibv_qp_init_attr_ex&)>& change) {
    errno = 0;
    EXPECT_FALSE(create(end, type, change));
    EXPECT_EQ(errno, EOPNOTSUPP) << soft::last_error().detail;
  };
  refused(IBV_QPT_RC, [](auto& attr) { attr.send_ops_flags = IBV_QP_EX_WITH_TSO; });
  refused(IBV_QPT_RC, [](auto& attr) { attr.send_ops_flags = uint64_t{1} << 40; });
  refused(IBV_QPT_UC, [](auto& attr) { attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ; });
  refused(IBV_QPT_UC, [](auto& attr) { attr.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE; });
  refused(IBV_QPT_RC, [](auto& attr) { attr.comp_mask |= 1u << 20; });
  refused(IBV_QPT_RC, [](auto& attr) {
    attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
    attr.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
  });
  refused(IBV_QPT_RC, [](auto& attr) {
    attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    attr.max_tso_header = 64;
  });
  EXPECT_TRUE(create(end, IBV_QPT_RC, [](auto& attr) {
    attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
  })) << "none of them asked for";
  EXPECT_TRUE(create(end, IBV_QPT_UC, [](auto& attr) {
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND | uint64_t{IBV_QP_EX_WITH_BIND_MW};
  }));
}

// Lists of several threads do not mix.
TEST(SoftWr, ThreadsTakeTurns) {
  Fabric fabric;
  Connected::Options options;
  options.slots = 64;
  options.max_recv_wr = 64;
  options.max_send_wr = 256;
  WrPair pair(kRcOps, options);
  pair.ex->wr_flags = 0;
  constexpr uint32_t kLists = 500;
  const auto poster = [&](uint32_t thread) {
    for (uint32_t i = 0; i < kLists; ++i) {
      int error = ENOMEM;
      while (error == ENOMEM) {  // the queue is full of what waits for receives
        ibv_wr_start(pair.ex);
        for (uint32_t k = 0; k < 2; ++k) {
          ibv_wr_send_imm(pair.ex, thread << 16 | i << 1 | k);
          uint32_t value = thread;
          ibv_wr_set_inline_data(pair.ex, &value, sizeof(value));
        }
        error = ibv_wr_complete(pair.ex);
        if (error == ENOMEM) sched_yield();
      }
      EXPECT_EQ(error, 0);
    }
  };
  std::thread one(poster, 1), two(poster, 2);
  uint32_t next[3] = {0, 0, 0};
  uint32_t last = 0;
  for (uint32_t n = 0; n < 4 * kLists; ++n) {
    const ibv_wc wc = pair.received();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    const uint32_t thread = wc.imm_data >> 16;
    ASSERT_TRUE(thread == 1 || thread == 2);
    EXPECT_EQ(wc.imm_data & 0xFFFF, next[thread]++);
    if ((wc.imm_data & 1) == 1) {
      EXPECT_EQ(last, wc.imm_data - 1) << "a list was torn";
    }
    last = wc.imm_data;
    ASSERT_EQ(pair.b.post(static_cast<uint32_t>(wc.wr_id)), 0);
    ibv_wc none = {};
    EXPECT_EQ(ibv_poll_cq(pair.a.send_cq.get(), 1, &none), 0);  // carries what waits on
  }
  one.join();
  two.join();
}

}  // namespace
}  // namespace millrace::test
