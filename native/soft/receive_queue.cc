#include "soft/receive_queue.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "base/clock.h"
#include "soft/cq.h"
#include "soft/death.h"
#include "soft/device.h"
#include "soft/process.h"
#include "soft/srq.h"
#include "soft/step.h"
#include "soft/translate.h"

namespace millrace::soft {
namespace {

/** How long wait_quiet() waits for initiators in the middle of a copy. */
constexpr uint64_t kQuietNs = 100'000'000;

/** Which WQEs of `queue` are committed and not polled yet. Takes the locks of the CQs. */
std::set<uint32_t> committed_in(const ReceiveQueue& queue, Cq* from) {
  std::set<uint32_t> committed;
  if (from != nullptr) {
    std::lock_guard polls(from->lock);
    read_rings(*from, queue.id, &committed);
  } else {
    for (Cq* cq : queue.process->cqs) {
      std::lock_guard polls(cq->lock);
      read_rings(*cq, queue.id, &committed);
    }
  }
  return committed;
}

}  // namespace

base::Status ReceiveQueue::allocate(const QueueLayout& layout, uint32_t pd_number,
                                    const Ref& cq_ref) {
  bool recycled = false;
  std::lock_guard guard(lock);
  base::Result<Block> made =
      process->chunks().allocate({BlockShape::Kind::kQueue, layout}, layout.bytes(), &recycled);
  if (!made.ok()) return made.status();
  block = made.take();
  std::byte* memory = static_cast<std::byte*>(block.address);
  shared = reinterpret_cast<QueueShared*>(memory);
  park = reinterpret_cast<ParkEntry*>(memory + layout.park());
  words = reinterpret_cast<Word*>(memory + layout.words());
  wqes = memory + layout.wqes();
  stride = wqe_stride(layout.max_sge);
  max_wr = layout.max_wr;
  max_sge = layout.max_sge;
  parks = layout.parks;
  pd = pd_number;
  shared->owner = process->owner();
  shared->id = id;
  shared->max_wr = max_wr;
  shared->max_sge = max_sge;
  shared->pd = pd;
  shared->parks = parks;
  shared->cq = cq_ref;
  shared->hint.store(0, std::memory_order_relaxed);
  for (uint32_t i = 0; i < max_wr; ++i) words[i].store(kWqeEmpty, std::memory_order_relaxed);
  slots.assign(max_wr, Slot{});
  free_list.resize(max_wr);
  for (uint32_t i = 0; i < max_wr; ++i) free_list[i] = i;
  free_head = 0;
  free_count = max_wr;
  return base::Status::success();
}

void ReceiveQueue::give_back() {
  // Waiters find the number gone and let go of their entries themselves; recycled memory keeps
  // those who have not yet.
  for (uint32_t i = 0; i < parks; ++i) park[i].word.store(0);
  std::lock_guard registry(process->registry());
  process->chunks().free({BlockShape::Kind::kQueue, {max_wr, max_sge, parks}}, block.ref);
}

int ReceiveQueue::post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  int error = 0;
  {
    std::lock_guard guard(lock);
    const uint64_t posted = wqe_posted(id, epoch);
    for (; wr != nullptr; wr = wr->next) {
      if (free_count == 0) {
        error = ENOMEM;
        break;
      }
      if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > max_sge) {
        error = EINVAL;
        break;
      }
      const uint32_t index = free_list[free_head];
      free_head = free_head + 1 == max_wr ? 0 : free_head + 1;
      --free_count;
      Wqe& wqe = *reinterpret_cast<Wqe*>(wqes + stride * index);
      wqe.num_sge = static_cast<uint32_t>(wr->num_sge);
      for (int i = 0; i < wr->num_sge; ++i) {
        wqe.sge[i] = Sge{wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
      }
      slots[index] = Slot{wr->wr_id, sequence++, true};
      // Release: pairs with the taker's acquire; it sees the elements.
      words[index].store(posted, std::memory_order_release);
      step("posted");
    }
    shared->posted.fetch_add(1);  // seq_cst: the fence of R10, and what waiters compare
  }
  wake_parked();
  if (error != 0) *bad = wr;
  return error;
}

