#include "base/rng.h"
#include "transport/core.h"
#include "transport/handshake.h"
#include "transport_support.h"

/** A process of the same domain that writes what it likes into an inbox (I9): counted, named, and
 * nobody else suffers. */
namespace millrace::transport {
namespace {

using test::connect;
using test::Domain;
using test::kSlow;
using test::Node;
using test::run;

/** The bare means of sending: a lane, without any of the member's care. */
class Forger : test::LaneBench {
 public:
  explicit Forger(const Domain& domain) : LaneBench(domain) {
    EXPECT_TRUE(lanes->open(0).ok());
    lane_ = lanes->reach(kPeer, 1, 0).value();
  }

  /** What it would offer, were it a member with that incarnation. */
  OfferData offer(uint64_t incarnation, uint32_t srq_number) const {
    OfferData fake;
    fake.incarnation = incarnation;
    fake.credit_address = 4096;
    fake.credit_tag = 1;
    fake.srq_number = srq_number;
    fake.slot_bytes = 16384;
    fake.granted = 2;
    fake.lanes = lanes->kind();
    fake.medium = test::device() == "soft" ? Medium::kSoft : Medium::kAdapters;
    fake.address = lanes->port().address;
    return fake;
  }

  /** Brings its lane to the receiver up, as the member whose place it takes would: asked and
   * answered (with XRC it is up already, and this does no harm). */
  void reach(Node& receiver, uint32_t victim, uint64_t incarnation) {
    TunnelMessage ask;
    ask.type = TunnelType::kAsk;
    ask.sender = incarnation;
    ask.receiver = receiver.incarnation();
    ask.number = ++asks_;
    ask.qp = lanes->asking(*lane_);
    receiver.member().tunnel(victim, encode_tunnel(ask));
    for (bool answered = false; !answered;) {
      (void)receiver.poll();
      for (; !receiver.tunnel_out.empty(); receiver.tunnel_out.pop_front()) {
        const auto& [peer, bytes] = receiver.tunnel_out.front();
        const auto answer = decode_tunnel(bytes);
        if (peer != victim || !answer || answer->number != ask.number) continue;
        EXPECT_TRUE(lanes->answered(*lane_, lanes->port().address, answer->qp).ok());
        answered = true;
      }
    }
  }

  /** Sends header and body as they are. True: it landed. */
  bool send(uint32_t srq_number, const FrameHeader& header, const std::vector<uint8_t>& body) {
    *lane_->header() = header;
    Posted& posted = lane_->next();
    posted = Posted();
    if (!body.empty()) {
      posted.bounce = 0;
      posted.body_bytes = static_cast<uint32_t>(body.size());
      std::memcpy(arena->bounce(0), body.data(), body.size());
    }
    lane_->stage_frame(srq_number);
    lane_->post();
    struct : LaneSink {
      bool landed = false;
      void completed(Posted&) override { landed = true; }
    } sink;
    while (lane_->outstanding() > 0 && !lane_->drained()) (void)lane_->harvest(&sink);
    if (!lane_->up()) {
      lane_->quiesce();
      EXPECT_NE(lanes->revive(*lane_), Lanes::Revival::kFailed);
    }
    return sink.landed;
  }

 private:
  Lane* lane_ = nullptr;
  uint64_t asks_ = 0;
  static constexpr uint32_t kPeer = 0;
};

class Hostile : public testing::Test {
 protected:
  static constexpr uint64_t kReceiver = 401, kVictim = 402, kHonest = 0x123456789AB;

  Hostile() : receiver_(domain_, kReceiver), honest_(domain_, kHonest), forger_(domain_) {
    const auto [hr, rh] = connect(honest_, receiver_);
    honest_index_ = hr;
    receiver_index_ = rh;
    // A peer that exists only as an offer: all that comes from it is forged.
    auto reserved = receiver_.member().offer();
    victim_index_ = reserved.value().peer;
    srq_number_ = decode_offer(reserved.value().bytes)->srq_number;
    const OfferData fake = forger_.offer(kVictim, srq_number_);
    EXPECT_TRUE(receiver_.member().connect(victim_index_, kVictim, encode_offer(fake)).ok());
    forger_.reach(receiver_, victim_index_, kVictim);
  }

