#include <algorithm>
#include <set>

#include "base/rng.h"
#include "transport/handshake.h"
#include "transport_support.h"

/**
 * The transport on a device that fails (R14): error completions, deliveries that are reported as
 * failed, delays, empty SRQs, dead SRQ numbers, all from seeds. Whatever happens, nothing is lost,
 * nothing comes twice, all is in order.
 */
namespace millrace::transport {
namespace {

using test::connect;
using test::deadline_in;
using test::Domain;
using test::kSlow;
using test::Node;
using test::run;

MemberOptions faulty(verbs::FaultPlan plan, uint64_t seed) {
  MemberOptions options;
  options.slot_bytes = 1024;
  options.slots = 24;
  options.max_slots = 48;
  options.arena_bytes = 1 << 18;
  plan.seed = seed;
  options.faults = plan;
  return options;
}

struct Totals {
  bool rc = false;
  double errors = 0, rearms = 0, duplicates = 0, rnr = 0, bad = 0;
};

/** `members` all-to-all over shared and own lanes, each with its own plan and seed, until all is
 * delivered. */
Totals all_to_all(uint32_t members, const verbs::FaultPlan& plan, uint64_t seed, uint64_t records) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Domain domain;
  base::Rng rng(seed);
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Node*> all;
  for (uint32_t i = 0; i < members; ++i) {
    nodes.push_back(std::make_unique<Node>(domain, 700 + i, faulty(plan, seed * 100 + i)));
    if (!nodes.back()->ok()) return {};
    all.push_back(nodes.back().get());
    all.back()->may_wait(true);
    EXPECT_TRUE(all.back()->member().open_lane().ok());
  }
  std::vector<std::vector<uint32_t>> index(members, std::vector<uint32_t>(members));
  for (uint32_t i = 0; i < members; ++i) {
    for (uint32_t j = 0; j < i; ++j) std::tie(index[i][j], index[j][i]) = connect(*all[i], *all[j]);
  }
  std::vector<std::vector<std::array<uint64_t, 2>>> sent(
      members, std::vector<std::array<uint64_t, 2>>(members, {0, 0}));
  uint64_t left = records * members;
  const auto delivered = [&] {
    for (uint32_t i = 0; i < members; ++i) {
      // An RC lane that failed with a mere grant comes up again a little later.
      if (all[i]->lanes_down != all[i]->lanes_rearmed ||
          all[i]->counter(kErrorCompletions) != all[i]->counter(kRearms)) {
        return false;
      }
      for (uint32_t j = 0; j < members; ++j) {
        if (i == j) continue;
        for (uint32_t lane : {0u, 1u}) {
          if (all[j]->stream(index[j][i], 100 * j + lane).last != sent[i][j][lane]) return false;
        }
        if (all[i]->peer(index[i][j], kRowsCompleted) != all[i]->peer(index[i][j], kRowsAccepted))
          return false;
      }
    }
    return true;
  };
  const bool done = run(all, [&] {
    for (uint32_t i = 0; i < members && left > 0; ++i) {
      for (uint64_t n = rng.below(40); n > 0 && left > 0; --n, --left) {
        const uint32_t j = (i + 1 + static_cast<uint32_t>(rng.below(members - 1))) % members;
        const uint32_t lane = rng.chance(0.3) ? 1 : 0;
        all[i]->send({index[i][j]}, 100 * j + lane, 8 + static_cast<uint32_t>(rng.below(900)),
                     lane);
        ++sent[i][j][lane];
      }
      if (rng.chance(0.3)) (void)all[i]->flush();
      if (rng.chance(0.05)) (void)all[i]->member().arm();
    }
    return left == 0 && delivered();
  });
  EXPECT_TRUE(done);
  Totals totals;
  for (Node* n : all) {
    totals.errors += n->counter(kErrorCompletions);
    totals.rearms += n->counter(kRearms);
    totals.duplicates += n->counter(kDuplicates);
    totals.rnr += n->counter(kRnr);
    totals.bad += n->counter(kBadFrames);
    totals.rc |= n->rc();
    EXPECT_TRUE(n->faults.empty());
    EXPECT_EQ(n->lanes_down, n->lanes_rearmed);
    EXPECT_EQ(n->counter(kBacklogBytes), 0);
    EXPECT_EQ(n->freed(), n->head());
  }
  EXPECT_EQ(totals.bad, 0);
  EXPECT_EQ(totals.duplicates, 0) << "the sender asks before it posts again";
  return totals;
}

class Faults : public testing::TestWithParam<std::pair<const char*, verbs::FaultPlan>> {};

TEST_P(Faults, NothingLostNothingTwiceInOrder) {
  Totals sum;
  for (uint64_t seed = 1; seed <= std::max<uint64_t>(3, 25 / kSlow); ++seed) {
    const Totals t = all_to_all(2 + seed % 3, GetParam().second, seed, 2000 / kSlow);
    sum.errors += t.errors;
    sum.rearms += t.rearms;
    sum.rc |= t.rc;
    if (HasFailure()) return;
  }
  const verbs::FaultPlan& plan = GetParam().second;
  // An RC lane names no SRQ, so there is no wrong one to name.
  if (plan.error + plan.ambiguous + (sum.rc ? 0 : plan.dead_srq) > 0) {
    EXPECT_GT(sum.errors, 0);
    EXPECT_EQ(sum.errors, sum.rearms);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, Faults,
    testing::Values(std::pair("none", verbs::FaultPlan{}),
                    std::pair("errors", verbs::FaultPlan{.error = 0.05}),
                    std::pair("ambiguous", verbs::FaultPlan{.ambiguous = 0.05}),
                    std::pair("delays", verbs::FaultPlan{.delay = 0.2}),
                    std::pair("rnr", verbs::FaultPlan{.rnr = 0.2}),
                    std::pair("dead", verbs::FaultPlan{.dead_srq = 0.05}),
                    std::pair("everything", verbs::FaultPlan{.error = 0.02,
                                                             .ambiguous = 0.02,
                                                             .delay = 0.1,
                                                             .rnr = 0.1,
                                                             .dead_srq = 0.02,
                                                             .max_delay_polls = 8})),
    [](const auto& each) { return std::string(each.param.first); });

TEST(Rearm, APeerThatCanNotAnswerDoesNotKeepTheLaneDownForOthers) {
  Domain domain;
  Node a(domain, 801, faulty({.error = 0.05}, 5)), b(domain, 802), c(domain, 803);
  const auto [ab, ba] = connect(a, b);
  const auto [ac, ca] = connect(a, c);
  // Until b is held: its frames are in doubt, and it does not answer.
  const uint64_t deadline = deadline_in(60);
  bool asked = false;
  while (!asked) {
    a.send({ab}, 1, 64);
    (void)a.flush();
    (void)a.poll();
    asked = std::any_of(a.tunnel_out.begin(), a.tunnel_out.end(),
                        [ab = ab](auto& t) { return t.first == ab; });
    if (!asked) {
      (void)b.poll();
      a.carry();
      b.carry();
    }
    ASSERT_LT(base::now_ns(), deadline);
  }
  a.unwire(ab);
  a.tunnel_out.clear();
  const uint64_t got = b.records;
  for (int i = 0; i < 2000; ++i) a.send({ab, ac}, 2, 64);
  ASSERT_TRUE(run({&a, &b, &c}, [&] { return c.records == 2000; }));
  EXPECT_GT(a.counter(kRearms), 1);
  EXPECT_LE(b.records, got + 1000);
  EXPECT_GT(a.peer(ab, kPeerBacklogBytes), 0);
  // It died: out of the way.
  a.member().disconnect(ab);
  EXPECT_EQ(a.counter(kBacklogBytes), 0);
  for (int i = 0; i < 2000; ++i) a.send({ac}, 2, 64);
  ASSERT_TRUE(run({&a, &c}, [&] { return c.records == 4000; }));
}

/** Sends from `a`, whose device fails now and then, until it asks `b` to re-arm their lane. */
bool sends_until_it_asks(Node& a, Node& b, uint32_t ab) {
  const uint64_t deadline = deadline_in(60);
  while (a.tunnel_out.empty() && base::now_ns() < deadline) {
    a.send({ab}, 1, 64);
    (void)a.flush();
    (void)a.poll();
    (void)b.poll();
  }
  return !a.tunnel_out.empty();
}

TEST(Rearm, AnAskIsRepeatedWhenItsAnswerDoesNotCome) {
  Domain domain;
  Node a(domain, 811, faulty({.error = 0.1}, 6)), b(domain, 812);
  const auto [ab, ba] = connect(a, b);
  ASSERT_TRUE(sends_until_it_asks(a, b, ab));
  a.tunnel_out.clear();  // the control connection broke with the ask in it
  const uint64_t sent = a.rows_sent(ab);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.records == sent; }));
}

