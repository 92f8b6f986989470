// SIGKILL and SIGSTOP between any two steps of an RC connection, at both ends (I7; R2, R25, R31).
#include <algorithm>

#include "soft_support.h"

namespace millrace::test {
namespace {

constexpr uint32_t kSlots = 4;

Connected::Options small() {
  Connected::Options options;
  options.slots = options.max_recv_wr = kSlots;
  options.slot_bytes = 64;
  options.timeout = 6;  // 4.096 us * 2^6 * 2
  options.retry_cnt = 2;
  options.rnr_retry = 2;
  options.min_rnr_timer = 14;  // 1.28 ms
  return options;
}

/** SEND, WRITE, READ, FETCH_AND_ADD against the parent's QP; then what puts that into ERR. */
MILLRACE_CHILD(rc_initiator) {
  const uint64_t step = std::stoull(parent.arguments[0]);
  const int signal = std::stoi(parent.arguments[1]);
  Connected end(small());
  parent.say(std::to_string(end.qpn()));
  const uint32_t peer = static_cast<uint32_t>(std::stoul(parent.hear()));
  const uint64_t place = std::stoull(parent.hear());
  const uint32_t rkey = static_cast<uint32_t>(std::stoul(parent.hear()));
  EXPECT_EQ(end.connect(peer), 0);
  soft::signal_at_step(step, signal);
  constexpr ibv_wr_opcode kScript[] = {IBV_WR_SEND,
                                       IBV_WR_RDMA_WRITE,
                                       IBV_WR_RDMA_READ,
                                       IBV_WR_ATOMIC_FETCH_AND_ADD,
                                       IBV_WR_RDMA_WRITE_WITH_IMM,
                                       IBV_WR_RDMA_READ};
  for (size_t i = 0; i < std::size(kScript); ++i) {
    const bool last = i + 1 == std::size(kScript);
    ibv_send_wr wr = end.wr(kScript[i], 8, i);
    if (kScript[i] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic.remote_addr = place;
      wr.wr.atomic.rkey = rkey;
    } else {
      wr.wr.rdma.remote_addr = place;
      wr.wr.rdma.rkey = last ? rkey ^ 1 : rkey;  // the last one is the responder's end
    }
    parent.say(end.run(wr) == IBV_WC_SUCCESS ? "done" : "failed");
  }
  EXPECT_EQ(end.modify(IBV_QPS_RESET), 0);
  end.qp.close();
  soft::signal_at_step(0, 0);
  parent.say("through");
  return 0;
}

/** What comes out of a CQ until nothing more comes and `enough` were there. */
struct Taken {
  uint32_t success = 0, flushed = 0;
};
void take_all(ibv_cq* cq, uint32_t qpn, Taken* out) {
  ibv_wc wc = {};
  while (ibv_poll_cq(cq, 1, &wc) == 1) {
    EXPECT_EQ(wc.qp_num, qpn);
    if (wc.status == IBV_WC_SUCCESS) {
      EXPECT_EQ(out->flushed, 0u) << "what had arrived comes before what is flushed";
      ++out->success;
    } else {
      EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR) << ibv_wc_status_str(wc.status);
      ++out->flushed;
    }
  }
}

/** The QP serves a new connection with all its WQEs: here one to itself. */
void serves_again(Connected& end) {
  ASSERT_EQ(end.modify(IBV_QPS_RESET), 0) << soft::last_error().detail;
  ASSERT_EQ(end.connect(end.qpn()), 0);
  for (uint32_t i = 0; i < kSlots; ++i) {
    ibv_send_wr wr = end.wr(IBV_WR_SEND, 8, i);
    ASSERT_EQ(end.run(wr), IBV_WC_SUCCESS) << i;
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll_received(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
  }
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(end.recv_cq.get(), 1, &wc), 0);
}

/** Starts an initiator against `end`, which is brought to RTS for it. */
std::unique_ptr<Child> start_initiator(Connected& end, uint64_t step, int signal) {
  auto child = std::make_unique<Child>(
      "rc_initiator", std::vector<std::string>{std::to_string(step), std::to_string(signal)});
  EXPECT_EQ(end.connect(static_cast<uint32_t>(std::stoul(child->hear()))), 0);
  child->say(std::to_string(end.qpn()));
  child->say(std::to_string(reinterpret_cast<uintptr_t>(end.buffer)));
  child->say(std::to_string(end.mr->rkey));
  return child;
}

/** Where the responder's memory is; foreign: SENDs travel in the ring (R35), the rest goes by
 * process_vm_*. */
class SoftRcKillMemory : public ::testing::TestWithParam<const char*> {
 protected:
  bool foreign() const { return GetParam() == std::string("foreign"); }
};
INSTANTIATE_TEST_SUITE_P(Memory, SoftRcKillMemory, ::testing::Values("mapped", "foreign"));

TEST_P(SoftRcKillMemory, InitiatorAtEveryStep) {
  Fabric fabric;
  {
    Connected::Options options = small();
    options.foreign = foreign();
    Connected end(options);
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 2000; ++step) {
      SCOPED_TRACE(step);
      std::unique_ptr<Child> child = start_initiator(end, step, SIGKILL);
      uint32_t received = 0;  // at least so many of the two that take a WQE
      int done = 0;
      for (std::string line = child->hear(); !line.empty(); line = child->hear()) {
        if (line == "done") received += ++done == 1 || done == 5 ? 1 : 0;
        if (line == "through") through = true;
      }
      const int code = child->wait();
      ASSERT_TRUE(code == (through ? 0 : 128 + SIGKILL)) << code;
      ASSERT_EQ(end.modify(IBV_QPS_ERR), 0);
      Taken taken;
      take_all(end.recv_cq.get(), end.qpn(), &taken);
      // Nothing that its sender was told of is missing, and no WQE is.
      EXPECT_GE(taken.success, received);
      EXPECT_LE(taken.success, 2u);
      EXPECT_EQ(taken.success + taken.flushed, kSlots);
      serves_again(end);
      ASSERT_EQ(end.modify(IBV_QPS_RESET), 0);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST_P(SoftRcKillMemory, InitiatorStoppedAtEveryStep) {
  Fabric fabric;
  {
    Connected::Options options = small();
    options.foreign = foreign();
    Connected end(options);
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 2000; ++step) {
      SCOPED_TRACE(step);
      std::unique_ptr<Child> child = start_initiator(end, step, SIGSTOP);
      std::string line;
      if (!child->wait_stopped()) {
        through = true;  // it ended before it came to so many steps
        EXPECT_EQ(child->wait(), 0);
        ASSERT_EQ(end.modify(IBV_QPS_RESET), 0);
        break;
      }
      ASSERT_EQ(end.modify(IBV_QPS_ERR), 0);
      Taken taken;
      take_all(end.recv_cq.get(), end.qpn(), &taken);
      EXPECT_GE(taken.success + taken.flushed, kSlots - 1);  // one it may still have (R4)
      serves_again(end);
      // It goes on: what it had begun is of the last connection and does not show in this one.
      child->signal(SIGCONT);
      while (!(line = child->hear()).empty() && line != "through") {
      }
      EXPECT_EQ(line, "through");
      EXPECT_EQ(child->wait(), 0);
      ibv_wc wc = {};
      EXPECT_EQ(ibv_poll_cq(end.recv_cq.get(), 1, &wc), 0);
      EXPECT_EQ(end.state(), IBV_QPS_RTS);
      serves_again(end);
      ASSERT_EQ(end.modify(IBV_QPS_RESET), 0);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step);
  }
  EXPECT_FALSE(fabric.exists());
}

/**
 * Receives, goes through ERR and RESET, connects anew, ends. Waits for its peer's first message at
 * most, and not once the signal has come: that may have cost it. Who came to no such step says so,
 * and stops all the same if that is the signal.
 */
MILLRACE_CHILD(rc_receiver) {
  const uint64_t step = std::stoull(parent.arguments[0]);
  const int signal = std::stoi(parent.arguments[1]);
  Connected::Options options = small();
  options.srq = parent.arguments[2] == "srq";
  Connected end(options);
  parent.say(std::to_string(end.qpn()));
  const uint32_t peer = static_cast<uint32_t>(std::stoul(parent.hear()));
  soft::signal_at_step(step, signal);
  EXPECT_EQ(end.connect(peer), 0);
  parent.say("ready");
  ibv_wc wc = {};
  EXPECT_TRUE(eventually([&] {
    if (soft::steps_passed() >= step) return true;
    if (ibv_poll_cq(end.recv_cq.get(), 1, &wc) != 1 || wc.status != IBV_WC_SUCCESS) return false;
    return end.post(static_cast<uint32_t>(wc.wr_id)) == 0;
  }));
  const auto poll = [&] {
    for (int i = 0; i < 200; ++i) {
      if (ibv_poll_cq(end.recv_cq.get(), 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS)
        end.post(static_cast<uint32_t>(wc.wr_id));
      if (i % 20 == 0) sched_yield();
    }
  };
  poll();
  EXPECT_EQ(end.modify(IBV_QPS_ERR), 0);
  poll();
  EXPECT_EQ(end.modify(IBV_QPS_RESET), 0);
  end.options.post = !options.srq;
  EXPECT_EQ(end.connect(peer), 0);
  poll();
  end.qp.close();
  const bool all = soft::steps_passed() < step;
  soft::signal_at_step(0, 0);
  if (all) parent.say("all steps");
  if (all && signal == SIGSTOP) raise(SIGSTOP);
  parent.say("through");
  parent.hear();
  return 0;
}

/** Sends until something fails, or three got through. Every one has an end. */
void send_some(Connected& end) {
  for (uint64_t i = 0; i < 3; ++i) {
    ibv_send_wr wr = end.wr(IBV_WR_SEND, 8, i);
    const ibv_wc_status status = end.run(wr);
    EXPECT_TRUE(status == IBV_WC_SUCCESS || status == IBV_WC_RETRY_EXC_ERR ||
                status == IBV_WC_RNR_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR)
        << ibv_wc_status_str(status);
    if (status != IBV_WC_SUCCESS) break;
  }
}

void receiver_walk(int signal, const char* kind) {
  Fabric fabric;
  {
    Pair bystanders(small());
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 2000; ++step) {
      SCOPED_TRACE(step);
      Connected::Options options = small();
      options.context = bystanders.a.context;
      Connected end(options);
      Child child("rc_receiver", {std::to_string(step), std::to_string(signal), kind});
      const uint32_t number = static_cast<uint32_t>(std::stoul(child.hear()));
      ASSERT_EQ(end.connect(number), 0);
      child.say(std::to_string(end.qpn()));
      // Whoever sends before its peer can receive gets an error, which is not what is walked here.
      bool stopped = false;
      EXPECT_TRUE(eventually([&] {
        stopped = stopped || (signal == SIGSTOP && child.wait_stopped(0));
        return child.hear(signal == SIGSTOP ? 1 : kDeadlineMs) == "ready" || stopped ||
               signal == SIGKILL;
      }));
      send_some(end);
      // Its other lines are "all steps", if it came to no such step, and "through".
      const auto goes_through = [&] {
        std::string line;
        while (!(line = child.hear()).empty() && line != "through") through |= line == "all steps";
        return line == "through";
      };
      if (signal == SIGKILL) {
        EXPECT_EQ(goes_through(), through);
        if (through) child.say("end");
        EXPECT_EQ(child.wait(), through ? 0 : 128 + SIGKILL);
      } else {
        EXPECT_TRUE(stopped || child.wait_stopped());
        send_some(end);  // in ERR by now, or it is answered: it has an end in any case
        ibv_wc wc = {};
        while (ibv_poll_cq(end.recv_cq.get(), 1, &wc) == 1) {
        }
      }
      // Others don't notice.
      ibv_send_wr wr = bystanders.a.wr(IBV_WR_SEND, 8, 1);
      EXPECT_EQ(bystanders.a.run(wr), IBV_WC_SUCCESS);
      ibv_wc wc = {};
      EXPECT_TRUE(bystanders.b.poll_received(&wc));
      EXPECT_EQ(bystanders.b.post(static_cast<uint32_t>(wc.wr_id)), 0);
      EXPECT_EQ(end.qp.close(), 0);
      if (signal == SIGSTOP) {
        child.signal(SIGCONT);
        EXPECT_TRUE(goes_through());
        child.say("end");
        EXPECT_EQ(child.wait(), 0);
      }
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftRcKill, ReceiverAtEveryStep) { receiver_walk(SIGKILL, "own"); }
TEST(SoftRcKill, ReceiverStoppedAtEveryStep) { receiver_walk(SIGSTOP, "own"); }
TEST(SoftRcKill, ReceiverWithAnSrqAtEveryStep) { receiver_walk(SIGKILL, "srq"); }
TEST(SoftRcKill, ReceiverWithAnSrqStoppedAtEveryStep) { receiver_walk(SIGSTOP, "srq"); }

/** Stops while it parks on a receive queue without WQEs, and then says how its SEND ended. */
MILLRACE_CHILD(parking_initiator) {
  Connected::Options options = small();
  options.rnr_retry = 7;
  options.timeout = 20;
  Connected end(options);
  parent.say(std::to_string(end.qpn()));
  EXPECT_EQ(end.connect(static_cast<uint32_t>(std::stoul(parent.hear()))), 0);
  soft::signal_at_step(1, SIGSTOP, "parked");
  ibv_send_wr wr = end.wr(IBV_WR_SEND, 8, 1);
  EXPECT_EQ(end.run(wr), IBV_WC_SUCCESS);
  return 0;
}

// What the sender knew of its peer went with the old connection, in the middle of its stage: it
// must not go on with that (found as a use of freed memory).
TEST(SoftRcKill, AReceiverConnectsAnewWhileItsSenderParks) {
  Fabric fabric;
  {
    Connected::Options options = small();
    options.post = false;
    Connected end(options);
    Child child("parking_initiator");
    const uint32_t peer = static_cast<uint32_t>(std::stoul(child.hear()));
    ASSERT_EQ(end.connect(peer), 0);
    child.say(std::to_string(end.qpn()));
    ASSERT_TRUE(child.wait_stopped());
    ASSERT_EQ(end.modify(IBV_QPS_RESET), 0);
    ASSERT_EQ(end.connect(peer), 0);
    child.signal(SIGCONT);
    ASSERT_EQ(end.post(0), 0);
    ibv_wc wc = {};
    EXPECT_TRUE(end.poll_received(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_FALSE(fabric.exists());
}

}  // namespace
}  // namespace millrace::test
