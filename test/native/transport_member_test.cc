#include <poll.h>
#include <sys/resource.h>

#include <set>

#include "base/files.h"
#include "base/rng.h"
#include "transport/handshake.h"
#include "transport_support.h"

/** Members of one process, in one thread: what each promise of member.h comes to. */
namespace millrace::transport {
namespace {

using test::connect;
using test::deadline_in;
using test::Domain;
using test::kSlow;
using test::Node;
using test::run;

MemberOptions small() {
  MemberOptions options;
  options.slot_bytes = 1024;
  options.slots = 16;
  options.max_slots = 256;
  options.arena_bytes = 1 << 18;
  return options;
}

TEST(Member, ManySmallRecordsBothWaysInOrderNoneLost) {
  Domain domain;
  Node a(domain, 101), b(domain, 102);
  ASSERT_TRUE(a.ok() && b.ok());
  const auto [ab, ba] = connect(a, b);
  const uint64_t total = 1'000'000 / kSlow;
  uint64_t sent = 0;
  const uint64_t deadline = deadline_in(120);
  while (a.stream(ab, 1).last < total || b.stream(ba, 1).last < total) {
    for (int i = 0; i < 500 && sent < total; ++i, ++sent) {
      a.send({ab}, 1, 64);
      b.send({ba}, 1, 64);
    }
    for (Node* n : {&a, &b}) {
      (void)n->flush();
      ASSERT_EQ(n->freed(), n->head()) << "the software device has completed all that was posted";
      while (n->poll() > 0) {
      }
      n->carry();
    }
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_LT(base::now_ns(), deadline);
  }
  EXPECT_EQ(a.stream(ab, 1).last, total);
  EXPECT_EQ(b.stream(ba, 1).last, total);
  EXPECT_EQ(a.counter(kErrorCompletions), 0);
  EXPECT_EQ(a.counter(kRnr), 0);
  EXPECT_EQ(a.counter(kDuplicates), 0);
  EXPECT_EQ(a.counter(kBadFrames), 0);
  EXPECT_TRUE(a.faults.empty());
  EXPECT_EQ(a.peer(ab, kRowsAccepted), a.peer(ab, kRowsCompleted));
  EXPECT_EQ(static_cast<uint64_t>(a.peer(ab, kRowsAccepted)), a.rows_sent(ab));
}

TEST(Member, LingeringFindsWhatLandsTakesNothingAndEndsWithItsTime) {
  Domain domain;
  Node a(domain, 104), b(domain, 105);
  ASSERT_TRUE(a.ok() && b.ok());
  const auto [ab, ba] = connect(a, b);
  ASSERT_TRUE(run({&a, &b}, [] { return true; }));
  while (b.poll() > 0) {
  }
  EXPECT_NE(b.member().linger(50), Lingered::kSomething);
  a.send({ab}, 1, 64);
  (void)a.flush();
  EXPECT_EQ(b.member().linger(1'000'000), Lingered::kSomething);
  EXPECT_EQ(b.member().linger(1'000'000), Lingered::kSomething) << "it is still there";
  EXPECT_GT(b.poll(), 0u);
  EXPECT_EQ(b.stream(ba, 1).last, 1u);
  // While armed the descriptor tells; lingering would take the completion away from it.
  while (!b.member().arm()) (void)b.poll();
  EXPECT_EQ(b.member().linger(1'000'000), Lingered::kSomething);
  a.send({ab}, 1, 64);
  (void)a.flush();
  pollfd ready{b.member().fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 10'000), 1);
  EXPECT_GT(b.poll(), 0u);
  EXPECT_EQ(b.stream(ba, 1).last, 2u);
}

TEST(Member, FanOutGathersOncePerRecord) {
  Domain domain;
  std::vector<std::unique_ptr<Node>> nodes;
  for (uint64_t i = 0; i < 4; ++i) nodes.push_back(std::make_unique<Node>(domain, 110 + i));
  std::vector<uint32_t> all;
  std::vector<uint32_t> back;
  for (size_t i = 1; i < 4; ++i) {
    const auto [there, here] = connect(*nodes[0], *nodes[i]);
    all.push_back(there);
    back.push_back(here);
  }
  base::Rng rng(3);
  const uint64_t total = 50'000 / kSlow;
  const uint64_t deadline = deadline_in(60);
  uint64_t each[3] = {};
  for (uint64_t i = 0; i < total; ++i) {
    // Channel 1 to all, the others to one each: runs that are not adjacent.
    const uint32_t channel = static_cast<uint32_t>(rng.below(4));
    if (channel == 0) {
      nodes[0]->send(all, 1, static_cast<uint32_t>(rng.below(300)));
      for (uint64_t& n : each) ++n;
    } else {
      nodes[0]->send({all[channel - 1]}, 10 + channel, static_cast<uint32_t>(rng.below(300)));
      ++each[channel - 1];
    }
    if (i % 300 == 0) {
      (void)nodes[0]->flush();
      for (auto& n : nodes) (void)n->poll();
    }
    ASSERT_FALSE(HasFatalFailure());
  }
  (void)nodes[0]->flush();
  ASSERT_TRUE(run({nodes[0].get(), nodes[1].get(), nodes[2].get(), nodes[3].get()}, [&] {
    return nodes[1]->records == each[0] && nodes[2]->records == each[1] &&
           nodes[3]->records == each[2];
  }));
  ASSERT_LT(base::now_ns(), deadline);
  for (uint32_t peer : all)
    EXPECT_EQ(nodes[0]->peer(peer, kRowsAccepted), nodes[0]->peer(peer, kRowsCompleted));
}

TEST(Member, EightMembersHoldTwoQueuePairsEachOrTwoForEachOther) {
  Domain domain;
  std::vector<std::unique_ptr<Node>> nodes;
  for (uint64_t i = 0; i < 8; ++i)
    nodes.push_back(std::make_unique<Node>(domain, 120 + i, small()));
  std::vector<std::vector<uint32_t>> peers(8);
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto [there, here] = connect(*nodes[i], *nodes[j]);
      peers[i].push_back(there);
      peers[j].push_back(here);
    }
  }
  std::vector<Node*> all;
  for (auto& n : nodes) all.push_back(n.get());
  for (size_t i = 0; i < 8; ++i) {
    for (int k = 0; k < 100; ++k) nodes[i]->send(peers[i], 7, 40);
  }
  ASSERT_TRUE(run(all, [&] {
    return std::all_of(all.begin(), all.end(), [](Node* n) { return n->records == 700; });
  }));
  for (Node* n : all) {
    const Resources r = n->member().resources();
    EXPECT_EQ(r.qps, n->rc() ? 2 * 7u : 2u);
    EXPECT_EQ(r.lanes, 1u);
    EXPECT_EQ(r.srqs, 1u);
    EXPECT_EQ(r.xrcds, n->rc() ? 0u : 1u);
    EXPECT_EQ(r.cqs, n->rc() ? 1 + 7u : 2u);
    EXPECT_EQ(r.device, n->rc() && !test::immediate() ? test::device() : "soft0");
    EXPECT_EQ(r.peers, 7u);
    EXPECT_EQ(r.backlog_bytes, 0u);
  }
}

TEST(Member, AReceiverThatDoesNotPollNeverHoldsTheArena) {
  Domain domain;
  Node a(domain, 131, small()), b(domain, 132, small()), c(domain, 133, small());
  const auto [ab, ba] = connect(a, b);
  const auto [ac, ca] = connect(a, c);
  const uint64_t total = 20'000 / kSlow;  // several times the arena
  for (uint64_t i = 0; i < total; ++i) {
    a.send({ab, ac}, 1, 64);
    if (i % 50 != 49) continue;
    const uint32_t bits = a.flush();
    ASSERT_EQ(a.freed(), a.head());
    if (i > total / 2) {
      ASSERT_TRUE(bits & kUnsent);
    }
    while (c.poll() > 0) {  // c is not disturbed by b
    }
    (void)a.poll();
    a.carry();
    c.carry();
  }
  EXPECT_GT(a.peer(ab, kPeerBacklogBytes), 0);
  EXPECT_GT(a.counter(kCreditStalls), 0);
  EXPECT_EQ(a.counter(kWaitsSent) > 0, true);
  EXPECT_LT(a.peer(ab, kRowsCompleted), a.peer(ab, kRowsAccepted));
  ASSERT_TRUE(run({&a, &c}, [&] { return c.stream(ca, 1).last == total; }));
  EXPECT_EQ(b.records, 0u);
  // Now it polls, and everything comes.
  ASSERT_TRUE(run({&a, &b, &c}, [&] { return b.stream(ba, 1).last == total && a.drained > 0; }));
  EXPECT_EQ(a.peer(ab, kPeerBacklogBytes), 0);
  EXPECT_EQ(a.counter(kBacklogBytes), 0);
  EXPECT_EQ(a.peer(ab, kRowsCompleted), a.peer(ab, kRowsAccepted));
  EXPECT_EQ(a.counter(kRnr), 0);
}

TEST(Member, BothStarvedWithTheFloorOnlyBothFinish) {
  // Model d2: no pool at all, each side fills the other's floor before anybody polls.
  Domain domain;
  MemberOptions options = small();
  options.slots = options.max_slots = 3;
  Node a(domain, 141, options), b(domain, 142, options);
  const auto [ab, ba] = connect(a, b);
  for (int i = 0; i < 5000; ++i) {
    a.send({ab}, 1, 200);
    b.send({ba}, 1, 200);
  }
  (void)a.flush();
  (void)b.flush();
  EXPECT_GT(a.counter(kBacklogBytes), 0);
  EXPECT_GT(b.counter(kBacklogBytes), 0);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.records == 5000 && b.records == 5000; }));
  EXPECT_GT(a.counter(kWaitsSent), 0);
  EXPECT_EQ(a.counter(kRnr), 0);
  EXPECT_EQ(a.counter(kErrorCompletions), 0);
  EXPECT_EQ(a.member().resources().slots, 3u);
}