TEST(Rearm, AnAskThatComesTwiceIsAnsweredTwiceAndChangesNothing) {
  Domain domain;
  Node a(domain, 813, faulty({.error = 0.1}, 6)), b(domain, 814);
  const auto [ab, ba] = connect(a, b);
  ASSERT_TRUE(sends_until_it_asks(a, b, ab));
  const std::vector<uint8_t> ask = a.tunnel_out.front().second;
  a.tunnel_out.clear();
  std::vector<std::vector<uint8_t>> answers;
  for (int i = 0; i < 2; ++i) {
    b.member().tunnel(ba, ask);
    (void)b.poll();
    ASSERT_EQ(b.tunnel_out.size(), 1u);
    answers.push_back(b.tunnel_out.front().second);
    b.tunnel_out.clear();
  }
  // With RC the second answer names the target that the first one named: no other was made, which
  // would be the end of what the first answer brought up.
  EXPECT_EQ(answers[0], answers[1]);
  a.member().tunnel(ab, answers[0]);
  a.member().tunnel(ab, answers[1]);
  const uint64_t sent = a.rows_sent(ab);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.records == sent; }));
}

TEST(Rearm, APeerWhoseInboxNeverTakesAnythingIsRefusedAndTheOthersGoOn) {
  // Each frame to b fails, though it answers every ask: with XRC what it offers as its SRQ does not
  // exist, with RC nothing is ever posted to it.
  Domain domain;
  Node a(domain, 821), c(domain, 823);
  const bool rc = a.rc();
  Node b(domain, 822, rc ? faulty({.rnr = 1, .max_delay_polls = 1u << 30}, 7) : MemberOptions{});
  auto at_a = a.member().offer();
  auto at_b = b.member().offer();
  auto blob = at_b.value().bytes;
  const size_t srq_number_at = 32;
  if (!rc) {
    blob[srq_number_at] = 0xF0;
    blob[srq_number_at + 1] = 0xFF;
    blob[srq_number_at + 2] = 0xFF;
  }
  const uint32_t ab = at_a.value().peer;
  ASSERT_TRUE(a.member().connect(ab, 822, blob).ok());
  ASSERT_TRUE(b.member().connect(at_b.value().peer, 821, at_a.value().bytes).ok());
  a.wire(ab, &b, at_b.value().peer);
  b.wire(at_b.value().peer, &a, ab);
  const auto [ac, ca] = connect(a, c);
  uint64_t sent = 0;
  ASSERT_TRUE(run({&a, &b, &c}, [&] {
    if (sent < 1000) {
      a.send({ab, ac}, 1, 64);
      ++sent;
    }
    return sent == 1000 && c.records == 1000 && !a.faults.empty();
  }));
  ASSERT_EQ(a.faults.size(), 1u);
  EXPECT_EQ(a.faults[0].peer, static_cast<int32_t>(ab));
  EXPECT_EQ(a.faults[0].reason, static_cast<int32_t>(FaultReason::kRefused));
  EXPECT_EQ(a.faults[0].status, rc ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_REM_INV_REQ_ERR);
  EXPECT_GT(a.peer(ab, kPeerFramesLost), 0);
  EXPECT_EQ(a.peer(ab, kPeerBacklogBytes), 0);
  EXPECT_EQ(b.records, 0u);
  a.member().disconnect(ab);
}

