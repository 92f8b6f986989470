#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/spinlock.h"
#include "soft/ah.h"
#include "soft/cq.h"
#include "soft/device.h"
#include "soft/flow.h"
#include "soft/layout.h"
#include "soft/mcast.h"
#include "soft/peer.h"
#include "soft/receive_queue.h"
#include "soft/srq.h"
#include "soft/translate.h"
#include "soft/wr_ex.h"
#include "soft/xrcd.h"

namespace millrace::soft {

/** This QP's ring into one CQ of a receiver. */
struct RingUse {
  std::shared_ptr<base::Mapping> map;
  Ring* ring = nullptr;
  uint64_t tail = 0;
  uint64_t head_seen = 0;
  uint32_t capacity = 0;
  std::byte* slots = nullptr;    ///< for messages (R35); null: not reserved yet
  bool carries_nothing = false;  ///< there was no memory for slots
  uint32_t index = 0;            ///< in the directory
  CqShared* cq = nullptr;
  uint64_t cq_serial = 0;
  std::shared_ptr<base::Fd> wake;  ///< keeps wake_fd open
  int wake_fd = -1;
  std::shared_ptr<PeerProcess> process;
  bool touched = false;  ///< committed into since the last announce()
  bool solicited = false;
};

/** A receiver as this QP sees it: everything the data path needs, resolved once. */
struct Peer {
  uint32_t key = 0;              ///< XRC: the SRQ's number
  const Word* record = nullptr;  ///< an SRQ's word in root; live while it is `live`. Null: the
                                 ///< queue is the target QP's own and lives as long as that
  uint64_t live = 0;
  QueueId id = 0;
  QueueShared* queue = nullptr;  ///< null: only what one-sided operations need is resolved
  Word* words = nullptr;
  std::byte* wqes = nullptr;
  size_t stride = 0;
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  uint64_t posted = 0;   ///< the word of a WQE that we may take
  uint32_t pd = 0;       ///< of the keys in WQEs
  uint32_t rkey_pd = 0;  ///< of the keys in one-sided WRs
  uint64_t qp_word = 0;  ///< of a datagram's receiver: its record's words when it was resolved
  uint64_t qp_health = 0;
  ParkEntry* parks = nullptr;
  uint32_t park_count = 0;
  ProcessShared* shared = nullptr;
  std::shared_ptr<PeerProcess> process;
  uint64_t pid_seen_at = 0;  ///< when it was last seen alive before a copy by pid, in ticks
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

enum class WaitFor { kNothing, kWqe, kRing, kDirectory, kTarget, kLock };

struct Qp {
  ibv_qp_ex ex = {};  ///< the ibv_qp that callers have is its start
  Context* context = nullptr;
  Process* process = nullptr;
  Cq* send_cq = nullptr;
  Cq* recv_cq = nullptr;  ///< not for XRC
  Srq* srq = nullptr;     ///< a basic one that it receives from
  /** Its own receive queue, if it has one: made with it and freed with it. */
  std::unique_ptr<ReceiveQueue> queue;
  Xrcd* xrcd = nullptr;
  uint32_t pd = 0;
  uint32_t number = 0;
  QpRecord* record = nullptr;
  ibv_qp_cap cap = {};
  bool sq_sig_all = false;
  bool opened = false;  ///< by ibv_open_qp
  uint32_t holder = 0;  ///< index of this process's hold on a target

  std::unique_ptr<WrList> wr_list;  ///< null: not created for the ibv_wr_* calls

  base::Spinlock lock;
  // Needs lock.
  ibv_qp_state state = IBV_QPS_RESET;  ///< of an initiator; a target's is in its record
  ibv_qp_attr attr = {};
  QpRecord* target = nullptr;
  uint32_t target_number = 0;
  /** The record's word when it was last checked in full. Not 0, which is what an unused record
   * says. */
  uint64_t target_word = kUncheckedTarget;
  uint64_t target_health = 0;  ///< of the connection that was checked; of an XRC target always 0
  XrcdKey target_xrcd;
  std::vector<std::unique_ptr<Peer>> peers;
  static constexpr uint32_t kPeerCache = 64;
  Peer* peer_cache[kPeerCache] = {};
  std::vector<std::unique_ptr<RingUse>> rings;
  std::vector<RingUse*> touched;  ///< committed into since the last announcement

