#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "transport/arena.h"
#include "transport/backlog.h"
#include "transport/credits.h"
#include "transport/fetch.h"
#include "transport/group.h"
#include "transport/handshake.h"
#include "transport/inbox.h"
#include "transport/lane.h"
#include "transport/lanes.h"
#include "transport/member.h"
#include "transport/rows.h"
#include "verbs/owners.h"

/**
 * The state behind transport::Member. Its functions are in files by concern: member.cc (create,
 * close, peers), send.cc (flush), receive.cc (poll), settle.cc (credits, answers, grants), rearm.cc
 * (lanes that went down), groups.cc (multicast).
 */
namespace millrace::transport {

/** Tells the CPU that this is a loop that waits. */
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/** A row of `sends` that waits for its flush to end. */
struct PendingRun {
  uint32_t offset, bytes, records;
};

/** A frame whose fate the receiver has to tell (R14). */
struct DoubtfulFrame {
  uint64_t sequence;
  uint8_t flags;
  uint8_t carried;
  uint32_t row_ends;
  Body body;  ///< empty for control frames
};

/** One (peer, lane): frames to it are in order. */
struct Destination {
  uint32_t lane = 0;
  uint64_t next_sequence = 1;
  uint64_t completed = 0;           ///< every frame up to this sequence is in the peer's inbox
  std::vector<PendingRun> pending;  ///< rows of the flush that is running, from pending_head on
  size_t pending_head = 0;
  Backlog backlog;
  RowLedger rows;
  bool touched = false;  ///< in the list of this flush
  bool active = false;   ///< in the list of destinations with a backlog
  bool held = false;     ///< nothing is posted until the peer states its last sequence
  uint64_t ask = 0;      ///< number of the unanswered ask, when held
  uint64_t asked_ns = 0;
  uint32_t failures = 0;  ///< error completions that named this destination since the last success
  std::deque<DoubtfulFrame> doubtful;
};

struct Peer {
  enum class State : uint8_t { kReserved, kConnected };
  State state = State::kReserved;
  uint32_t index = 0;
  uint32_t generation = 0;
  uint16_t tag = 0;      ///< what it must put into our credit words
  bool refused = false;  ///< given up: nothing is sent any more
  uint64_t incarnation = 0;
  OfferData remote;         ///< what it offered
  uint32_t frame_room = 0;  ///< body bytes of a frame to it

  SendCredits credits;          ///< ours at its inbox
  GrantBook book;               ///< its credits at ours
  uint64_t announced = 0;       ///< what it was told of book.granted()
  bool announce_again = false;  ///< what told it may be lost
  uint32_t recall_announced = 0;
  bool owes_answer = false;     ///< it said WAIT
  bool owes_statement = false;  ///< we burnt credits, it does not know
  bool owes_recall = false;     ///< a control frame is to wake it for its recall
  bool attention = false;       ///< in the list of peers to settle
  bool dirty = false;           ///< its row in `peers` is out of date

  std::array<uint64_t, kMaxLanes> last{};  ///< last frame sequence from it, per its lane
  std::array<std::unique_ptr<Destination>, kMaxLanes> lanes;

  uint64_t rows_accepted = 0;
  uint64_t rows_completed = 0;
  uint64_t frames_received = 0;
  uint64_t frames_lost = 0;
  uint64_t frames_at_last_look = 0;  ///< frames_received when a recall was last considered
  uint64_t backlog_bytes = 0;
};

/** A completion of the receive CQ that has not been demultiplexed. */
struct Arrived {
  uint32_t slot;
  uint32_t bytes;
  ibv_wc_status status;
  Lanes::Origin from;
};

/** A frame of a member that we have made an offer to, but not connected yet. */
struct StrangerFrame {
  FrameHeader header;
  std::vector<uint8_t> body;
};

class Member::Core final : public LaneSink {
 public:
  static base::Result<std::unique_ptr<Core>> create(const MemberOptions& options);
  ~Core();

  // member.cc
  void close();
  const Buffers& buffers() const { return buffers_; }
  base::Result<Offer> offer();
  base::Status connect(uint32_t peer, uint64_t incarnation, std::span<const uint8_t> offer);
  void disconnect(uint32_t peer);
  base::Result<uint32_t> open_lane();
  base::Status close_lane(uint32_t lane);
  bool arm();
  int fd() const;
  Resources resources() const;
  ibv_pd* pd() const { return pd_.get(); }

