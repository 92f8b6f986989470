#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/spinlock.h"
#include "soft/cq.h"
#include "soft/device.h"
#include "soft/layout.h"
#include "soft/mr.h"
#include "soft/peer.h"
#include "soft/xrcd.h"

namespace millrace::soft {

/** This QP's ring into one CQ of a receiver. */
struct RingUse {
  std::shared_ptr<base::Mapping> map;
  Ring* ring = nullptr;
  uint64_t tail = 0;
  uint64_t head_seen = 0;
  uint32_t capacity = 0;
  uint32_t index = 0;  ///< in the directory
  CqShared* cq = nullptr;
  uint64_t cq_serial = 0;
  std::shared_ptr<base::Fd> wake;  ///< keeps wake_fd open
  int wake_fd = -1;
  std::shared_ptr<PeerProcess> process;
  bool touched = false;  ///< committed into since the last announce()
  bool solicited = false;
};

/** A receiver's SRQ as this QP sees it: everything the data path needs, resolved once. */
struct Peer {
  uint32_t srqn = 0;
  const Word* record = nullptr;  ///< the SRQ's word in root; live while it is `live`
  uint64_t live = 0;
  SrqShared* srq = nullptr;
  Word* words = nullptr;
  std::byte* wqes = nullptr;
  size_t stride = 0;
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  uint32_t pd = 0;
  ProcessShared* shared = nullptr;
  std::shared_ptr<PeerProcess> process;
  RingUse* ring = nullptr;
  ParkEntry* park = nullptr;
  uint32_t park_index = 0;
  static constexpr uint32_t kTranslations = 32;
  Translation translations[kTranslations];
};

/** A work request that waits, with everything that it points to copied. */
struct Waiting {
  ibv_send_wr wr = {};
  std::vector<ibv_sge> sge;
  std::vector<std::byte> inline_data;
  ibv_sge inline_sge = {};
};

inline constexpr uint64_t kUncheckedTarget = ~uint64_t{0};

enum class WaitFor { kNothing, kWqe, kRing, kDirectory, kTarget };

struct Qp {
  ibv_qp_ex ex = {};  ///< the ibv_qp that callers have is its start
  Context* context = nullptr;
  Process* process = nullptr;
  Cq* send_cq = nullptr;
  Xrcd* xrcd = nullptr;
  uint32_t pd = 0;
  uint32_t number = 0;
  QpRecord* record = nullptr;
  ibv_qp_cap cap = {};
  bool sq_sig_all = false;
  bool opened = false;  ///< by ibv_open_qp
  uint32_t holder = 0;  ///< index of this process's hold on a target

  base::Spinlock lock;
  // Needs lock.
  ibv_qp_state state = IBV_QPS_RESET;  ///< of an initiator; a target's is in its record
  ibv_qp_attr attr = {};
  QpRecord* target = nullptr;
  uint32_t target_number = 0;
  /** The record's word when it was last checked in full. Not 0, which is what an unused record
   * says. */
  uint64_t target_word = kUncheckedTarget;
  XrcdKey target_xrcd;
  std::vector<std::unique_ptr<Peer>> peers;
  static constexpr uint32_t kPeerCache = 64;
  Peer* peer_cache[kPeerCache] = {};
  std::vector<std::unique_ptr<RingUse>> rings;
  std::vector<RingUse*> touched;  ///< committed into since the last announcement

  std::vector<Waiting> queue;  ///< circular, cap.max_send_wr entries, allocated at creation
  uint32_t queue_head = 0;
  uint32_t queue_count = 0;
  /** Why the first of them waits. */
  WaitFor wait = WaitFor::kNothing;
  Peer* wait_peer = nullptr;
  uint64_t wait_seen = 0;  ///< what will be different when it is worth another try
  uint64_t deadline = 0;   ///< monotonic ns, 0: no limit
  ibv_wc_status wait_status = IBV_WC_SUCCESS;

  std::atomic<bool> waiting{false};  ///< queue_count != 0 in a state where it can go on

  static Qp& of(ibv_qp* handle) { return *reinterpret_cast<Qp*>(handle); }
  ibv_qp* handle() { return &ex.qp_base; }
  bool is_target() const { return ex.qp_base.qp_type == IBV_QPT_XRC_RECV; }
};

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr);
int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask);
int query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init);
int destroy_qp(ibv_qp* qp);

/** Whether the masks of a transition are right (VERBS 2.8); `stripped` is what the kernel would
 * silently ignore. */
bool mask_is_ok(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask, std::string* why);
int strip_mask(ibv_qp_type type, int mask);

}  // namespace millrace::soft
