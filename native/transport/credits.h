#pragma once

#include <cstdint>

/**
 * Slot credits, as models d1 (pool, recall), d2 (waiting) and d3 (re-arm) have them. Pure
 * bookkeeping of the two ends of one (sender, receiver's SRQ) pair: no verbs, no memory of others.
 * All counts are cumulative and a grant is a sequence number ("up to G"), never a count of arrivals
 * (R14).
 *
 * Every peer has a floor of three slots at an inbox for ever: two that it may use, and one for the
 * answer to its WAIT, which needs no credit (R13). Further slots are lent from the pool.
 */
namespace millrace::transport {

inline constexpr uint32_t kUsableFloor = 2;
inline constexpr uint32_t kAnswerSlots = 1;
inline constexpr uint32_t kFloorSlots = kUsableFloor + kAnswerSlots;
/** More credits than this can't be real: an SRQ has fewer slots. */
inline constexpr uint64_t kMaxCredits = 1 << 16;

/** The sender's end. */
class SendCredits {
 public:
  /** A new peer that granted `granted` in its offer. */
  void reset(uint64_t granted);

  /** A grant was seen, in any order, any number of times; granted never goes down. False:
   * impossible, ignored (I9). */
  bool see(uint64_t granted);

  uint64_t available() const { return seen_ - used_; }
  uint64_t used() const { return used_; }
  uint64_t seen() const { return seen_; }
  bool waiting() const { return waiting_; }
  uint32_t returned() const { return returned_; }
  uint32_t recall_answered() const { return recall_answered_; }

  /** While a WAIT is unanswered nothing takes the last credit (R13). */
  bool may_send() const { return available() > (waiting_ ? 1u : 0u); }

  /** Takes a credit; only when may_send(). True: it was the last one, and the frame must carry the
   * WAIT bit (R13). */
  bool take();

  /** The answer to our WAIT arrived. */
  void answered() { waiting_ = false; }

  /**
   * Burns what is above the floor for recall number `recall` (R11). Returns the credits burnt,
   * which the next frame states in `returned`. Nothing happens for a number that was obeyed before;
   * then `*obeyed` is false.
   */
  uint32_t burn(uint32_t recall, bool* obeyed);

  /** A re-arm found `frames` frames lost that had taken credits; `wait`: one of them carried the
   * WAIT bit (R14). */
  void lost(uint32_t frames, bool wait);

 private:
  uint64_t seen_ = 0;
  uint64_t used_ = 0;
  uint32_t returned_ = 0;
  uint32_t recall_answered_ = 0;
  bool waiting_ = false;
};

/** The receiver's end: what one sender was granted. */
class GrantBook {
 public:
  /** A new sender with the usable floor. */
  void reset();

  uint64_t granted() const { return granted_; }
  uint32_t lent() const { return lent_; }
  /** The number of slots that are kept for this sender, its answer slot included. */
  uint32_t share() const { return kFloorSlots + lent_; }
  /** Credits that the sender has or has in use: at most that many slots may be taken without asking
   * (I2). */
  uint64_t outstanding() const { return granted_ - consumed_ - returned_total_; }

  /** A frame that used a credit was demultiplexed and its slot posted again: grants it again. */
  void consumed();

  /** Lends `n` slots, which the caller took out of the pool. */
  void lend(uint32_t n);

  /** Asks the sender to burn what it has above the floor. False when an earlier recall is
   * unanswered. */
  bool recall();
  uint32_t recall_number() const { return recall_; }
  bool recalling() const { return recall_ != recall_answered_; }

  /**
   * What a frame of the sender says about recalls. Older statements (another lane was faster)
   * change nothing. `*back`: slots that the caller must put into the pool. False: impossible,
   * nothing was changed (I9).
   */
  bool stated(uint32_t returned, uint32_t recall_answered, uint32_t* back);

 private:
  uint64_t granted_ = 0;
  uint64_t consumed_ = 0;
  uint64_t returned_total_ = 0;
  uint32_t returned_seen_ = 0;
  uint32_t lent_ = 0;
  uint32_t recall_ = 0;
  uint32_t recall_answered_ = 0;
};

}  // namespace millrace::transport