  // groups.cc
  base::Result<OpenGroup> open_group(const GroupKey& key, uint32_t slots);
  void close_group(uint32_t number);

  // send.cc
  uint32_t flush(uint32_t rows);

  // receive.cc
  uint32_t poll(std::span<uint8_t> target, size_t offset, uint32_t max_frames);
  Lingered linger(uint32_t micros);

  // fetch.cc
  bool elsewhere(uint32_t peer);
  base::Result<uint32_t> fetch(uint32_t peer, const RemoteMemory& from, std::byte* to,
                               uint32_t lkey);
  void cancel_fetch(uint32_t number);

  // rearm.cc
  void tunnel(uint32_t peer, std::span<const uint8_t> message);

 private:
  struct Event {
    EventKind kind;
    int32_t peer;
    std::array<int32_t, 6> values;
    std::array<uint8_t, kTunnelBytes> message;  ///< kTunnel
  };
  /** Something that is due when everything that had arrived by then has been demultiplexed. */
  struct Due {
    uint64_t at;    ///< when demuxed_ is here
    uint32_t peer;  ///< kState: whom to answer; else unused
    uint32_t generation;
    uint16_t lane;
    uint64_t number;  ///< of the ask; 0: give `slots` back to the pool (R12)
    uint32_t slots;
    QpInfo target;  ///< of the answer
  };
  enum class Blocked : uint8_t { kNo, kCredit, kRoom, kLane };

  Core() = default;

  // member.cc
  Medium medium() const;
  base::Status check_reachable(const OfferData& offer) const;
  Peer* connected(uint32_t index);
  Peer* find(uint32_t index, uint32_t generation);
  void event(EventKind kind, int32_t peer, int32_t a = 0, int32_t b = 0);
  void touch(Peer& peer);
  void update_tables();
  void reap_closing_lanes();
  void drain_channel();
  bool anything_pending() const;
  double& counter(Counter which) { return buffers_.counters[which]; }

  // send.cc
  void accept_row(const int32_t* row);
  Destination& destination(Peer& peer, uint32_t lane);
  /** The lane of a destination; null when it could not be made, and then the peer is refused. */
  Lane* lane_of(const Peer& peer, const Destination& dest) const {
    return lanes_->to(peer.index, dest.lane);
  }
  Blocked pump(Peer& peer, Destination& dest);
  bool stage_backlog(Peer& peer, Destination& dest, Lane& lane);
  void stage_runs(Peer& peer, Destination& dest, Lane& lane);
  void stage_frame(Peer& peer, Destination& dest, Lane& lane, uint8_t flags);
  void copy_pending(Peer& peer, Destination& dest);
  void pump_active();
  void post_lanes();
  bool arm_lanes();
  bool arm_posted();
  void refresh_credits(Peer& peer);
  void free_arena();
  void count_backlog(Peer& peer, uint64_t before, uint64_t after);
  void activate(Peer& peer, Destination& dest);
  void completed(Posted& posted) override;
  void frame_completed(Peer& peer, Destination& dest, uint64_t sequence, uint32_t row_ends);

  // receive.cc
  enum class Took : uint8_t { kFrame, kNothing, kNoRoom };
  uint32_t collect(uint32_t limit);
  void collect_all();
  Took take_arrived(const Arrived& arrived, std::span<uint8_t> target);
  Took demultiplex(Peer& peer, const FrameHeader& header, const uint8_t* body,
                   std::span<uint8_t> target);
  Took from_stranger(const FrameHeader& header, Lanes::Origin from, const uint8_t* body);
  void emit_events(std::span<uint8_t> target);
  int32_t* next_row(EventKind kind, int32_t peer);
  Took bad_frame(int32_t peer, FaultReason reason);
  void read_credit_fields(Peer& peer, const FrameHeader& header);
  void settle_due();

  // settle.cc
  void attend(Peer& peer);
  void obey_recall(Peer& peer);
  void lend_to(Peer& peer);
  void settle();
  bool settle_peer(Peer& peer);
  bool stage_grant(Peer& peer, Lane& lane, uint32_t which, uint64_t value);

