// Large messages of members on another port: what is offered to them, read into a block of their
// own pool, and over when they say so.
#include "transport/landing.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>

#include "transport_support.h"

namespace millrace::transport {
namespace {

using test::Domain;
using test::Node;

constexpr uint64_t kBlock = 300'000;
using Bytes = std::array<uint8_t, kDescriptorBytes>;

MemberOptions on_port(int port, uint64_t lock_limit) {
  MemberOptions options;
  if (test::device() == "soft") options.device = "soft" + std::to_string(port);
  if (lock_limit > 0) options.faults = verbs::FaultPlan{.lock_limit = lock_limit};
  return options;
}

/** A member with a pool and what it holds. */
struct Lender {
  Lender(const Domain& domain, uint64_t incarnation, int port, uint64_t max_bytes,
         uint64_t lock_limit = 0)
      : node(domain, incarnation, on_port(port, lock_limit)),
        folder(open(domain.folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    Pool::Options options;
    options.incarnation = incarnation;
    options.max_bytes = options.held_bytes = max_bytes;
    options.pd = node.member().pd();
    pool = Pool::create(folder.get(), options).take();
    leases =
        std::make_unique<Leases>(base::Fd(fcntl(folder.get(), F_DUPFD_CLOEXEC, 0)), incarnation);
  }
  ~Lender() {
    leases->close();
    pool->close();
  }
  bool idle() {
    (void)pool->collect();
    const Pool::Counts now = pool->counts();
    return now.blocks_in_use == 0 && now.holds == 0 && leases->counts().holds == 0;
  }

  Node node;
  base::Fd folder;
  std::unique_ptr<Pool> pool;
  std::unique_ptr<Leases> leases;
};

class Landings : public testing::Test {
 protected:
  static constexpr uint64_t kPool = 4 << 20;
  Landings() {
    setenv("MILLRACE_SOFT_DEVICES", "2", 1);
    start(0);
  }
  ~Landings() override {
    publisher.reset();
    subscriber.reset();
    unsetenv("MILLRACE_SOFT_DEVICES");
  }
  void start(uint64_t lock_limit) {
    publisher.reset();
    subscriber.reset();
    publisher = std::make_unique<Lender>(domain, 11, 0, kPool, lock_limit);
    subscriber = std::make_unique<Lender>(domain, 12, 1, kPool, lock_limit);
    std::tie(to_subscriber, to_publisher) = test::connect(publisher->node, subscriber->node);
  }
  /** Lends a block, fills it, offers it to the subscriber and nobody else. */
  Bytes publish(uint8_t fill, uint64_t bytes = kBlock) {
    const auto block = publisher->pool->lend(bytes);
    EXPECT_TRUE(block.ok()) << block.status().detail;
    memset(publisher->pool->address(block.value()), fill, bytes);
    Bytes descriptor{};
    const base::Status status =
        publisher->pool->offer_remote(block.value(), 12, bytes, descriptor.data());
    EXPECT_TRUE(status.ok()) << status.detail;
    publisher->pool->retire(block.value());
    return descriptor;
  }
  base::Result<Landing> land(const Bytes& descriptor) {
    return transport::land(subscriber->node.member(), to_publisher, descriptor, *subscriber->pool,
                           *subscriber->leases);
  }
  FetchEnd ended(uint32_t fetch) {
    FetchEnd end = FetchEnd::kNone;
    EXPECT_TRUE(test::run({&publisher->node, &subscriber->node}, [&] {
      for (const Node::Told& told : subscriber->node.fetches) {
        if (told.number == fetch) end = told.end;
      }
      return end != FetchEnd::kNone;
    }));
    return end;
  }
  static RemoteDescriptor remote(const Bytes& bytes) {
    RemoteDescriptor found;
    memcpy(&found, bytes.data(), sizeof(found));
    return found;
  }
  static Bytes bytes_of(const RemoteDescriptor& descriptor) {
    Bytes bytes;
    memcpy(bytes.data(), &descriptor, sizeof(descriptor));
    return bytes;
  }

