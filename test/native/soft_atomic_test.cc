// CMP_AND_SWP and FETCH_AND_ADD on memory that a file backs and on memory that none does.
#include <thread>

#include "soft_support.h"

namespace millrace::test {
namespace {

ibv_send_wr atomic(Connected& from, ibv_wr_opcode opcode, const std::byte* place, uint32_t rkey,
                   uint64_t compare_add, uint64_t swap = 0) {
  ibv_send_wr wr = from.wr(opcode, 8, 7);
  wr.wr.atomic.remote_addr = reinterpret_cast<uintptr_t>(place);
  wr.wr.atomic.rkey = rkey;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
  return wr;
}

uint64_t value_at(const std::byte* place) {
  uint64_t value = 0;
  memcpy(&value, place, 8);
  return value;
}

class SoftAtomic : public ::testing::TestWithParam<bool> {
 protected:
  Connected::Options options() const {
    Connected::Options out;
    out.foreign = GetParam();
    return out;
  }
};

TEST_P(SoftAtomic, TheValueBeforeComesBack) {
  Fabric fabric;
  Pair pair(options());
  const uint64_t start = 40;
  memcpy(pair.b.buffer, &start, 8);
  ibv_device_attr device = {};
  ASSERT_EQ(ibv_query_device(pair.a.context, &device), 0);
  EXPECT_EQ(device.atomic_cap, IBV_ATOMIC_HCA);
  ibv_send_wr wr = atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, pair.b.buffer, pair.b.mr->rkey, 2);
  ASSERT_EQ(pair.a.send(wr), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(pair.a.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_EQ(value_at(pair.a.buffer), 40u);
  EXPECT_EQ(value_at(pair.b.buffer), 42u);
  wr = atomic(pair.a, IBV_WR_ATOMIC_CMP_AND_SWP, pair.b.buffer, pair.b.mr->rkey, 42, 7);
  ASSERT_EQ(pair.a.send(wr), 0);
  ASSERT_TRUE(pair.a.poll_sent(&wc));
  EXPECT_EQ(wc.opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(value_at(pair.a.buffer), 42u);
  EXPECT_EQ(value_at(pair.b.buffer), 7u);
  wr = atomic(pair.a, IBV_WR_ATOMIC_CMP_AND_SWP, pair.b.buffer, pair.b.mr->rkey, 42, 9);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(value_at(pair.a.buffer), 7u);
  EXPECT_EQ(value_at(pair.b.buffer), 7u);
  // The result in two pieces.
  wr = atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, pair.b.buffer, pair.b.mr->rkey, 1);
  ibv_sge pieces[2] = {
      {reinterpret_cast<uintptr_t>(pair.a.buffer) + 100, 3, pair.a.mr->lkey},
      {reinterpret_cast<uintptr_t>(pair.a.buffer) + 103, 5, pair.a.mr->lkey},
  };
  wr.sg_list = pieces;
  wr.num_sge = 2;
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(value_at(pair.a.buffer + 100), 7u);
}

TEST_P(SoftAtomic, WhatIsRefused) {
  Fabric fabric;
  Pair pair(options());
  const auto result = [&](const std::byte* place, uint32_t rkey, uint32_t bytes = 8) {
    for (Connected* end : {&pair.a, &pair.b}) EXPECT_EQ(end->modify(IBV_QPS_RESET), 0);
    EXPECT_EQ(pair.a.connect(pair.b.qpn()), 0);
    EXPECT_EQ(pair.b.connect(pair.a.qpn()), 0);
    ibv_send_wr wr = atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, place, rkey, 1);
    pair.a.sge.length = bytes;
    return pair.a.run(wr);
  };
  const uint32_t rkey = pair.b.mr->rkey;
  EXPECT_EQ(result(pair.b.buffer, rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(result(pair.b.buffer + 4, rkey), IBV_WC_REM_INV_REQ_ERR);  // not aligned
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
  EXPECT_EQ(result(pair.b.buffer, rkey, 4), IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(result(pair.b.buffer, rkey ^ 1), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(result(pair.b.slots - 8, rkey), IBV_WC_REM_ACCESS_ERR);
  verbs::MrPtr poor(ibv_reg_mr(pair.b.pd.get(), pair.b.buffer, 64,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(result(pair.b.buffer, poor->rkey), IBV_WC_REM_ACCESS_ERR);
  pair.b.options.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  EXPECT_EQ(result(pair.b.buffer, rkey), IBV_WC_REM_ACCESS_ERR);
  ibv_send_wr wr = atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, pair.b.buffer, rkey, 1);
  wr.send_flags |= IBV_SEND_INLINE;
  EXPECT_EQ(pair.a.send(wr), EINVAL);
}

/** Connects to the parent's QP and adds one to its counter, again and again. */
MILLRACE_CHILD(adder) {
  Connected end;
  parent.say(std::to_string(end.qpn()));
  const uint32_t peer = static_cast<uint32_t>(std::stoul(parent.hear()));
  const uint64_t place = std::stoull(parent.hear());
  const uint32_t rkey = static_cast<uint32_t>(std::stoul(parent.hear()));
  const uint64_t times = std::stoull(parent.hear());
  EXPECT_EQ(end.connect(peer), 0);
  soft::signal_at_step(std::stoull(parent.arguments[0]), std::stoi(parent.arguments[1]));
  for (uint64_t i = 0; i < times; ++i) {
    ibv_send_wr wr = end.wr(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, i);
    wr.wr.atomic.remote_addr = place;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = 1;
    EXPECT_EQ(end.run(wr), IBV_WC_SUCCESS);
  }
  soft::signal_at_step(0, 0);
  parent.say("added");
  parent.hear();
  return 0;
}

/** An adder child and the QP of ours that it is connected to. */
struct Adder {
  Adder(Connected& owner, const std::byte* place, uint64_t times, uint64_t step = 0, int signal = 0)
      : child("adder", {std::to_string(step), std::to_string(signal)}) {
    ibv_qp_init_attr attr = {};
    attr.qp_type = IBV_QPT_RC;
    attr.send_cq = owner.send_cq.get();
    attr.recv_cq = owner.recv_cq.get();
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 1;
    qp = verbs::QpPtr(ibv_create_qp(owner.pd.get(), &attr));
    std::swap(owner.qp, qp);
    const bool posts = owner.options.post;
    owner.options.post = false;
    const std::string number = child.hear();
    EXPECT_EQ(owner.connect(static_cast<uint32_t>(std::stoul(number))), 0);
    child.say(std::to_string(owner.qpn()));
    owner.options.post = posts;
    std::swap(owner.qp, qp);
    child.say(std::to_string(reinterpret_cast<uintptr_t>(place)));
    child.say(std::to_string(owner.mr->rkey));
    child.say(std::to_string(times));
  }
  Child child;
  verbs::QpPtr qp;
};

TEST_P(SoftAtomic, SeveralProcessesAddWithoutLosingAny) {
  Fabric fabric;
  {
    Connected owner(options());
    constexpr uint64_t kTimes = 2000;
    std::vector<std::unique_ptr<Adder>> adders;
    for (int i = 0; i < 3; ++i)
      adders.push_back(std::make_unique<Adder>(owner, owner.buffer, kTimes));
    // And this process, over a QP that is connected to itself: it maps its own memory, foreign or
    // not.
    ASSERT_EQ(owner.connect(owner.qpn()), 0);
    for (uint64_t i = 0; i < kTimes; ++i) {
      ibv_send_wr wr = atomic(owner, IBV_WR_ATOMIC_FETCH_AND_ADD, owner.buffer, owner.mr->rkey, 1);
      owner.sge.addr += 64;
      ASSERT_EQ(owner.run(wr), IBV_WC_SUCCESS);
    }
    for (auto& adder : adders) {
      ASSERT_EQ(adder->child.hear(), "added");
      adder->child.say("end");
      EXPECT_EQ(adder->child.wait(), 0);
    }
    EXPECT_EQ(value_at(owner.buffer), 4 * kTimes);
  }
  EXPECT_FALSE(fabric.exists());
}

// R33: killed at any step of an atomic, it has happened or not; and the next one gets through.
TEST_P(SoftAtomic, KilledAtEveryStep) {
  Fabric fabric;
  {
    Connected owner(options());
    ASSERT_EQ(owner.connect(owner.qpn()), 0);
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 200; ++step) {
      SCOPED_TRACE(step);
      const uint64_t before = value_at(owner.buffer);
      Adder victim(owner, owner.buffer, 2, step, SIGKILL);
      through = victim.child.hear() == "added";
      if (through) victim.child.say("end");
      EXPECT_EQ(victim.child.wait(), through ? 0 : 128 + SIGKILL);
      const uint64_t after = value_at(owner.buffer);
      EXPECT_LE(after - before, 2u);
      ibv_send_wr wr = atomic(owner, IBV_WR_ATOMIC_FETCH_AND_ADD, owner.buffer, owner.mr->rkey, 1);
      owner.sge.addr += 64;
      ASSERT_EQ(owner.run(wr), IBV_WC_SUCCESS);
      EXPECT_EQ(value_at(owner.buffer), after + 1);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

// Its twin: somebody stopped with the lock is waited for, at most for the transport's timeout, and
// is not robbed. What he does when he goes on counts.
TEST(SoftAtomicLock, StoppedInsideTheLock) {
  Fabric fabric;
  {
    Connected::Options options;
    options.foreign = true;
    options.timeout = 8;
    options.retry_cnt = 1;
    Connected owner(options);
    ASSERT_EQ(owner.connect(owner.qpn()), 0);
    bool found = false;
    for (uint64_t step = 1; !found && step < 100; ++step) {
      SCOPED_TRACE(step);
      Adder victim(owner, owner.buffer, 1, step, SIGSTOP);
      ASSERT_TRUE(victim.child.wait_stopped());
      const uint64_t before = value_at(owner.buffer);
      ibv_send_wr wr = atomic(owner, IBV_WR_ATOMIC_FETCH_AND_ADD, owner.buffer, owner.mr->rkey, 1);
      owner.sge.addr += 64;
      const ibv_wc_status status = owner.run(wr);
      found = status == IBV_WC_RETRY_EXC_ERR;
      if (!found) {
        EXPECT_EQ(status, IBV_WC_SUCCESS);
        EXPECT_EQ(value_at(owner.buffer), before + 1);
      } else {
        EXPECT_EQ(value_at(owner.buffer), before);
      }
      victim.child.signal(SIGCONT);
      EXPECT_EQ(victim.child.hear(), "added");
      victim.child.say("end");
      EXPECT_EQ(victim.child.wait(), 0);
      ASSERT_FALSE(::testing::Test::HasFailure());
      if (found) {
        EXPECT_EQ(value_at(owner.buffer), before + 1);
      }
    }
    EXPECT_TRUE(found);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftAtomicXrc, AccessIsTheTargets) {
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  verbs::MrPtr mr(
      ibv_reg_mr(end.pd.get(), end.slots, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
  ASSERT_TRUE(mr);
  ibv_sge sge = {reinterpret_cast<uintptr_t>(end.buffer), 8, end.send_mr->lkey};
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.atomic.remote_addr = reinterpret_cast<uintptr_t>(end.slots);
  wr.wr.atomic.rkey = mr->rkey;
  wr.wr.atomic.compare_add = 5;
  wr.qp_type.xrc.remote_srqn = end.srqn();
  ibv_send_wr* bad = nullptr;
  ibv_wc wc = {};
  ASSERT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), 0);
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);  // the target grants READ and WRITE
}

INSTANTIATE_TEST_SUITE_P(Memory, SoftAtomic, ::testing::Bool(),
                         [](const auto& which) { return which.param ? "foreign" : "mapped"; });

}  // namespace
}  // namespace millrace::test