  // fetch.cc
  Fetch* find_fetch(uint32_t number);
  void pump_fetches();
  bool stage_piece(Fetch& fetch);
  void piece_landed(const Posted& posted, bool came, bool culprit, ibv_wc_status status);
  void end_fetch(Fetch& fetch, FetchEnd end);
  void end_fetches_of(uint32_t peer);
  void reap_fetches();
  void tell_fetch(Fetch& fetch);

  // rearm.cc
  bool harvest(Lane& lane);
  bool harvest_all();
  void recover(Lane& lane);
  void rearmed(int32_t number);
  void doubt(Posted& posted, bool culprit);
  void hold(Peer& peer, Destination& dest);
  void ask(Peer& peer, Destination& dest);
  void ask_again();
  void asked(Peer& peer, const TunnelMessage& message);
  void stated(Peer& peer, Destination& dest, const TunnelMessage& message);
  void refuse(Peer& peer, ibv_wc_status status);

  // groups.cc
  void accept_group_row(uint32_t number, uint32_t offset, uint32_t length);
  void post_groups();
  bool look_at_groups();
  bool arm_groups();
  void take_datagrams(std::span<uint8_t> target, uint32_t max_frames);
  Took take_datagram(const GroupListener& listener, std::span<uint8_t> target);

#ifdef MILLRACE_STEPS
  void check_invariants() const;
#endif

  // In the order of creation, so that destruction runs in reverse.
  MemberOptions options_;
  bool closed_ = true;
  Buffers buffers_;
  base::Fd folder_;
  std::string note_;  ///< what choosing the device had to say
  verbs::ContextPtr context_;
  verbs::PdPtr pd_;
  verbs::ChannelPtr channel_;
  verbs::CqPtr receive_cq_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Lanes> lanes_;  ///< shut() before the inbox goes, destroyed after it
  std::unique_ptr<Inbox> inbox_;
  /** One of the two, or none: the number is free. */
  struct GroupEnd {
    std::unique_ptr<GroupSender> sender;
    std::unique_ptr<GroupListener> listener;
  };
  std::vector<GroupEnd> groups_;
  uint32_t group_files_ = 0;    ///< made so far: names are not used again
  uint32_t closing_lanes_ = 0;  ///< bit per lane
  bool rearm_pending_ = false;  ///< a lane could not be re-armed, try again

  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<uint32_t> generations_;
  std::deque<uint32_t>
      free_peers_;                ///< oldest first: late writes of an old peer should find nobody
  std::vector<Peer*> connected_;  ///< those that are connected, in no order
  uint32_t reserved_count_ = 0;
  std::unordered_map<uint64_t, uint32_t> by_incarnation_;

  // Receiving.
  std::vector<Arrived> ring_;
  uint64_t arrived_ = 0;
  uint64_t demuxed_ = 0;
  std::deque<StrangerFrame> strangers_;   ///< from members that are not connected yet
  std::deque<uint64_t> departed_;         ///< incarnations that left lately: no strangers
  std::deque<StrangerFrame> recognised_;  ///< of these, the ones that are now
  std::deque<Event> events_;
  std::vector<Due> due_;
  bool armed_ = false;
  uint32_t looks_ = 1;  ///< of linger(), before it gives the CPU away
  // Of the poll that is running.
  uint32_t event_rows_ = 0;
  size_t cursor_ = 0;       ///< where in the target the next bytes go
  uint32_t need_room_ = 0;  ///< bytes that the target lacked room for

  // Fetching.
  std::deque<Fetch> fetches_;
  uint64_t fetches_in_flight_ = 0;  ///< bytes
  uint32_t fetches_made_ = 0;
  uint32_t fetch_lane_ = 0;  ///< 0: not opened yet

  // Sending.
  std::vector<std::pair<Peer*, Destination*>> touched_;
  std::vector<std::pair<Peer*, Destination*>> active_;
  std::vector<uint32_t> attention_;
  std::vector<uint32_t> dirty_;
  uint64_t flush_low_ = 0;  ///< arena position that this flush's frames may name at the lowest
  uint64_t rows_end_ = 0;   ///< arena position behind the last row seen
  uint64_t asks_ = 0;
  uint32_t held_ = 0;   ///< destinations that wait for a statement
  uint32_t spins_ = 0;  ///< bounded polling for credits, adapted to its success
  uint32_t spin_pause_ = 0;
  uint64_t backlog_bytes_ = 0;
  bool progress_ = false;
};

}  // namespace millrace::transport