  std::vector<Waiting> waiting;  ///< circular; cap.max_send_wr entries from the first wait on
  uint32_t waiting_head = 0;
  uint32_t waiting_count = 0;
  /** Why the first of them waits. */
  WaitFor wait = WaitFor::kNothing;
  Peer* wait_peer = nullptr;
  uint64_t wait_seen = 0;  ///< what will be different when it is worth another try
  uint64_t deadline = 0;   ///< monotonic ns, 0: no limit
  ibv_wc_status wait_status = IBV_WC_SUCCESS;
  bool draining = false;        ///< SQD, and the front WR had begun
  bool notify_drained = false;  ///< SQD asked for SQ_DRAINED
  bool last_wqe_told = false;   ///< LAST_WQE_REACHED was raised since the last RESET
  Route route;                  ///< of a connection: where its address vector leads

  // UD and RAW_PACKET. Needs lock.
  GroupCache groups;
  std::shared_ptr<const FlowTable> flows;
  FlowIndex::Result matched;
  std::vector<uint8_t> frame;  ///< kMaxFrame bytes

  uint32_t spread = 0;  ///< 1 + index of its SpreadRecord (receive side scaling); 0: none
  uint64_t spread_word = 0;
  IndirectionTable* table = nullptr;
  bool blocks_self = false;             ///< IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
  std::vector<Attachment> attachments;  ///< needs Process::objects()
  std::atomic<uint32_t> steered{0};     ///< groups and flows that lead here

  bool listed = false;  ///< in Context::waiting; needs Context::waiting_lock

  static Qp& of(ibv_qp* handle) { return *reinterpret_cast<Qp*>(handle); }
  ibv_qp* handle() { return &ex.qp_base; }
  ibv_qp_type type() const { return ex.qp_base.qp_type; }
  bool is_target() const { return type() == IBV_QPT_XRC_RECV; }
  /** Has a receive side of its own: not XRC. */
  bool receives() const { return recv_cq != nullptr; }
};

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr);
int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask);
int query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init);
int destroy_qp(ibv_qp* qp);

/**
 * Into ERR: our record says so, waiting sends are flushed, then the receives in their order (or
 * LAST_WQE_REACHED is raised). May wait up to 100 ms for somebody who is copying to us. Needs the
 * QP's lock. Nothing if it is in ERR or RESET already.
 */
void enter_error(Qp& qp);
/** A WR has failed. UD and UC: into SQE, and receiving goes on; else enter_error(). Needs the QP's
 * lock. */
void fail_sends(Qp& qp);
/** Looks at the QPs of this process that others have found at fault, and moves them to ERR (R31).
 * No lock may be held. */
void attend(Process& process);
/**
 * The health word says `fault` from now on, by CAS from `healthy`, and the owner's table of faults
 * knows of it (R31). False: the word was another one. The owner still has to be woken.
 */
bool set_fault(QpRecord& record, ProcessShared& owner, uint32_t index, uint64_t healthy,
               Fault fault);
/** A receive of this QP of ours failed in our own poll, and its completion says so: into ERR with
 * the next call into the device. XRC targets stay as they are. Needs the lock of its CQ. */
void fail_receiver(Process& process, uint32_t qpn);
/** A flushed receive's completion. The lock of the queue's CQ may not be held. */
void push_flushed(ReceiveQueue& queue, uint64_t wr_id);
/** The state in our record, by CAS: the health word alone may be changed by others. */
void publish_state(Qp& qp, ibv_qp_state state);

/** Whether the masks of a transition are right (VERBS 2.8); `stripped` is what the kernel would
 * silently ignore. */
bool mask_is_ok(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask, std::string* why);
int strip_mask(ibv_qp_type type, int mask);

}  // namespace millrace::soft
