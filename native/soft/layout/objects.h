#pragma once

#include "soft/layout/words.h"

/** XRC domains, SRQ numbers and QP numbers, in the root file. */
namespace millrace::soft {

inline constexpr uint32_t kSrqs = 8192;
inline constexpr uint32_t kQps = 16384;
inline constexpr uint32_t kTargetQps = 4096;  ///< XRC targets: the QP indices below this
inline constexpr uint32_t kXrcds = 1024;      ///< opened (process, domain) pairs
inline constexpr uint32_t kQpHolders = 64;    ///< processes that may hold one target QP

/** Key of an XRC domain: the inode behind the descriptor that it was opened with. */
struct XrcdKey {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const XrcdKey&) const = default;
};

/** In XrcdRecord::owner: the key is filled in. */
inline constexpr uint64_t kAnnounced = uint64_t{1} << 63;

/** An XRC domain that a process has open. `owner` is 0 when free; kAnnounced is the commit. */
struct XrcdRecord {
  Word owner;
  XrcdKey key;
  uint64_t reserved;
};
static_assert(sizeof(XrcdRecord) == 32);

enum class Life : uint32_t { kFree = 0, kCreating = 1, kLive = 2, kClosing = 3 };

/**
 * Commit word of an SRQ or QP record: number (24 bits), life (4), verbs state (4, QPs only), and an
 * incarnation: the creator's while CREATING and for objects that die with it; the closer's while
 * CLOSING; 0 for a live target.
 */
constexpr uint64_t record_word(uint32_t number, Life life, uint32_t state, uint32_t incarnation) {
  return (static_cast<uint64_t>(incarnation) << 32) | (static_cast<uint64_t>(state & 15) << 28) |
         (static_cast<uint64_t>(life) << 24) | (number & kNumberMask);
}
constexpr uint32_t record_number(uint64_t word) {
  return static_cast<uint32_t>(word) & kNumberMask;
}
constexpr Life record_life(uint64_t word) { return static_cast<Life>((word >> 24) & 15); }
constexpr uint32_t record_state(uint64_t word) { return static_cast<uint32_t>(word >> 28) & 15; }
constexpr uint32_t record_incarnation(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

/** Where an SRQ number leads. Filled before the word says LIVE; a reader copies and then reads the
 * word again. */
struct SrqRecord {
  Word word;
  uint64_t owner;
  XrcdKey xrcd;  ///< of an XRC SRQ; a basic one has none and is reached through QPs only
  Ref queue;     ///< QueueShared, in the owner's chunks
  uint32_t basic;
  uint32_t reserved0;
  uint64_t reserved;
};
static_assert(sizeof(SrqRecord) == 64);

/**
 * `health` of a QP: the epoch (a number new at each RESET, never set back, not even when another QP
 * gets the record) and why the QP failed, kHealthy while it has not. Whoever finds a responder at
 * fault changes it by CAS from the healthy word of the epoch that he is connected to; so it can not
 * hit a later connection. The owner alone changes the epoch.
 */
enum class Fault : uint32_t {
  kHealthy = 0,
  kAccess = 1,     ///< IBV_EVENT_QP_ACCESS_ERR
  kRequest = 2,    ///< IBV_EVENT_QP_REQ_ERR
  kOperation = 3,  ///< IBV_EVENT_QP_FATAL
  kReported = 4,   ///< a receive completion of its own says it
};
constexpr uint64_t health_word(uint32_t epoch, Fault fault) {
  return (static_cast<uint64_t>(epoch) << 32) | static_cast<uint32_t>(fault);
}
constexpr uint32_t health_epoch(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr Fault health_fault(uint64_t word) { return static_cast<Fault>(word & 0xFF); }

/**
 * A QP number. For an XRC target this is the QP itself: no process owns it (VERBS 2.7), and its
 * holders are in a table of their own, by the same index. Else it is what others need to know of a
 * QP; its owner alone changes it, and what a reader may rely on is written before the word's state
 * says INIT (queue, CQ, pd) or RTR (dest_qpn, the path).
 */
struct QpRecord {
  Word word;
  Word health;     ///< health_word(); not for XRC
  uint64_t owner;  ///< the creator; of a target only for diagnosis
  uint32_t type;   ///< ibv_qp_type
  Half access;     ///< IBV_ACCESS_* that the QP grants to its peer
  Half min_rnr_timer;
  Half dest_qpn;
  Half rq_psn;
  Half sq_psn;
  Half path_mtu;
  Half timeout;
  Half max_dest_rd_atomic;
  Half qkey;
  alignas(64) XrcdKey xrcd;  ///< of an XRC target
  // Not for XRC:
  Word gid[2];    ///< remote GID of the connection, where it has one
  Half port;      ///< port_place() << 8 | port number
  Half remote;    ///< remote LID of the connection, where it has one
  uint32_t pd;    ///< keys of one-sided operations are checked against it
  uint32_t srqn;  ///< of the SRQ that it receives from; 0: its own queue
  Half wake;      ///< number of the FIFO that wakes its context
  uint32_t reserved0[3];
  alignas(64) Ref queue;  ///< QueueShared of its own receive queue; no bytes: it has none
  Ref cq;                 ///< CqShared of its receive CQ
  uint64_t reserved[4];
};
static_assert(offsetof(QpRecord, xrcd) == 64 && offsetof(QpRecord, queue) == 128);
static_assert(sizeof(QpRecord) == 192);

/** Incarnations of the processes with a handle to an XRC target; 0 is free. */
struct QpHolders {
  Half holder[kQpHolders];
};
static_assert(sizeof(QpHolders) == 256);

}  // namespace millrace::soft
