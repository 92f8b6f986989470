#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/spinlock.h"
#include "base/status.h"
#include "soft/chunk.h"
#include "soft/layout/queue.h"

namespace millrace::soft {

class PeerProcess;
class Process;
struct Context;
struct Cq;
struct Srq;

/** The scatter list of a WQE, as its owner posted it. */
struct Elements {
  uint32_t count = 0;
  Sge sge[kMaxRecvSge];
};

/**
 * A receive queue: an SRQ's, or the one that a QP has for itself. Here is what its owner knows and
 * nobody else needs to; what initiators see is `shared`. Both ends follow R1 to R4, R10, R24, R25.
 */
struct ReceiveQueue {
  Context* context = nullptr;
  Process* process = nullptr;
  /** Where its completions go; null for a basic SRQ: to the receive CQ of the QP in the entry. */
  Cq* cq = nullptr;
  Srq* srq = nullptr;  ///< whose queue it is; null: a QP's own
  QueueId id = 0;
  // Ours: what others can write (`shared`) is never asked for these again (I9).
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  uint32_t parks = 0;
  uint32_t pd = 0;

  Block block;
  QueueShared* shared = nullptr;
  ParkEntry* park = nullptr;
  Word* words = nullptr;
  std::byte* wqes = nullptr;
  size_t stride = 0;

  base::Spinlock lock;
  // Needs lock. The free list is a circle: indices come back in the order in which they were
  // consumed, so that what is posted stays one run and a taker's hint is nearly always right. For a
  // QP with one peer the hint is always right, and WQEs are used in the order of their posting.
  struct Slot {
    uint64_t wr_id = 0;
    uint32_t sequence = 0;     ///< of its posting
    bool outstanding = false;  ///< posted and its completion not consumed
  };
  std::vector<Slot> slots;
  std::vector<uint32_t> free_list;
  uint32_t free_head = 0;
  uint32_t free_count = 0;
  uint32_t sequence = 0;
  uint32_t peer_qpn = 0;  ///< of a connected QP: the only one whose entries count; 0: any
  uint32_t epoch = 0;     ///< of a QP's own queue: what POSTED carries
  uint32_t limit = 0;     ///< SRQ only; 0: no event wanted
  bool closed = false;    ///< nobody may take any more; what comes back is not posted again

  /**
   * Takes shared memory for these sizes and makes the private side; `id`, `context` and `process`
   * are set before. Needs the process's registry mutex. Also for a queue that had memory: the old
   * block is left behind (R6).
   */
  base::Status allocate(const QueueLayout& layout, uint32_t pd_number, const Ref& cq_ref);
  /** Gives the memory back for another queue of the same size; only when quiet() (R25). */
  void give_back();

  /** Posts a list. 0, ENOMEM (full) or EINVAL, with `bad`. Any thread. */
  int post(ibv_recv_wr* wr, ibv_recv_wr** bad);
  /**
   * Consumes the completion of a WQE: its state word must say that `taker` has it. Gives the WR id,
   * for a message that is still to be placed its scatter list, and the index back to the free list;
   * the word stays TAKEN until it is posted again (R1, R35). False: a lie (I9), or of the last
   * connection from somebody who was stopped while we went through RESET.
   */
  bool consume(uint32_t index, uint64_t taker, uint32_t from_qpn, uint64_t* wr_id,
               Elements* elements = nullptr);
  /** Copies a message from a ring into memory of this process, keys and bounds checked. False: the
   * region has gone since its sender looked (R35). */
  bool place(const Elements& elements, const std::byte* from, uint32_t bytes) const;
  /** A connection: entries of other QPs than this one don't count. Takes the lock. */
  void expect(uint32_t qpn);
  /** POSTED was stored: fence, then wake every parked QP (R10). Any thread. */
  void wake_parked();

  /** Nobody can take any more: every POSTED becomes CLOSED (R25). Takes the lock. */
  void close();
  /**
   * Waits until no living process has a WQE taken without having committed it, at most 100 ms: a
   * stopped one is left behind (R6). `from` is the CQ into whose rings commits go; null: any CQ of
   * the process, and the process's objects() is held. `taker`: only WQEs of this process matter;
   * 0: all. False: somebody still is inside. No lock of this queue or of a CQ may be held.
   */
  bool wait_quiet(Cq* from, uint64_t taker = 0);
  /**
   * After close() and wait_quiet(): takes back what was closed or is held by the dead, in the order
   * of posting, and gives the WR ids for the flush. What a living process still has stays
   * outstanding. `from` as in wait_quiet().
   */
  std::vector<uint64_t> take_back(Cq* from);
  /**
   * What the dead process had taken of this queue becomes POSTED again, or CLOSED when the queue is
   * closed: then its WR ids are in `flushed`. Entries that are in a ring are not touched; `is_in`
   * says so of an index. Its park entries go. True: something was posted and waiters have to be
   * woken (R2, R10).
   */
  bool return_taken(uint64_t dead, const std::function<bool(uint32_t)>& is_in,
                    std::vector<uint64_t>* flushed);
  /** For a new connection (RESET): all slots are free, and POSTED will carry `new_epoch`. */
  void reopen(uint32_t new_epoch);
  /** WQEs posted and not consumed. Takes the lock. */
  uint32_t outstanding();
};

}  // namespace millrace::soft