TEST(Member, ABusySenderIsLentThePoolAndGivesItBackForAnother) {
  Domain domain;
  MemberOptions options = small();
  options.slots = options.max_slots = 64;
  Node r(domain, 151, options), a(domain, 152, options), b(domain, 153, options);
  const auto [ar, ra] = connect(a, r);
  const auto [br, rb] = connect(b, r);
  const auto burst = [&](Node& from, uint32_t peer, Node& idle, uint32_t at_r, uint64_t records) {
    const uint64_t before = r.stream(at_r, 1).last;
    const uint64_t deadline = deadline_in(60);
    for (uint64_t sent = 0; r.stream(at_r, 1).last < before + records;) {
      for (int i = 0; i < 200 && sent < records; ++i, ++sent) from.send({peer}, 1, 400);
      (void)from.flush();
      for (Node* n : {&r, &from, &idle}) {
        (void)n->poll();
        n->carry();
      }
      ASSERT_LT(base::now_ns(), deadline);
      ASSERT_FALSE(HasFatalFailure());
    }
  };
  burst(a, ar, b, ra, 20'000 / kSlow);
  const double lent_a = r.peer(ra, kPeerGranted);
  EXPECT_GT(lent_a, 20) << "most of the pool";
  EXPECT_EQ(r.peer(rb, kPeerGranted), 2) << "the floor is for ever";
  burst(b, br, a, rb, 20'000 / kSlow);
  EXPECT_GT(r.counter(kRecalls), 0);
  EXPECT_LE(r.peer(ra, kPeerGranted), lent_a / 2);
  EXPECT_GT(r.peer(rb, kPeerGranted), 10);
  // And back again: nothing was lost on the way.
  burst(a, ar, b, ra, 20'000 / kSlow);
  EXPECT_GT(r.peer(ra, kPeerGranted), 10);
  EXPECT_EQ(a.counter(kRnr) + b.counter(kRnr), 0);
}

TEST(Member, WhatIsAskedBackOfASleepingSenderComesBack) {
  // The idle one is asleep on its descriptor: a WRITE alone would not wake it, the control frame
  // does.
  Domain domain;
  MemberOptions options = small();
  options.slots = options.max_slots = 32;
  Node r(domain, 156, options), a(domain, 157, options), b(domain, 158, options);
  const auto [ar, ra] = connect(a, r);
  const auto [br, rb] = connect(b, r);
  for (int i = 0; i < 2000; ++i) a.send({ar}, 1, 400);
  ASSERT_TRUE(run({&r, &a}, [&] { return r.stream(ra, 1).last == 2000; }));
  while (a.poll() > 0 || !a.member().arm()) {
  }
  ASSERT_GT(r.peer(ra, kPeerGranted), 10);
  for (int i = 0; i < 2000; ++i) b.send({br}, 1, 400);
  uint64_t woken = 0;
  ASSERT_TRUE(run({&r, &b}, [&] {
    pollfd p{a.member().fd(), POLLIN, 0};
    if (::poll(&p, 1, 0) == 1) {
      ++woken;
      while (a.poll() > 0 || !a.member().arm()) {
      }
    }
    return r.stream(rb, 1).last == 2000 && woken > 0 && r.peer(ra, kPeerGranted) == 2;
  }));
  EXPECT_GT(r.counter(kRecalls), 0);
}

TEST(Member, OwnLanesKeepTheirOwnOrderAndRowsCompleteAsAPrefix) {
  Domain domain;
  Node a(domain, 161, small()), b(domain, 162, small());
  const auto [ab, ba] = connect(a, b);
  auto lane = a.member().open_lane();
  ASSERT_TRUE(lane.ok());
  EXPECT_EQ(lane.value(), 1u);
  // With RC a QP comes with the first frame.
  EXPECT_EQ(a.member().resources().qps, a.rc() ? 2u : 4u);
  base::Rng rng(5);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3000; ++i) {
      const uint32_t which = static_cast<uint32_t>(rng.below(2));
      a.send({ab}, which, 50, which);
      if (i % 100 == 0) {
        (void)a.flush();
        EXPECT_LE(a.peer(ab, kRowsCompleted), a.peer(ab, kRowsAccepted));
      }
    }
    ASSERT_TRUE(
        run({&a, &b}, [&] { return b.records == 3000u * static_cast<uint32_t>(round + 1); }));
    EXPECT_EQ(a.peer(ab, kRowsCompleted), a.peer(ab, kRowsAccepted));
    // Closed and opened again under the same number: the sequences go on.
    ASSERT_TRUE(a.member().close_lane(1).ok());
    EXPECT_EQ(a.member().resources().qps, 2u);
    EXPECT_EQ(a.member().resources().lanes, 1u);
    ASSERT_EQ(a.member().open_lane().value(), 1u);
  }
  EXPECT_FALSE(a.member().close_lane(0).ok());
  EXPECT_FALSE(a.member().close_lane(9).ok());
  EXPECT_EQ(b.counter(kBadFrames), 0);
  EXPECT_EQ(b.counter(kDuplicates), 0);
}

TEST(Member, ALaneClosesOnlyWhenWhatItAcceptedIsSent) {
  Domain domain;
  Node a(domain, 166, small()), b(domain, 167, small());
  const auto [ab, ba] = connect(a, b);
  ASSERT_EQ(a.member().open_lane().value(), 1u);
  for (int i = 0; i < 2000; ++i) a.send({ab}, 1, 100, 1);
  (void)a.flush();
  ASSERT_GT(a.counter(kBacklogBytes), 0);
  ASSERT_TRUE(a.member().close_lane(1).ok());
  EXPECT_EQ(a.member().resources().lanes, 2u);
  ASSERT_TRUE(
      run({&a, &b}, [&] { return b.records == 2000 && a.member().resources().lanes == 1; }));
}

TEST(Member, LanesRunOut) {
  Domain domain;
  Node a(domain, 168, small());
  for (uint32_t i = 1; i < kMaxLanes; ++i) ASSERT_TRUE(a.member().open_lane().ok());
  const auto one_more = a.member().open_lane();
  ASSERT_FALSE(one_more.ok());
  EXPECT_EQ(one_more.status().code, ENOBUFS);  // not EMFILE: no descriptor is what lacks
  EXPECT_EQ(a.member().resources().lanes, kMaxLanes);
  EXPECT_EQ(a.member().resources().qps, a.rc() ? 0u : 2 * kMaxLanes);
}

TEST(Member, WhatComesBeforeConnectIsDeliveredAfterIt) {
  // The taker of an offer may send at once, while its own offer is still on the way.
  Domain domain;
  Node a(domain, 171), b(domain, 172);
  auto at_a = a.member().offer();
  auto at_b = b.member().offer();
  ASSERT_TRUE(b.member().connect(at_b.value().peer, 171, at_a.value().bytes).ok());
  b.wire(at_b.value().peer, &a, at_a.value().peer);
  for (int i = 0; i < 100; ++i) b.send({at_b.value().peer}, 1, 30000 / 100);
  (void)b.flush();
  while (a.poll() > 0) {
  }
  EXPECT_EQ(a.records, 0u);
  ASSERT_TRUE(a.member().connect(at_a.value().peer, 172, at_b.value().bytes).ok());
  a.wire(at_a.value().peer, &b, at_b.value().peer);
  EXPECT_FALSE(a.member().arm()) << "something is waiting to be polled";
  ASSERT_TRUE(run({&a, &b}, [&] { return a.records == 100; }));
  EXPECT_EQ(a.counter(kBadFrames), 0);
}

TEST(Member, DisconnectedPeersGiveTheirSlotsBackAndLateFramesAreDropped) {
  Domain domain;
  MemberOptions options = small();
  options.slots = options.max_slots = 12;
  Node r(domain, 181, options);
  // More peers one after the other than the inbox has floors for.
  for (uint64_t i = 0; i < 50; ++i) {
    Node s(domain, 1000 + i, small());
    const auto [sr, rs] = connect(s, r);
    for (int k = 0; k < 200; ++k) s.send({sr}, 1, 100);
    (void)s.flush();
    const uint64_t before = r.records;
    if (i % 2 == 0) {
      ASSERT_TRUE(run({&r, &s}, [&] { return r.records == before + 200; }));
    }
    r.member().disconnect(rs);
    r.unwire(rs);
    r.forget_streams();
    for (int k = 0; k < 200; ++k) s.send({sr}, 1, 100);
    (void)s.flush();  // late: it does not know yet
    while (r.poll() > 0) {
    }
    r.carry();
    EXPECT_EQ(r.records, before + (i % 2 == 0 ? 200 : 0));
    EXPECT_EQ(r.member().resources().peers, 0u);
  }
  EXPECT_GT(r.counter(kDuplicates), 0);
  EXPECT_EQ(r.counter(kBadFrames), 0);
  EXPECT_EQ(r.member().resources().slots, 12u);
}

TEST(Member, DisconnectDropsTheBacklogAndTheOthersGoOn) {
  Domain domain;
  Node a(domain, 186, small()), b(domain, 187, small()), c(domain, 188, small());
  const auto [ab, ba] = connect(a, b);
  const auto [ac, ca] = connect(a, c);
  for (int i = 0; i < 1000; ++i) a.send({ab, ac}, 1, 100);
  (void)a.flush();
  EXPECT_GT(a.peer(ab, kPeerBacklogBytes), 0);
  const double both = a.counter(kBacklogBytes);
  a.member().disconnect(ab);
  EXPECT_LT(a.counter(kBacklogBytes), both);
  a.send({ab, ac}, 1, 100);  // rows for who is gone are ignored
  ASSERT_TRUE(run({&a, &c}, [&] { return c.records == 1001; }));
  EXPECT_EQ(a.counter(kBacklogBytes), 0);
  a.member().disconnect(ab);
  a.member().disconnect(9999);
  EXPECT_EQ(a.member().resources().peers, 1u);
}

TEST(Member, ATargetWithoutRoomConsumesNothing) {
  Domain domain;
  Node a(domain, 191), b(domain, 192);
  const auto [ab, ba] = connect(a, b);
  b.target_room_ = 256;
  for (int i = 0; i < 500; ++i) a.send({ab}, 1, 100);
  (void)a.flush();
  (void)b.poll();
  EXPECT_EQ(b.records, 0u);
  EXPECT_EQ(b.need_room, 1u);
  EXPECT_GT(b.target_room_, 256u);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.records == 500; }));
}

