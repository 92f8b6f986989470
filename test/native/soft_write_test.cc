// One-sided operations: RDMA WRITE, with immediate data, READ.
#include <atomic>
#include <thread>

#include "soft_support.h"

namespace millrace::test {
namespace {

int one_sided(Endpoint& end, ibv_wr_opcode opcode, uint32_t srqn, uint64_t remote, uint32_t rkey,
              uint32_t bytes, uint32_t imm = 0) {
  ibv_sge sge = {reinterpret_cast<uintptr_t>(end.buffer), bytes, end.send_mr->lkey};
  ibv_send_wr wr = {};
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.imm_data = imm;
  wr.wr.rdma.remote_addr = remote;
  wr.wr.rdma.rkey = rkey;
  wr.qp_type.xrc.remote_srqn = srqn;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.initiator.get(), &wr, &bad);
}

ibv_wc_status result(Endpoint& end) {
  ibv_wc wc = {};
  EXPECT_TRUE(end.poll_sent(&wc));
  return wc.status;
}

/** Has memory that the parent reads and writes; answers questions about it. */
MILLRACE_CHILD(memory) {
  Endpoint::Options options;
  options.foreign = parent.arguments[0] == "foreign";
  Endpoint end(options);
  parent.say(base::format("%u %u %llu %u", end.target_qpn(), end.srqn(),
                          static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(end.slots)),
                          end.slots_mr->rkey));
  for (;;) {
    const std::string line = parent.hear();
    if (line.empty() || line == "end") return 0;
    if (line == "show") parent.say(std::string(reinterpret_cast<char*>(end.slots)));
    if (line == "set") {
      strcpy(reinterpret_cast<char*>(end.slots) + 100, "from the child");
      parent.say("set");
    }
    if (line == "completion") {
      ibv_wc wc = {};
      EXPECT_TRUE(end.poll(&wc));
      parent.say(base::format("%d %u %u", wc.opcode, wc.byte_len, wc.imm_data));
    }
    if (line == "no completion") {
      ibv_wc wc = {};
      EXPECT_EQ(ibv_poll_cq(end.cq.get(), 1, &wc), 0);
      parent.say("none");
    }
  }
}

class SoftWriteMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(SoftWriteMemory, WritesAndReadsAnotherProcess) {
  Fabric fabric;
  Child child("memory", {GetParam()});
  unsigned target = 0, srqn = 0, rkey = 0;
  unsigned long long address = 0;
  ASSERT_EQ(sscanf(child.hear().c_str(), "%u %u %llu %u", &target, &srqn, &address, &rkey), 4);
  Endpoint end;
  ASSERT_EQ(end.connect(target), 0);
  strcpy(reinterpret_cast<char*>(end.buffer), "hello from the parent");
  ASSERT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, srqn, address, rkey, 22), 0);
  EXPECT_EQ(result(end), IBV_WC_SUCCESS);
  child.say("show");
  EXPECT_EQ(child.hear(), "hello from the parent");
  child.say("no completion");
  EXPECT_EQ(child.hear(), "none");

  ASSERT_EQ(one_sided(end, IBV_WR_RDMA_WRITE_WITH_IMM, srqn, address, rkey, 22, 77), 0);
  EXPECT_EQ(result(end), IBV_WC_SUCCESS);
  child.say("completion");
  EXPECT_EQ(child.hear(), base::format("%d 22 77", IBV_WC_RECV_RDMA_WITH_IMM));

  child.say("set");
  EXPECT_EQ(child.hear(), "set");
  ASSERT_EQ(one_sided(end, IBV_WR_RDMA_READ, srqn, address + 100, rkey, 15), 0);
  EXPECT_EQ(result(end), IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(end.buffer), "from the child");
  child.say("end");
  EXPECT_EQ(child.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Memory, SoftWriteMemory, ::testing::Values("mapped", "foreign"));

