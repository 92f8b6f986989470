#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/status.h"
#include "transport/lanes.h"
#include "verbs/owners.h"

namespace millrace::transport {

/** What others write into our memory one-sidedly, one per peer; each word is a single atomic store.
 */
struct CreditEntry {
  uint64_t granted;  ///< upper 16 bits: tag of the connection; lower 48: credits granted to us,
                     ///< cumulative
  uint64_t recall;   ///< upper 16 bits: the tag; lower 32: number of the last recall
  uint64_t reserved[6];
};
static_assert(sizeof(CreditEntry) == 64);

/**
 * A member's inbox: one SRQ with its slots (an XRC one where the device has XRC, else a basic one),
 * and the table of credit entries. The memory is
 * files `i-<incarnation>.<k>` (k = 0 is the table, from 1 on come the extents of slots) in the
 * domain's registry folder, all reserved before they are mapped, so that a full /dev/shm is an
 * error and never a SIGBUS. The member unlinks its files at close(); those of a killed member are
 * removed by whoever cleans up after it.
 *
 * A slot is posted, or ours from its completion to repost() (I1). The memory never reaches
 * JavaScript (I5).
 */
class Inbox {
 public:
  struct Options {
    std::string folder;
    uint64_t incarnation = 0;
    uint32_t slot_bytes = 0;
    uint32_t slots = 0;
    uint32_t max_slots = 0;
    uint32_t peers = 0;
  };

  /** `domain` is an open descriptor of the folder; the receive CQ must hold max_slots completions
   * (I3). The SRQ is made by `lanes`, whose kind it is of. */
  static base::Result<std::unique_ptr<Inbox>> create(ibv_pd* pd, Lanes* lanes, int domain,
                                                     const Options& options);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  /** 0 for a basic SRQ. */
  uint32_t srq_number() const { return queue_.number; }
  uint32_t slot_bytes() const { return options_.slot_bytes; }
  uint32_t slots() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t max_slots() const { return options_.max_slots; }
  uint64_t bytes() const { return bytes_; }
  uint32_t regions() const { return 1 + static_cast<uint32_t>(extents_.size()); }
  /** Slots that are posted now; never less than the credits granted (I2). */
  uint32_t posted() const { return posted_; }

  const uint8_t* slot(uint32_t index) const { return slots_[index].address; }
  /** A completion names this slot: it is ours until repost(). */
  void taken() { --posted_; }
  /** Gives a slot back; posted at the latest by post(). */
  void repost(uint32_t index);
  /** Posts what repost() collected. */
  void post();

  /** The pool: slots that are promised to nobody. */
  uint32_t pool() const { return pool_; }
  /** Takes up to `n` slots out of the pool for somebody; returns how many. */
  uint32_t take(uint32_t n);
  void give(uint32_t n) { pool_ += n; }
  /** Makes one more extent, up to max_slots. ENOSPC when the limit is reached or memory is missing.
   */
  base::Status grow();

  uint64_t credit_address(uint32_t peer) const;
  uint32_t credit_rkey() const { return table_mr_->rkey; }
  uint64_t granted_word(uint32_t peer) const { return load(&entries()[peer].granted); }
  uint64_t recall_word(uint32_t peer) const { return load(&entries()[peer].recall); }

 private:
  struct Extent {
    base::Mapping mapping;
    verbs::MrPtr mr;
  };
  struct Slot {
    uint8_t* address;
    uint32_t lkey;
  };

  Inbox() = default;
  base::Status add_extent(uint32_t count);
  base::Result<base::Mapping> make_file(size_t bytes);
  std::string file_name(uint32_t k) const;
  CreditEntry* entries() const { return reinterpret_cast<CreditEntry*>(table_.data()); }
  /** Peers store into these words while we read. */
  static uint64_t load(uint64_t* word) {
    return std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire);
  }

  static constexpr uint32_t kBatch = 32;

  Options options_;
  ibv_pd* pd_ = nullptr;
  base::Fd folder_;
  uint32_t files_ = 0;
  base::Mapping table_;
  verbs::MrPtr table_mr_;
  std::vector<Extent> extents_;
  std::vector<Slot> slots_;
  InboxQueue queue_;
  uint32_t pool_ = 0;
  uint32_t posted_ = 0;
  uint64_t bytes_ = 0;
  uint32_t batch_[kBatch];
  uint32_t batched_ = 0;
};

}  // namespace millrace::transport
