// SIGKILL between any two steps of the protocol, and the SIGSTOP twin. The steps are the fault
// points in native/soft (step.h): a victim is started again and again, and ends one step later each
// time, until it gets through.
#include "soft/cq.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

constexpr uint64_t kMessages = 3;

/** Sends a few messages and leaves; says each one that its completion reported. A signal comes at a
 * chosen step. */
MILLRACE_CHILD(victim_sender) {
  const uint32_t target = static_cast<uint32_t>(std::stoul(parent.arguments[0]));
  const uint32_t srqn = static_cast<uint32_t>(std::stoul(parent.arguments[1]));
  soft::signal_at_step(std::stoull(parent.arguments[2]), std::stoi(parent.arguments[3]));
  {
    Endpoint::Options options;
    options.receive = false;
    Endpoint end(options);
    EXPECT_EQ(end.connect(target), 0);
    for (uint64_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(end.send(srqn, &i, sizeof(i), i), 0);
      ibv_wc wc = {};
      EXPECT_TRUE(end.poll_sent(&wc));
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
      if (::testing::Test::HasFailure()) return 1;
      parent.say("sent");
    }
  }
  parent.say("through");
  return 0;
}

struct Received {
  uint64_t next = 0;  ///< of the victim's messages
  int of_others = 0;
  bool in_order = true;
};

/** Takes everything that is there; posts the slots again. The victim's messages are 0, 1, 2 ...;
 * ours have bit 63. */
void receive_all(Endpoint& end, Received* got) {
  ibv_wc wc = {};
  while (ibv_poll_cq(end.cq.get(), 1, &wc) == 1) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    uint64_t value = 0;
    memcpy(&value, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(value));
    if ((value >> 63) != 0) {
      ++got->of_others;
    } else {
      got->in_order &= value == got->next;
      ++got->next;
    }
    EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
  }
}

/**
 * `count` messages of our own go through without anything being received meanwhile: so many WQEs
 * are there. Tried again until the deadline, because the death of who had one may not have been
 * noticed yet.
 */
bool wqes_are_there(Endpoint& end, uint32_t count, Received* got) {
  return eventually([&] {
    receive_all(end, got);
    const int before = got->of_others;
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t value = (uint64_t{1} << 63) | i;
      EXPECT_EQ(end.send(end.srqn(), &value, sizeof(value), i), 0);
    }
    uint32_t sent = 0;
    const auto poll_sent = [&] {
      ibv_wc wc = {};
      while (ibv_poll_cq(end.send_cq.get(), 1, &wc) == 1) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
        ++sent;
      }
      return sent == count;
    };
    const bool there = eventually(poll_sent, 20);
    // Whether or not: take them all back before the next try.
    EXPECT_TRUE(eventually([&] {
      receive_all(end, got);
      return poll_sent() && got->of_others == before + static_cast<int>(count);
    }));
    return there || ::testing::Test::HasFailure();
  });
}

/** Where the receiver's slots are: in a mapped file, or in memory of its own. To the latter
 * messages travel in the ring (R35). */
class SoftKillMemory : public ::testing::TestWithParam<const char*> {
 protected:
  bool foreign() const { return GetParam() == std::string("foreign"); }
};
INSTANTIATE_TEST_SUITE_P(Memory, SoftKillMemory, ::testing::Values("mapped", "foreign"));

