#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "soft/chunk.h"
#include "soft/fabric.h"
#include "soft/peer.h"

namespace millrace::soft {

struct Context;
struct Cq;
struct FlowTable;
struct Mr;
struct Mw;
struct Qp;
struct ReceiveQueue;
struct Srq;
struct Translation;

/** Set in a forked child of a process that had joined: no verb works there any more (EPERM). */
bool forked();

/**
 * This process in the fabric: one slot, shared by all its contexts and threads. Exists while a
 * context is open.
 *
 * Locks, outermost first; the data path takes only the private ones of its QP and CQ:
 *   objects  creating and destroying verbs objects; handling a death
 *   { Context::qps_lock, Process::attending } -> Qp::lock -> { Cq::lock -> ReceiveQueue::lock,
 *       registry, Context::waiting_lock }
 *   registry  peers, mappings, descriptors, the chunk allocator
 */
class Process {
 public:
  /** The process's one instance: joins the fabric for the first context. Pair with release(). */
  static base::Result<Process*> acquire();
  /** Leaves the fabric with the last context. */
  void release();
  /** The instance if there is one. */
  static Process* current();

  Root& root() { return *root_; }
  uint32_t slot() const { return slot_; }
  uint32_t incarnation() const { return root_->incarnation(); }
  uint64_t owner() const { return owner_word(slot_, root_->incarnation()); }
  ProcessShared& shared() { return chunks_.process(); }
  Chunks& chunks() { return chunks_; }
  uint64_t pid_namespace() const { return pid_namespace_; }

  std::mutex& objects() { return objects_; }
  std::mutex& registry() { return registry_; }

  /** A number that this process never used before: armings, parkings, CQ serials. Any thread. */
  uint64_t next_number() { return numbers_.fetch_add(1, std::memory_order_relaxed) + 1; }

  /** Number of the next completion channel's FIFO; never used again. Needs registry(). */
  uint32_t next_channel() { return channels_made_ < kNoChannel ? channels_made_++ : kNoChannel; }

  /**
   * The peer with this name; from the first call on its death is noticed. A peer that is already
   * dead comes back marked so. Needs registry(). Null (with errno in the status) only when
   * descriptors or memory run out.
   */
  base::Result<std::shared_ptr<PeerProcess>> attach(uint32_t slot, uint32_t incarnation);

  /** An unused region index, least recently used first, so that a key comes back late; kMrs: none.
   * Needs registry(). */
  uint32_t claim_mr();
  void release_mr(uint32_t index) { free_mrs_.push_back(index); }

  /**
   * A mapping of a peer's file, at least `bytes` long; shared by all regions in it. Null if the
   * file can't be reached by that name from here, or is another one by now. Needs registry().
   */
  std::shared_ptr<base::Mapping> map_backing(const XrcdKey& file, const char* path, uint64_t bytes);

  /**
   * A mapping of a ring's file. Both ends share it when both are of this process: half the memory,
   * and tools that watch threads see that the tail orders the rest. Needs registry().
   */
  base::Result<std::shared_ptr<base::Mapping>> map_ring(int fd, size_t bytes);

  /** SRQs and QPs of this process by number, for completions. Readers hold no lock but that of the
   * CQ that they poll, which whoever takes an object out takes and lets go before he frees it.
   * Slots are atomic, numbers are compared. XRC targets are not in here: they are nobody's. */
  std::atomic<Srq*> srq_table[kSrqs] = {};
  std::atomic<Qp*> qp_table[kQps] = {};

  /** Contexts, CQs and receive queues of this process. Needs objects(). */
  std::vector<Context*> contexts;
  std::vector<Cq*> cqs;
  std::vector<ReceiveQueue*> queues;

  /** The fabric's flow rules as they were last read. Needs registry(). */
  std::shared_ptr<const FlowTable> flows;

  /** Where a free flow record is likely: those that this process freed, and where it looked last.
   * Needs objects(), as does the count of looks, which is for tests. */
  std::vector<uint32_t> free_flows;
  uint32_t next_flow = 0;
  uint64_t flow_looks = 0;

  /** Somebody else has found a QP of ours at fault since attend() last looked (R31). */
  bool wants_attention() const {
    return attention_->load(std::memory_order_relaxed) !=
           attention_seen.load(std::memory_order_relaxed);
  }
  std::atomic<uint64_t> attention_seen{0};
  /** Held by attend() while it works on QPs of qp_table, and by who takes one out. Outside
   * Qp::lock.
   */
  std::mutex attending;

  /** Regions of this process: a work request that waits may name one that has gone. Needs
   * registry(). */
  std::set<const Mr*> regions;
  /** Memory windows of this process. Needs registry(). */
  std::vector<Mw*> windows;
  /** Regions of other processes that were imported, by key, one for each handle. Needs registry().
   */
  std::multimap<uint32_t, std::shared_ptr<Translation>> imported;

  /** Readable when a peer that this process depends on may have died. Belongs to the process. */
  int presence_fd() const { return presence_epoll_.get(); }

  /**
   * Looks for deaths and handles them (R2, R5, R8). Called from polls that found nothing (at most
   * once a millisecond) and when the presence descriptor is readable. Takes objects() if it is
   * free, else leaves it to the next call. No lock may be held.
   */
  void check_deaths();
  /** check_deaths() if the last one is at least a millisecond ago or somebody asked for one. */
  void maybe_check_deaths(uint64_t now);
  /** A visit found a peer that is dead already: the next poll looks. */
  void request_death_check() { death_requested_.store(true, std::memory_order_release); }
  bool death_check_requested() const { return death_requested_.load(std::memory_order_acquire); }

  /** At exit, without unmapping: other threads may still run. */
  void leave_at_exit();

  /** In a forked child: the parent's presence must not hang on us. */
  void after_fork_in_child();

 private:
  Process() = default;
  base::Status join();
  base::Status claim_slot();
  void remove_if_unused(int folder);
  void leave(bool at_exit);
  void handle_death(const std::shared_ptr<PeerProcess>& peer);
  void arm_suspect_timer(bool on);

  FabricPath path_;
  std::unique_ptr<Root> root_;
  base::Fd presence_;  ///< the open file description that holds our lock
  base::Mapping
      presence_map_;  ///< keeps that description alive if a program closes all its descriptors (R5)
  base::Fd alive_;
  base::Fd spare_;  ///< given up when leaving, which needs descriptors
  Chunks chunks_;
  uint32_t slot_ = 0;
  uint64_t pid_namespace_ = 0;
  uint32_t users_ = 0;
  std::deque<uint32_t> free_mrs_;  ///< needs registry_
  uint32_t mrs_used_ = 0;          ///< indices below this were used; needs registry_
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<base::Mapping>>
      backings_;  ///< needs registry_
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<base::Mapping>>
      rings_;                   ///< needs registry_
  uint32_t channels_made_ = 0;  ///< needs registry_

  std::mutex objects_;
  std::mutex registry_;
  std::map<uint64_t, std::shared_ptr<PeerProcess>> peers_;     ///< by owner word; needs registry_
  std::vector<std::shared_ptr<PeerProcess>> dead_on_arrival_;  ///< needs registry_

  const Word* attention_ = nullptr;  ///< in our ProcessShared
  base::Fd presence_epoll_;
  base::Fd suspect_timer_;
  std::atomic<uint64_t> numbers_{0};
  std::atomic<uint64_t> next_death_check_{0};
  std::atomic<bool> death_requested_{false};
  std::atomic<uint32_t> suspects_{0};
};

}  // namespace millrace::soft
