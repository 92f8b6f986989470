#include "transport/credits.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "base/rng.h"

/**
 * Random walks of the real bookkeeping over everything that models d1 to d3 allow: grants that
 * arrive late and out of order, recalls, death of a sender, both sides starved, a lane that fails
 * anywhere. In each step the invariant of the model is checked (I2: credits never exceed what is
 * posted), and at the end, where nothing can move any more, the model's conditions for being
 * finished.
 */
namespace millrace::transport {
namespace {

// ---- d1 with the failing lane of d3: one receiver, several senders
// -----------------------------------------------------

struct Frame {
  uint64_t sequence;
  bool wait;
  uint32_t returned, recall_answered;
};

struct Sender {
  SendCredits credits;
  GrantBook book;               // the receiver's
  std::deque<Frame> wire;       // sent, not landed
  std::deque<Frame> landed;     // in a slot
  uint64_t next = 1, last = 0;  // sender's next sequence; receiver's last
  uint64_t acked = 0;
  std::vector<uint64_t> written;  // grants on their way, which arrive in any order
  uint32_t recall_written = 0;
  uint32_t to_send = 0;
  bool owes_answer = false;
  bool dead = false, reaped = false;
  bool broken = false;  // lane down
  bool owes_statement = false;
};

class Receiver {
 public:
  Receiver(uint64_t seed, uint32_t senders, uint32_t slots)
      : rng_(seed), slots_(slots), senders_(senders) {
    pool_ = slots - senders * kFloorSlots;
    posted_ = slots;
    for (Sender& s : senders_) {
      s.book.reset();
      s.credits.reset(s.book.granted());
      s.to_send = 40;
    }
  }

  void walk(int steps) {
    for (int i = 0; i < steps; ++i) {
      step(senders_[rng_.below(senders_.size())]);
      if (testing::Test::HasFatalFailure()) return;
    }
    // Then let everything that can move, move.
    for (int i = 0; i < 200'000; ++i) {
      bool moved = false;
      for (Sender& s : senders_) moved |= settle(s);
      if (!moved) break;
    }
    finished();
  }

 private:
  void invariant() {
    uint64_t promised = 0;
    uint64_t shares = 0;
    for (const Sender& s : senders_) {
      if (!s.reaped) shares += s.book.share();
      if (!s.dead) promised += s.credits.available();
    }
    ASSERT_LE(promised, posted_);
    ASSERT_EQ(shares + pool_, slots_);
  }

  void send(Sender& s) {
    const bool wait = s.credits.take();
    s.wire.push_back({s.next++, wait, s.credits.returned(), s.credits.recall_answered()});
    s.owes_statement = false;
  }
  void land(Sender& s) {
    ASSERT_GT(posted_, 0u);
    --posted_;
    s.landed.push_back(s.wire.front());
    s.wire.pop_front();
  }
  void demultiplex(Sender& s) {
    const Frame f = s.landed.front();
    s.landed.pop_front();
    ++posted_;
    ASSERT_EQ(f.sequence, s.last + 1);
    s.last = f.sequence;
    ASSERT_GT(s.book.outstanding(), 0u);
    s.book.consumed();
    uint32_t back = 0;
    ASSERT_TRUE(s.book.stated(f.returned, f.recall_answered, &back));
    pool_ += back;
    if (!f.wait) return;
    s.owes_answer = true;
    const uint32_t n = std::min(pool_, kUsableFloor + s.book.lent());
    pool_ -= n;
    s.book.lend(n);
  }
  void answer(Sender& s) {
    // The answer carries the grant and needs no credit: its slot at the sender is not modelled here
    // but in d2.
    s.owes_answer = false;
    ASSERT_TRUE(s.credits.see(s.book.granted()));
    s.credits.answered();
  }
  void rearm(Sender& s) {
    // R14: everything that landed is demultiplexed, then the last sequence is stated.
    while (!s.landed.empty()) demultiplex(s);
    uint32_t lost = 0;
    bool wait = false;
    for (const Frame& f : lost_) {
      if (f.sequence <= s.last) continue;
      ++lost;
      wait |= f.wait;
    }
    lost_.clear();
    ASSERT_EQ(s.next - 1 - s.last, lost);
    s.credits.lost(lost, wait);
    s.to_send += lost;
    s.next = s.last + 1;
    s.broken = false;
    s.owes_statement = true;
  }