TEST_P(SoftKillMemory, InitiatorAtEveryStep) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.foreign = foreign();
    options.slots = 4;
    Endpoint end(options);
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 5000; ++step) {
      SCOPED_TRACE(step);
      Child child("victim_sender", {std::to_string(end.target_qpn()), std::to_string(end.srqn()),
                                    std::to_string(step), std::to_string(SIGKILL)});
      uint64_t reported = 0;
      for (std::string line = child.hear(); !line.empty(); line = child.hear()) {
        if (line == "sent") ++reported;
        if (line == "through") through = true;
      }
      const int code = child.wait();
      ASSERT_TRUE(through ? code == 0 || code == 128 + SIGKILL : code == 128 + SIGKILL) << code;
      if (code != 0) through = false;
      Received got;
      // What its sender was told had arrived is there; and all WQEs come back, the one that it held
      // too.
      ASSERT_TRUE(eventually([&] {
        receive_all(end, &got);
        return got.next >= reported;
      })) << got.next
          << " of " << reported;
      ASSERT_TRUE(wqes_are_there(end, options.slots, &got));
      ASSERT_TRUE(got.in_order);
      ASSERT_LE(got.next, reported + 1);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step - 1);
    // A newcomer reaps what is left of the killed; then only we and our ring to ourselves are
    // there.
    Child last("victim_sender",
               {std::to_string(end.target_qpn()), std::to_string(end.srqn()), "0", "9"});
    EXPECT_EQ(last.wait(), 0);
    Received got;
    EXPECT_TRUE(eventually([&] {
      receive_all(end, &got);
      // root, our ring to ourselves, and that of the one who was killed before it could announce
      // its claim: it goes when the directory is full, or with us.
      return fabric.files("p").size() == 1 && fabric.files("r").size() <= 3 &&
             got.next == kMessages;
    })) << fabric.files("p").size()
        << " " << fabric.files("r").size();
    EXPECT_EQ(got.next, kMessages);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST_P(SoftKillMemory, InitiatorStoppedAtEveryStep) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.foreign = foreign();
    options.slots = 4;
    Endpoint end(options);
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 5000; ++step) {
      SCOPED_TRACE(step);
      Child child("victim_sender", {std::to_string(end.target_qpn()), std::to_string(end.srqn()),
                                    std::to_string(step), std::to_string(SIGSTOP)});
      Received got;
      if (child.wait_stopped()) {
        // It holds at most one WQE (R4); with the others we go on.
        ASSERT_TRUE(wqes_are_there(end, options.slots - 1, &got));
        ASSERT_TRUE(wqes_are_there(end, options.slots - 1, &got));
        child.signal(SIGCONT);
      } else {
        through = true;
      }
      ASSERT_EQ(child.wait(), 0);
      ASSERT_TRUE(eventually([&] {
        receive_all(end, &got);
        return got.next == kMessages;
      })) << got.next;
      ASSERT_TRUE(got.in_order);
      ASSERT_TRUE(wqes_are_there(end, options.slots, &got));
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

/** Dies at the step of that name of its first send. */
MILLRACE_CHILD(lost_claimer) {
  Endpoint::Options options;
  options.receive = false;
  Endpoint end(options);
  EXPECT_EQ(end.connect(static_cast<uint32_t>(std::stoul(parent.arguments[0]))), 0);
  soft::signal_at_step(1, SIGKILL, parent.arguments[2].c_str());
  const uint32_t value = 1;
  end.send(static_cast<uint32_t>(std::stoul(parent.arguments[1])), &value, sizeof(value));
  return 1;
}

TEST(SoftKill, AClaimThatWasNeverAnnouncedIsTakenBackWithTheNextOne) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.send = false;
    Endpoint end(options);
    const std::string target = std::to_string(end.target_qpn());
    const std::string srqn = std::to_string(end.srqn());
    const auto entries = [&] {
      int used = 0;
      for (const soft::Word& entry : soft::Cq::of(end.cq.get()).shared->directory)
        used += entry.load() != 0;
      return used;
    };
    for (const char* step : {"ring claimed", "ring to be announced"}) {
      SCOPED_TRACE(step);
      Child child("lost_claimer", {target, srqn, step});
      EXPECT_EQ(child.wait(), 128 + SIGKILL);
    }
    EXPECT_EQ(entries(), 2);
    Child child("victim_sender", {target, srqn, "0", "0"});
    while (child.hear() == "sent") {
    }
    EXPECT_EQ(child.wait(), 0);
    Received got;
    EXPECT_TRUE(eventually([&] {
      receive_all(end, &got);
      return entries() == 0;
    })) << entries();
    EXPECT_EQ(got.next, kMessages);
    EXPECT_EQ(fabric.files("r").size(), 1u) << "the root, and no rings";
  }
  EXPECT_FALSE(fabric.exists());
}

/** Sends once and exits with everything open, stopped on its way out. */
MILLRACE_CHILD(stopped_leaver) {
  Endpoint::Options options;
  options.receive = false;
  static Endpoint* const end = new Endpoint(options);  // left as it is, and in nobody's way
  EXPECT_EQ(end->connect(static_cast<uint32_t>(std::stoul(parent.arguments[0]))), 0);
  const uint32_t value = 1;
  ibv_wc wc = {};
  EXPECT_EQ(
      end->send(static_cast<uint32_t>(std::stoul(parent.arguments[1])), &value, sizeof(value)), 0);
  EXPECT_TRUE(end->poll_sent(&wc));
  soft::signal_at_step(1, SIGSTOP, "reaping");
  return 0;
}

