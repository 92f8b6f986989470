#include "soft/death.h"

#include <mutex>
#include <set>
#include <utility>

#include "soft/channel.h"
#include "soft/cq.h"
#include "soft/process.h"
#include "soft/srq.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

using Committed = std::set<std::pair<uint32_t, uint32_t>>;  // (SRQ number, WQE index)

/** WQEs in the ring that were committed and not yet polled. Needs the CQ's lock. */
void read_ring(const RingView& view, Committed* out) {
  const uint64_t tail = view.ring->tail.load(std::memory_order_acquire);
  if (tail - view.head > view.capacity) return;  // damaged; poll finds out and drops it
  for (uint64_t at = view.head; at != tail; ++at) {
    const Entry entry = view.ring->entries[at & (view.capacity - 1)];
    out->emplace(entry.srqn, entry.wqe);
  }
}

}  // namespace

void reap_what_it_took(Process& process, PeerProcess& dead) {
  // Drain: every ring of the dead one, also those that were never visited. Nothing is added to them
  // any more, so reading is enough, and the entries wait for the next polls.
  Committed committed;
  for (Cq* cq : process.cqs) {
    std::lock_guard guard(cq->lock);
    for (uint32_t i = 0; i < kRingsPerCq; ++i) {
      const uint64_t entry = cq->shared->directory[i].load(std::memory_order_acquire);
      if (entry == 0 || directory_incarnation(entry) != dead.incarnation()) continue;
      if (RingView* view = cq->visit(i)) {
        read_ring(*view, &committed);
        uint32_t high = cq->shared->high.load();
        while (high < i + 1 && !cq->shared->high.compare_exchange_weak(high, i + 1)) {
        }
        cq->shared->ready[i / 64].fetch_or(uint64_t{1} << (i % 64));
      }
    }
  }
  step("dead rings read");

  // Return, then wake.
  const uint64_t taken = wqe_taken(dead.owner());
  for (Srq* srq : process.srqs) {
    bool returned = false;
    {
      std::lock_guard guard(srq->lock);
      for (uint32_t i = 0; i < srq->max_wr; ++i) {
        // A word of a WQE whose completion was polled already still says TAKEN (R1); it is not
        // outstanding.
        if (srq->outstanding[i] == 0 || srq->words[i].load(std::memory_order_relaxed) != taken)
          continue;
        if (committed.count({srq->number, i}) != 0) continue;
        uint64_t expected = taken;
        returned |= srq->words[i].compare_exchange_strong(expected, wqe_posted(srq->number));
        step("wqe returned");
      }
    }
    for (ParkEntry& park : srq->shared->park) {
      uint64_t who = park.who.load(std::memory_order_relaxed);
      if (who != 0 && park_owner(who) == dead.owner()) park.who.compare_exchange_strong(who, 0);
    }
    if (!returned) continue;
    srq->shared->posted.fetch_add(1);
    srq->wake_parked();
  }
}

void wake_after_death(Process& process, PeerProcess&) {
  for (Context* context : process.contexts) {
    std::lock_guard lock(context->qps_lock);
    for (Channel* channel : context->channels) channel->wake();
    context->wake.wake();
  }
}

bool copies_are_done(Process& process, Srq& srq) {
  std::lock_guard objects(process.objects());
  Committed committed;
  std::lock_guard polls(srq.cq->lock);
  for (uint32_t i = 0; i < kRingsPerCq; ++i) {
    if (srq.cq->shared->directory[i].load(std::memory_order_acquire) == 0) continue;
    if (RingView* view = srq.cq->visit(i)) read_ring(*view, &committed);
  }
  std::lock_guard guard(srq.lock);
  for (uint32_t i = 0; i < srq.max_wr; ++i) {
    const uint64_t word = srq.words[i].load(std::memory_order_acquire);
    if (srq.outstanding[i] == 0 || !wqe_is_taken(word) || committed.count({srq.number, i}) != 0)
      continue;
    return false;
  }
  return true;
}

}  // namespace millrace::soft
