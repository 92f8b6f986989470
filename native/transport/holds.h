#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/files.h"
#include "base/status.h"

namespace millrace::transport {

/** Bytes of a descriptor: what a receiver needs to take a hold and find the block. */
inline constexpr size_t kDescriptorBytes = 32;

/** A descriptor, little endian as it travels. */
struct Descriptor {
  uint32_t word;    ///< index of the hold's word in the publisher's table
  uint32_t slab;    ///< number of the pool's file that the block is in, from 1
  uint64_t serial;  ///< of the offer, never used again by this publisher
  uint64_t offset;  ///< of the block in that file, a multiple of the page size
  uint64_t bytes;   ///< that are in use, > 0
};
static_assert(sizeof(Descriptor) == kDescriptorBytes);

/** What is said of one hold, beside its word. It is written while the word is 0. */
struct HoldEntry {
  uint64_t word;      ///< 0, or the offer's serial << 2 | state
  uint64_t receiver;  ///< incarnation of who may take it
  uint64_t reserved[2];
};
static_assert(sizeof(HoldEntry) == 32);

/**
 * The holds on a publisher's blocks: a file `b-<incarnation>.0` in the domain's folder that every
 * receiver maps read-write. A word is 0, OFFERED(serial) or HELD(serial), and there is no count
 * (R15). A serial is given out once, so a word that was taken back and offered anew, to whomever,
 * is not mistaken for the earlier offer; all transitions but the publisher's first store are CAS.
 *
 * The publisher is the only one to write entries whose word is 0. Calls here are made by any number
 * of processes at once, and a process may be killed or stopped between any two of their steps (I7).
 */
class HoldTable {
 public:
  static constexpr uint32_t kEntries = 8192;

  HoldTable() = default;
  /** Makes the table of a publisher, all words 0; reserved before it is mapped. */
  static base::Result<HoldTable> create(int folder, uint64_t publisher);
  /** Maps another one's. ENOENT: it is gone. EPROTO: not a table of that publisher. */
  static base::Result<HoldTable> open(int folder, uint64_t publisher);

  bool valid() const { return mapping_.valid(); }
  size_t bytes() const { return mapping_.size(); }

  // ---- the publisher ----
  /** The word must be 0: it is OFFERED(serial) to that receiver from here on, before the descriptor
   * is posted. */
  void offer(uint32_t word, uint64_t serial, uint64_t receiver);
  /** Whether that offer still stands, taken or not. */
  bool stands(uint32_t word, uint64_t serial) const {
    return load(word) >> 2 == serial && load(word) != 0;
  }
  /** Says that the publisher waits for a release, or no longer. Look at the words after it. */
  void want(bool on);

  // ---- the receiver ----
  /** OFFERED -> HELD. False: taken back meanwhile, or never offered to `self`: drop the descriptor.
   */
  bool take(uint32_t word, uint64_t serial, uint64_t self);
  /** HELD -> 0. @return whether the publisher waits for it */
  bool release(uint32_t word, uint64_t serial);
  /** Whether the publisher waits for a release. */
  bool wanted() const;
  /** Clears what is offered to or held by `self` and is not one of `kept` (sorted words): the
   * publisher is dead and its descriptors are drained (R16). */
  void clear_own(uint64_t self, std::span<const uint32_t> kept);

  // ---- both ----
  /** OFFERED -> 0: a send that is given up, or a descriptor that nobody wants. */
  bool revoke(uint32_t word, uint64_t serial);
  /** Clears all words of a receiver that is dead (`taken` too), or of one that is given up (only
   * what it has not taken). Its publisher does that, or anyone if that is dead (R16). A word that
   * changes more often than the protocol lets it is left as it is: somebody who lives writes there,
   * and must not hold up who clears. It counts as a hold until the next who clears finds it at
   * rest.
   */
  void clear_receiver(uint64_t receiver, bool taken);
  /** Words that are not 0. */
  uint32_t count() const;
  /** The receiver of a word that is not 0; 0 if it is. */
  uint64_t receiver_of(uint32_t word) const;

 private:
  explicit HoldTable(base::Mapping mapping) : mapping_(std::move(mapping)) {}
  struct Header;
  Header* header() const { return reinterpret_cast<Header*>(mapping_.data()); }
  HoldEntry& entry(uint32_t word) const {
    return reinterpret_cast<HoldEntry*>(mapping_.data() + 64)[word];
  }
  std::atomic_ref<uint64_t> at(uint32_t word) const {
    return std::atomic_ref<uint64_t>(entry(word).word);
  }
  uint64_t load(uint32_t word) const { return at(word).load(std::memory_order_seq_cst); }
  bool change(uint32_t word, uint64_t from, uint64_t to) {
    return at(word).compare_exchange_strong(from, to, std::memory_order_seq_cst);
  }

  base::Mapping mapping_;
};

/** The name of a pool's file: k = 0 is the table of holds, from 1 on come the slabs. */
std::string pool_file(uint64_t publisher, uint32_t k);

/** Whether a member of that incarnation lives: it holds its presence lock (R5). */
bool member_lives(int folder, uint64_t incarnation);

/**
 * What every survivor and whoever joins does for a publisher that may be dead (R16, R17): clears
 * the words of receivers that are dead too and, when no hold is left, removes the pool's files.
 * Does nothing while the publisher lives. Any process, any number at once.
 * @return holds that are left
 */
uint32_t sweep_pool(int folder, uint64_t publisher);

}  // namespace millrace::transport