TEST(SoftKill, WhoIsFirstHeardOfWhileItLeavesIsNoticedWhenItEnds) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.send = false;
    Endpoint end(options);
    Child child("stopped_leaver", {std::to_string(end.target_qpn()), std::to_string(end.srqn())});
    ASSERT_TRUE(child.wait_stopped());
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll(&wc));  // the first that this process learns of it: its FIFO has no writer
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(fabric.files("r").size(), 2u) << "the root, and a ring that may still be written";
    child.signal(SIGCONT);
    EXPECT_EQ(child.wait(), 0);
    EXPECT_TRUE(eventually([&] {
      EXPECT_EQ(ibv_poll_cq(end.cq.get(), 1, &wc), 0);
      return fabric.files("r").size() == 1;
    }));
  }
  EXPECT_FALSE(fabric.exists());
}

/** Receives what comes, slowly posting again, and ends when told; a signal comes at a chosen step.
 */
MILLRACE_CHILD(victim_receiver) {
  soft::signal_at_step(std::stoull(parent.arguments[0]), std::stoi(parent.arguments[1]));
  {
    Endpoint::Options options;
    options.slots = 2;
    options.send = false;
    options.foreign = parent.arguments[2] == "foreign";
    Endpoint end(options);
    parent.say(std::to_string(end.target_qpn()) + " " + std::to_string(end.srqn()));
    for (uint64_t i = 0; i < kMessages; ++i) {
      ibv_wc wc = {};
      EXPECT_TRUE(end.poll(&wc));
      uint64_t value = ~i;
      memcpy(&value, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(value));
      EXPECT_EQ(value, i);
      EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
      if (::testing::Test::HasFailure()) return 1;
    }
  }
  parent.say("through");
  return 0;
}

