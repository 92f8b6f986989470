#include "soft/pipeline.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** One WQE for us, by one CAS each (R1, R4); max_wr when there is none. */
uint32_t scan_and_take(Peer& peer, uint64_t taken) {
  const uint64_t posted = peer.posted;
  uint32_t i = peer.queue->hint.load(std::memory_order_relaxed);
  if (i >= peer.max_wr) i = 0;
  for (uint32_t n = 0; n < peer.max_wr; ++n) {
    uint64_t expected = posted;
    // Acquire pairs with the owner's release of POSTED: the WQE's elements are there.
    if (peer.words[i].load(std::memory_order_relaxed) == posted &&
        peer.words[i].compare_exchange_strong(expected, taken, std::memory_order_acq_rel,
                                              std::memory_order_relaxed)) {
      peer.queue->hint.store(i + 1, std::memory_order_relaxed);
      step("taken");
      return i;
    }
    if (++i == peer.max_wr) i = 0;
  }
  return peer.max_wr;
}

/** Puts this QP on the queue's list of waiters (R10). False: it is full; then only looking again
 * helps. */
MILLRACE_COLD bool park(Qp& qp, Peer& peer) {
  if (peer.park == nullptr) {
    const uint64_t who = park_who(qp.process->owner(), park_channel_of(qp));
    for (uint32_t i = 0; i < peer.park_count; ++i) {
      uint64_t expected = 0;
      if (peer.parks[i].who.load(std::memory_order_relaxed) == 0 &&
          peer.parks[i].who.compare_exchange_strong(expected, who)) {
        peer.park = &peer.parks[i];
        peer.park_index = i;
        step("park claimed");
        break;
      }
    }
    if (peer.park == nullptr) return false;
  }
  // New at each parking, and never another process's: a late CAS of a waker can not clear it by
  // mistake.
  const uint64_t number = (static_cast<uint64_t>(qp.process->incarnation()) << 32) |
                          static_cast<uint32_t>(qp.process->next_number());
  peer.park->word.store(number);
  peer.queue->parked[peer.park_index / 64].fetch_or(uint64_t{1} << (peer.park_index % 64));
  step("parked");
  return true;
}

}  // namespace

void fetch_lines(const Peer& peer) {
  const RingUse& use = *peer.ring;
  if (use.touched) return;  // a list of WRs goes through the same lines
  const uint32_t hint = peer.queue->hint.load(std::memory_order_relaxed);
  base::fetch_for_write(&peer.words[hint]);
  __builtin_prefetch(peer.wqes + peer.stride * hint);
  base::fetch_for_write(&use.ring->entries[use.tail & (use.capacity - 1)]);
  base::fetch_for_write(&use.ring->tail);
}

uint32_t take(Qp& qp, Peer& peer, uint64_t* seen) {
  const uint64_t taken = wqe_taken(qp.process->owner());
  *seen = peer.queue->posted.load(std::memory_order_acquire);
  uint32_t index = scan_and_take(peer, taken);
  if (index != peer.max_wr) return index;
  if (qp.attr.rnr_retry == 0 || !park(qp, peer)) return index;
  // Registered; now look again (R10). This load and the owner's increment of `posted` are seq_cst,
  // as are our setting of the parked bit and its reading of it: either we see what was posted or
  // the owner sees us.
  *seen = peer.queue->posted.load();
  index = scan_and_take(peer, taken);
  if (index != peer.max_wr) peer.park->word.store(0);
  return index;
}

}  // namespace millrace::soft
