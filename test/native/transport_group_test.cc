#include <poll.h>

#include <cstring>

#include "transport/group.h"
#include "transport_support.h"

/** Multicast groups: one datagram to whoever listens, slots of their own, and nothing that is lost
 * or forged does harm. */
namespace millrace::transport {
namespace {

using test::connect;
using test::Domain;
using test::LaneBench;
using test::Node;
using test::run;

constexpr GroupKey kKey = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr uint32_t kSlots = 32;

/** Which sequences of a channel came by datagrams, in their order. */
struct Heard {
  explicit Heard(Node& node) {
    node.on_record = [this](uint32_t, const RecordHeader& header) {
      sequences.push_back(header.sequence_low);
    };
  }
  std::vector<uint32_t> sequences;
};

uint32_t open_group(Node& node, uint32_t slots, const GroupKey& key = kKey) {
  auto group = node.member().open_group(key, slots);
  EXPECT_TRUE(group.ok()) << group.status().what << ": " << group.status().detail;
  return group.ok() ? group.value().number : ~0u;
}

/** One datagram with one record. */
void cast(Node& node, uint32_t group, uint32_t payload = 64) {
  node.merge_rows(false);
  node.send({static_cast<uint32_t>(kGroupRow)}, 1, payload, group);
  (void)node.flush();
}

void poll_all(Node& node) {
  while (node.poll() > 0) {
  }
}

class Group : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { setenv("MILLRACE_SOFT_LINK", GetParam(), 1); }
  void TearDown() override { unsetenv("MILLRACE_SOFT_LINK"); }
};
INSTANTIATE_TEST_SUITE_P(Links, Group, testing::Values("infiniband", "ethernet"));

TEST_P(Group, OneDatagramReachesWhoeverListensAndNotTheSenderItself) {
  Domain domain;
  MemberOptions elsewhere;
  elsewhere.device = test::other_device();
  Node a(domain, 101), b(domain, 102, elsewhere), c(domain, 103, elsewhere);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  (void)connect(a, b);
  (void)connect(a, c);
  auto group = a.member().open_group(kKey, 0);
  ASSERT_TRUE(group.ok());
  const uint32_t to = group.value().number;
  const uint32_t room = group.value().room - kRecordHeaderBytes;  // as much as a datagram takes
  for (Node* node : {&a, &b, &c}) open_group(*node, kSlots);
  Heard heard_b(b), heard_c(c);
  for (uint32_t i = 0; i < 200; ++i) {
    cast(a, to, room);
    ASSERT_TRUE(run({&a, &b, &c},
                    [&] { return heard_b.sequences.size() > i && heard_c.sequences.size() > i; }));
  }
  EXPECT_EQ(heard_b.sequences.size(), 200u);
  EXPECT_EQ(heard_b.sequences, heard_c.sequences);
  EXPECT_EQ(a.counter(kDatagramsSent), 200);
  EXPECT_EQ(a.datagrams, 0u);
  EXPECT_EQ(a.counter(kDatagramsStray), 0) << "its own are nobody's fault";
  EXPECT_EQ(b.counter(kFramesReceived), 0) << "nothing came on a lane";
  EXPECT_EQ(a.freed(), a.head()) << "datagrams hold no arena";
}

TEST_P(Group, ALaggardLosesWhatItHasNoSlotForAndHoldsUpNobody) {
  Domain domain;
  Node a(domain, 101), slow(domain, 102), fast(domain, 103);
  const auto [to_slow, from_a] = connect(a, slow);
  (void)from_a;
  (void)connect(a, fast);
  const uint32_t to = open_group(a, 0);
  open_group(slow, kSlots);
  open_group(fast, kSlots);
  Heard late(slow), prompt(fast);
  for (uint32_t i = 0; i < 10 * kSlots; ++i) {
    cast(a, to);
    ASSERT_TRUE(run({&fast}, [&] { return prompt.sequences.size() > i; }));
  }
  poll_all(slow);
  ASSERT_EQ(late.sequences.size(), kSlots) << "I2, I3: each slot once, none too many";
  EXPECT_EQ(late.sequences.front(), 1u);
  EXPECT_EQ(late.sequences.back(), kSlots);
  // Its slots are posted again, and its lane never knew.
  for (int i = 0; i < 3; ++i) cast(a, to);
  a.send({to_slow}, 2, 64);
  EXPECT_TRUE(run({&a, &slow}, [&] { return late.sequences.size() >= kSlots + 4; }));
  EXPECT_EQ(late.sequences.size(), kSlots + 4);
  EXPECT_EQ(a.counter(kDatagramsLost), 0);
  EXPECT_EQ(slow.counter(kBadFrames), 0);
}

TEST_P(Group, ADatagramWakesWhoSleeps) {
  Domain domain;
  Node a(domain, 101), b(domain, 102);
  (void)connect(a, b);
  const uint32_t to = open_group(a, 0);
  open_group(b, kSlots);
  Heard heard(b);
  for (uint32_t i = 0; i < 20; ++i) {
    while (!b.member().arm()) poll_all(b);
    pollfd fd = {b.member().fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&fd, 1, 0), 0);
    cast(a, to);
    ASSERT_EQ(::poll(&fd, 1, 10'000), 1);
    ASSERT_TRUE(run({&b}, [&] { return heard.sequences.size() > i; }));
  }
}

TEST_P(Group, EndsLeaveNothing) {
  Domain domain;
  Node a(domain, 101);
  const Resources before = a.member().resources();
  const size_t files = domain.files();
  for (int round = 0; round < 3; ++round) {
    const uint32_t to = open_group(a, 0);
    const uint32_t from = open_group(a, kSlots);
    EXPECT_NE(to, from);
    const Resources with = a.member().resources();
    EXPECT_EQ(with.groups, 2u);
    EXPECT_EQ(with.qps, before.qps + 2);
    EXPECT_EQ(with.cqs, before.cqs + 2);
    EXPECT_EQ(with.group_slots, kSlots);
    EXPECT_EQ(domain.files(), files + 1);
    cast(a, to);
    a.member().close_group(to);
    a.member().close_group(from);
    a.member().close_group(from);
    cast(a, to);  // a row that was made before it closed
    EXPECT_EQ(a.member().resources().groups, 0u);
    EXPECT_EQ(a.member().resources().qps, before.qps);
    EXPECT_EQ(domain.files(), files);
  }
  open_group(a, kSlots);
  open_group(a, 0);
  a.member().close();
  EXPECT_EQ(domain.files(), 0u);
}

TEST(GroupFaults, LostOnTheWayByTheSeed) {
  for (uint64_t seed : {1, 2, 3}) {
    Domain domain;
    MemberOptions faulty;
    faulty.faults = verbs::FaultPlan{};
    faulty.faults->seed = seed;
    faulty.faults->drop = 0.2;
    std::vector<uint32_t> first;
    for (int again = 0; again < 2; ++again) {
      Node a(domain, 101 + 10 * again, faulty), b(domain, 102 + 10 * again);
      (void)connect(a, b);
      const uint32_t to = open_group(a, 0);
      open_group(b, kSlots);
      Heard heard(b);
      for (int i = 0; i < 500; ++i) {
        cast(a, to);
        poll_all(b);
      }
      EXPECT_EQ(a.counter(kDatagramsSent), 500) << "who sends is not told";
      EXPECT_LT(heard.sequences.size(), 470u);
      EXPECT_GT(heard.sequences.size(), 300u);
      if (again == 0) first = heard.sequences;
      EXPECT_EQ(heard.sequences, first) << "the same seed, the same losses";
    }
  }
}

TEST(GroupFaults, AnErrorStopsASenderForAMomentOnly) {
  Domain domain;
  MemberOptions faulty;
  faulty.faults = verbs::FaultPlan{};
  faulty.faults->seed = 7;
  faulty.faults->error = 0.1;
  faulty.faults->delay = 0.2;
  Node a(domain, 101, faulty), b(domain, 102);
  (void)connect(a, b);
  const uint32_t to = open_group(a, 0);
  open_group(b, kSlots);
  Heard heard(b);
  for (int i = 0; i < 1000; ++i) {
    cast(a, to);
    poll_all(a);
    poll_all(b);
  }
  EXPECT_GT(a.counter(kErrorCompletions), 20);
  EXPECT_GT(heard.sequences.size(), 300u);
  for (size_t i = 1; i < heard.sequences.size(); ++i)
    ASSERT_LT(heard.sequences[i - 1], heard.sequences[i]);
}

/** The sending end alone, with any incarnation and any bytes. */
struct Forger : LaneBench {
  explicit Forger(const Domain& domain, uint64_t incarnation, const GroupKey& key = kKey)
      : LaneBench(domain) {
    const GroupParts parts = {context.get(),  pd.get(),     channel.get(),
                              &lanes->port(), folder.get(), incarnation};
    auto made = GroupSender::create(parts, key);
    EXPECT_TRUE(made.ok()) << made.status().detail;
    sender = made.take();
  }
  void send(const std::vector<uint8_t>& body, uint32_t records) {
    EXPECT_TRUE(sender->stage(body.data(), static_cast<uint32_t>(body.size()), records));
    EXPECT_EQ(sender->post(), 0u);
    (void)sender->harvest();
  }
  std::unique_ptr<GroupSender> sender;
};

std::vector<uint8_t> record(uint8_t kind, uint32_t payload, size_t bytes) {
  std::vector<uint8_t> body(bytes);
  RecordHeader header{};
  header.channel = 1;
  header.kind = kind;
  header.payload_bytes = payload;
  header.sequence_low = 1;
  std::memcpy(body.data(), &header, sizeof(header));
  return body;
}

TEST_P(Group, WhatIsForgedIsCountedAndNothingElse) {
  Domain domain;
  Node a(domain, 101), b(domain, 102);
  (void)connect(a, b);
  open_group(b, kSlots);
  Heard heard(b);

  Forger stranger(domain, 999);
  stranger.send(record(kRecordData, 8, 40), 1);
  EXPECT_TRUE(run({&b}, [&] { return b.counter(kDatagramsStray) == 1; }));

  // As one that is known: only the kinds that groups have, and lengths that add up.
  Forger known(domain, 101);
  double bad = 0;
  for (const auto& [body, records] :
       {std::pair(record(5, 16, 48), 1u), std::pair(record(3, 8, 40), 1u),
        std::pair(record(21, 16, 48), 1u), std::pair(record(255, 8, 40), 1u),
        std::pair(record(kRecordData, 8, 40), 2u), std::pair(record(kRecordData, 4000, 40), 1u),
        std::pair(record(kRecordData, ~0u, 40), 1u)}) {
    known.send(body, records);
    ++bad;
    EXPECT_TRUE(run({&b}, [&] { return b.counter(kBadFrames) == bad; }));
  }
  known.send(std::vector<uint8_t>(44), 1);  // no multiple of 8
  EXPECT_TRUE(run({&b}, [&] { return b.counter(kDatagramsStray) == 2; }));
  EXPECT_TRUE(heard.sequences.empty());
  EXPECT_EQ(b.faults.size(), static_cast<size_t>(bad));

  // More of it than there are slots: each is given back.
  for (uint32_t i = 0; i < 3 * kSlots; ++i) {
    known.send(record(5, 16, 48), 1);
    ++bad;
    EXPECT_TRUE(run({&b}, [&] { return b.counter(kBadFrames) == bad; }));
  }
  known.send(record(kRecordData, 8, 40), 1);
  EXPECT_TRUE(run({&b}, [&] { return !heard.sequences.empty(); }));
  EXPECT_EQ(heard.sequences.size(), 1u);
}

TEST_P(Group, ChannelsThatShareAnAddressHearTheirOwn) {
  Domain domain;
  Node a(domain, 101), b(domain, 102);
  (void)connect(a, b);
  // On IPv4 the address has 18 bits of the key, elsewhere twelve bytes: the rest is the tag.
  GroupKey other = kKey;
  other[15] = 99;
  Port port;
  port.ethernet = std::string(GetParam()) == "ethernet";
  ASSERT_EQ(0, std::memcmp(group_address(kKey, port).gid.raw, group_address(other, port).gid.raw,
                           sizeof(ibv_gid)));
  const uint32_t to = open_group(a, 0), to_other = open_group(a, 0, other);
  open_group(b, kSlots);
  Heard heard(b);
  cast(a, to_other);
  cast(a, to);
  EXPECT_TRUE(run({&b}, [&] { return !heard.sequences.empty(); }));
  EXPECT_EQ(heard.sequences, (std::vector<uint32_t>{2}));
  EXPECT_EQ(b.counter(kDatagramsStray), 1);
}

TEST(GroupAddress, AnInterfaceThatIsGoneIsNamed) {
  Port port;
  port.ethernet = true;
  port.interface = 0x7FFFFFFF;
  for (const uint8_t form : {uint8_t{0xFF}, uint8_t{0}}) {  // an IPv4 GID, an IPv6 one
    port.address.gid[10] = port.address.gid[11] = form;
    const auto joined = join_interface(group_address(kKey, port), port);
    EXPECT_EQ(joined.status().code, ENODEV);
    EXPECT_NE(joined.status().detail.find("2147483647"), std::string::npos);
  }
}

TEST(GroupAddress, FollowsTheFormOfThePort) {
  Port port;
  port.ethernet = true;
  port.address.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1};
  GroupKey key = kKey;
  key[0] = 7;
  GroupAddress address = group_address(key, port);
  const uint8_t ipv4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 239, 195, 2, 3};
  EXPECT_EQ(0, std::memcmp(address.gid.raw, ipv4, 16));
  EXPECT_EQ(address.lid, 0);
  EXPECT_EQ(address.qkey & 0x80000000, 0u);
  port.address.gid = {0xFE, 0x80};
  address = group_address(key, port);
  const uint8_t ipv6[16] = {0xFF, 0x15, 'M', 'L', 7, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(0, std::memcmp(address.gid.raw, ipv6, 16));
  port.ethernet = false;
  address = group_address(key, port);
  EXPECT_EQ(address.gid.raw[1], 0x12);
  EXPECT_GE(address.lid, 0xC000);
  EXPECT_LE(address.lid, 0xFFFE);
}

}  // namespace
}  // namespace millrace::transport
