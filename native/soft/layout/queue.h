#pragma once

#include <compare>

#include "soft/layout/words.h"

/** Receive queues as initiators see them: of SRQs, and those that QPs have for themselves. */
namespace millrace::soft {

inline constexpr uint32_t kParkEntries = 256;  ///< QPs that may wait for one SRQ by being woken
/** Park entries of a connected QP's own receive queue: its peer, and one that has not yet let go.
 */
inline constexpr uint32_t kOwnParkEntries = 2;
inline constexpr uint32_t kMaxSrqSge = 8;
inline constexpr uint32_t kMaxRecvSge = 30;  ///< of a QP's own receive queue
inline constexpr uint32_t kMaxSendSge = 30;
inline constexpr uint32_t kMaxSrqWr = 16384;  ///< also of a QP's own receive queue

/**
 * Which receive queue: the number of an SRQ, or that of a QP (with kOwnQueue) for the queue that
 * this QP has for itself. 0 is none.
 */
using QueueId = uint32_t;
inline constexpr QueueId kOwnQueue = 1u << kNumberBits;
constexpr QueueId own_queue(uint32_t qpn) { return kOwnQueue | (qpn & kNumberMask); }

/**
 * State word of a receive WQE: exactly one of these (R1). POSTED carries the queue and, for a QP's
 * own queue, the epoch of its connection (QpRecord::health): memory that is used again after a
 * RESET has no word that somebody of the last connection could take (R24, R25).
 */
constexpr uint64_t kWqeEmpty = 0;  ///< never posted
constexpr uint64_t kWqeClosed = uint64_t{3} << 62;
constexpr uint64_t wqe_posted(QueueId queue, uint32_t epoch = 0) {
  return (uint64_t{1} << 62) | (static_cast<uint64_t>(epoch) << 25) | queue;
}
static_assert(kNumberBits + 1 + 32 < 62, "kind, epoch and queue fit one word");
constexpr uint64_t wqe_taken(uint64_t owner) { return (uint64_t{2} << 62) | owner; }
constexpr bool wqe_is_taken(uint64_t word) { return (word >> 62) == 2; }
constexpr uint64_t wqe_taker(uint64_t word) { return word & ~(uint64_t{3} << 62); }

struct Sge {
  uint64_t address;
  uint32_t length;
  uint32_t lkey;
};

struct Wqe {
  uint32_t num_sge;
  uint32_t reserved[3];
  Sge sge[1];  // max_sge of them
};
constexpr size_t wqe_stride(uint32_t max_sge) { return 16 + 16 * static_cast<size_t>(max_sge); }

/** A QP that waits for a WQE of a receive queue. */
struct ParkEntry {
  Word who;   ///< owner word of the initiator, channel number in the top 16 bits; 0 free
  Word word;  ///< 0 not parked, else a number new at each parking (R10)
};
constexpr uint64_t park_who(uint64_t owner, uint32_t channel) {
  return owner | (static_cast<uint64_t>(channel & 0xFFFF) << 48);
}
constexpr uint64_t park_owner(uint64_t who) { return who & ((uint64_t{1} << 48) - 1); }
constexpr uint32_t park_channel(uint64_t who) { return static_cast<uint32_t>(who >> 48); }

/**
 * The part of a receive queue that initiators see, followed by its park entries, the state words
 * and the WQEs. The sizes don't change while it lives.
 */
struct QueueShared {
  uint64_t owner;
  QueueId id;
  uint32_t max_wr;
  uint32_t max_sge;
  uint32_t pd;     ///< keys in its WQEs are checked against it
  uint32_t parks;  ///< park entries: 0 to kParkEntries
  uint32_t reserved0;
  Ref cq;  ///< of an XRC SRQ: its completions go there
  uint64_t reserved[2];
  alignas(64) Half hint;  ///< where the next take looks first; only a hint
  alignas(64) Word
      posted;  ///< changes at each posting: who found nothing need not look again until it does
  alignas(64) Word parked[kParkEntries / 64];  ///< which park entries may be in use
};
static_assert(offsetof(QueueShared, hint) == 64 && offsetof(QueueShared, posted) == 128);
static_assert(offsetof(QueueShared, parked) == 192 && sizeof(QueueShared) == 256);

/** Where the parts of a receive queue of these sizes lie, in bytes from its start. */
struct QueueLayout {
  uint32_t max_wr, max_sge, parks;
  auto operator<=>(const QueueLayout&) const = default;
  constexpr size_t park() const { return sizeof(QueueShared); }
  constexpr size_t words() const { return align_up(park() + parks * sizeof(ParkEntry), 64); }
  constexpr size_t wqes() const { return align_up(words() + size_t{8} * max_wr, 64); }
  constexpr size_t bytes() const { return align_up(wqes() + wqe_stride(max_sge) * max_wr, 64); }
  /** The sizes are within the limits of this build (I9). */
  constexpr bool valid() const {
    return max_wr >= 1 && max_wr <= kMaxSrqWr && max_sge >= 1 && max_sge <= kMaxRecvSge &&
           parks <= kParkEntries;
  }
};

}  // namespace millrace::soft
