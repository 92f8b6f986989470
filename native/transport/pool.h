#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "base/status.h"
#include "transport/holds.h"
#include "transport/slab.h"

namespace millrace::transport {

/**
 * A publisher's pool of blocks: files `b-<incarnation>.<k>` of blocks of one size each, made as
 * they are needed up to a limit, reserved before they are mapped, and used again last-in first-out,
 * so that what is lent is warm. A block is free, lent (its lender writes), or retired: published or
 * discarded, and free again once no hold on it is left and nobody in this process can reach it
 * (I1).
 *
 * When the last free block of a size is lent, a spare slab of that size is made in the background,
 * one at a time, unless it would be large beside the limit: the next request need not wait for its
 * pages. One thread makes all calls. Nothing throws.
 */
class Pool {
 public:
  struct Options {
    uint64_t incarnation = 0;
    uint64_t max_bytes = 0;   ///< of all blocks
    uint64_t held_bytes = 0;  ///< that one receiver may hold; one block may always be more
    bool poison = false;      ///< fills blocks when they become free
    ibv_pd* pd = nullptr;     ///< of the member, for receivers elsewhere; must outlive close()
  };
  struct Counts {
    uint64_t bytes = 0;  ///< of all blocks
    uint64_t lent_bytes = 0;
    uint32_t slabs = 0, blocks = 0, blocks_in_use = 0, holds = 0;
  };

  /** `folder` is an open descriptor of the domain's folder. Makes the table of holds only. */
  static base::Result<std::unique_ptr<Pool>> create(int folder, const Options& options);
  /** close() */
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /** Lets go. The files go now, or with the last hold on one of the blocks (R17). */
  void close();

  /** Bytes of the block that a request of so many gets. */
  static uint64_t capacity_for(uint64_t bytes);

  /**
   * A free block of at least `bytes` (> 0), the warmest first. Errors: EAGAIN when all blocks are
   * in use and the limit is reached, E2BIG when it would exceed the limit alone, ENOSPC and others
   * when the system has no more, with what was measured; then the pool keeps no block that is not
   * in use.
   */
  base::Result<uint32_t> lend(uint64_t bytes);
  /** The same from what is free already, a spare among it. Nothing where there is none; then a
   * spare is made if there may be one. */
  std::optional<uint32_t> lend_free(uint64_t bytes);
  uint8_t* address(uint32_t block) const;
  uint64_t capacity(uint32_t block) const { return blocks_[block].capacity; }
  bool lent(uint32_t block) const {
    return block < blocks_.size() && blocks_[block].state == State::kLent;
  }
  /** Keeps the block's memory mapped. */
  std::shared_ptr<void> memory(uint32_t block) const {
    return slabs_.at(blocks_[block].slab).file->mapping();
  }

  /** Something in this process can reach the block's memory until unpin(): it is not lent again. */
  uint64_t pin(uint32_t block);
  void unpin(uint32_t block, uint64_t pin);
  bool pinned(uint32_t block, uint64_t pin) const {
    return block < blocks_.size() && blocks_[block].pin == pin;
  }
  /** The one that there is. */
  void unpin(uint32_t block) { unpin(block, blocks_[block].pin); }