  void step(Sender& s) {
    switch (rng_.below(12)) {
      case 0:
      case 1:
        if (!s.dead && !s.broken && s.to_send > 0 && s.credits.may_send()) {
          --s.to_send;
          send(s);
        }
        break;
      case 2:
        if (!s.wire.empty()) land(s);
        break;
      case 3:
        if (!s.landed.empty() && !s.reaped) demultiplex(s);
        break;
      case 4:
        if (!s.dead) s.written.push_back(s.book.granted());
        break;
      case 5:
        if (!s.written.empty()) {
          const size_t which = rng_.below(s.written.size());
          ASSERT_TRUE(s.credits.see(s.written[which]));
          s.written.erase(s.written.begin() + static_cast<std::ptrdiff_t>(which));
        }
        break;
      case 6:
        if (s.owes_answer && !s.dead) answer(s);
        break;
      case 7:
        if (!s.reaped && s.book.lent() > 0) (void)s.book.recall();
        break;
      case 8:
        if (!s.dead) obey(s);
        break;
      case 9:
        if (rng_.chance(0.02) && &s != &senders_[0]) s.dead = true;
        break;
      case 10:
        if (s.dead && !s.reaped) reap(s);
        break;
      case 11:
        // At most one lane is down at a time, as far as this walk goes; what travels may be lost.
        if (!s.dead && !s.broken && lost_.empty() && rng_.chance(0.1) && s.next > 1) {
          s.broken = true;
          lost_.assign(s.wire.begin(), s.wire.end());
          s.wire.clear();
          rearm(s);
        }
        break;
    }
    invariant();
  }

  void obey(Sender& s) {
    bool obeyed = false;
    (void)s.credits.burn(s.book.recall_number(), &obeyed);
    if (obeyed) s.owes_statement = true;
  }
  void reap(Sender& s) {
    // R12: drained first (what is still on the wire of a dead sender never lands), then the share
    // goes back.
    s.wire.clear();
    while (!s.landed.empty()) demultiplex(s);
    s.reaped = true;
    pool_ += s.book.share();
  }

  bool settle(Sender& s) {
    if (s.dead) {
      if (s.reaped) return false;
      reap(s);
      return true;
    }
    if (!s.wire.empty()) return land(s), true;
    if (!s.landed.empty()) return demultiplex(s), true;
    if (s.owes_answer) return answer(s), true;
    const uint32_t before = s.credits.recall_answered();
    obey(s);
    if (s.credits.recall_answered() != before) return true;
    if (s.credits.may_send() && (s.to_send > 0 || s.owes_statement)) {
      if (s.to_send > 0) --s.to_send;
      send(s);
      return true;
    }
    return false;
  }

  void finished() {
    uint64_t shares = 0;
    for (const Sender& s : senders_) {
      if (s.dead) continue;
      ASSERT_EQ(s.to_send, 0u) << "a sender is stuck";
      ASSERT_FALSE(s.credits.waiting());
      ASSERT_FALSE(s.book.recalling());
      ASSERT_EQ(s.last, s.next - 1);
      // Nothing is in flight: both ends count the same, what was burnt is known to both.
      ASSERT_EQ(s.book.granted() - s.credits.used(), s.book.outstanding());
      shares += s.book.share();
    }
    ASSERT_EQ(posted_, slots_);
    ASSERT_EQ(shares + pool_, slots_);
  }

  base::Rng rng_;
  const uint32_t slots_;
  std::vector<Sender> senders_;
  std::vector<Frame> lost_;
  uint32_t pool_ = 0, posted_ = 0;
};

TEST(Credits, RandomWalksKeepEveryPromiseAndFinish) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const uint32_t senders = 1 + seed % 4;
    Receiver receiver(seed, senders, senders * kFloorSlots + static_cast<uint32_t>(seed % 9));
    receiver.walk(4000);
    if (HasFatalFailure()) return;
  }
}

// ---- d2: two members, both starved, with the floor only
// ------------------------------------------------------------------

/**
 * As the model: frames in order, each wakes its receiver; one-sided grants arrive whenever they
 * like and wake nobody; a member with nothing to do sleeps. Nobody may end with unsent data.
 */
struct Half {
  SendCredits credits;
  GrantBook book;  // of what the other may send to us
  struct Message {
    bool answer, wait;
    uint64_t granted;
  };
  std::deque<Message> inbox;
  uint64_t written = 0;  // the other's latest one-sided grant to us
  uint32_t data = 0, control = 0, received = 0;
  bool owes = false, awake = true;
};

bool act(Half& me, Half& other, base::Rng& rng, bool sync) {
  const auto send = [&](bool answer) {
    const bool wait = answer ? false : me.credits.take();
    // Two granted slots and the one for the answer: never more than three on the way (the model's
    // full channel).
    EXPECT_LT(other.inbox.size(), 3u);
    other.inbox.push_back({answer, wait, me.book.granted()});
    other.awake = true;
  };
  if (!me.inbox.empty() && rng.chance(0.5)) {
    const Half::Message m = me.inbox.front();
    me.inbox.pop_front();
    me.awake = true;
    EXPECT_TRUE(me.credits.see(m.granted));
    if (m.answer) {
      me.credits.answered();
    } else {
      me.book.consumed();
      ++me.received;
    }
    if (sync) {
      EXPECT_TRUE(other.credits.see(me.book.granted()));
    }
    other.written = me.book.granted();
    if (m.wait) me.owes = true;
    return true;
  }
  if (!me.awake) return false;
  if (me.owes) {
    me.owes = false;
    send(true);
    return true;
  }
  if (me.control > 0 && me.credits.may_send() && rng.chance(0.3)) {
    --me.control;
    send(false);
    return true;
  }
  if (me.data > 0 && me.credits.may_send()) {
    --me.data;
    send(false);
    return true;
  }
  if (me.control > 0 && me.credits.may_send()) return true;  // in another step
  if (me.inbox.empty()) me.awake = false;
  return false;
}