  FrameHeader header(uint64_t sequence, uint32_t body, uint32_t records) {
    FrameHeader h{};
    h.magic = kFrameMagic;
    h.version = kFrameVersion;
    h.sender = kVictim;
    h.receiver = kReceiver;
    h.sequence = sequence;
    h.body_bytes = body;
    h.records = records;
    if (body == 0) h.flags = kFlagControl;
    return h;
  }
  static std::vector<uint8_t> record(uint64_t sequence, uint32_t payload) {
    RecordHeader r{};
    r.channel = 1;
    r.payload_bytes = payload;
    r.sequence_low = static_cast<uint32_t>(sequence);
    std::vector<uint8_t> out((kRecordHeaderBytes + payload + 7) / 8 * 8,
                             static_cast<uint8_t>(sequence));
    std::memcpy(out.data(), &r, sizeof(r));
    return out;
  }
  void poll() {
    while (receiver_.poll() > 0) {
    }
    receiver_.tunnel_out.clear();
  }
  /** The honest one is as well off as ever. */
  void honest_goes_on() {
    const uint64_t before = receiver_.stream(receiver_index_, 1).last;
    for (int i = 0; i < 500; ++i) honest_.send({honest_index_}, 1, 64);
    ASSERT_TRUE(run({&honest_, &receiver_},
                    [&] { return receiver_.stream(receiver_index_, 1).last == before + 500; }));
  }