TEST(Member, ManyPiecesAreGatheredOrBounced) {
  Domain domain;
  Node a(domain, 196), b(domain, 197), c(domain, 198);
  const auto [ab, ba] = connect(a, b);
  const auto [ac, ca] = connect(a, c);
  // Turn and turn about: for each peer the pieces of the arena are not adjacent.
  for (uint32_t pieces : {1u, 14u, 15u, 16u, 17u, 100u, 1000u}) {
    const uint64_t before_b = b.records;
    const uint64_t before_c = c.records;
    for (uint32_t i = 0; i < pieces; ++i) {
      a.send({ab}, 1, 40);
      a.send({ac}, 2, 24);
    }
    ASSERT_TRUE(run({&a, &b, &c}, [&] {
      return b.records == before_b + pieces && c.records == before_c + pieces;
    }));
    EXPECT_EQ(a.peer(ab, kRowsCompleted), a.peer(ab, kRowsAccepted));
  }
}

TEST(Member, RowsThatAreNotValidAreNamedAndCostNothing) {
  Domain domain;
  Node a(domain, 201, small()), b(domain, 202, small());
  const auto [ab, ba] = connect(a, b);
  const int32_t peer = static_cast<int32_t>(ab);
  a.merge_rows(false);
  a.send({ab}, 1, 64);
  a.raw_row(peer, -8, 96, 0);             // in front of the arena
  a.raw_row(peer, (1 << 18) - 8, 96, 0);  // over its end
  a.raw_row(peer, 4, 96, 0);              // not aligned
  a.raw_row(peer, 0, 0, 0);               // nothing
  a.raw_row(peer, 0, 88, 0);              // cuts a record
  a.raw_row(peer, 0, 96, 5);              // no such lane
  a.raw_row(77, 0, 96, 0);                // no such peer
  a.send({ab}, 1, 1024 - 64 - 32);        // the largest that there is
  a.send({ab}, 2, 1024 - 64 - 32 + 1);    // too large
  a.send({ab}, 1, 8);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.records == 3; }));
  (void)a.poll();
  ASSERT_EQ(a.faults.size(), 7u);
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(a.faults[i].reason, static_cast<int32_t>(FaultReason::kRow));
  EXPECT_EQ(a.faults[6].reason, static_cast<int32_t>(FaultReason::kTooLarge));
  EXPECT_EQ(a.peer(ab, kRowsCompleted), a.peer(ab, kRowsAccepted));
  EXPECT_EQ(a.peer(ab, kPeerFramesLost), 7);
}

