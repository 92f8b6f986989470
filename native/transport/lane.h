#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "transport/arena.h"
#include "transport/backlog.h"
#include "transport/frame.h"
#include "transport/wire.h"
#include "verbs/owners.h"

namespace millrace::transport {

/** A piece of the send arena. */
struct Run {
  uint32_t offset, bytes;
};

/** Most pieces that a frame gathers; with more, it is copied to a bounce slot. One more SGE is the
 * header. */
inline constexpr uint32_t kMaxRuns = 15;
/** WRs that a lane may have outstanding; its CQ holds as many (I3). */
inline constexpr uint32_t kLaneDepth = 256;
/** Of these, the ones that data leaves free for answers, statements and grants. */
inline constexpr uint32_t kControlReserve = 16;

/** What a WR tells its receiver beside its records. */
enum Carried : uint8_t {
  kCarriedStatement = 1,  ///< credits burnt (R11)
  kCarriedRecall = 2,     ///< a recall's number, or the frame that wakes the receiver for it
};

/** A WR from when it is staged until its completion (or the re-arm) is done with. */
struct Posted {
  enum class Kind : uint8_t { kFrame, kGrant, kRead };
  Kind kind = Kind::kFrame;
  uint8_t flags = 0;    ///< FrameFlags
  uint8_t carried = 0;  ///< Carried: what has to be told again when it is lost
  uint8_t lane = 0;
  uint8_t run_count = 0;  ///< 0 with a body: it is in the bounce slot
  int32_t bounce = -1;
  uint32_t peer = 0;
  uint32_t generation = 0;  ///< of the peer's index
  uint32_t body_bytes = 0;
  uint32_t records = 0;  ///< kRead: number of the fetch
  uint32_t row_ends = 0;
  uint64_t sequence = 0;   ///< kRead: where in the payload
  uint64_t arena_low = 0;  ///< nothing below this arena position is named
  Run runs[kMaxRuns];
};

/** What is done with completions; called by Lane::harvest(). */
class LaneSink {
 public:
  virtual void completed(Posted& posted) = 0;

 protected:
  ~LaneSink() = default;
};

/**
 * A lane: a queue of WRs that complete in order, over the QP of its Wire, which leads to the XRC
 * SRQs of all members of a host, or to one member (see Lanes). Its send CQ is its own, sized for it
 * (I3). WRs are staged, posted as one list; only the last one of a list is signaled.
 *
 * When a completion says error, the lane is down: nothing is posted until drained() and rearm()
 * (R14).
 */
class Lane {
 public:
  enum class State : uint8_t {
    kUp,
    kDown,    ///< an error completion; its WRs drain
    kAsking,  ///< nothing is outstanding; it waits for its peer's answer
  };

  /** Without a wire yet: attach() follows, before anything else. `depth` <= kLaneDepth. */
  static base::Result<std::unique_ptr<Lane>> create(ibv_context* context, ibv_comp_channel* channel,
                                                    Arena* arena, uint32_t number, uint32_t depth);
  /** ERR, drained (bounded), destroyed. */
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void attach(std::unique_ptr<Wire> wire, uint32_t max_runs, State state);
  Wire& wire() const { return *wire_; }
  /** It leads to one peer; otherwise peer() is kEverybody. */
  void belong(uint32_t peer, uint32_t generation) {
    peer_ = peer;
    generation_ = generation;
  }
  static constexpr uint32_t kEverybody = ~0u;
  uint32_t peer() const { return peer_; }
  uint32_t generation() const { return generation_; }

  uint32_t number() const { return number_; }
  State state() const { return state_; }
  bool up() const { return state_ == State::kUp; }
  uint32_t outstanding() const { return static_cast<uint32_t>(tail_ - head_); }
  /** Room for a WR; data asks with `reserve` = kControlReserve. */
  bool room(uint32_t reserve) const { return outstanding() + reserve < depth_; }
  /** The most pieces that a frame of this lane may have. */
  uint32_t max_runs() const { return max_runs_; }
  ibv_cq* cq() const { return cq_.get(); }

