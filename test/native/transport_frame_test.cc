#include "transport/frame.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "transport/backlog.h"
#include "transport/handshake.h"
#include "transport/rows.h"

namespace millrace::transport {
namespace {

constexpr uint64_t kSelf = 7;

FrameHeader header(uint32_t body_bytes, uint32_t records) {
  FrameHeader h{};
  h.magic = kFrameMagic;
  h.version = kFrameVersion;
  h.sender = 5;
  h.receiver = kSelf;
  h.sequence = 1;
  h.body_bytes = body_bytes;
  h.records = records;
  return h;
}

HeaderFault check(const FrameHeader& h) {
  return check_header(h, kFrameHeaderBytes + h.body_bytes, kSelf, kMaxLanes);
}

void add_record(std::vector<uint8_t>* body, uint32_t payload, uint16_t headers = 0) {
  RecordHeader r{};
  r.payload_bytes = payload;
  r.header_bytes = headers;
  const uint32_t bytes = (kRecordHeaderBytes + payload + headers + 7) / 8 * 8;
  const size_t at = body->size();
  body->resize(at + bytes, static_cast<uint8_t>(at));
  std::memcpy(body->data() + at, &r, sizeof(r));
}

TEST(Frame, ValidHeadersPass) {
  EXPECT_EQ(check(header(40, 1)), HeaderFault::kNone);
  FrameHeader control = header(0, 0);
  control.flags = kFlagControl | kFlagWait;
  EXPECT_EQ(check(control), HeaderFault::kNone);
  control.flags = kFlagControl | kFlagAnswer;
  EXPECT_EQ(check(control), HeaderFault::kNone);
}

TEST(Frame, EachFaultIsNamed) {
  FrameHeader h = header(40, 1);
  EXPECT_EQ(check_header(h, 63, kSelf, kMaxLanes), HeaderFault::kShort);
  EXPECT_EQ(check_header(h, 64, kSelf, kMaxLanes), HeaderFault::kLength);
  h.magic ^= 1;
  EXPECT_EQ(check(h), HeaderFault::kMagic);
  h = header(40, 1);
  h.version = 2;
  EXPECT_EQ(check(h), HeaderFault::kVersion);
  h = header(40, 1);
  h.flags = 8;
  EXPECT_EQ(check(h), HeaderFault::kFlags);
  h = header(0, 0);
  h.flags = kFlagAnswer;  // an answer that is not a control frame
  EXPECT_EQ(check(h), HeaderFault::kFlags);
  h.flags = kFlagAnswer | kFlagControl | kFlagWait;  // an answer that wants an answer
  EXPECT_EQ(check(h), HeaderFault::kFlags);
  h = header(40, 1);
  h.lane = kMaxLanes;
  EXPECT_EQ(check(h), HeaderFault::kLane);
  h = header(40, 1);
  h.receiver = kSelf + 1;
  EXPECT_EQ(check(h), HeaderFault::kIncarnation);
  h = header(40, 1);
  h.sender = 0;
  EXPECT_EQ(check(h), HeaderFault::kIncarnation);
  h = header(40, 1);
  h.sequence = 0;
  EXPECT_EQ(check(h), HeaderFault::kSequence);
  EXPECT_EQ(check(header(36, 1)), HeaderFault::kLength);
  EXPECT_EQ(check(header(0, 0)), HeaderFault::kLength);  // no body and not a control frame
  EXPECT_EQ(check(header(40, 0)), HeaderFault::kRecords);
  EXPECT_EQ(check(header(40, 2)), HeaderFault::kRecords);  // more than could fit
}

TEST(Frame, RecordsMustFillTheBodyExactly) {
  std::vector<uint8_t> body;
  add_record(&body, 0);
  add_record(&body, 5, 9);
  add_record(&body, 64);
  const uint32_t bytes = static_cast<uint32_t>(body.size());
  EXPECT_TRUE(check_records(body.data(), bytes, 3));
  EXPECT_FALSE(check_records(body.data(), bytes, 2));
  EXPECT_FALSE(check_records(body.data(), bytes, 4));
  EXPECT_FALSE(check_records(body.data(), bytes - 8, 3));
  // A length that wraps round in 32 bits.
  RecordHeader r{};
  r.payload_bytes = 0xFFFFFFFF;
  r.header_bytes = 0xFFFF;
  std::memcpy(body.data(), &r, sizeof(r));
  EXPECT_FALSE(check_records(body.data(), bytes, 3));
  EXPECT_EQ(record_bytes(body.data(), bytes), 0u);
}

TEST(Handshake, OffersAndTunnelMessagesSurviveTheTrip) {
  OfferData offer;
  offer.incarnation = (uint64_t{1} << 53) - 1;
  offer.credit_address = 0x7F0000001000;
  offer.credit_rkey = 0x12345678;
  offer.credit_tag = 0xFFFF;
  offer.srq_number = 0xFFFFFF;
  offer.slot_bytes = 1 << 20;
  offer.granted = 2;
  offer.lanes = LaneKind::kRc;
  offer.medium = Medium::kAdapters;
  offer.address.ethernet = true;
  offer.address.lid = 0xFFFF;
  offer.address.mtu = 5;
  for (size_t i = 0; i < offer.address.gid.size(); ++i)
    offer.address.gid[i] = static_cast<uint8_t>(i + 1);
  const auto bytes = encode_offer(offer);
  const auto again = decode_offer(bytes);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->incarnation, offer.incarnation);
  EXPECT_EQ(again->credit_address, offer.credit_address);
  EXPECT_EQ(again->srq_number, offer.srq_number);
  EXPECT_EQ(again->lanes, offer.lanes);
  EXPECT_EQ(again->medium, offer.medium);
  EXPECT_EQ(again->address.gid, offer.address.gid);
  EXPECT_EQ(again->address.lid, offer.address.lid);
  EXPECT_EQ(again->address.mtu, offer.address.mtu);
  EXPECT_TRUE(again->address.ethernet);
  // Every single byte is checked or carries something: no bit may be flipped unseen into an invalid
  // offer.
  for (size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(decode_offer({bytes.data(), cut}));

  TunnelMessage message;
  message.type = TunnelType::kState;
  message.lane = kMaxLanes - 1;
  message.sender = 5;
  message.receiver = 7;
  message.number = 9;
  message.last = ~uint64_t{0};
  const auto tunnel = encode_tunnel(message);
  const auto same = decode_tunnel(tunnel);
  ASSERT_TRUE(same);
  EXPECT_EQ(same->last, message.last);
  EXPECT_EQ(same->lane, message.lane);
  for (size_t cut = 0; cut < tunnel.size(); ++cut)
    EXPECT_FALSE(decode_tunnel({tunnel.data(), cut}));
  EXPECT_FALSE(decode_offer(tunnel));
  EXPECT_FALSE(decode_tunnel(bytes));
}

TEST(Handshake, ImpossibleOffersAreRefused) {
  OfferData good;
  good.incarnation = 5;
  good.credit_address = 4096;
  good.credit_tag = 1;
  good.srq_number = 3;
  good.slot_bytes = 16384;
  good.granted = 2;
  ASSERT_TRUE(decode_offer(encode_offer(good)));
  const auto refused = [&good](auto change) {
    OfferData bad = good;
    change(&bad);
    return !decode_offer(encode_offer(bad));
  };
  EXPECT_TRUE(refused([](OfferData* o) { o->lanes = static_cast<LaneKind>(3); }));
  EXPECT_TRUE(refused([](OfferData* o) { o->medium = static_cast<Medium>(0); }));
  EXPECT_TRUE(refused([](OfferData* o) { o->address.mtu = 0; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->address.mtu = 6; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->incarnation = 0; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->credit_address = 4097; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->credit_tag = 0; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->credit_tag = 1 << 16; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->srq_number = 1 << 24; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->slot_bytes = 64; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->slot_bytes = 2 << 20; }));
  EXPECT_TRUE(refused([](OfferData* o) { o->granted = 1; }));
}

TEST(Backlog, CutsAtRecordBoundariesAndKeepsOrder) {
  base::Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    const uint32_t room = 256 + 8 * static_cast<uint32_t>(rng.below(200));
    Backlog backlog;
    std::vector<uint8_t> all;
    uint32_t rows = 0;
    for (int row = 0; row < 20; ++row) {
      std::vector<uint8_t> bytes;
      for (uint64_t n = 1 + rng.below(8); n > 0; --n)
        add_record(&bytes, static_cast<uint32_t>(rng.below(room - 40)));
      backlog.append(bytes.data(), static_cast<uint32_t>(bytes.size()), room, true);
      all.insert(all.end(), bytes.begin(), bytes.end());
      ++rows;
    }
    ASSERT_EQ(backlog.bytes(), all.size());
    std::vector<uint8_t> out;
    std::deque<Body> lost;
    while (!backlog.empty()) {
      Body body = backlog.take_front();
      ASSERT_LE(body.bytes, room);
      ASSERT_TRUE(check_records(body.data.get(), body.bytes, body.records));
      // Now and then, frames come back and go again.
      if (rng.chance(0.3)) {
        lost.push_back(std::move(body));
        if (lost.size() < 3 && !backlog.empty()) continue;
      }
      if (!lost.empty()) {
        if (body.data) lost.push_back(std::move(body));
        backlog.put_back(std::move(lost));
        lost.clear();
        body = backlog.take_front();
      }
      out.insert(out.end(), body.data.get(), body.data.get() + body.bytes);
      rows -= body.row_ends;
    }
    ASSERT_EQ(out, all);
    ASSERT_EQ(rows, 0u);
    ASSERT_EQ(backlog.bytes(), 0u);
  }
}

TEST(RowLedger, TellsTheOldestOverManyIntervals) {
  RowLedger ledger;
  EXPECT_TRUE(ledger.empty());
  std::deque<uint64_t> model;
  base::Rng rng(2);
  uint64_t next = 1;
  for (int step = 0; step < 100'000; ++step) {
    if (rng.chance(0.52)) {
      next += rng.chance(0.2) ? rng.below(5) : 0;
      ledger.accept(next);
      model.push_back(next++);
    } else if (!model.empty()) {
      const uint64_t n = 1 + rng.below(std::min<uint64_t>(model.size(), 20));
      ledger.complete(n);
      model.erase(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(n));
    }
    ASSERT_EQ(ledger.empty(), model.empty());
    if (!model.empty()) {
      ASSERT_EQ(ledger.oldest(), model.front());
    }
  }
}

}  // namespace
}  // namespace millrace::transport