TEST_P(SoftKillMemory, ReceiverAtEveryStep) {
  Fabric fabric;
  {
    Endpoint end;
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 5000; ++step) {
      SCOPED_TRACE(step);
      Child child("victim_receiver", {std::to_string(step), std::to_string(SIGKILL), GetParam()});
      const std::string numbers = child.hear();
      unsigned target = 0, srqn = 0;
      if (sscanf(numbers.c_str(), "%u %u", &target, &srqn) == 2) {
        // A fresh initiator each time: one error costs the QP.
        Endpoint::Options options;
        options.receive = false;
        Endpoint sender(options);
        ASSERT_EQ(sender.connect(target, 7, 8, 1), 0);
        for (uint64_t i = 0; i < kMessages; ++i) ASSERT_EQ(sender.send(srqn, &i, sizeof(i), i), 0);
        for (uint64_t i = 0; i < kMessages; ++i) {
          ibv_wc wc = {};
          ASSERT_TRUE(sender.poll_sent(&wc)) << "a WR waits for the dead";
          ASSERT_EQ(wc.wr_id, i);
          ASSERT_TRUE(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_REM_INV_REQ_ERR ||
                      wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR)
              << ibv_wc_status_str(wc.status);
        }
      }
      while (true) {
        const std::string line = child.hear();
        if (line == "through") through = true;
        if (line.empty()) break;
      }
      const int code = child.wait();
      ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << code;
      if (code != 0) through = false;
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

/** Fills the receiver's SRQ, then waits for a WQE, asleep. */
TEST(SoftKill, WaitersForADeadReceiverAreWoken) {
  Fabric fabric;
  Child child("victim_receiver", {"0", "0", "mapped"});
  const std::string numbers = child.hear();
  unsigned target = 0, srqn = 0;
  ASSERT_EQ(sscanf(numbers.c_str(), "%u %u", &target, &srqn), 2);
  // By way of a target of our own, which outlives the receiver.
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  child.signal(SIGSTOP);
  ASSERT_TRUE(child.wait_stopped());
  ASSERT_EQ(ibv_req_notify_cq(end.send_cq.get(), 0), 0);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(end.send(srqn, &i, sizeof(i), i), 0);
  fcntl(end.send_channel->fd, F_SETFL, O_NONBLOCK);
  int ok = 0, failed = 0, flushed = 0;
  bool killed = false;
  while (ok + failed + flushed < 5) {
    ibv_wc wc = {};
    if (ibv_poll_cq(end.send_cq.get(), 1, &wc) == 1) {
      ok += wc.status == IBV_WC_SUCCESS;
      failed += wc.status == IBV_WC_REM_INV_REQ_ERR;
      flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
      continue;
    }
    if (ok == 2 && !killed) {
      child.signal(SIGKILL);  // it never posts again
      killed = true;
    }
    ASSERT_EQ(ibv_req_notify_cq(end.send_cq.get(), 0), 0);
    pollfd p = {end.send_channel->fd, POLLIN, 0};
    ASSERT_EQ(poll(&p, 1, kDeadlineMs), 1) << ok << " " << failed << " " << flushed;
    ibv_cq* which = nullptr;
    void* user = nullptr;
    if (ibv_get_cq_event(end.send_channel.get(), &which, &user) == 0) ibv_ack_cq_events(which, 1);
  }
  EXPECT_EQ(ok, 2);
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(flushed, 2);
}

/** Receives without ever polling in a loop: arms and sleeps, as an event loop does. False: it slept
 * past the deadline. */
bool receive_asleep(Endpoint& end, const std::function<bool()>& done, Received* got) {
  for (;;) {
    receive_all(end, got);
    if (done()) return true;
    EXPECT_EQ(ibv_req_notify_cq(end.cq.get(), 0), 0);
    receive_all(end, got);
    if (done()) return true;
    pollfd p = {end.channel->fd, POLLIN, 0};
    if (poll(&p, 1, kDeadlineMs) != 1) return false;
    ibv_cq* which = nullptr;
    void* user = nullptr;
    if (ibv_get_cq_event(end.channel.get(), &which, &user) == 0) ibv_ack_cq_events(which, 1);
  }
}

// The same with an SRQ that is empty at first, so that the victim parks, and with a receiver that
// sleeps: what the victim was told had arrived must wake it, also when the victim dies between
// committing and waking (R8).
TEST(SoftKill, WaitingInitiatorAtEveryStepAndASleepingReceiver) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.slots = 2;
    Endpoint end(options);
    fcntl(end.channel->fd, F_SETFL, O_NONBLOCK);
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 5000; ++step) {
      SCOPED_TRACE(step);
      Received got;
      // Take the WQEs away: two messages of our own that are not polled until the victim waits, or
      // is dead.
      for (uint64_t i = 0; i < 2; ++i) {
        const uint64_t value = (uint64_t{1} << 63) | i;
        ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
        ibv_wc wc = {};
        ASSERT_TRUE(end.poll_sent(&wc));
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      }
      Child child("victim_waiter", {std::to_string(end.target_qpn()), std::to_string(end.srqn()),
                                    std::to_string(step), std::to_string(SIGKILL)});
      std::string line = child.hear();  // "waiting", or the end of it
      uint64_t reported = 0;
      if (line == "waiting") {
        ASSERT_TRUE(receive_asleep(
            end, [&] { return got.of_others == 2; }, &got));
        for (line = child.hear(); !line.empty(); line = child.hear()) {
          if (line == "sent") ++reported;
          if (line == "through") through = true;
          ASSERT_TRUE(receive_asleep(
              end, [&] { return got.next >= reported; }, &got))
              << got.next << " " << reported;
        }
      }
      const int code = child.wait();
      ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << code;
      if (code != 0) through = false;
      ASSERT_TRUE(receive_asleep(
          end, [&] { return got.next >= reported && got.of_others == 2; }, &got));
      ASSERT_TRUE(wqes_are_there(end, 2, &got));
      ASSERT_TRUE(got.in_order);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

MILLRACE_CHILD(victim_waiter) {
  const uint32_t target = static_cast<uint32_t>(std::stoul(parent.arguments[0]));
  const uint32_t srqn = static_cast<uint32_t>(std::stoul(parent.arguments[1]));
  soft::signal_at_step(std::stoull(parent.arguments[2]), std::stoi(parent.arguments[3]));
  {
    Endpoint::Options options;
    options.receive = false;
    Endpoint end(options);
    fcntl(end.send_channel->fd, F_SETFL, O_NONBLOCK);
    EXPECT_EQ(end.connect(target), 0);
    for (uint64_t i = 0; i < kMessages; ++i) EXPECT_EQ(end.send(srqn, &i, sizeof(i), i), 0);
    parent.say("waiting");
    for (uint64_t i = 0; i < kMessages;) {
      ibv_wc wc = {};
      if (ibv_poll_cq(end.send_cq.get(), 1, &wc) == 1) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
        EXPECT_EQ(wc.wr_id, i);
        ++i;
        parent.say("sent");
        continue;
      }
      EXPECT_EQ(ibv_req_notify_cq(end.send_cq.get(), 0), 0);
      if (ibv_poll_cq(end.send_cq.get(), 0, &wc) < 0) return 1;
      pollfd p = {end.send_channel->fd, POLLIN, 0};
      if (poll(&p, 1, kDeadlineMs) != 1) return 2;
      ibv_cq* which = nullptr;
      void* user = nullptr;
      if (ibv_get_cq_event(end.send_channel.get(), &which, &user) == 0) ibv_ack_cq_events(which, 1);
    }
  }
  parent.say("through");
  return 0;
}

/** Creates, opens and closes targets. */
MILLRACE_CHILD(victim_holder) {
  soft::signal_at_step(std::stoull(parent.arguments[1]), std::stoi(parent.arguments[2]));
  {
    Endpoint::Options options;
    options.send = false;
    options.slots = 1;
    Endpoint end(options);
    ibv_qp_open_attr attr = {};
    attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    attr.qp_num = static_cast<uint32_t>(std::stoul(parent.arguments[0]));
    attr.xrcd = end.xrcd.get();
    attr.qp_type = IBV_QPT_XRC_RECV;
    verbs::QpPtr opened(ibv_open_qp(end.context.get(), &attr));
    EXPECT_TRUE(opened);
    parent.say(std::to_string(end.target_qpn()));
  }
  parent.say("through");
  return 0;
}

TEST(SoftKill, HolderOfTargetsAtEveryStep) {
  Fabric fabric;
  {
    Endpoint end;
    const auto open = [&](uint32_t number) {
      ibv_qp_open_attr attr = {};
      attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
      attr.qp_num = number;
      attr.xrcd = end.xrcd.get();
      attr.qp_type = IBV_QPT_XRC_RECV;
      return verbs::QpPtr(ibv_open_qp(end.context.get(), &attr));
    };
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 5000; ++step) {
      SCOPED_TRACE(step);
      Child child("victim_holder", {std::to_string(end.target_qpn()), std::to_string(step),
                                    std::to_string(SIGKILL)});
      const std::string number = child.hear();
      if (!number.empty()) through = child.hear() == "through";
      const int code = child.wait();
      ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << code;
      if (code != 0) through = false;
      ASSERT_TRUE(soft::clean_fabric().ok());  // reaps the dead
      // Its own target is gone with it; ours, which it had opened, is not.
      if (!number.empty()) {
        EXPECT_FALSE(open(static_cast<uint32_t>(std::stoul(number))));
      }
      EXPECT_TRUE(open(end.target_qpn()));
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

/** Receives from a process that is killed, and is killed itself while it cleans up after it. */
MILLRACE_CHILD(victim_reaper) {
  Endpoint::Options options;
  options.send = false;
  options.slots = 4;
  Endpoint end(options);
  parent.say(base::format("%u %u", end.target_qpn(), end.srqn()));
  ibv_wc wc = {};
  EXPECT_TRUE(end.poll(&wc));
  parent.say("received");
  parent.hear();  // the other one is dead
  soft::signal_at_step(std::stoull(parent.arguments[0]), SIGKILL);
  // Its QP's record goes when it is reaped; wait for that, not for a time.
  const uint64_t deadline = base::now_ns() + uint64_t{kDeadlineMs} * 1'000'000u;
  while (soft::steps_passed() < 8 && base::now_ns() < deadline) ibv_poll_cq(end.cq.get(), 1, &wc);
  for (int i = 0; i < 100; ++i) ibv_poll_cq(end.cq.get(), 1, &wc);
  parent.say("through");
  return 0;
}

/** Sends one message, then waits to be killed. */
MILLRACE_CHILD(doomed_sender) {
  Endpoint end;
  EXPECT_EQ(end.connect(static_cast<uint32_t>(std::stoul(parent.arguments[0]))), 0);
  const uint64_t value = 0;
  EXPECT_EQ(end.send(static_cast<uint32_t>(std::stoul(parent.arguments[1])), &value, sizeof(value)),
            0);
  parent.hear();
  return 0;
}

TEST(SoftKill, ReaperAtEveryStep) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.receive = options.send = false;
    Endpoint end(options);
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 5000; ++step) {
      SCOPED_TRACE(step);
      Child reaper("victim_reaper", {std::to_string(step)});
      unsigned target = 0, srqn = 0;
      ASSERT_EQ(sscanf(reaper.hear().c_str(), "%u %u", &target, &srqn), 2);
      Child sender("doomed_sender", {std::to_string(target), std::to_string(srqn)});
      ASSERT_EQ(reaper.hear(), "received");
      sender.signal(SIGKILL);
      ASSERT_EQ(sender.wait(), 128 + SIGKILL);
      reaper.say("dead");
      through = reaper.hear() == "through";
      const int code = reaper.wait();
      ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << code;
      if (code != 0) through = false;
      ASSERT_TRUE(soft::clean_fabric().ok());
      ASSERT_EQ(fabric.files("p").size(), 1u);
      ASSERT_EQ(fabric.files("alive").size(), 1u);
      ASSERT_EQ(fabric.files("r").size(), 1u) << "root only";
    }
    expect_walked(through, step - 1);
  }
  EXPECT_FALSE(fabric.exists());
}

}  // namespace
}  // namespace millrace::test