TEST(Credits, BothStarvedNobodyStaysBehind) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    base::Rng rng(seed);
    Half halves[2];
    for (Half& h : halves) {
      h.book.reset();
      h.credits.reset(kUsableFloor);
      h.data = 1 + static_cast<uint32_t>(rng.below(12));
      h.control = static_cast<uint32_t>(rng.below(4));
    }
    const uint32_t expect[2] = {halves[1].data + halves[1].control,
                                halves[0].data + halves[0].control};
    const bool sync = seed % 3 == 0;
    const bool writes =
        seed % 2 == 0;  // or one-sided grants that never arrive: WAIT and its answer must do alone
    int idle = 0;
    for (int step = 0; step < 100'000 && idle < 100; ++step) {
      const size_t which = rng.below(2);
      if (writes && rng.chance(0.2)) {
        EXPECT_TRUE(halves[which].credits.see(halves[which].written));
      }
      idle = act(halves[which], halves[1 - which], rng, sync) ? 0 : idle + 1;
      if (HasFailure()) return;
    }
    ASSERT_EQ(halves[0].received, expect[0]);
    ASSERT_EQ(halves[1].received, expect[1]);
  }
}

// ---- details
// ---------------------------------------------------------------------------------------------------------------

TEST(Credits, TheLastCreditCarriesWaitAndNothingTakesItWhileUnanswered) {
  SendCredits credits;
  credits.reset(2);
  EXPECT_FALSE(credits.take());
  EXPECT_TRUE(credits.may_send());
  EXPECT_TRUE(credits.take());
  EXPECT_FALSE(credits.may_send());
  ASSERT_TRUE(credits.see(3));
  EXPECT_FALSE(credits.may_send()) << "the last credit, and a WAIT is unanswered";
  ASSERT_TRUE(credits.see(4));
  EXPECT_TRUE(credits.may_send());
  EXPECT_FALSE(credits.take());
  EXPECT_FALSE(credits.may_send());
  credits.answered();
  EXPECT_TRUE(credits.may_send());
  EXPECT_TRUE(credits.take());
}

TEST(Credits, GrantsNeverGoDownAndImpossibleOnesAreRefused) {
  SendCredits credits;
  credits.reset(2);
  ASSERT_TRUE(credits.see(10));
  ASSERT_TRUE(credits.see(5));
  EXPECT_EQ(credits.available(), 10u);
  EXPECT_FALSE(credits.see(kMaxCredits + 1));
  EXPECT_EQ(credits.available(), 10u);
}

TEST(Credits, RecallBurnsWhatIsAboveTheFloorOnce) {
  SendCredits credits;
  credits.reset(2);
  ASSERT_TRUE(credits.see(10));
  bool obeyed = false;
  EXPECT_EQ(credits.burn(1, &obeyed), 8u);
  EXPECT_TRUE(obeyed);
  EXPECT_EQ(credits.available(), kUsableFloor);
  EXPECT_EQ(credits.burn(1, &obeyed), 0u);
  EXPECT_FALSE(obeyed);
  EXPECT_EQ(credits.burn(2, &obeyed), 0u);
  EXPECT_TRUE(obeyed) << "with nothing to burn the recall is over all the same";
  EXPECT_EQ(credits.returned(), 8u);
}

TEST(Credits, StatementsThatCanNotBeAreRefused) {
  GrantBook book;
  book.reset();
  book.lend(4);
  uint32_t back = 0;
  EXPECT_FALSE(book.stated(5, 0, &back)) << "more than was lent";
  EXPECT_FALSE(book.stated(0, 1, &back)) << "an answer to a recall that never was";
  ASSERT_TRUE(book.recall());
  EXPECT_FALSE(book.recall()) << "one at a time";
  ASSERT_TRUE(book.stated(3, 1, &back));
  EXPECT_EQ(back, 3u);
  EXPECT_EQ(book.lent(), 1u);
  ASSERT_TRUE(book.stated(2, 1, &back)) << "an older statement, of a slower lane";
  EXPECT_EQ(back, 0u);
  EXPECT_TRUE(book.recall());
}

}  // namespace
}  // namespace millrace::transport
