#pragma once

#include <atomic>
#include <cstdint>

#include "soft/layout/objects.h"
#include "soft/step.h"

// Records of the root file that belong to one process and that everybody reads: attachments to
// multicast groups, flow rules. The commit is one word (R24, R32): 0 is free; a process's name is
// CREATING; with kAnnounced and a number that is new at each use it is live. A reader copies the
// record and reads the word again. Whoever reaps the process frees it by CAS from the word read.

namespace millrace::soft {

inline constexpr int kUseShift = 48;
inline constexpr uint64_t kUseMask = uint64_t{0x7FFF} << kUseShift;

/** The word of a live record: `use` tells one use of the record from the next. */
constexpr uint64_t claim_live(uint64_t owner, uint64_t use) {
  return owner | kAnnounced | ((use << kUseShift) & kUseMask);
}
constexpr bool claim_is_live(uint64_t word) { return (word & kAnnounced) != 0; }
constexpr uint64_t claim_owner(uint64_t word) { return word & ~(kAnnounced | kUseMask); }

/** Makes a free record ours, CREATING. False: it is not free. */
inline bool claim_record(Word& word, uint64_t owner) {
  uint64_t expected = 0;
  return word.load(std::memory_order_relaxed) == 0 && word.compare_exchange_strong(expected, owner);
}

/** Frees what a dead process had, in whatever state. */
inline void reap_claim(Word& word, uint64_t owner) {
  uint64_t seen = word.load();
  while (seen != 0 && claim_owner(seen) == owner && !word.compare_exchange_weak(seen, 0)) {
  }
}

/** A private copy of a live record's contents; false: it is not live, or changed meanwhile. */
template <class Record, class Copy>
bool read_claim(const Record& record, uint64_t* word, Copy&& copy) {
  *word = record.owner.load(std::memory_order_acquire);
  if (!claim_is_live(*word)) return false;
  copy();
  std::atomic_thread_fence(std::memory_order_acquire);  // the copy before the second look
  return record.owner.load(std::memory_order_relaxed) == *word;
}

}  // namespace millrace::soft
