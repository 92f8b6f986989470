#include <string.h>

#include <atomic>

#include "base/spinlock.h"
#include "soft/pipeline.h"
#include "soft/step.h"
#include "soft/translate.h"

// Atomics on 8 bytes. Memory that a file backs is mapped by whoever works on it, and the processor
// does the rest. On other memory the value is read and written by process_vm_*, under a lock of the
// fabric; which of the two it is follows from the region's record alone, also for its owner, so the
// two never mix on one address. IBV_ATOMIC_HCA: the owner's own program is not part of it.

namespace millrace::soft {
namespace {

constexpr int kTries = 64;  ///< a holder is inside for two system calls

uint64_t apply(const ibv_send_wr& wr, uint64_t before) {
  if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) return before + wr.wr.atomic.compare_add;
  return before == wr.wr.atomic.compare_add ? wr.wr.atomic.swap : before;
}

uint64_t apply_in_place(const ibv_send_wr& wr, uint64_t& place) {
  std::atomic_ref<uint64_t> word(place);
  if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) return word.fetch_add(wr.wr.atomic.compare_add);
  uint64_t before = wr.wr.atomic.compare_add;
  word.compare_exchange_strong(before, wr.wr.atomic.swap);
  return before;
}

/**
 * Takes a lock word, which says who holds it (R33): from free, or from somebody who is dead. What
 * he had begun he has done in full or not at all, since the one write is the kernel's. A holder who
 * lives, perhaps stopped, is never robbed: false, and the WR waits in its queue.
 */
bool lock(Qp& qp, Word& word) {
  const uint64_t me = qp.process->owner();
  Root& root = qp.process->root();
  for (int i = 0; i < kTries; ++i) {
    uint64_t holder = 0;
    if (word.compare_exchange_strong(holder, me)) {
      step("lock taken");
      return true;
    }
    // Ours: another thread of this process. Its CAS names the dead one, whose incarnation is never
    // used again: of two who rob him one succeeds.
    if (holder != me && i % 16 == 15 &&
        root.is_dead(owner_slot(holder), owner_incarnation(holder)) &&
        word.compare_exchange_strong(holder, me)) {
      step("lock taken over");
      return true;
    }
    base::cpu_relax();
  }
  return false;
}

void unlock(Qp& qp, Word& word) {
  uint64_t me = qp.process->owner();
  step("lock about to go");
  word.compare_exchange_strong(me, 0);
}

/** Read, change, write under the lock. False: the memory can't be reached. */
bool apply_to_foreign(Qp& qp, Peer& peer, const ibv_send_wr& wr, uint64_t address,
                      uint64_t* before) {
  const auto segment = [](uint64_t* value) {
    return Segment{reinterpret_cast<std::byte*>(value), 8};
  };
  Segment from = segment(before);
  if (!move_foreign(qp, peer, &from, 1, address, 8, true)) return false;
  step("foreign value read");
  uint64_t after = apply(wr, *before);
  Segment to = segment(&after);
  const bool written = move_foreign(qp, peer, &to, 1, address, 8, false);
  step("foreign value written");
  return written;
}

}  // namespace

Outcome run_atomic(Qp& qp, Peer& peer, const ibv_send_wr& wr, Segment* segments, int count,
                   uint32_t total) {
  if (total != 8) return Outcome::failed(IBV_WC_LOC_LEN_ERR);
  const uint64_t at = wr.wr.atomic.remote_addr;
  if (at % 8 != 0) return Outcome::failed(IBV_WC_REM_INV_REQ_ERR);
  const Translation* to = translation(qp, peer, wr.wr.atomic.rkey);
  const uint32_t granted = qp.target->access.load(std::memory_order_relaxed);
  if (to == nullptr || (granted & to->access & IBV_ACCESS_REMOTE_ATOMIC) == 0 ||
      to->pd != peer.rkey_pd || !in_region(to->iova, to->length, at, 8) ||
      (qp.type() != IBV_QPT_XRC_SEND && !to->good_for(qp.target_number))) {
    return Outcome::failed(IBV_WC_REM_ACCESS_ERR);
  }
  const uint64_t address = to->address + (at - to->iova);
  uint64_t before = 0;
  if (to->backed) {
    std::byte* const place = to->base == nullptr ? nullptr : to->base + (at - to->iova);
    // Not mapped here (another mount namespace), or mapped askew by its iova: it can't be atomic.
    if (place == nullptr || reinterpret_cast<uintptr_t>(place) % 8 != 0)
      return Outcome::failed(IBV_WC_REM_OP_ERR);
    before = apply_in_place(wr, *reinterpret_cast<uint64_t*>(place));
    step("atomic done");
  } else {
    if (address % 8 != 0) return Outcome::failed(IBV_WC_REM_OP_ERR);
    const uint64_t hash = (address / 8 + peer.process->incarnation()) * 0x9E3779B97F4A7C15u >> 32;
    Word& word = qp.process->root().atomic_lock(hash);
    if (!lock(qp, word)) return unanswered(qp, WaitFor::kLock);
    const bool done = apply_to_foreign(qp, peer, wr, address, &before);
    unlock(qp, word);
    if (!done) return Outcome::failed(IBV_WC_REM_OP_ERR);
  }
  const std::byte* bytes = reinterpret_cast<const std::byte*>(&before);
  for (int i = 0; i < count; ++i) {
    memcpy(segments[i].data, bytes, segments[i].bytes);
    bytes += segments[i].bytes;
  }
  Outcome out;
  out.bytes = 8;
  return out;
}

}  // namespace millrace::soft