void ReceiveQueue::expect(uint32_t qpn) {
  std::lock_guard guard(lock);
  peer_qpn = qpn;
}

bool ReceiveQueue::consume(uint32_t index, uint64_t taker, uint32_t from_qpn, uint64_t* wr_id,
                           Elements* elements) {
  std::lock_guard guard(lock);
  if (peer_qpn != 0 && peer_qpn != from_qpn) return false;
  if (index >= max_wr || !slots[index].outstanding) return false;
  if (words[index].load(std::memory_order_relaxed) != wqe_taken(taker)) return false;
  if (elements != nullptr) {
    // Before the index is free: the next posting writes there.
    const Wqe& wqe = *reinterpret_cast<const Wqe*>(wqes + stride * index);
    elements->count = std::min(wqe.num_sge, max_sge);
    std::copy_n(wqe.sge, elements->count, elements->sge);
  }
  slots[index].outstanding = false;
  *wr_id = slots[index].wr_id;
  uint32_t at = free_head + free_count;
  if (at >= max_wr) at -= max_wr;
  free_list[at] = index;
  ++free_count;
  if (limit != 0 && max_wr - free_count < limit) {
    limit = 0;  // one-shot (VERBS 2.12)
    raise_srq_event(&srq->srq, IBV_EVENT_SRQ_LIMIT_REACHED);
  }
  return true;
}

bool ReceiveQueue::place(const Elements& elements, const std::byte* from, uint32_t bytes) const {
  for (uint32_t i = 0; i < elements.count && bytes > 0; ++i) {
    const Sge& one = elements.sge[i];
    if (one.length == 0) continue;
    std::byte* to =
        local_address(*process, pd, {one.address, one.length, one.lkey}, IBV_ACCESS_LOCAL_WRITE);
    if (to == nullptr) return false;
    const uint32_t n = std::min(bytes, one.length);
    memcpy(to, from, n);
    from += n;
    bytes -= n;
  }
  return bytes == 0;
}

void ReceiveQueue::wake_parked() {
  const uint32_t count = (parks + 63) / 64;
  for (uint32_t w = 0; w < count; ++w) {
    uint64_t bits = shared->parked[w].load();  // seq_cst, after POSTED and `posted` (R10)
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(bits));
      if (w * 64 + bit >= parks) break;
      ParkEntry& entry = park[w * 64 + bit];
      // The bit first: who parks stores the word and then sets the bit, so either we see the word
      // or the bit stays.
      shared->parked[w].fetch_and(~(uint64_t{1} << bit));
      uint64_t parked = entry.word.load();
      if (parked == 0) continue;
      const uint64_t who = entry.who.load();
      // The word before the descriptor: who wakes and finds its word still there, and nothing
      // posted since it looked, takes the wake-up for an old one and sleeps on (R10). By CAS: it
      // may have parked anew, and then looks again after it has set its bit.
      if (!entry.word.compare_exchange_strong(parked, 0) || who == 0) continue;
      step("parked one woken");
      std::lock_guard registry(process->registry());
      const uint64_t owner = park_owner(who);
      auto peer = process->attach(owner_slot(owner), owner_incarnation(owner));
      if (peer.ok() && !peer.value()->dead()) peer.value()->wake_now(park_channel(who));
    }
  }
}

void ReceiveQueue::close() {
  std::lock_guard guard(lock);
  closed = true;
  for (uint32_t i = 0; i < max_wr; ++i) {
    uint64_t word = wqe_posted(id, epoch);
    words[i].compare_exchange_strong(word, kWqeClosed);
  }
  step("queue closed");
}

