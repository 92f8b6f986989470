#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "transport/arena.h"
#include "transport/frame.h"
#include "transport/lane.h"
#include "transport/lanes.h"
#include "transport/member.h"
#include "verbs/open.h"

/** What the transport's tests share: a domain of their own, and a member that keeps account of what
 * it gets. */
namespace millrace::transport::test {

inline uint64_t deadline_in(uint64_t seconds) { return base::now_ns() + seconds * 1'000'000'000; }

/** Sanitizers make everything about ten times slower; amounts of work are divided by this. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kSlow = 10;
#else
inline constexpr uint64_t kSlow = 1;
#endif

inline std::string shm_folder() {
  const char* const set = getenv("MILLRACE_SHM_DIR");
  return set != nullptr && *set != 0 ? set : "/dev/shm";
}

/** The device under test: MILLRACE_TEST_DEVICE, or the software device. */
inline std::string device() {
  const char* const set = getenv("MILLRACE_TEST_DEVICE");
  return set != nullptr && *set != 0 ? set : "soft";
}

/** Where some members of a test may be in place of there: MILLRACE_TEST_OTHER_DEVICE, if it is set.
 */
inline std::string other_device() {
  const char* const set = getenv("MILLRACE_TEST_OTHER_DEVICE");
  return set != nullptr && *set != 0 ? set : device();
}

/** Whether a posted send has completed when the call returns: only the software device does all of
 * it in the poster's thread. */
inline bool immediate() { return device() == "soft"; }

/** A domain's folder and a fabric that no other test uses. The creator removes the folder. */
class Domain {
 public:
  Domain() {
    const std::string tag =
        base::format("t%d.%llx", getpid(), static_cast<unsigned long long>(base::now_ns()));
    folder_ = shm_folder() + "/millrace-transport-test." + tag;
    fabric_ = "transport-" + tag;
    EXPECT_EQ(mkdir(folder_.c_str(), 0700), 0);
    setenv("MILLRACE_FABRIC", fabric_.c_str(), 1);
    owner_ = true;
  }
  /** Joins the domain of another process. */
  Domain(std::string folder, std::string fabric)
      : folder_(std::move(folder)), fabric_(std::move(fabric)) {
    setenv("MILLRACE_FABRIC", fabric_.c_str(), 1);
  }
  ~Domain() {
    if (owner_) std::filesystem::remove_all(folder_);
  }
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  const std::string& folder() const { return folder_; }
  const std::string& fabric() const { return fabric_; }
  size_t files() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++n;
    return n;
  }

 private:
  std::string folder_, fabric_;
  bool owner_ = false;
};

/** What lanes are made from, and they, without a member around them. */
struct LaneBench {
  explicit LaneBench(const Domain& domain) {
    context = verbs::ContextPtr(verbs::open_device(device()).take());
    folder = base::Fd(open(domain.folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    pd = verbs::PdPtr(ibv_alloc_pd(context.get()));
    channel = verbs::ChannelPtr(ibv_create_comp_channel(context.get()));
    receive_cq = verbs::CqPtr(ibv_create_cq(context.get(), 16, nullptr, nullptr, 0));
    arena = Arena::create(pd.get(), 1 << 16, 16384, 1, kLaneDepth).take();
    LaneParts parts;
    parts.context = context.get();
    parts.pd = pd.get();
    parts.channel = channel.get();
    parts.receive_cq = receive_cq.get();
    parts.arena = arena.get();
    parts.folder = folder.get();
    parts.seed = 9;
    lanes = Lanes::create(parts).take();
  }
  /** As a member does: queue pairs, then the queue, then the domain that it is in. */
  ~LaneBench() {
    lanes->shut();
    queue = {};
  }

  verbs::ContextPtr context;
  base::Fd folder;
  verbs::PdPtr pd;
  verbs::ChannelPtr channel;
  verbs::CqPtr receive_cq;
  std::unique_ptr<Arena> arena;
  InboxQueue queue;  ///< for tests that make one
  std::unique_ptr<Lanes> lanes;
};

/** A member that writes numbered records and checks the numbers of those that it gets. */
class Node {
 public:
  struct Stream {
    uint64_t last = 0;   ///< sequence of the last record
    uint64_t bytes = 0;  ///< payload bytes so far
  };
  struct Fault {
    int32_t peer, status, reason;
  };
  /** A FETCH row. */
  struct Told {
    uint32_t number;
    FetchEnd end;
    uint64_t done;
    ibv_wc_status status;
  };

  Node(const Domain& domain, uint64_t incarnation, MemberOptions options = {})
      : incarnation_(incarnation) {
    if (options.device == "soft") options.device = device();
    options.folder = domain.folder();
    options.incarnation = incarnation;
    auto created = Member::create(options);
    EXPECT_TRUE(created.ok()) << created.status().what << ": " << created.status().detail;
    if (!created.ok()) return;
    member_ = created.take();
    target_.resize(1 << 20);
  }

  Member& member() { return *member_; }
  bool ok() const { return member_ != nullptr; }
  uint64_t incarnation() const { return incarnation_; }
  /** Whether its lanes are RC: what a test counts and waits for differs. */
  bool rc() { return member_->resources().kind == LaneKind::kRc; }
  double counter(Counter which) { return member_->buffers().counters[which]; }
  double peer(uint32_t index, PeerColumn column) {
    return member_->buffers().peers[index * kPeerStride + column];
  }

  // ---- sending
  // -----------------------------------------------------------------------------------------------------

  /**
   * Writes a record with the next number of its channel for all `peers`, one row each. Flushes
   * first when the arena or the table is full. The payload is the sequence, repeated.
   */
  void send(const std::vector<uint32_t>& peers, uint32_t channel, uint32_t payload,
            uint32_t lane = 0, uint64_t sequence = 0) {
    const Buffers& b = member_->buffers();
    const uint32_t bytes = record_size(payload);
    if (rows_ + peers.size() > kSendRows) flush();
    const uint64_t position = place_for(bytes);
    if (position + bytes - freed() > b.arena.size()) {
      flush();
      // A device that takes its time (delays) holds what is posted; a peer that is slow never does.
      for (int i = 0; may_wait_ && position + bytes - freed() > b.arena.size() && i < 100'000; ++i)
        (void)poll();
      ASSERT_LE(position + bytes - freed(), b.arena.size()) << "the arena waits for somebody";
    }
    RecordHeader header{};
    header.channel = channel;
    header.payload_bytes = payload;
    if (sequence == 0) sequence = ++sent_[channel];
    header.sequence_low = static_cast<uint32_t>(sequence);
    header.sequence_high = static_cast<uint32_t>(sequence >> 32);
    header.kind = 1;
    uint8_t* const at = b.arena.data() + position % b.arena.size();
    std::memcpy(at, &header, sizeof(header));
    std::memset(at + sizeof(header), static_cast<int>(sequence & 0xFF), bytes - sizeof(header));
    head_ = position + bytes;
    for (uint32_t peer : peers) {
      // Records that follow each other for the same peer are one row, as JavaScript does it.
      int32_t* last = rows_ > 0 ? &b.sends[(rows_ - 1) * kSendStride] : nullptr;
      if (merge_ && peers.size() == 1 && last != nullptr && last[0] == static_cast<int32_t>(peer) &&
          last[3] == static_cast<int32_t>(lane) &&
          static_cast<uint64_t>(last[1]) + static_cast<uint64_t>(last[2]) ==
              position % b.arena.size()) {
        last[2] += static_cast<int32_t>(bytes);
        continue;
      }
      int32_t* const row = &b.sends[rows_++ * kSendStride];
      row[0] = static_cast<int32_t>(peer);
      row[1] = static_cast<int32_t>(position % b.arena.size());
      row[2] = static_cast<int32_t>(bytes);
      row[3] = static_cast<int32_t>(lane);
      ++rows_sent_[peer];
    }
  }

  /** Whether the arena has room for a record now. */
  bool fits(uint32_t payload) {
    const uint32_t bytes = record_size(payload);
    return place_for(bytes) + bytes - freed() <= member_->buffers().arena.size();
  }

  uint32_t flush() {
    const uint32_t rows = std::exchange(rows_, 0);
    member_->buffers().counters[kArenaRelease] = static_cast<double>(head_);
    return member_->flush(rows);
  }
  /** As flush(), without saying up to where the arena is not needed any more. */
  void flush_rows() { (void)member_->flush(std::exchange(rows_, 0)); }
  void raw_row(int32_t peer, int32_t offset, int32_t length, int32_t lane) {
    int32_t* const row = &member_->buffers().sends[rows_++ * kSendStride];
    row[0] = peer;
    row[1] = offset;
    row[2] = length;
    row[3] = lane;
  }
  uint64_t head() const { return head_; }
  uint64_t freed() { return static_cast<uint64_t>(counter(kArenaFreed)); }
  void merge_rows(bool on) { merge_ = on; }
  void may_wait(bool on) { may_wait_ = on; }
  uint64_t rows_sent(uint32_t peer) { return rows_sent_[peer]; }

  // ---- receiving
  // ---------------------------------------------------------------------------------------------------

  /** Polls once and takes account. Returns the number of rows. */
  uint32_t poll(uint32_t max_frames = 256) {
    const uint32_t rows = member_->poll({target_.data(), target_room_}, 0, max_frames);
    for (uint32_t i = 0; i < rows; ++i) row(&member_->buffers().events[i * kEventStride]);
    return rows;
  }

  Stream& stream(uint32_t peer, uint32_t channel) { return streams_[{peer, channel}]; }
  void forget_streams() { streams_.clear(); }
  std::vector<Fault> faults;
  std::vector<Told> fetches;
  std::deque<std::pair<uint32_t, std::vector<uint8_t>>> tunnel_out;  ///< for the control connection
  uint64_t records = 0, drained = 0, need_room = 0, lanes_down = 0, lanes_rearmed = 0,
           datagrams = 0;
  std::vector<uint64_t> latencies;
  std::function<void(uint32_t peer, const RecordHeader&)> on_record;
  size_t target_room_ = 1 << 20;

  void wire(uint32_t index, Node* other, uint32_t back) { wires_[index] = {other, back}; }
  void unwire(uint32_t index) { wires_.erase(index); }
  /** Carries tunnel messages to members of this process. */
  void carry() {
    for (; !tunnel_out.empty(); tunnel_out.pop_front()) {
      auto& [index, bytes] = tunnel_out.front();
      const auto it = wires_.find(index);
      if (it != wires_.end() && !mute_) it->second.first->member().tunnel(it->second.second, bytes);
    }
  }
  void mute(bool on) { mute_ = on; }

 private:
  static uint32_t record_size(uint32_t payload) {
    return (kRecordHeaderBytes + payload + 7) / 8 * 8;
  }
  /** Where the next record goes: one that does not fit before the arena's end begins at its start.
   */
  uint64_t place_for(uint32_t bytes) {
    const uint64_t size = member_->buffers().arena.size();
    return head_ % size + bytes > size ? head_ + size - head_ % size : head_;
  }

  void row(const int32_t* r) {
    const uint32_t peer = static_cast<uint32_t>(r[1]);
    switch (static_cast<EventKind>(r[0])) {
      case EventKind::kDatagram:
        ++datagrams;
        [[fallthrough]];
      case EventKind::kFrame:
        frame(peer, target_.data() + r[2], static_cast<uint32_t>(r[3]),
              static_cast<uint32_t>(r[4]));
        break;
      case EventKind::kNeedRoom:
        ++need_room;
        target_room_ = std::max<size_t>(target_room_, static_cast<size_t>(r[2]));
        break;
      case EventKind::kPeerFault:
        faults.push_back({r[1], r[2], r[3]});
        break;
      case EventKind::kLane:
        if (r[3] == static_cast<int32_t>(LaneState::kDown)) ++lanes_down;
        if (r[3] == static_cast<int32_t>(LaneState::kRearmed)) ++lanes_rearmed;
        break;
      case EventKind::kTunnel:
        tunnel_out.emplace_back(
            peer, std::vector<uint8_t>(target_.data() + r[2], target_.data() + r[2] + r[3]));
        break;
      case EventKind::kDrained:
        ++drained;
        break;
      case EventKind::kFetch:
        fetches.push_back(
            {static_cast<uint32_t>(r[2]), static_cast<FetchEnd>(r[3]),
             uint64_t{static_cast<uint32_t>(r[5])} << 32 | static_cast<uint32_t>(r[4]),
             static_cast<ibv_wc_status>(r[6])});
        break;
    }
  }

  void frame(uint32_t peer, const uint8_t* body, uint32_t bytes, uint32_t count) {
    uint32_t seen = 0;
    for (uint32_t at = 0; at < bytes; ++seen) {
      RecordHeader header;
      std::memcpy(&header, body + at, sizeof(header));
      const uint64_t sequence = uint64_t{header.sequence_high} << 32 | header.sequence_low;
      Stream& got = stream(peer, header.channel);
      if (on_record) {
        on_record(peer, header);
      } else {
        ASSERT_EQ(sequence, got.last + 1) << "peer " << peer << " channel " << header.channel;
        const uint8_t* const payload = body + at + sizeof(header);
        for (uint32_t i : {0u, header.payload_bytes / 2, header.payload_bytes - 1}) {
          if (header.payload_bytes > 0) {
            ASSERT_EQ(payload[i], sequence & 0xFF);
          }
        }
      }
      got.last = sequence;
      got.bytes += header.payload_bytes;
      ++records;
      at += record_bytes(body + at, bytes - at);
    }
    ASSERT_EQ(seen, count);
  }

  const uint64_t incarnation_;
  std::unique_ptr<Member> member_;
  std::vector<uint8_t> target_;
  uint64_t head_ = 0;
  uint32_t rows_ = 0;
  bool merge_ = true;
  bool mute_ = false;
  bool may_wait_ = false;
  std::map<uint32_t, uint64_t> sent_, rows_sent_;
  std::map<std::pair<uint32_t, uint32_t>, Stream> streams_;
  std::map<uint32_t, std::pair<Node*, uint32_t>> wires_;
};

/** Connects two members of this process. Returns {b's index at a, a's index at b}. */
inline std::pair<uint32_t, uint32_t> connect(Node& a, Node& b) {
  auto at_a = a.member().offer();
  auto at_b = b.member().offer();
  EXPECT_TRUE(at_a.ok() && at_b.ok());
  if (!at_a.ok() || !at_b.ok()) return {0, 0};
  const uint32_t ab = at_a.value().peer;
  const uint32_t ba = at_b.value().peer;
  EXPECT_TRUE(a.member().connect(ab, b.incarnation(), at_b.value().bytes).ok());
  EXPECT_TRUE(b.member().connect(ba, a.incarnation(), at_a.value().bytes).ok());
  a.wire(ab, &b, ba);
  b.wire(ba, &a, ab);
  // With RC a lane comes up by an ask and its answer over the control connection.
  for (int i = 0; i < 4 && a.rc(); ++i) {
    for (Node* node : {&a, &b}) {
      (void)node->poll();
      node->carry();
    }
  }
  return {ab, ba};
}

/** Lets members of this process work until `done`; false when that did not come about in time. */
inline bool run(const std::vector<Node*>& nodes, const std::function<bool()>& done,
                uint64_t seconds = 60) {
  const uint64_t deadline = deadline_in(seconds);
  while (!done()) {
    for (Node* node : nodes) {
      (void)node->poll();
      node->carry();
      (void)node->flush();
      if (testing::Test::HasFatalFailure()) return false;
    }
    if (base::now_ns() > deadline) return false;
  }
  return true;
}

}  // namespace millrace::transport::test