  /** The next WR, to be filled in; the header's memory is header(). Only when up() and room(0). */
  Posted& next() { return ring_[tail_ % depth_]; }
  FrameHeader* header() const {
    return reinterpret_cast<FrameHeader*>(headers_.base + tail_ % depth_ * kFrameHeaderBytes);
  }
  /** Stages next() as a frame to an SRQ. */
  void stage_frame(uint32_t srq_number);
  /** Stages next() as an 8-byte WRITE of `from` (a word of the arena). */
  void stage_write(uint32_t srq_number, const uint64_t* from, uint64_t remote_address,
                   uint32_t rkey);
  /** Stages next() as a READ of a piece of the peer's memory. */
  void stage_read(uint32_t srq_number, std::byte* to, uint32_t bytes, uint32_t lkey,
                  uint64_t remote_address, uint32_t rkey);
  /** Posts what is staged. */
  void post();

  /**
   * Takes completions. Those that succeeded go to the sink, oldest first. After the first error the
   * lane is down and the WRs from there on stay in doubt until rearm(). True: something happened.
   */
  bool harvest(LaneSink* sink);

  /** Down, and every WR has its completion. */
  bool drained() const { return state_ == State::kDown && accounted_ == tail_; }
  /** Number of WRs in doubt, oldest first. */
  uint32_t doubtful() const { return outstanding(); }
  Posted& doubt(uint32_t i) { return ring_[(head_ + i) % depth_]; }
  /** Whether doubt(0) is what the error completion named (and not a mere flush). */
  bool culprit_known() const { return culprit_known_; }
  ibv_wc_status first_error() const { return first_error_; }
  /** After drained(): nothing of the old connection lands once the next one is made. */
  void quiesce() { wire_->quiesce(); }
  /** Forgets the WRs in doubt and connects anew. On failure the lane stays as it is. */
  base::Status rearm();
  /** Forgets the WRs in doubt; the peer's answer is waited for. */
  void await();
  /** Whether it was up before. */
  bool was_up() const { return was_up_; }
  /** Its peer is gone: what is outstanding is flushed, and then it is drained(). */
  void part();
  bool parted() const { return parted_; }

  /** The oldest arena position that a WR of this lane may name; ~0 when none is outstanding. */
  uint64_t arena_low() const {
    return head_ == tail_ ? ~uint64_t{0} : ring_[head_ % depth_].arena_low;
  }

 private:
  Lane() = default;
  void stage_one_sided(ibv_wr_opcode opcode, uint32_t srq_number, const ibv_sge& local,
                       uint64_t remote_address, uint32_t rkey);
  void forget_doubts();
  void fail(ibv_wc_status status);

  uint32_t number_ = 0;
  uint32_t depth_ = kLaneDepth;
  uint32_t peer_ = kEverybody;
  uint32_t generation_ = 0;
  State state_ = State::kAsking;
  bool was_up_ = false;
  bool parted_ = false;
  Arena* arena_ = nullptr;
  HeaderBlock headers_;
  verbs::CqPtr cq_;
  std::unique_ptr<Wire> wire_;  ///< its QPs go before the CQ
  uint32_t max_runs_ = kMaxRuns;

  // Positions are cumulative: head <= accounted <= tail; [head, tail) have not been given to the
  // sink.
  uint64_t head_ = 0;
  uint64_t accounted_ = 0;  ///< everything below has its completion
  uint64_t tail_ = 0;
  uint64_t limit_ = 0;  ///< first WR that was never given to the device, when down
  ibv_wc_status first_error_ = IBV_WC_SUCCESS;
  bool culprit_known_ = false;
  std::unique_ptr<Posted[]> ring_;

  // Staging: memory of the list that is being built.
  static constexpr uint32_t kList = 64;
  uint32_t staged_ = 0;
  std::unique_ptr<ibv_send_wr[]> wrs_;
  std::unique_ptr<ibv_sge[]> sges_;
};

}  // namespace millrace::transport
