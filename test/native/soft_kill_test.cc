// SIGKILL between any two steps of the protocol, and the SIGSTOP twin. The steps are the fault
// points in native/soft (step.h): a victim is started again and again, and ends one step later each
// time, until it gets through.
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

/** `count` messages of our own go through without anything being received meanwhile: so many WQEs
 * are there. */
bool wqes_are_there(Endpoint& end, uint32_t count, Received* got) {
  receive_all(end, got);
  const int before = got->of_others;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t value = (uint64_t{1} << 63) | i;
    EXPECT_EQ(end.send(end.srqn(), &value, sizeof(value), i), 0);
  }
  for (uint32_t i = 0; i < count; ++i) {
    ibv_wc wc = {};
    if (!end.poll_sent(&wc) || wc.status != IBV_WC_SUCCESS) return false;
  }
  return eventually([&] {
    receive_all(end, got);
    return got->of_others == before + static_cast<int>(count);
  });
}

TEST(SoftKill, InitiatorAtEveryStep) {
  Fabric fabric;
  {
    Endpoint::Options options;
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
    EXPECT_TRUE(through);
    printf("%llu steps\n", static_cast<unsigned long long>(step - 1));
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
    for (const std::string& name : fabric.files("")) printf("%s\n", name.c_str());
    EXPECT_EQ(got.next, kMessages);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftKill, InitiatorStoppedAtEveryStep) {
  Fabric fabric;
  {
    Endpoint::Options options;
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
    EXPECT_TRUE(through);
    printf("%llu steps\n", static_cast<unsigned long long>(step - 1));
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
    Endpoint end(options);
    parent.say(std::to_string(end.target_qpn()) + " " + std::to_string(end.srqn()));
    for (uint64_t i = 0; i < kMessages; ++i) {
      ibv_wc wc = {};
      EXPECT_TRUE(end.poll(&wc));
      EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
      if (::testing::Test::HasFailure()) return 1;
    }
  }
  parent.say("through");
  return 0;
}

TEST(SoftKill, ReceiverAtEveryStep) {
  Fabric fabric;
  {
    Endpoint end;
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 5000; ++step) {
      SCOPED_TRACE(step);
      Child child("victim_receiver", {std::to_string(step), std::to_string(SIGKILL)});
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
    EXPECT_TRUE(through);
    printf("%llu steps\n", static_cast<unsigned long long>(step - 1));
  }
  EXPECT_FALSE(fabric.exists());
}

/** Fills the receiver's SRQ, then waits for a WQE, asleep. */
TEST(SoftKill, WaitersForADeadReceiverAreWoken) {
  Fabric fabric;
  Child child("victim_receiver", {"0", "0"});
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

}  // namespace
}  // namespace millrace::test