TEST(Member, TheArenaIsFreedAsRowsEndWhenTheUserDoesNotSay) {
  Domain domain;
  Node a(domain, 206, small()), b(domain, 207, small());
  const auto [ab, ba] = connect(a, b);
  const uint32_t size = 1 << 18;
  uint64_t position = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t bytes = 32 + 96 * (1 + static_cast<uint32_t>(i) % 3);
    if (position % size + bytes > size) position += size - position % size;
    RecordHeader h{};
    h.payload_bytes = bytes - 32;
    h.channel = 1;
    h.sequence_low = static_cast<uint32_t>(i) + 1;
    uint8_t* const at = a.member().buffers().arena.data() + position % size;
    std::memcpy(at, &h, sizeof(h));
    std::memset(at + 32, i + 1, bytes - 32);
    a.raw_row(static_cast<int32_t>(ab), static_cast<int32_t>(position % size),
              static_cast<int32_t>(bytes), 0);
    position += bytes;
    a.flush_rows();
    ASSERT_EQ(a.freed(), position);
    (void)b.poll();
    (void)a.poll();
  }
  ASSERT_TRUE(run({&a, &b}, [&] { return b.records == 20'000; }));
}

TEST(Member, ArmThenReadable) {
  Domain domain;
  Node a(domain, 211), b(domain, 212);
  const auto [ab, ba] = connect(a, b);
  const auto readable = [](Node& n, int ms) {
    pollfd p{n.member().fd(), POLLIN, 0};
    return ::poll(&p, 1, ms) == 1;
  };
  while (!b.member().arm()) (void)b.poll();
  EXPECT_FALSE(readable(b, 0));
  for (int i = 0; i < 200; ++i) {
    a.send({ab}, 1, 64);
    (void)a.flush();
    ASSERT_TRUE(readable(b, 10'000)) << i;
    const uint64_t before = b.records;
    while (b.poll() > 0) {
    }
    ASSERT_EQ(b.records, before + 1);
    while (!b.member().arm()) (void)b.poll();
    ASSERT_FALSE(readable(b, 0)) << i;
    (void)a.poll();
  }
  // What is there already is said by arm() itself.
  a.send({ab}, 1, 64);
  (void)a.flush();
  while (b.poll() > 0) {
  }
  a.send({ab}, 1, 64);
  (void)a.flush();
  EXPECT_FALSE(b.member().arm());
  EXPECT_GT(b.counter(kWakeups), 0);
}

TEST(Member, AStarvedSleeperIsWoken) {
  Domain domain;
  MemberOptions options = small();
  options.slots = options.max_slots = 3;
  Node a(domain, 216, options), b(domain, 217, options);
  const auto [ab, ba] = connect(a, b);
  const uint32_t total = 3000 / kSlow;
  for (uint32_t i = 0; i < total; ++i) a.send({ab}, 1, 400);
  (void)a.flush();
  const uint64_t deadline = deadline_in(60);
  bool asleep_a = false, asleep_b = false;
  // Both only ever act when their descriptor says so.
  while (b.records < total) {
    const auto turn = [](Node& n, bool* asleep) {
      if (*asleep) {
        pollfd p{n.member().fd(), POLLIN, 0};
        if (::poll(&p, 1, 0) != 1) return;
        *asleep = false;
      }
      while (n.poll() > 0) {
      }
      *asleep = n.member().arm();
    };
    turn(a, &asleep_a);
    turn(b, &asleep_b);
    ASSERT_LT(base::now_ns(), deadline)
        << "asleep: " << asleep_a << asleep_b << " records " << b.records;
  }
  EXPECT_GT(a.counter(kWakeups), 0);
}

TEST(Member, CloseLeavesNoFilesAndBuffersStay) {
  Domain domain;
  Buffers kept;
  {
    MemberOptions options = small();
    options.max_slots = options.slots;
    Node a(domain, 221, options), b(domain, 222, options);
    const auto [ab, ba] = connect(a, b);
    EXPECT_EQ(domain.files(), 4u) << "a table and an extent each";
    for (int i = 0; i < 100; ++i) a.send({ab}, 1, 64);
    (void)a.flush();
    kept = a.member().buffers();
    a.member().close();
    a.member().close();
    EXPECT_EQ(domain.files(), 2u);
    // Closed: every call does nothing.
    EXPECT_EQ(a.member().flush(1), 0u);
    EXPECT_EQ(a.poll(), 0u);
    EXPECT_TRUE(a.member().arm());
    EXPECT_EQ(a.member().fd(), -1);
    EXPECT_FALSE(a.member().offer().ok());
    EXPECT_FALSE(a.member().open_lane().ok());
    EXPECT_FALSE(a.member().close_lane(1).ok());
    a.member().disconnect(ab);
    a.member().tunnel(ab, {});
    EXPECT_EQ(a.member().resources().qps, 0u);
    EXPECT_EQ(a.member().buffers().arena.data(), kept.arena.data());
    // What it had sent is there.
    while (b.poll() > 0) {
    }
    EXPECT_GT(b.records, 0u);
  }
  EXPECT_EQ(domain.files(), 0u);
  kept.arena[0] = 1;  // still mapped
  kept.counters[0] = 1;
}

TEST(Member, CreateSaysWhatIsWrong) {
  Domain domain;
  const auto code = [&domain](auto change) {
    MemberOptions options = small();
    options.folder = domain.folder();
    options.incarnation = 1;
    change(&options);
    auto created = Member::create(options);
    EXPECT_FALSE(created.ok());
    EXPECT_STRNE(created.status().what, "");
    return created.status().code;
  };
  EXPECT_EQ(code([](MemberOptions* o) { o->folder += "/missing"; }), ENOENT);
  EXPECT_EQ(code([](MemberOptions* o) { o->device = "mlx9_7"; }), ENODEV);
  EXPECT_EQ(code([](MemberOptions* o) { o->incarnation = 0; }), EINVAL);
  EXPECT_EQ(code([](MemberOptions* o) { o->slot_bytes = 1001; }), EINVAL);
  EXPECT_EQ(code([](MemberOptions* o) { o->slots = 2; }), EINVAL);
  EXPECT_EQ(code([](MemberOptions* o) { o->max_slots = 4; }), EINVAL);
  EXPECT_EQ(code([](MemberOptions* o) { o->arena_bytes = 5000; }), EINVAL);
  EXPECT_EQ(code([](MemberOptions* o) { o->faults = verbs::FaultPlan{.error = 2.0}; }), EINVAL);
  EXPECT_EQ(domain.files(), 0u);
}

#ifdef MILLRACE_STEPS
TEST(Member, AFullSharedMemoryIsAnErrorWithTheRemedy) {
  Domain domain;
  // Each reservation in turn fails: nothing may be left behind, and the message says what to do.
  for (int nth = 1; nth < 40; ++nth) {
    base::fail_reserve(nth, ENOSPC);
    MemberOptions options = small();
    options.folder = domain.folder();
    options.incarnation = 300 + static_cast<uint64_t>(nth);
    auto created = Member::create(options);
    base::fail_reserve(0, 0);
    if (created.ok()) {
      ASSERT_GT(nth, 2);
      return;  // all of them have been tried
    }
    EXPECT_EQ(created.status().code, ENOSPC);
    EXPECT_NE(created.status().detail.find("shm-size"), std::string::npos)
        << created.status().detail;
    EXPECT_EQ(domain.files(), 0u);
  }
  FAIL() << "it never succeeds";
}
#endif

TEST(Member, AnInboxThatIsFullyPromisedTakesNoMorePeers) {
  Domain domain;
  MemberOptions options = small();
  options.slots = 3;
  options.max_slots = 7;
  Node a(domain, 231, options);
  ASSERT_TRUE(a.member().offer().ok());
  auto second = a.member().offer();
  ASSERT_TRUE(second.ok()) << "it grows";
  EXPECT_EQ(a.member().resources().slots, 7u);
  auto third = a.member().offer();
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().code, ENOBUFS);  // not ENOSPC: shared memory has room
  EXPECT_NE(third.status().detail.find("maxSlots"), std::string::npos);
  // A reservation that came to nothing gives its slots back.
  a.member().disconnect(second.value().peer);
  EXPECT_TRUE(a.member().offer().ok());
}

TEST(Member, ConnectRefusesWhatItCanNotUse) {
  Domain domain;
  Node a(domain, 241, small()), b(domain, 242, small());
  auto at_a = a.member().offer();
  auto at_b = b.member().offer();
  const auto& good = at_b.value().bytes;
  const uint32_t peer = at_a.value().peer;
  auto bad = good;
  bad[0] ^= 1;
  EXPECT_EQ(a.member().connect(peer, 242, bad).code, EPROTO);
  EXPECT_EQ(a.member().connect(peer, 242, {good.data(), 10}).code, EPROTO);
  EXPECT_EQ(a.member().connect(peer, 243, good).code, EPROTO) << "another incarnation's";
  EXPECT_EQ(a.member().connect(peer, 241, at_a.value().bytes).code, EPROTO) << "its own";
  EXPECT_EQ(a.member().connect(peer + 1, 242, good).code, EINVAL);
  EXPECT_EQ(a.member().connect(5000, 242, good).code, EINVAL);
  // Devices that lanes can't lead between: of the other medium, with lanes of the other kind, with
  // another link layer.
  const auto other = [&](auto change) {
    OfferData data = *decode_offer(good);
    change(&data);
    return a.member().connect(peer, 242, encode_offer(data));
  };
  const base::Status medium = other([](OfferData* o) {
    o->medium = o->medium == Medium::kSoft ? Medium::kAdapters : Medium::kSoft;
  });
  EXPECT_EQ(medium.code, EPROTO);
  EXPECT_NE(medium.detail.find("`device`"), std::string::npos) << medium.detail;
  const base::Status kind = other(
      [](OfferData* o) { o->lanes = o->lanes == LaneKind::kXrc ? LaneKind::kRc : LaneKind::kXrc; });
  EXPECT_EQ(kind.code, EPROTO);
  EXPECT_NE(kind.detail.find("XRC"), std::string::npos) << kind.detail;
  EXPECT_EQ(other([](OfferData* o) { o->address.ethernet = !o->address.ethernet; }).code, EPROTO);
  EXPECT_TRUE(a.member().connect(peer, 242, good).ok());
  EXPECT_EQ(a.member().connect(peer, 242, good).code, EEXIST);
  auto another = a.member().offer();
  EXPECT_EQ(a.member().connect(another.value().peer, 242, good).code, EEXIST);
}

TEST(Member, TunnelMessagesThatMakeNoSenseAreFaultsOfThatPeer) {
  Domain domain;
  Node a(domain, 251, small()), b(domain, 252, small());
  const auto [ab, ba] = connect(a, b);
  const std::vector<uint8_t> rubbish(40, 0xEE);
  a.member().tunnel(ab, rubbish);
  a.member().tunnel(ab, {});
  a.member().tunnel(ab + 1, rubbish);  // of nobody: ignored
  (void)a.poll();
  ASSERT_EQ(a.faults.size(), 2u);
  EXPECT_EQ(a.faults[0].reason, static_cast<int32_t>(FaultReason::kTunnel));
  // And everything goes on.
  a.send({ab}, 1, 64);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.records == 1; }));
}

}  // namespace
}  // namespace millrace::transport
