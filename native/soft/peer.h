#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/files.h"
#include "soft/chunk.h"
#include "soft/layout.h"

namespace millrace::soft {

class Root;

/**
 * Another process of the fabric (or this one), as far as this process has to do with it: its chunks
 * mapped on first reference, the write ends of its wake FIFOs, and its presence. Held by whoever
 * uses its memory; mappings go with the last holder, so a dead peer's memory stays readable until
 * its rings are drained and not longer.
 */
class PeerProcess {
 public:
  /** `own`: our chunks, if this is ourselves; then nothing is mapped a second time. */
  PeerProcess(Root& root, uint32_t slot, uint32_t incarnation, const Chunks* own)
      : root_(root), slot_(slot), incarnation_(incarnation), own_(own) {}

  uint32_t slot() const { return slot_; }
  uint32_t incarnation() const { return incarnation_; }
  uint64_t owner() const { return owner_word(slot_, incarnation_); }
  /** Set once when its death (or leaving) is certain; never cleared. */
  bool dead() const { return dead_.load(std::memory_order_acquire); }
  void mark_dead() { dead_.store(true, std::memory_order_release); }  // pairs with dead()

  // The rest needs the process's registry mutex.

  /** A structure in its chunks; maps the chunk when needed. Checked against the mapping's size
   * (I9). */
  base::Result<void*> resolve(const Ref& ref, size_t min_bytes);
  base::Result<ProcessShared*> shared();
  /**
   * The write end of one of its wake FIFOs, opened at the first call and closed with its last
   * holder: channels come and go while their process lives. Null, with errno, if it can't be opened
   * (ENOENT: the channel is gone).
   */
  std::shared_ptr<base::Fd> wake(uint32_t channel);
  /** Writes to one of its wake FIFOs now, for wake-ups off the data path. The descriptor stays open
   * until the next one. */
  void wake_now(uint32_t channel);

  base::Fd alive;        ///< read end of its presence FIFO; hang-up means look at the lock (R5)
  bool suspect = false;  ///< hung up, but its lock is still held

 private:
  base::Result<const base::Mapping*> chunk(uint32_t k);

  Root& root_;
  const uint32_t slot_;
  const uint32_t incarnation_;
  const Chunks* const own_;
  std::atomic<bool> dead_{false};
  std::map<uint32_t, base::Mapping> chunks_;
  std::map<uint32_t, std::weak_ptr<base::Fd>> wakes_;
  std::shared_ptr<base::Fd> last_woken_;
};

}  // namespace millrace::soft