  Domain domain;
  std::unique_ptr<Lender> publisher, subscriber;
  uint32_t to_subscriber = 0, to_publisher = 0;
};

TEST_F(Landings, AreHeldAsAnyBlockIsAndOverWhenTheReceiverSaysSo) {
  const Bytes offer = publish(0x5a);
  const auto landing = land(offer);
  ASSERT_TRUE(landing.ok()) << landing.status().detail;
  EXPECT_EQ(ended(landing.value().fetch), FetchEnd::kDone);
  EXPECT_EQ(publisher->pool->counts().holds, 1u);
  EXPECT_EQ(subscriber->leases->counts().bytes, kBlock);
  const uint64_t serial = remote(offer).serial;
  EXPECT_FALSE(publisher->pool->landed(13, serial)) << "another's";
  EXPECT_FALSE(publisher->pool->landed(12, serial + 1));
  EXPECT_TRUE(publisher->pool->landed(12, serial));
  EXPECT_FALSE(publisher->pool->landed(12, serial)) << "twice";
  EXPECT_TRUE(publisher->idle());

  const auto memory = subscriber->leases->refer(landing.value().hold, Leases::Use::kLeased);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(std::all_of(memory.value().data, memory.value().data + kBlock,
                          [](uint8_t byte) { return byte == 0x5a; }));
  (void)subscriber->leases->release(landing.value().hold, Leases::Use::kTaken);
  EXPECT_FALSE(subscriber->idle());
  (void)subscriber->leases->release(landing.value().hold, Leases::Use::kLeased);
  EXPECT_TRUE(subscriber->idle());
}

TEST_F(Landings, WhatCanNotBeLeavesNothingTaken) {
  RemoteDescriptor offer = remote(publish(1));
  const auto refused = [&](auto change) {
    RemoteDescriptor bad = offer;
    change(bad);
    const int code = land(bytes_of(bad)).status().code;
    EXPECT_TRUE(subscriber->idle());
    return code;
  };
  EXPECT_EQ(refused([](auto& bad) { bad.form = 0; }), EPROTO);
  EXPECT_EQ(refused([](auto& bad) { bad.form = 2; }), EPROTO);
  EXPECT_EQ(refused([](auto& bad) { bad.bytes = 0; }), EPROTO);
  EXPECT_EQ(refused([](auto& bad) { bad.bytes = uint64_t{1} << 60; }), EPROTO);
  EXPECT_EQ(refused([](auto& bad) { bad.address = ~uint64_t{0} - 100; }), EPROTO);
  EXPECT_EQ(refused([](auto& bad) { bad.serial = 0; }), EPROTO);
  EXPECT_EQ(refused([](auto& bad) { bad.bytes = kPool + 1; }), E2BIG);
  subscriber->node.member().disconnect(to_publisher);
  EXPECT_EQ(refused([](auto&) {}), ENOTCONN);
}

TEST_F(Landings, OfMemoryThatIsNotThereEndByTheDevice) {
  RemoteDescriptor offer = remote(publish(1));
  offer.rkey ^= 0x10;
  const auto landing = land(bytes_of(offer));
  ASSERT_TRUE(landing.ok());
  EXPECT_EQ(ended(landing.value().fetch), FetchEnd::kFailed);
  (void)subscriber->leases->release(landing.value().hold, Leases::Use::kTaken);
  EXPECT_TRUE(subscriber->idle());
}

TEST_F(Landings, WaitWhereThePoolIsFull) {
  std::vector<Landing> landed;
  std::vector<Bytes> offers;
  for (int i = 0; i < 4; ++i) offers.push_back(publish(7, 1 << 20));
  // One block less: something of ours is lent.
  const uint32_t lent = subscriber->pool->lend(1 << 20).value();
  for (const Bytes& offer : offers) {
    const auto landing = land(offer);
    if (landing.ok()) {
      landed.push_back(landing.value());
    } else {
      EXPECT_EQ(landing.status().code, EAGAIN);
    }
  }
  EXPECT_EQ(landed.size(), 3u);
  subscriber->pool->retire(lent);
  const auto landing = land(offers[3]);
  ASSERT_TRUE(landing.ok()) << landing.status().detail;
  landed.push_back(landing.value());
  for (const Landing& one : landed) {
    EXPECT_EQ(ended(one.fetch), FetchEnd::kDone);
    (void)subscriber->leases->release(one.hold, Leases::Use::kTaken);
  }
  EXPECT_TRUE(subscriber->idle());
}

TEST_F(Landings, OfAReceiverThatDiesAreOverAndOfOneThatIsGivenUpAreNot) {
  (void)publish(1);
  const Bytes kept = publish(2);
  publisher->pool->receiver_gone(12, false);
  EXPECT_EQ(publisher->pool->counts().holds, 2u) << "it may be reading";
  EXPECT_TRUE(publisher->pool->landed(12, remote(kept).serial));
  publisher->pool->receiver_gone(12, true);
  EXPECT_TRUE(publisher->idle());
}

TEST_F(Landings, AReceiverHoldsAsMuchAsItMayAndNoMore) {
  std::vector<Bytes> offers;
  for (int i = 0; i < 4; ++i) offers.push_back(publish(1, 1 << 20));
  EXPECT_EQ(publisher->pool->room(12, 1), 0u);
  EXPECT_GE(publisher->pool->room(13, 1), 1u);
  EXPECT_TRUE(publisher->pool->landed(12, remote(offers[0]).serial));
  EXPECT_GE(publisher->pool->room(12, 1 << 20), uint64_t{1} << 20);
}

TEST_F(Landings, WhatCanNotBeLockedIsAnErrorWithTheLimit) {
  // The members' own registrations are smaller.
  start(16 << 20);
  Pool::Options options;
  options.incarnation = 14;
  options.max_bytes = options.held_bytes = 64 << 20;
  options.pd = publisher->node.member().pd();
  auto pool = Pool::create(publisher->folder.get(), options).take();
  const uint32_t block = pool->lend(32 << 20).value();
  const base::Status status = pool->enroll(block);
  EXPECT_EQ(status.code, ENOMEM);
  EXPECT_STREQ(status.what, "ibv_reg_mr");
  EXPECT_NE(status.detail.find("a file of the pool, 33554432 bytes"), std::string::npos)
      << status.detail;
  Bytes descriptor{};
  EXPECT_EQ(pool->offer_remote(block, 12, 1, descriptor.data()).code, ENOMEM);
  EXPECT_EQ(pool->counts().holds, 0u);
  EXPECT_TRUE(pool->enroll(pool->lend(1 << 20).value()).ok());
  options.pd = nullptr;
  options.incarnation = 15;
  auto without = Pool::create(publisher->folder.get(), options).take();
  EXPECT_EQ(without->enroll(without->lend(1).value()).code, ENOTSUP);
}

}  // namespace
}  // namespace millrace::transport