TEST(SoftWrite, KeysBoundsAndRights) {  // VERBS 2.10, 2.13
  Fabric fabric;
  Endpoint end;
  const uint64_t at = reinterpret_cast<uintptr_t>(end.slots);
  const uint32_t size = end.options.slots * end.options.slot_bytes;
  const auto attempt = [&](ibv_wr_opcode opcode, uint64_t remote, uint32_t rkey, uint32_t bytes) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RESET;
    EXPECT_EQ(ibv_modify_qp(end.initiator.get(), &attr, IBV_QP_STATE), 0);
    EXPECT_EQ(end.connect(end.target_qpn()), 0);
    EXPECT_EQ(one_sided(end, opcode, end.srqn(), remote, rkey, bytes), 0);
    return result(end);
  };
  const uint32_t rkey = end.slots_mr->rkey;
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, at, rkey, size), IBV_WC_SUCCESS);
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, at + 1, rkey, size), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, at - 1, rkey, 8), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, ~uint64_t{0} - 3, rkey, 8), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, at, rkey ^ 4, 8), IBV_WC_REM_ACCESS_ERR);
  verbs::MrPtr readable(ibv_reg_mr(end.pd.get(), end.slots, 64, IBV_ACCESS_REMOTE_READ));
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, at, readable->rkey, 8), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(attempt(IBV_WR_RDMA_READ, at, readable->rkey, 8), IBV_WC_SUCCESS);
  verbs::MrPtr writable(
      ibv_reg_mr(end.pd.get(), end.slots, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(attempt(IBV_WR_RDMA_READ, at, writable->rkey, 8), IBV_WC_REM_ACCESS_ERR);
  verbs::PdPtr other(ibv_alloc_pd(end.context.get()));
  verbs::MrPtr foreign(
      ibv_reg_mr(other.get(), end.slots, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, at, foreign->rkey, 8),
            IBV_WC_REM_ACCESS_ERR);  // the SRQ's PD (VERBS 2.10)
  // An address of the work request's choosing.
  verbs::MrPtr moved(ibv_reg_mr_iova2(end.pd.get(), end.slots, 64, 0x1000,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  memcpy(end.buffer, "moved!!", 8);
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, 0x1008, moved->rkey, 8), IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(end.slots) + 8, "moved!!");
  // What the target does not grant, nobody has (VERBS 2.10).
  ibv_qp_attr attr = {};
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  ASSERT_EQ(ibv_modify_qp(end.target.get(), &attr, IBV_QP_ACCESS_FLAGS), 0);
  EXPECT_EQ(attempt(IBV_WR_RDMA_WRITE, at, rkey, 8), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(attempt(IBV_WR_RDMA_READ, at, rkey, 8), IBV_WC_SUCCESS);
}

MILLRACE_CHILD(counter_writer) {
  unsigned target = 0, srqn = 0, rkey = 0;
  unsigned long long address = 0;
  EXPECT_EQ(sscanf(parent.hear().c_str(), "%u %u %llu %u", &target, &srqn, &address, &rkey), 4);
  Endpoint end;
  EXPECT_EQ(end.connect(target), 0);
  for (uint64_t i = 1; i <= 200'000; ++i) {
    const uint64_t value =
        (i << 32) | (i & 0xFFFFFFFFu);  // both halves the same: a torn write shows
    memcpy(end.buffer, &value, 8);
    EXPECT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, srqn, address, rkey, 8), 0);
    if (result(end) != IBV_WC_SUCCESS) return 1;
  }
  return 0;
}

// The device's promise to the transport: an aligned 8-byte WRITE is one store.
TEST(SoftWrite, CountersAreNeverTorn) {
  Fabric fabric;
  Endpoint end;
  Child child("counter_writer");
  child.say(base::format("%u %u %llu %u", end.target_qpn(), end.srqn(),
                         static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(end.slots)),
                         end.slots_mr->rkey));
  std::atomic_ref<uint64_t> counter(*reinterpret_cast<uint64_t*>(end.slots));
  uint64_t last = 0;
  ASSERT_TRUE(eventually([&] {
    for (int i = 0; i < 1000; ++i) {
      const uint64_t now = counter.load(std::memory_order_acquire);
      EXPECT_EQ(now >> 32, now & 0xFFFFFFFFu);
      EXPECT_GE(now, last);
      last = now;
    }
    return (last >> 32) == 200'000 || ::testing::Test::HasFailure();
  }));
  EXPECT_EQ(child.wait(), 0);
}

// Several threads of one process with QPs of their own into one SRQ, and two that poll one CQ.
TEST(SoftWrite, ThreadsOfOneProcess) {
  Fabric fabric;
  Endpoint::Options options;
  options.slots = 64;
  Endpoint end(options);
  const uint32_t target = end.target_qpn(), srqn = end.srqn();
  constexpr int kSenders = 3;
  constexpr uint64_t kEach = 5000;
  std::atomic<uint64_t> received{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kSenders; ++t) {
    threads.emplace_back([&] {
      Endpoint::Options sender;
      sender.receive = false;
      Endpoint mine(sender);
      EXPECT_EQ(mine.connect(target), 0);
      for (uint64_t i = 0; i < kEach; ++i) {
        EXPECT_EQ(mine.send(srqn, &i, sizeof(i), i), 0);
        ibv_wc wc = {};
        EXPECT_TRUE(mine.poll_sent(&wc));
        if (wc.status != IBV_WC_SUCCESS) {
          ADD_FAILURE() << ibv_wc_status_str(wc.status);
          return;
        }
      }
    });
  }
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      const uint64_t deadline = base::now_ns() + uint64_t{kDeadlineMs} * 1'000'000u;
      while (received.load() < kSenders * kEach && base::now_ns() < deadline) {
        ibv_wc wc[8];
        const int n = ibv_poll_cq(end.cq.get(), 8, wc);
        for (int i = 0; i < n; ++i) {
          EXPECT_EQ(wc[i].status, IBV_WC_SUCCESS);
          EXPECT_EQ(end.post(static_cast<uint32_t>(wc[i].wr_id)), 0);
        }
        if (n == 0) sched_yield();
        received += static_cast<uint64_t>(n);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received.load(), kSenders * kEach);
}

}  // namespace
}  // namespace millrace::test