  Domain domain_;
  Node receiver_, honest_;
  Forger forger_;
  uint32_t honest_index_ = 0, receiver_index_ = 0, victim_index_ = 0, srq_number_ = 0;
};

TEST_F(Hostile, BadHeadersAreCountedAndNamed) {
  const auto bad = [this](auto change) {
    FrameHeader h = header(1, 40, 1);
    change(&h);
    const double before = receiver_.counter(kBadFrames);
    receiver_.faults.clear();
    EXPECT_TRUE(forger_.send(srq_number_, h, record(1, 8)));
    poll();
    EXPECT_EQ(receiver_.counter(kBadFrames), before + 1);
    EXPECT_EQ(receiver_.records, 0u);
    return receiver_.faults.empty() ? Node::Fault{-9, 0, 0} : receiver_.faults[0];
  };
  // With RC the QP says whose lane it was; with XRC only the header does.
  const int32_t unnamed = receiver_.rc() ? static_cast<int32_t>(victim_index_) : -1;
  EXPECT_EQ(bad([](FrameHeader* h) { h->magic = 0; }).peer, unnamed);
  EXPECT_EQ(bad([](FrameHeader* h) { h->version = 9; }).peer, static_cast<int32_t>(victim_index_));
  EXPECT_EQ(bad([](FrameHeader* h) { h->flags = 0x80; }).reason,
            static_cast<int32_t>(FaultReason::kHeader));
  EXPECT_EQ(bad([](FrameHeader* h) { h->receiver = 1; }).reason,
            static_cast<int32_t>(FaultReason::kHeader));
  EXPECT_EQ(bad([](FrameHeader* h) { h->lane = 400; }).reason,
            static_cast<int32_t>(FaultReason::kHeader));
  EXPECT_EQ(bad([](FrameHeader* h) { h->body_bytes = 48; }).reason,
            static_cast<int32_t>(FaultReason::kHeader));
  EXPECT_EQ(bad([](FrameHeader* h) { h->records = 7; }).reason,
            static_cast<int32_t>(FaultReason::kHeader));
  EXPECT_EQ(bad([](FrameHeader* h) { h->sequence = 2; }).reason,
            static_cast<int32_t>(FaultReason::kOrder));
  EXPECT_EQ(bad([](FrameHeader* h) { h->sender = 999; }).peer, unnamed);
  honest_goes_on();
  // The real thing still passes.
  EXPECT_TRUE(forger_.send(srq_number_, header(1, 40, 1), record(1, 8)));
  poll();
  EXPECT_EQ(receiver_.stream(victim_index_, 1).last, 1u);
}

TEST_F(Hostile, WhoWritesAnothersNameIsNamedHimself) {
  if (!receiver_.rc()) GTEST_SKIP() << "a target of XRC is its sender's own: nobody knows whose";
  FrameHeader h = header(1, 40, 1);
  h.sender = kHonest;
  EXPECT_TRUE(forger_.send(srq_number_, h, record(1, 8)));
  h = header(1, 40, 1);
  h.lane = 1;  // which he has not
  EXPECT_TRUE(forger_.send(srq_number_, h, record(1, 8)));
  poll();
  EXPECT_EQ(receiver_.records, 0u);
  ASSERT_EQ(receiver_.faults.size(), 2u);
  for (const Node::Fault& fault : receiver_.faults) {
    EXPECT_EQ(fault.peer, static_cast<int32_t>(victim_index_));
    EXPECT_EQ(fault.reason, static_cast<int32_t>(FaultReason::kHeader));
  }
  honest_goes_on();
}

TEST_F(Hostile, DuplicatesAreDroppedAndWorthNoCredit) {
  EXPECT_TRUE(forger_.send(srq_number_, header(1, 40, 1), record(1, 8)));
  EXPECT_TRUE(forger_.send(srq_number_, header(1, 40, 1), record(1, 8)));
  EXPECT_TRUE(forger_.send(srq_number_, header(1, 40, 1), record(1, 8)));
  poll();
  EXPECT_EQ(receiver_.counter(kDuplicates), 2);
  EXPECT_EQ(receiver_.stream(victim_index_, 1).last, 1u);
  EXPECT_EQ(receiver_.peer(victim_index_, kPeerGranted), 2);
  honest_goes_on();
}

TEST_F(Hostile, RecordsThatDoNotAddUpAreDroppedWithTheirFrame) {
  std::vector<uint8_t> body = record(1, 8);
  body[4] = 200;  // payload length
  EXPECT_TRUE(forger_.send(srq_number_, header(1, 40, 1), body));
  poll();
  ASSERT_EQ(receiver_.faults.size(), 1u);
  EXPECT_EQ(receiver_.faults[0].reason, static_cast<int32_t>(FaultReason::kRecords));
  EXPECT_EQ(receiver_.faults[0].peer, static_cast<int32_t>(victim_index_));
  // The frame was consumed: the next one is in order, and the credit went back.
  EXPECT_TRUE(forger_.send(srq_number_, header(2, 40, 1), record(1, 8)));
  poll();
  EXPECT_EQ(receiver_.stream(victim_index_, 1).last, 1u);
  honest_goes_on();
}

TEST_F(Hostile, MoreFramesThanCreditsAreNotTaken) {
  // Nobody polls in between, so nothing is granted again: the third one has no credit.
  for (uint64_t i = 1; i <= 4; ++i)
    EXPECT_TRUE(forger_.send(srq_number_, header(i, 40, 1), record(i, 8)));
  FrameHeader h = header(5, 40, 1);
  h.granted = ~uint64_t{0};
  h.returned = 1000;
  h.recall_answered = 77;
  EXPECT_TRUE(forger_.send(srq_number_, h, record(5, 8)));
  poll();
  // Each frame that is demultiplexed is granted again at once, so all of them pass; but the counts
  // can not be.
  EXPECT_EQ(receiver_.stream(victim_index_, 1).last, 5u);
  ASSERT_FALSE(receiver_.faults.empty());
  EXPECT_EQ(receiver_.faults[0].reason, static_cast<int32_t>(FaultReason::kOrder));
  honest_goes_on();
}

TEST_F(Hostile, AnswersAndWaitsOutOfTurnDoNoHarm) {
  for (uint64_t i = 1; i <= 50; ++i) {
    FrameHeader h = header(i, 0, 0);
    h.flags = static_cast<uint8_t>(kFlagControl | (i % 2 == 0 ? kFlagAnswer : kFlagWait));
    EXPECT_TRUE(forger_.send(srq_number_, h, {}));
    poll();
  }
  // The answers went to a made-up address; that peer is held or refused, the honest one is not.
  honest_goes_on();
}

TEST_F(Hostile, RubbishWithoutEnd) {
  base::Rng rng(17);
  uint64_t sequence = 1;
  for (uint64_t i = 0; i < 20'000 / kSlow; ++i) {
    FrameHeader h = header(sequence, 40, 1);
    std::vector<uint8_t> body = record(sequence, 8);
    for (uint64_t n = 1 + rng.below(4); n > 0; --n) {
      const uint64_t at = rng.below(sizeof(h) + body.size());
      uint8_t* const where =
          at < sizeof(h) ? reinterpret_cast<uint8_t*>(&h) + at : body.data() + (at - sizeof(h));
      *where = static_cast<uint8_t>(rng.next());
    }
    (void)forger_.send(srq_number_, h, body);
    receiver_.on_record = [](uint32_t, const RecordHeader&) {};
    poll();
    receiver_.on_record = nullptr;
    receiver_.faults.clear();
  }
  EXPECT_GT(receiver_.counter(kBadFrames), 0);
  honest_goes_on();
}

}  // namespace
}  // namespace millrace::transport