  /** So many bytes that receiver may have holds on besides, no fewer than `bytes` (> 0) if those
   * are possible. */
  uint64_t room(uint64_t receiver, uint64_t bytes);
  /**
   * Records a hold on a lent block for one receiver and writes the descriptor, which may be posted
   * from then on (R15). Errors: EAGAIN when the receiver holds too much, or all words are in use.
   */
  base::Status offer(uint32_t block, uint64_t receiver, uint64_t bytes, uint8_t* descriptor);
  /**
   * Registers the file that a lent block is in, for our own writing and for reading by whoever is
   * told its key, until the pool gives the file up. Without effect when it is. Errors: ENOMEM and
   * others of ibv_reg_mr with the limit that was measured, ENOTSUP without a PD.
   */
  base::Status enroll(uint32_t block);
  /** Of a block that is enrolled: its MR's key for our own work requests. */
  uint32_t lkey(uint32_t block) const { return slabs_.at(blocks_[block].slab).mr->lkey; }
  /**
   * The same as offer() for a receiver on another port, which reads the block by RDMA READ and says
   * when the offer is over: nothing of it is in shared memory, since it ends with this process.
   * Writes a RemoteDescriptor (landing.h). Errors: also those of enroll().
   */
  base::Status offer_remote(uint32_t block, uint64_t receiver, uint64_t bytes, uint8_t* descriptor);
  /** That receiver says that an offer is over. @return false when it has none of that number (I9)
   */
  bool landed(uint64_t receiver, uint64_t serial);
  /** Gives the system back what is not in use: the spare, and slabs that are all free. @return
   * whether there was any */
  bool drop_idle();
  /** Nothing more is offered of it. */
  void retire(uint32_t block);
  /** That receiver is dead or has left, or is given up and keeps what it has taken (R16). */
  void receiver_gone(uint64_t receiver, bool dead);
  /** Takes back what was released. @return whether anything was */
  bool collect();
  /** Holds that were taken back and blocks that became free, ever: whoever waits for either looks
   * whether it has grown, since any call may have collected. */
  uint64_t returned() const { return returned_; }
  /** Whether receivers should tell of releases. collect() after it. */
  void want(bool on) { table_.want(on); }

  const Options& options() const { return options_; }
  /** Whether a spare slab is being made, or is made and not yet looked at by collect() or lend().
   */
  bool spare() const { return spare_ != nullptr; }
  /** Without the spare. */
  Counts counts() const;

 private:
  enum class State : uint8_t { kNone, kFree, kLent, kRetired };
  struct Block {
    State state = State::kNone;
    uint32_t slab = 0;
    uint32_t index = 0;
    uint32_t holds = 0;
    uint64_t pin = 0;  ///< 0: nothing in this process reaches it
    uint64_t capacity = 0;
  };
  struct Hold {
    uint32_t word;
    uint32_t block;
    uint64_t serial;
    uint64_t receiver;
    uint64_t bytes;
  };

  /** A block that a receiver elsewhere may read. */
  struct RemoteHold {
    uint32_t block;
    uint64_t receiver;
    uint64_t bytes;
  };

  explicit Pool(const Options& options) : options_(options) {}
  Slab next_slab(uint64_t capacity);
  void adopt(Slab slab);
  void make_spare(uint64_t capacity);
  void take_spare();
  void drop_spare();
  base::Status grow(Slab& slab);
  bool make_room(uint64_t bytes);
  std::vector<uint32_t> idle() const;
  void drop(uint32_t slab);
  void settle(uint32_t block);
  uint64_t hold(uint32_t block, uint64_t receiver, uint64_t bytes);
  void let_go(uint32_t block, uint64_t receiver, uint64_t bytes);
  std::optional<uint32_t> take_free(uint64_t capacity, bool spare);
  void look();

  Options options_;
  base::Fd folder_;
  HoldTable table_;
  bool closed_ = false;
  uint32_t slabs_made_ = 0;
  uint64_t bytes_ = 0;
  uint64_t returned_ = 0;
  uint64_t serial_ = 0;
  uint64_t pin_ = 0;
  std::unordered_map<uint32_t, Slab> slabs_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> free_ids_;
  std::map<uint64_t, std::vector<uint32_t>> free_;  ///< by capacity, last in first out
  std::vector<Hold> holds_;
  std::map<uint64_t, RemoteHold> remote_;  ///< by serial
  std::vector<uint32_t> free_words_;
  std::unordered_map<uint64_t, uint64_t> held_;  ///< bytes by receiver, until it is gone
  std::unique_ptr<SpareSlab> spare_;             ///< being made; its bytes count in bytes_
  bool no_spare_ = false;  ///< the last one got no memory, and nothing has changed since
};

}  // namespace millrace::transport
