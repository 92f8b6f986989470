// One port as rules use it, fed by the loopback interface: when its descriptor is readable, and
// what a queue holds.
#include "transport/steering.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <thread>

#include "flow_builder.h"
#include "transport_support.h"

namespace millrace::transport::test {
namespace {

using millrace::test::FlowBuilder;

/** Counts the frames of each queue; has room for all. */
struct Counter final : FrameSink {
  bool ready() override { return true; }
  void take(const SteeredFrame& frame) override { ++frames[frame.queue]; }
  std::map<uint32_t, int> frames;
};

/** A UDP port of this host, and a socket that sends to it. */
class Target {
 public:
  Target() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const base::Fd taken(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(taken.get(), any, size), 0);
    EXPECT_EQ(getsockname(taken.get(), any, &size), 0);
    EXPECT_EQ(connect(fd_.get(), any, size), 0);
    port_ = ntohs(address.sin_port);
  }
  void send() const { EXPECT_EQ(::send(fd_.get(), "x", 1, 0), 1); }
  /** A rule for it, which counts. */
  std::vector<uint8_t> rule(uint32_t flags = 0) const {
    FlowBuilder flow(IBV_FLOW_ATTR_NORMAL, flags != 0 ? 0 : 1, flags);
    flow.ipv4(0, INADDR_LOOPBACK).udp(port_).count(nullptr);
    const auto* bytes = reinterpret_cast<const uint8_t*>(flow.attr());
    return {bytes, bytes + flow.attr()->size};
  }

 private:
  base::Fd fd_;
  unsigned port_ = 0;
};

class TransportSteering : public testing::Test {
 protected:
  void SetUp() override {
    SteeringOptions options;
    options.interface = "lo";
    base::Result<std::unique_ptr<Steering>> opened = Steering::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status().detail;
    steering = opened.take();
  }
  uint32_t queue(bool delivers) {
    const base::Result<uint32_t> made = steering->open_queue(delivers);
    EXPECT_TRUE(made.ok()) << made.status().detail;
    return made.ok() ? made.value() : 0;
  }
  uint32_t flow(uint32_t queue, const std::vector<uint8_t>& rule) {
    const base::Result<uint32_t> made = steering->create_flow(queue, rule);
    EXPECT_TRUE(made.ok()) << made.status().detail;
    return made.ok() ? made.value() : 0;
  }
  bool readable(int ms) const {
    pollfd one = {steering->fd(), POLLIN, 0};
    return ::poll(&one, 1, ms) == 1;
  }
  /** Looks until nothing is pending, as who is about to sleep. */
  void arm() {
    do {
      (void)steering->poll(counter, 512);
    } while (!steering->arm());
  }

