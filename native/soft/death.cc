#include "soft/death.h"

#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "soft/channel.h"
#include "soft/cq.h"
#include "soft/process.h"
#include "soft/qp.h"
#include "soft/receive_queue.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

using Committed = std::set<std::pair<QueueId, uint32_t>>;  // (queue, WQE index)

/** WQEs in the ring that were committed and not yet polled. Needs the CQ's lock. */
void read_ring(const RingView& view, Committed* out) {
  const uint64_t tail = view.ring->tail.load(std::memory_order_acquire);
  if (tail - view.head > view.capacity) return;  // damaged; poll finds out and drops it
  for (uint64_t at = view.head; at != tail; ++at) {
    const Entry entry = view.ring->entries[at & (view.capacity - 1)];
    out->emplace(entry.queue, entry.wqe);
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
      if (entry == 0 ||
          owner_word(directory_slot(entry), directory_incarnation(entry)) != dead.owner())
        continue;
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
  for (ReceiveQueue* queue : process.queues) {
    const auto is_in = [&](uint32_t index) { return committed.count({queue->id, index}) != 0; };
    std::vector<uint64_t> flushed;
    if (queue->return_taken(dead.owner(), is_in, &flushed)) queue->wake_parked();
    for (uint64_t wr_id : flushed) push_flushed(*queue, wr_id);
  }
}

void wake_after_death(Process& process, PeerProcess&) {
  // It may have found a QP of ours at fault and died before it told us (R31): look at all.
  for (Word& bits : process.shared().faults) bits.store(~uint64_t{0});
  process.shared().attention.fetch_add(1);
  for (Context* context : process.contexts) {
    std::lock_guard lock(context->qps_lock);
    for (Channel* channel : context->channels) channel->wake({kEveryCq, 0});
    context->wake.wake();
  }
}

}  // namespace millrace::soft
