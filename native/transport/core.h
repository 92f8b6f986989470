#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/files.h"
#include "transport/arena.h"
#include "transport/fetch.h"
#include "transport/group.h"
#include "transport/inbox.h"
#include "transport/lane.h"
#include "transport/lanes.h"
#include "transport/member.h"
#include "transport/peers.h"
#include "transport/strangers.h"
#include "verbs/owners.h"

/**
 * The state behind transport::Member. Its functions are in files by concern: member.cc (create,
 * close), peering.cc (peers come and go), own_lanes.cc, send.cc (flush), receive.cc (poll), wait.cc
 * (linger, arm), settle.cc (credits, answers, grants), rearm.cc (lanes that went down), fetch.cc
 * (reading others' memory), groups.cc (multicast), tables.cc (what is shown).
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

/** A completion of the receive CQ that has not been demultiplexed. */
struct Arrived {
  uint32_t slot;
  uint32_t bytes;
  ibv_wc_status status;
  Lanes::Origin from;
};

class Member::Core final : public LaneSink {
 public:
  static base::Result<std::unique_ptr<Core>> create(const MemberOptions& options);
  ~Core();

  // member.cc
  void close();
  const Buffers& buffers() const { return buffers_; }
  ibv_pd* pd() const { return pd_.get(); }

  // peering.cc
  base::Result<Offer> offer();
  base::Status connect(uint32_t peer, uint64_t incarnation, std::span<const uint8_t> offer);
  void disconnect(uint32_t peer);

  // own_lanes.cc
  base::Result<uint32_t> open_lane();
  base::Status close_lane(uint32_t lane);

  // wait.cc
  Lingered linger(uint32_t micros);
  bool arm();
  int fd() const;

  // tables.cc
  Resources resources() const;

  // groups.cc
  base::Result<OpenGroup> open_group(const GroupKey& key, uint32_t slots);
  void close_group(uint32_t number);

  // send.cc
  uint32_t flush(uint32_t rows);

  // receive.cc
  uint32_t poll(std::span<uint8_t> target, size_t offset, uint32_t max_frames);

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

  // peering.cc
  OfferData ours() const;

  // own_lanes.cc
  void reap_closing_lanes();

  // wait.cc
  void drain_channel();
  bool anything_pending() const;
  bool arm_lanes();

  // tables.cc
  void event(EventKind kind, int32_t peer, int32_t a = 0, int32_t b = 0);
  void touch(Peer& peer);
  void update_tables();
  double& counter(Counter which) { return buffers_.counters[which]; }
#ifdef MILLRACE_STEPS
  void check_invariants() const;
#endif

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

  Peers peers_;

  // Receiving.
  std::vector<Arrived> ring_;
  uint64_t arrived_ = 0;
  uint64_t demuxed_ = 0;
  Strangers strangers_;
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