bool ReceiveQueue::wait_quiet(Cq* from, uint64_t taker) {
  struct Busy {
    uint32_t index, sequence;
  };
  std::vector<Busy> busy;
  {
    std::lock_guard guard(lock);
    for (uint32_t i = 0; i < max_wr; ++i) {
      const uint64_t word = words[i].load(std::memory_order_acquire);
      if (slots[i].outstanding && wqe_is_taken(word) && (taker == 0 || wqe_taker(word) == taker)) {
        busy.push_back({i, slots[i].sequence});
      }
    }
  }
  const uint64_t deadline = base::now_ns() + kQuietNs;
  Root& root = process->root();
  while (!busy.empty()) {
    {
      // A commit is looked for before the word is: an entry that a poll takes meanwhile clears
      // `outstanding`.
      const std::set<uint32_t> committed = committed_in(*this, from);
      std::lock_guard guard(lock);
      std::erase_if(busy, [&](const Busy& b) {
        const uint64_t word = words[b.index].load(std::memory_order_acquire);
        if (!slots[b.index].outstanding || slots[b.index].sequence != b.sequence ||
            !wqe_is_taken(word) || committed.count(b.index) != 0) {
          return true;
        }
        const uint64_t owner = wqe_taker(word);
        return root.is_dead(owner_slot(owner), owner_incarnation(owner));
      });
    }
    if (busy.empty() || base::now_ns() >= deadline) break;
    const timespec pause = {0, 100'000};
    nanosleep(&pause, nullptr);
  }
  return busy.empty();
}

std::vector<uint64_t> ReceiveQueue::take_back(Cq* from) {
  const std::set<uint32_t> committed = committed_in(*this, from);
  Root& root = process->root();
  std::lock_guard guard(lock);
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < max_wr; ++i) {
    if (!slots[i].outstanding || committed.count(i) != 0) continue;
    uint64_t word = words[i].load(std::memory_order_acquire);
    if (wqe_is_taken(word)) {
      const uint64_t owner = wqe_taker(word);
      if (!root.is_dead(owner_slot(owner), owner_incarnation(owner)) ||
          !words[i].compare_exchange_strong(word, kWqeClosed)) {
        continue;
      }
    }
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    return static_cast<int32_t>(slots[a].sequence - slots[b].sequence) < 0;
  });
  std::vector<uint64_t> ids;
  ids.reserve(order.size());
  for (uint32_t index : order) {
    slots[index].outstanding = false;
    ids.push_back(slots[index].wr_id);
    free_list[(free_head + free_count) % max_wr] = index;
    ++free_count;
  }
  return ids;
}

bool ReceiveQueue::return_taken(uint64_t dead, const std::function<bool(uint32_t)>& is_in,
                                std::vector<uint64_t>* flushed) {
  const uint64_t taken = wqe_taken(dead);
  bool returned = false;
  {
    std::lock_guard guard(lock);
    for (uint32_t i = 0; i < max_wr; ++i) {
      // A word of a WQE whose completion was polled already still says TAKEN (R1); it is not
      // outstanding.
      if (!slots[i].outstanding || words[i].load(std::memory_order_relaxed) != taken) continue;
      if (is_in(i)) continue;
      uint64_t expected = taken;
      if (!words[i].compare_exchange_strong(expected,
                                            closed ? kWqeClosed : wqe_posted(id, epoch))) {
        continue;
      }
      step("wqe returned");
      if (closed) {
        slots[i].outstanding = false;
        flushed->push_back(slots[i].wr_id);
        free_list[(free_head + free_count) % max_wr] = i;
        ++free_count;
      } else {
        returned = true;
      }
    }
  }
  for (uint32_t i = 0; i < parks; ++i) {
    uint64_t who = park[i].who.load(std::memory_order_relaxed);
    if (who != 0 && park_owner(who) == dead) park[i].who.compare_exchange_strong(who, 0);
  }
  if (returned) shared->posted.fetch_add(1);
  return returned;
}

void ReceiveQueue::reopen(uint32_t new_epoch) {
  std::lock_guard guard(lock);
  for (uint32_t i = 0; i < max_wr; ++i) {
    words[i].store(kWqeEmpty, std::memory_order_relaxed);
    slots[i].outstanding = false;
    free_list[i] = i;
  }
  free_head = 0;
  free_count = max_wr;
  shared->hint.store(0, std::memory_order_relaxed);
  epoch = new_epoch;
  closed = false;
}

uint32_t ReceiveQueue::outstanding() {
  std::lock_guard guard(lock);
  return max_wr - free_count;
}

}  // namespace millrace::soft