  Domain domain;
  std::unique_ptr<Steering> steering;
  Counter counter;
  const Target target;
};

TEST_F(TransportSteering, WhoRestsIsNotWokenBefore) {
  constexpr int kLongMs = 20'000;
  const uint32_t q = queue(true);
  flow(q, target.rule());
  arm();
  EXPECT_FALSE(readable(0));
  target.send();
  EXPECT_TRUE(readable(kLongMs));
  EXPECT_EQ(steering->poll(counter, 512), 1u);
  EXPECT_TRUE(steering->rest(3'600'000'000u));
  target.send();
  EXPECT_FALSE(readable(0)) << "it rests";
  EXPECT_TRUE(steering->rest(1));
  EXPECT_TRUE(readable(kLongMs)) << "the time is over";
  EXPECT_EQ(steering->poll(counter, 512), 1u);
  // Once armed again frames count, and the timer doesn't.
  arm();
  EXPECT_FALSE(readable(0));
  EXPECT_TRUE(steering->rest(3'600'000'000u));
  target.send();
  EXPECT_FALSE(readable(0));
  arm();
  EXPECT_EQ(counter.frames[q], 3);
  target.send();
  EXPECT_TRUE(readable(kLongMs));
  EXPECT_EQ(steering->poll(counter, 512), 1u);
}

TEST_F(TransportSteering, WhatComesBetweenALookAndTheArmingIsNotSleptOver) {
  const uint32_t q = queue(true);
  flow(q, target.rule());
  arm();
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(steering->poll(counter, 512), 0u);
    target.send();
    while (!steering->arm()) (void)steering->poll(counter, 512);
    if (counter.frames[q] < i) {
      EXPECT_TRUE(readable(0));
      EXPECT_EQ(steering->poll(counter, 512), 1u);
    }
    EXPECT_EQ(counter.frames[q], i);
    arm();
  }
}

void set_loopback(bool up) {
  const base::Fd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  strcpy(request.ifr_name, "lo");
  request.ifr_flags = static_cast<short>(up ? IFF_UP : 0);
  EXPECT_EQ(ioctl(any.get(), SIOCSIFFLAGS, &request), 0) << strerror(errno);
}

/** In a network namespace that this thread alone is in. */
void an_interface_goes_down_and_up() {
  set_loopback(true);
  SteeringOptions options;
  options.interface = "lo";
  const base::Result<std::unique_ptr<Steering>> opened = Steering::open(options);
  ASSERT_TRUE(opened.ok()) << opened.status().detail;
  Steering& steering = *opened.value();
  const Target target;
  const base::Result<uint32_t> queue = steering.open_queue(true);
  ASSERT_TRUE(queue.ok()) << queue.status().detail;
  ASSERT_TRUE(steering.create_flow(queue.value(), target.rule()).ok());
  Counter counter;
  pollfd one = {steering.fd(), POLLIN, 0};
  const auto sleeps = [&] {
    for (int turn = 0; turn < 4; ++turn) {
      do {
        (void)steering.poll(counter, 512);
      } while (!steering.arm());
      if (::poll(&one, 1, 0) == 0) return true;
    }
    return false;
  };
  EXPECT_TRUE(sleeps());
  for (int i = 1; i <= 2; ++i) {
    set_loopback(false);
    EXPECT_TRUE(sleeps()) << "while it is down";
    set_loopback(true);
    EXPECT_TRUE(sleeps());
    target.send();
    EXPECT_EQ(::poll(&one, 1, 20'000), 1);
    EXPECT_TRUE(sleeps());
    EXPECT_EQ(counter.frames[queue.value()], i);
  }
}

TEST(TransportSteeringDown, AnInterfaceThatIsDownLetsUsSleep) {
  const Domain domain;
  bool alone = false;
  std::thread([&] {
    alone = unshare(CLONE_NEWNET) == 0;
    if (alone) an_interface_goes_down_and_up();
  }).join();
  if (!alone) GTEST_SKIP() << "needs root, for a network namespace";
}

/** Of all that is mapped; what is only reserved counts, too. */
size_t mapped_bytes() {
  size_t pages = 0;
  FILE* const file = fopen("/proc/self/statm", "re");
  EXPECT_EQ(fscanf(file, "%zu", &pages), 1);
  fclose(file);
  return pages * static_cast<size_t>(getpagesize());
}

TEST_F(TransportSteering, QueuesOfRulesThatCountHoldNoMemory) {
  constexpr uint32_t kRules = 32;
  const uint32_t receiving = queue(true);
  const uint32_t main = flow(receiving, target.rule());
  const size_t before = mapped_bytes();
  std::vector<uint32_t> flows;
  for (uint32_t i = 0; i < kRules; ++i)
    flows.push_back(flow(queue(false), target.rule(IBV_FLOW_ATTR_FLAGS_DONT_TRAP)));
  // Sanitizers map memory of their own.
  if (kSlow == 1) {
    EXPECT_LT(mapped_bytes() - before, kRules * 256u * 1024);
  }
  arm();
  for (int i = 0; i < 3; ++i) target.send();
  while (counter.frames[receiving] < 3) (void)steering->poll(counter, 512);
  EXPECT_EQ(counter.frames.size(), 1u);
  EXPECT_EQ(steering->read_flow(main).packets, 3u);
  for (const uint32_t one : flows) EXPECT_EQ(steering->read_flow(one).packets, 3u);
}

}  // namespace
}  // namespace millrace::transport::test
