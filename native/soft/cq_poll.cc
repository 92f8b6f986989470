#include <errno.h>

#include <algorithm>
#include <mutex>

#include "base/clock.h"
#include "soft/cq.h"
#include "soft/error.h"
#include "soft/feed.h"
#include "soft/initiator.h"
#include "soft/qp.h"
#include "soft/srq.h"
#include "soft/step.h"

// Completions on their way out of a CQ: from the rings of initiators and from its own queue.

namespace millrace::soft {
namespace {

/** The receive queue of this process that an entry names; null: there is none (any more). Needs the
 * lock of the CQ that is polled. */
ReceiveQueue* queue_of(Process& process, QueueId id) {
  if ((id & kOwnQueue) != 0) {
    Qp* qp = process.qp_table[(id & kNumberMask) % kQps].load(std::memory_order_acquire);
    return qp != nullptr && qp->queue != nullptr && qp->queue->id == id ? qp->queue.get() : nullptr;
  }
  Srq* srq = process.srq_table[id % kSrqs].load(std::memory_order_acquire);
  return srq != nullptr && srq->number == id ? &srq->queue : nullptr;
}

/** Whether that QP of this process receives from this queue, into this CQ; of an XRC SRQ's
 * completions the target decides, which is nobody's. Needs the CQ's lock. */
bool receives_here(Process& process, uint32_t qpn, const ReceiveQueue& queue, const Cq& cq) {
  if (queue.srq != nullptr && queue.cq != nullptr) return true;
  const Qp* qp = process.qp_table[qpn % kQps].load(std::memory_order_acquire);
  return qp != nullptr && qp->number == qpn && qp->recv_cq == &cq &&
         (queue.srq != nullptr ? qp->srq == queue.srq : qp->queue.get() == &queue);
}

}  // namespace

int Cq::drain(uint32_t index, int room, ibv_wc* wc, Extras* extras) {
  RingView* view = visit(index);
  if (view == nullptr) return 0;
  // What ends a ring is read before its tail: then the tail that we see is the last one.
  const bool ended = view->ring->closed.load(std::memory_order_acquire) != 0 || view->peer->dead();
  const uint64_t tail = view->ring->tail.load(std::memory_order_acquire);  // pairs with commit()
  const uint64_t owner =
      owner_word(directory_slot(view->entry), directory_incarnation(view->entry));
  if (tail - view->head > view->capacity) {
    bad_entries.fetch_add(1, std::memory_order_relaxed);
    forget(index);  // a tail that can't be: nothing in this ring can be trusted (I9)
    return 0;
  }
  if (__builtin_expect(tail - view->head + send_count.load(std::memory_order_relaxed) >
                           static_cast<uint64_t>(ex.cqe),
                       0)) {
    enter_error();  // noticed here at the latest; what is there is delivered all the same
  }
  int got = 0;
  Process& process = *context->process;
  ReceiveQueue* queue = nullptr;
  const std::byte* const slots =
      reinterpret_cast<const std::byte*>(view->ring) + carry_offset(view->capacity);
  const uint64_t before = view->head;
  while (view->head != tail && got < room) {
    const Entry entry =
        view->ring->entries[view->head & (view->capacity - 1)];  // a private copy (I9)
    const uint16_t position = static_cast<uint16_t>(view->head);
    ++view->head;
    if (queue == nullptr || queue->id != entry.queue) queue = queue_of(process, entry.queue);
    if (queue == nullptr || (queue->cq != nullptr && queue->cq != this)) {
      queue = nullptr;
      continue;  // of a queue that has been destroyed meanwhile
    }
    ibv_wc& out = wc[got];
    const bool carried = (entry.flags & kEntryCarried) != 0;
    Elements elements;
    if (entry.position != position || entry.status > IBV_WC_TM_RNDV_INCOMPLETE ||
        (carried && entry.byte_len > kCarryBytes) ||
        !queue->consume(entry.wqe, owner, directory_qpn(view->entry), &out.wr_id,
                        carried ? &elements : nullptr)) {
      bad_entries.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    out.qp_num = entry.qp_num & kNumberMask;
    // Of a QP that is gone from its basic SRQ, or never was the receiver: the WQE is back, but
    // nobody waits for this completion.
    if (!receives_here(process, out.qp_num, *queue, *this)) continue;
    out.status = static_cast<ibv_wc_status>(entry.status);
    if (carried) {
      // Before the head says that the slot is free, and under the CQ's lock: once (R35).
      step("placing");
      if (!queue->place(elements, slots + position % kCarrySlots * kCarryBytes, entry.byte_len)) {
        out.status = IBV_WC_LOC_PROT_ERR;
        fail_receiver(process, out.qp_num);
      }
    }
    out.opcode = static_cast<ibv_wc_opcode>(IBV_WC_RECV + (entry.opcode & 1));
    out.vendor_err = 0;
    out.byte_len = entry.byte_len;
    out.imm_data = entry.imm;
    out.src_qp = entry.src_qp & kNumberMask;
    out.wc_flags =
        entry.flags & (IBV_WC_GRH | IBV_WC_WITH_IMM | IBV_WC_IP_CSUM_OK | IBV_WC_WITH_INV);
    if (extras != nullptr) {
      extras[got] = {};
      if ((entry.flags & kEntryTagged) != 0) extras[got].flow_tag = entry.imm;
    }
    out.pkey_index = entry.pkey_index;
    out.slid = entry.slid;
    out.sl = static_cast<uint8_t>(entry.src_qp >> kNumberBits);
    out.dlid_path_bits = static_cast<uint8_t>(entry.qp_num >> kNumberBits);
    ++got;
  }
  if (view->head != before) {
    // seq_cst store, then the park word: an initiator without room parks, then reads the head again
    // (R10).
    view->ring->head.store(view->head);
    uint64_t parked = view->ring->park.load();
    if (parked != 0) {
      {
        std::lock_guard registry_lock(context->process->registry());
        view->peer->wake_now(view->ring->park_channel);
      }
      view->ring->park.compare_exchange_strong(parked, 0);
    }
  }
  if (view->head != tail) {
    shared->ready[index / 64].fetch_or(uint64_t{1}
                                       << (index % 64));  // left non-empty: set again (R9)
    // Another thread may have armed and looked while the bit was clear (R29).
    notify_own(true);
  } else if (ended) {
    forget(index);
  }
  return got;
}

uint32_t Cq::pending() {
  std::lock_guard guard(lock);
  uint32_t count = send_count.load(std::memory_order_relaxed);
  const uint32_t used = std::min(shared->high.load(std::memory_order_relaxed), kRingsPerCq);
  for (uint32_t i = 0; i < used; ++i) {
    if (shared->directory[i].load(std::memory_order_acquire) == 0) continue;
    const RingView* view = visit(i);
    if (view == nullptr) continue;
    const uint64_t waiting = view->ring->tail.load(std::memory_order_acquire) - view->head;
    if (waiting <= view->capacity) count += static_cast<uint32_t>(waiting);
  }
  return count;
}

void Cq::collect() {
  std::lock_guard guard(lock);
  ibv_wc batch[32];
  Extras extras[32];
  const uint32_t high = std::min(shared->high.load(), kRingsPerCq);
  for (uint32_t i = 0; i < high; ++i) {
    for (int n = 0; (n = drain(i, 32, batch, extras)) > 0;) {
      for (int k = 0; k < n; ++k) append(batch[k], extras[k]);
    }
  }
}

void Cq::purge(uint32_t qpn) {
  std::lock_guard guard(lock);
  Process& process = *context->process;
  const uint32_t high = std::min(shared->high.load(), kRingsPerCq);
  for (uint32_t i = 0; i < high; ++i) {
    RingView* view = visit(i);
    if (view == nullptr) continue;
    const uint64_t tail = view->ring->tail.load(std::memory_order_acquire);
    if (tail - view->head > view->capacity) continue;  // damaged; a poll finds out
    const uint64_t owner =
        owner_word(directory_slot(view->entry), directory_incarnation(view->entry));
    for (uint64_t at = view->head; at != tail; ++at) {
      // Between head and tail an entry is the receiver's.
      Entry& entry = view->ring->entries[at & (view->capacity - 1)];
      const Entry copy = entry;
      if ((copy.qp_num & kNumberMask) != qpn) continue;
      ReceiveQueue* queue = queue_of(process, copy.queue);
      uint64_t wr_id = 0;
      if (queue != nullptr) queue->consume(copy.wqe, owner, directory_qpn(view->entry), &wr_id);
      entry.queue = 0;
    }
  }
  const uint32_t count = send_count.load(std::memory_order_relaxed);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const Completion& one = sends[(send_head + i) % sends.size()];
    if (one.wc.qp_num != qpn) sends[(send_head + kept++) % sends.size()] = one;
  }
  send_count.store(kept);
}

namespace {

int poll_once(Cq& cq, int count, ibv_wc* wc, Extras* extras = nullptr) {
  std::lock_guard guard(cq.lock);
  int got = 0;
  const uint32_t queued = cq.send_count.load(std::memory_order_relaxed);
  if (queued != 0) {
    const uint32_t n = std::min(queued, static_cast<uint32_t>(count));
    for (uint32_t i = 0; i < n; ++i) {
      const Completion& one = cq.sends[cq.send_head];
      if (extras != nullptr) extras[got] = one.extras;
      wc[got++] = one.wc;
      cq.send_head = cq.send_head + 1 == cq.sends.size() ? 0 : cq.send_head + 1;
    }
    cq.send_count.store(queued - n);
  }
  const uint32_t words =
      (std::min(cq.shared->high.load(std::memory_order_relaxed), kRingsPerCq) + 63) / 64;
  if (words == 0) return got;
  if (cq.first_word >= words) cq.first_word = 0;
  for (uint32_t w = 0; w < words && got < count; ++w) {
    const uint32_t word = (cq.first_word + w) % words;
    Word& ready = cq.shared->ready[word];
    uint64_t bits = ready.load(std::memory_order_relaxed);
    while (bits != 0 && got < count) {
      const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
      if (word * 64 + bit < cq.rings.size()) {
        if (const RingView* known = cq.rings[word * 64 + bit].get()) {
          // Both while the bit's own line comes: the RMW lets nothing pass.
          __builtin_prefetch(&known->ring->tail);
          __builtin_prefetch(&known->ring->entries[known->head & (known->capacity - 1)]);
        }
      }
      ready.fetch_and(~(uint64_t{1} << bit));  // cleared before the tail is read (R9)
      step("bit cleared");
      got += cq.drain(word * 64 + bit, count - got, wc + got,
                      extras != nullptr ? extras + got : nullptr);
    }
  }
  cq.first_word = (cq.first_word + 1) % words;
  return got;
}

inline int poll_with(Cq& cq, int count, ibv_wc* wc, Extras* extras) {
  if (__builtin_expect(forked(), 0)) {
    return -fail(EPERM, "poll a CQ", "this process was forked from the one that owns the CQ");
  }
  if (has_work(*cq.context)) progress(*cq.context);
  int got = cq.maybe_ready() ? poll_once(cq, count, wc, extras) : 0;
  // Frames wait in the interface's ring until what came before them is polled and posted again.
  Feed* const feed = cq.context->feed.get();
  if (__builtin_expect(feed != nullptr, 0) && got == 0 && feed->pump(kFeedBatch) != 0 &&
      cq.maybe_ready())
    got = poll_once(cq, count, wc, extras);
  Process& process = *cq.context->process;
  // A CQ that is never empty must not keep a dead peer's WQEs for ever.
  const bool time_to_look =
      got != 0 && (cq.polls.fetch_add(1, std::memory_order_relaxed) & 255) == 255;
  if (got == 0 || time_to_look || process.death_check_requested()) {
    process.maybe_check_deaths(base::coarse_now_ns());
    if (got == 0 && cq.maybe_ready()) got = poll_once(cq, count, wc, extras);
    if (got == 0 && __builtin_expect(cq.in_error.load(std::memory_order_relaxed), 0)) {
      return -fail(EIO, "poll a CQ",
                   "it was overrun: it is smaller than what may complete into it at a time");
    }
  }
  return got;
}

}  // namespace

int poll_cq(ibv_cq* handle, int count, ibv_wc* wc) {
  return poll_with(Cq::of(handle), count, wc, nullptr);
}

int poll_one(Cq& cq, ibv_wc* wc, Extras* extras) {
  *extras = {};
  return poll_with(cq, 1, wc, extras);
}

}  // namespace millrace::soft
