#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/spinlock.h"
#include "soft/chunk.h"
#include "soft/device.h"
#include "soft/layout/completions.h"
#include "soft/layout/queue.h"
#include "soft/peer.h"

namespace millrace::soft {

struct Channel;
struct Qp;
struct ReceiveQueue;

/** An initiator's ring as the receiver sees it. Numbers in here are private copies (I9). */
struct RingView {
  std::shared_ptr<base::Mapping> map;
  Ring* ring = nullptr;
  std::shared_ptr<PeerProcess> peer;
  uint64_t entry = 0;  ///< the directory word
  uint64_t head = 0;
  uint32_t capacity = 0;
};

/** What a completion says beyond ibv_wc; read through an extended CQ only. */
struct Extras {
  uint32_t flow_tag = 0;
  uint16_t cvlan = 0;
};

/** A completion in a CQ of this process. */
struct Completion {
  ibv_wc wc = {};
  Extras extras;
};

/** Event moderation (ibv_modify_cq): off unless both are more than 0. */
struct Moderation {
  std::atomic<uint16_t> count{0};
  std::atomic<uint16_t> period_us{0};
  uint64_t since =
      0;  ///< when the event that is held back was due, 0: none; needs the channel's lock
};

/**
 * A completion queue. Send completions and flushes are this process's own business and go through
 * `sends`; receive completions come through one ring for each initiating QP, found by the directory
 * and the ready bits in `shared`.
 */
struct Cq {
  ibv_cq_ex ex = {};  ///< the ibv_cq that callers have is its start
  Context* context = nullptr;
  Channel* channel = nullptr;
  Block block;
  CqShared* shared = nullptr;
  uint64_t serial = 0;
  std::atomic<uint32_t> users{0};  ///< QPs and SRQs

  base::Spinlock lock;
  // Needs lock.
  std::vector<Completion> sends;  ///< circular, of ex.cqe entries; flushed receives too
  uint32_t send_head = 0;
  std::vector<std::unique_ptr<RingView>> rings;  ///< by directory index
  uint32_t first_word = 0;  ///< where the next poll starts, so that no ring starves

  bool ignores_overrun = false;  ///< IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN; never changes
  /** More completions than it has room for: CQ_ERR was raised, what it holds can be polled, and
   * after that polling fails with EIO. */
  std::atomic<bool> in_error{false};

  // Of an extended CQ, see cq_ex.cc.
  std::mutex session;  ///< held from start_poll to end_poll, unless single_threaded
  bool single_threaded = false;
  ibv_wc current = {};  ///< needs session
  Extras current_extras;
  uint64_t wc_flags = 0;           ///< what was asked for; only timestamps cost anything
  uint64_t current_ts = 0;         ///< of the poll that found it, if asked for
  uint64_t current_wallclock = 0;  ///< the same
  Pd* parent_domain = nullptr;

  Moderation moderation;

  std::atomic<uint32_t> send_count{0};  ///< written under lock, read by anybody
  /** The number of the arming that has not been reported yet, 0 if none. Written by req_notify and
   * get_cq_event. */
  std::atomic<uint64_t> armed_here{0};
  /** Of the armings up to this number no event is due any more. Needs the channel's lock. */
  uint64_t reported = 0;
  /** Somebody woke for a later arming. Needs the channel's lock. */
  bool event_due = false;
  /** A ring is announced that could not be opened: its sender has woken us once and won't again. */
  std::atomic<bool> postponed{false};
  std::atomic<uint32_t> bad_entries{0};
  std::atomic<uint32_t> polls{0};  ///< that found something
  uint32_t events_delivered = 0;   ///< needs ex.mutex (channel's lock while counting up)

  static Cq& of(ibv_cq* handle) { return *reinterpret_cast<Cq*>(handle); }
  ibv_cq* handle() { return reinterpret_cast<ibv_cq*>(&ex); }

  /** Adds a completion of this process: of a send, or a flush. Takes the lock and wakes if armed.
   * False: the CQ is overrun and the completion is lost. */
  bool push(const ibv_wc& wc, bool solicited, const Extras& extras = {});
  /**
   * Moves what is in the rings behind what push() has added so far: a QP's receives that were
   * committed come before its flushed ones. Takes the lock.
   */
  void collect();
  /** Wakes this CQ's own channel if it is armed (R7). */
  void notify_own(bool solicited);
  /** Raises CQ_ERR once and puts the CQ in error. Any lock may be held. */
  void enter_error();
  /** How many completions a poll would find. Off the data path; takes the lock. */
  uint32_t pending();
  /** Whether a poll might find something. No lock. */
  bool maybe_ready() const;
  /** Removes the completions of a QP, in the rings too; WQEs of an SRQ go back to it (VERBS 1,
   * lesson 4). Takes the lock. */
  void purge(uint32_t qpn);
  /** push() without the lock and the waking. Needs lock. */
  bool append(const ibv_wc& wc, const Extras& extras);
  /** The process has no descriptor or no memory for that ring: the next poll looks again, and who
   * sleeps is woken for one after a while. */
  void look_later(uint32_t index);
  /** Makes sure that the ring of this directory entry is mapped and its owner watched. Needs lock.
   */
  RingView* visit(uint32_t index);
  /**
   * Has the next poll look at entries whose claimers died between the claim and its announcement,
   * so that nobody tells of them (I7). Needs lock.
   */
  void find_lost_claims();
  /** Takes up to `room` completions out of a ring; returns how many. Needs the lock. */
  int drain(uint32_t index, int room, ibv_wc* wc, Extras* extras = nullptr);
  /** The ring is drained and closed or its owner dead: removes file, copy and, last, the directory
   * entry. Needs lock. */
  void forget(uint32_t index);
};

/** What a CQ is created with, beyond ibv_create_cq's arguments. */
struct CqOptions {
  bool ignores_overrun = false;
  bool single_threaded = false;
  Pd* parent_domain = nullptr;
};
Cq* make_cq(Context& context, int64_t cqe, void* cq_context, ibv_comp_channel* channel,
            int64_t comp_vector, const CqOptions& options);
/** Adds the WQEs of `queue` whose completions are in rings of this CQ. Needs the CQ's lock. */
void read_rings(Cq& cq, QueueId queue, std::set<uint32_t>* wqes);

/** Wakes who sleeps though a ring could not be opened. No lock may be held. */
void wake_postponed(Process& process);

ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                  int comp_vector);
int resize_cq(ibv_cq* cq, int cqe);
int destroy_cq(ibv_cq* cq);
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
/** poll_cq() for one completion with all that there is to say about it. */
int poll_one(Cq& cq, ibv_wc* wc, Extras* extras);
int req_notify_cq(ibv_cq* cq, int solicited_only);
void ack_cq_events(ibv_cq* cq, unsigned int count);

/**
 * The waker's half of R7 and R9 after a commit into ring `index` of a CQ: fence, set the ready bit
 * if it is clear, read `armed`, write the FIFO, clear by CAS from the number that was read.
 */
void announce(CqShared& cq, uint32_t index, int wake_fd, bool solicited);

}  // namespace millrace::soft
