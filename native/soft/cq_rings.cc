#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "base/clock.h"
#include "soft/channel.h"
#include "soft/cq.h"
#include "soft/process.h"
#include "soft/step.h"

// The rings of a CQ: found in its directory, announced by ready bits, forgotten when they are
// drained (R9, R18 to R22).

namespace millrace::soft {
namespace {

/** A ring that could not be opened is looked at again after so long, by who sleeps meanwhile. */
constexpr uint64_t kShortageNs = 50'000'000;

}  // namespace

void announce(CqShared& cq, uint32_t index, int wake_fd, bool solicited) {
  // The RMW is the fence between the ring's tail and the reading of `armed` (R9). The receiver
  // arms, then reads the ready bits, seq_cst as here: either we see it armed or it sees the bit.
  cq.ready[index / 64].fetch_or(uint64_t{1} << (index % 64));
  step("ready bit");
  uint64_t armed = cq.armed.load();
  if (armed == 0) return;
  if ((armed & 1) != 0 && !solicited) return;
  write_wake(wake_fd, {cq.serial.load(std::memory_order_relaxed), armed});
  step("woken");
  // By CAS from the number that was read: a later arming is not ours to clear (R7).
  cq.armed.compare_exchange_strong(armed, 0);
  step("disarmed");
}

bool Cq::maybe_ready() const {
  if (send_count.load() != 0) return true;
  const uint32_t words =
      (std::min(shared->high.load(std::memory_order_relaxed), kRingsPerCq) + 63) / 64;
  for (uint32_t w = 0; w < words; ++w) {
    if (shared->ready[w].load() != 0) return true;  // seq_cst: pairs with announce(), after arming
  }
  return false;
}

void Cq::look_later(uint32_t index) {
  shared->ready[index / 64].fetch_or(uint64_t{1} << (index % 64));
  postponed.store(true);
  context->alarm.at(base::now_ns() + kShortageNs);
}

void wake_postponed(Process& process) {
  std::lock_guard objects(process.objects());
  for (Cq* cq : process.cqs) {
    if (cq->postponed.exchange(false)) cq->notify_own(true);
  }
}

RingView* Cq::visit(uint32_t index) {
  const uint64_t entry =
      shared->directory[index].load(std::memory_order_acquire);  // pairs with the claimer's CAS
  if (index >= rings.size()) rings.resize(index + 1);
  RingView* known = rings[index].get();
  if (known != nullptr && known->entry == entry) return known;
  if (known != nullptr) rings[index].reset();  // can't be: only we free entries
  if (entry == 0) return nullptr;

  Process& process = *context->process;
  Root& root = process.root();
  const std::string name = ring_name(process.owner(), serial, entry);
  base::Fd fd(openat(root.folder(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info = {};
  if (!fd.valid() && errno != ENOENT) {
    look_later(index);  // no descriptors
    return nullptr;
  }
  auto view = std::make_unique<RingView>();
  bool good = fd.valid() && fstat(fd.get(), &info) == 0 &&
              static_cast<size_t>(info.st_size) >= sizeof(Ring);
  if (good) {
    {
      std::lock_guard registry_lock(process.registry());
      base::Result<std::shared_ptr<base::Mapping>> map =
          process.map_ring(fd.get(), static_cast<size_t>(info.st_size));
      if (!map.ok()) {
        look_later(index);
        return nullptr;
      }
      view->map = map.take();
    }
    view->ring = reinterpret_cast<Ring*>(view->map->data());
    view->entry = entry;
    view->capacity = view->ring->capacity;
    good =
        view->ring->magic == kRingMagic && view->ring->receiver == process.owner() &&
        view->ring->initiator == owner_word(directory_slot(entry), directory_incarnation(entry)) &&
        view->ring->qpn == directory_qpn(entry) && view->capacity != 0 &&
        view->capacity <= kMaxCqe && (view->capacity & (view->capacity - 1)) == 0 &&
        ring_bytes(view->capacity) <= view->map->size();
    if (good) view->head = view->ring->head.load(std::memory_order_relaxed);
  }
  if (good) {
    std::lock_guard registry_lock(process.registry());
    auto peer = process.attach(directory_slot(entry), directory_incarnation(entry));
    if (!peer.ok()) {
      look_later(index);
      return nullptr;
    }
    view->peer = peer.take();
  } else {
    // A claim for a CQ that had this memory before us, or a damaged ring: nothing in it is ours.
    if (fd.valid()) bad_entries.fetch_add(1, std::memory_order_relaxed);
    // Without a file and with a living owner: it is being undone by its claimer (R22).
    if (!fd.valid() && !root.is_dead(directory_slot(entry), directory_incarnation(entry)))
      return nullptr;
    unlinkat(root.folder(), name.c_str(), 0);
    uint64_t mistaken =
        entry;  // by CAS: its claimer may have undone it, and another be there by now
    shared->directory[index].compare_exchange_strong(mistaken, 0);
    return nullptr;
  }
  // A claim that was undone meanwhile: the file that we opened belongs to another entry of the same
  // QP (R22).
  if (shared->directory[index].load() != entry) return nullptr;
  step("ring visited");
  rings[index] = std::move(view);
  find_lost_claims();  // a lost one costs nothing until others need the directory's room
  return rings[index].get();
}

void Cq::find_lost_claims() {
  Root& root = context->process->root();
  for (uint32_t i = 0; i < kRingsPerCq; ++i) {
    const uint64_t entry = shared->directory[i].load(std::memory_order_acquire);
    const uint64_t bit = uint64_t{1} << (i % 64);
    if (entry == 0 || (i < rings.size() && rings[i] != nullptr)) continue;
    if ((shared->ready[i / 64].load() & bit) != 0) continue;  // announced
    if (!root.is_dead(directory_slot(entry), directory_incarnation(entry))) continue;
    uint32_t high = shared->high.load();
    while (high < i + 1 && !shared->high.compare_exchange_weak(high, i + 1)) {
    }
    shared->ready[i / 64].fetch_or(bit);
  }
}

void Cq::forget(uint32_t index) {
  RingView* view = rings[index].get();
  const std::string name = ring_name(context->process->owner(), serial, view->entry);
  unlinkat(context->process->root().folder(), name.c_str(), 0);
  rings[index].reset();
  step("ring forgotten");
  shared->directory[index].store(0,
                                 std::memory_order_release);  // last: the index is anybody's again
}

void read_rings(Cq& cq, QueueId queue, std::set<uint32_t>* wqes) {
  for (uint32_t i = 0; i < kRingsPerCq; ++i) {
    if (cq.shared->directory[i].load(std::memory_order_acquire) == 0) continue;
    const RingView* view = cq.visit(i);
    if (view == nullptr) continue;
    const uint64_t tail = view->ring->tail.load(std::memory_order_acquire);
    if (tail - view->head > view->capacity) continue;  // damaged; poll finds out and drops it
    for (uint64_t at = view->head; at != tail; ++at) {
      const Entry entry = view->ring->entries[at & (view->capacity - 1)];
      if (entry.queue == queue) wqes->insert(entry.wqe);
    }
  }
}

}  // namespace millrace::soft