TEST(Rearm, StaleAndImpossibleStatementsChangeNothing) {
  Domain domain;
  Node a(domain, 831, faulty({.error = 0.1}, 8)), b(domain, 832);
  const auto [ab, ba] = connect(a, b);
  ASSERT_TRUE(sends_until_it_asks(a, b, ab));
  const auto ask = decode_tunnel(a.tunnel_out.front().second);
  ASSERT_TRUE(ask);
  TunnelMessage lie;
  lie.type = TunnelType::kState;
  lie.sender = 832;
  lie.receiver = 831;
  lie.number = ask->number + 7;  // no such ask
  lie.last = 1;
  a.member().tunnel(ab, encode_tunnel(lie));
  lie.number = ask->number;
  lie.last = 1'000'000;  // more than was ever sent
  a.member().tunnel(ab, encode_tunnel(lie));
  (void)a.poll();
  ASSERT_EQ(a.faults.size(), 1u);
  EXPECT_EQ(a.faults[0].reason, static_cast<int32_t>(FaultReason::kTunnel));
  const uint64_t sent = a.rows_sent(ab);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.records == sent; }));
}

/** Armed, then written to: on a device that takes its time this completes while the member sleeps.
 */
TEST(Sleeping, WhatASleeperSendsIsArmedToo) {
  for (const double error : {0.0, 1.0}) {
    SCOPED_TRACE(error);
    verbs::FaultPlan late;
    late.delay = 1;
    late.error = error;
    Domain domain;
    Node a(domain, 841, faulty(late, 1)), b(domain, 842);
    ASSERT_TRUE(a.ok() && b.ok());
    const auto [ab, ba] = connect(a, b);
    const uint64_t deadline = deadline_in(60);
    while (!a.member().arm()) {
      (void)a.poll();
      (void)b.poll();
      ASSERT_LT(base::now_ns(), deadline);
    }
    a.send({ab}, 1, 64);
    EXPECT_NE(a.flush() & kUnsent, 0u) << "its completion came at once: a reason to poll";
    if (error == 0) {
      ASSERT_TRUE(run(
          {&b}, [&, from = ba] { return b.stream(from, 1).last == 1; }, 20));
    } else {
      EXPECT_GT(a.counter(kErrorCompletions), 0);
    }
  }
}

}  // namespace
}  // namespace millrace::transport
