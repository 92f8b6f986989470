#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/spinlock.h"
#include "base/status.h"
#include "soft/coarse_filter.h"
#include "soft/flow.h"
#include "soft/provider.h"
#include "soft/ring_frame.h"
#include "soft/udp_sockets.h"

namespace millrace::soft {

/** Frames that a poll which finds nothing takes from the interface, each segment counted: post as
 * many receives at least. */
inline constexpr uint32_t kFeedBatch = 64;

struct Context;
struct Pd;
struct Qp;

/**
 * A port that a network interface feeds. Each context that is attached has a packet socket of its
 * own and takes from it what its own QPs' rules match: no process feeds another one, and none has
 * to be there for another. Who wins is decided by the rules of all processes (flow_table()), so a
 * stronger rule of another process takes a frame away from ours, as on one adapter.
 *
 * Without CAP_NET_RAW ordinary UDP sockets stand in, for the rules that those can serve; what they
 * receive becomes frames again and goes the same way.
 *
 * The socket's ring is TPACKET_V2: a frame is there as soon as it came. A kernel filter, coarse and
 * attached anew in one step, keeps out what no rule can match. Frames stay in the ring until
 * somebody polls a CQ of the context or waits for its events.
 */
class Feed {
 public:
  /**
   * Opens the socket. `interface`: a name, or `*` for all of them. ENODEV: there is no such
   * interface; ENOMEM: no room for the ring.
   */
  static base::Result<std::unique_ptr<Feed>> open(Context& context, const std::string& interface);
  ~Feed();
  Feed(const Feed&) = delete;

  /** Readable while a frame waits. */
  int fd() const { return unprivileged() ? sockets_->fd() : socket_.get(); }

  /** The match of a rule of this context: it is for what comes in here. */
  void bind(FlowMatch* match) const;
  /** Before a rule of this context is announced: lets its frames through from now on. EPERM for one
   * that can't be served without CAP_NET_RAW. */
  base::Status admit(const FlowRule& rule);
  /** The rule in this record has gone; the filter follows with the next frames. */
  void retire(uint32_t record);
  /** Without CAP_NET_RAW, UDP sockets stand in for the packet socket. */
  bool unprivileged() const { return !socket_.valid(); }

  /** Delivers at most `limit` frames to the context's QPs. Needs no lock; one thread at a time, the
   * others find nothing. @return how many were taken out of the ring. */
  uint32_t pump(uint32_t limit);

  /** The descriptor was readable: pump(), or if nothing is there takes away what else it is. */
  void woken();

  FeedCounters counters();
  /** Makes what frames are delivered with. Once, when it is the context's. */
  base::Status start();
  /** Objects of the context that it made for itself. */
  uint32_t objects() const { return source_ != nullptr ? 3 : 0; }

 private:
  explicit Feed(Context& context) : context_(context) {}

  base::Status find_interface(const std::string& interface);
  base::Status open_socket();
  base::Status attach(const CoarseFilter& filter);
  void follow_rules();
  uint32_t read_ring(uint32_t limit);
  uint32_t read_sockets(uint32_t limit);
  void take(uint8_t* slot);
  SlotState read_copy(RingFrame* frame);
  void whole(const RingFrame& frame);
  void arrive(uint8_t* frame, uint32_t bytes, const RingFrame& about);
  bool own(uint32_t qpn) const;

  Context& context_;
  uint32_t net_ = 0;        ///< inode of the network namespace
  std::string name_;        ///< of the interface
  uint32_t interface_ = 0;  ///< 0: any
  base::Fd socket_;
  base::Mapping ring_;

  std::mutex rules_lock_;  ///< inside Process::objects() and pumping_
  // Needs rules_lock_.
  std::map<uint32_t, FlowRule> admitted_;  ///< the context's, by record
  CoarseFilter filter_;
  uint32_t widened_ = 0;  ///< how often since it was made of all of them
  std::unique_ptr<UdpSockets> sockets_;
  std::atomic<uint64_t> programs_{0};
  std::atomic<bool> stale_{false};  ///< the filter lets through more than it need

  base::Spinlock pumping_;
  // Needs pumping_.
  uint32_t next_ = 0;  ///< slot that the kernel fills next
  Pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  Qp* source_ = nullptr;  ///< in whose name frames are delivered
  std::shared_ptr<const FlowTable> rules_;
  std::vector<uint32_t> own_;  ///< sorted numbers of the context's QPs
  FlowIndex::Result matched_;
  std::vector<uint8_t> large_;  ///< a frame that a slot was too small for
  RingFrame whole_;             ///< the one that is being cut; its slot is ours meanwhile
  Segments segments_;
  FeedCounters counts_;
};

}  // namespace millrace::soft
