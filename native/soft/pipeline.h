#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>

#include "soft/qp.h"

// One work request goes through these stages, each a function that may end it with a status or let
// it wait:
//   gather    the local elements are checked (key, PD, bounds, access)
//   target    the QP that we are connected to exists and is ready to receive
//   peer      the receive queue: its memory, its CQ and our ring there (resolved once, then cached)
//   room      the ring has room (R3)
//   take      one WQE becomes TAKEN by us (R1, R4)
//   move      its elements are checked on a private copy, and the bytes are copied
//   commit    the entry is written and the ring's tail published: the only commit (R1)
//   complete  our own completion; and, once for a list of WRs, the receiver is told (R7, R9)
// A service (what a QP type promises) puts them together in a run_*() function: see run() for which
// type has which.

namespace millrace::soft {

inline constexpr uint64_t kForever = ~uint64_t{0};
/** What nobody wakes us for is looked at again this often. */
inline constexpr uint64_t kLookAgainNs = 5'000'000;

struct Segment {
  std::byte* data;
  uint32_t bytes;
};

/** What a WR asks for, from its opcode. */
struct Operation {
  bool known = false;
  bool takes_wqe = false;
  bool remote_write = false;
  bool remote_read = false;
  bool atomic = false;
  bool atomic_write = false;  ///< eight bytes that nobody sees half of
  bool immediate = false;
  bool invalidate = false;  ///< the receiver's R_Key, SEND_WITH_INV
  bool local = false;       ///< never leaves this process: bind, invalidate
  ibv_wc_opcode sent = IBV_WC_SEND;
  ibv_wc_opcode received = IBV_WC_RECV;
  /** Local elements are written to, not sent. */
  bool fetches() const { return remote_read || atomic; }
};

inline Operation operation_of(ibv_wr_opcode opcode) {
  Operation op;
  op.known = true;
  switch (opcode) {
    case IBV_WR_SEND:
      op.takes_wqe = true;
      break;
    case IBV_WR_SEND_WITH_IMM:
      op.takes_wqe = op.immediate = true;
      break;
    case IBV_WR_RDMA_WRITE:
      op.remote_write = true;
      op.sent = IBV_WC_RDMA_WRITE;
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      op.remote_write = op.takes_wqe = op.immediate = true;
      op.sent = IBV_WC_RDMA_WRITE;
      op.received = IBV_WC_RECV_RDMA_WITH_IMM;
      break;
    case IBV_WR_RDMA_READ:
      op.remote_read = true;
      op.sent = IBV_WC_RDMA_READ;
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      op.atomic = true;
      op.sent = IBV_WC_COMP_SWAP;
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      op.atomic = true;
      op.sent = IBV_WC_FETCH_ADD;
      break;
    case IBV_WR_SEND_WITH_INV:
      op.takes_wqe = op.invalidate = true;
      break;
    case IBV_WR_BIND_MW:
      op.local = true;
      op.sent = IBV_WC_BIND_MW;
      break;
    case IBV_WR_LOCAL_INV:
      op.local = true;
      op.sent = IBV_WC_LOCAL_INV;
      break;
    case IBV_WR_ATOMIC_WRITE:
      op.remote_write = op.atomic_write = true;
      op.sent = IBV_WC_ATOMIC_WRITE;
      break;
    default:
      op.known = false;
  }
  return op;
}

/** Whether a QP type takes an operation (the verbs specification's table of services). */
bool service_has(ibv_qp_type type, const Operation& op);

struct Outcome {
  bool waits = false;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t bytes = 0;
  uint32_t vendor = 0;  ///< errno, where one caused the status

  static Outcome failed(ibv_wc_status status, int error = 0) {
    Outcome out;
    out.status = status;
    out.vendor = static_cast<uint32_t>(error);
    return out;
  }
};

/** What a message in the steady state does not come to: kept out of those that it does. */
#define MILLRACE_COLD [[gnu::noinline, gnu::cold]]

// All of these need the QP's lock.

// wait.cc ----------------------------------------------------------------------------------------

/** min_rnr_timer's encoding (InfiniBand's table), in ns. */
uint64_t rnr_timer_ns(uint32_t code);
/** Where a wake-up for this QP goes: the FIFO of its context. */
uint32_t park_channel_of(const Qp& qp);
/**
 * Lets the front WR wait, or ends it with `exhausted` when its budget is used up. The budget starts
 * when it begins to wait for this kind of thing.
 */
MILLRACE_COLD Outcome wait_or_fail(Qp& qp, WaitFor what, Peer* peer, uint64_t seen,
                                   uint64_t budget_ns, ibv_wc_status exhausted);
/** Receiver not ready: waits for rnr_retry times the receiver's timer (VERBS 2.13). */
MILLRACE_COLD Outcome rnr(Qp& qp, WaitFor what, Peer* peer, uint64_t seen);
/** Nobody answers, or not in time: waits for the transport's timeout budget (VERBS 1, lesson 3). */
MILLRACE_COLD Outcome unanswered(Qp& qp, WaitFor what = WaitFor::kTarget);
/** Whether another try can have another result than the last. */
MILLRACE_COLD bool worth_trying(Qp& qp);
void forget_wait(Qp& qp);

// gather.cc --------------------------------------------------------------------------------------

/** Checks and resolves the local elements. `access`: 0 to send from them, LOCAL_WRITE to fetch into
 * them. At most kMaxSendSge segments. */
ibv_wc_status gather(Qp& qp, const ibv_send_wr& wr, uint32_t access, Segment* out, int* count,
                     uint32_t* total);

// target.cc --------------------------------------------------------------------------------------

/** Whether a QP in this verbs state takes what is sent to it. */
bool can_receive(uint32_t state);
/** The XRC target can take a packet of ours; checked in full only when its word has changed. */
bool xrc_target_ready(Qp& qp);
/** The same for the QP at the other end of an RC or UC connection: it is there, ready to receive,
 * connected to us, and our path leads to its port. */
bool connected_target_ready(Qp& qp);
/** Puts the responder into ERR, as its hardware would (R31); its owner is told. */
MILLRACE_COLD void fail_responder(Qp& qp, Peer& peer, Fault fault);

// connect.cc -------------------------------------------------------------------------------------

/** The peer for an SRQ number, from the cache if it is there and alive. */
ibv_wc_status find_srq_peer(Qp& qp, uint32_t srqn, Peer** out, int* error, bool* full);
/** The peer of a connected QP. With `queue` also its receive queue and our ring there; without only
 * what one-sided operations need. */
ibv_wc_status find_connected_peer(Qp& qp, bool queue, Peer** out, int* error, bool* full);
/**
 * The receiver of a datagram: a QP of our own type that is ready to receive. It is `qp.target`
 * then. REM_INV_REQ_ERR: there is none.
 */
ibv_wc_status find_datagram_peer(Qp& qp, uint32_t qpn, Peer** out, int* error, bool* full);
bool peer_is_live(const Peer& peer);
MILLRACE_COLD void release_park(Peer& peer);
MILLRACE_COLD void forget_peer(Qp& qp, Peer* peer);

// rings.cc ---------------------------------------------------------------------------------------

/**
 * Makes this QP's ring into a CQ and claims a directory entry for it, or finds the one that it has.
 * `full`: the directory has no entry left, and the receiver was told to look for those of the dead.
 * Needs the registry mutex.
 */
MILLRACE_COLD ibv_wc_status claim_ring(Qp& qp, const std::shared_ptr<PeerProcess>& process,
                                       CqShared* cq, uint32_t max_wr, RingUse** out, int* error,
                                       bool* full);

// take.cc ----------------------------------------------------------------------------------------

/** Asks for the lines that take() to commit() need and the receiver has had last. */
void fetch_lines(const Peer& peer);
/** One WQE for us, or max_wr when there is none: then we are parked, if that was possible, and
 * `seen` is what will have changed when it is worth another try (R10). */
uint32_t take(Qp& qp, Peer& peer, uint64_t* seen);

// move.cc ----------------------------------------------------------------------------------------

struct ScatterResult {
  ibv_wc_status local = IBV_WC_SUCCESS;   ///< what the initiator is told
  ibv_wc_status remote = IBV_WC_SUCCESS;  ///< what the receiver's completion says
  bool carried = false;                   ///< not copied: in the ring, for the receiver to place
};

/** A region of the peer by key, from the private cache if its record has not changed. */
const Translation* translation(Qp& qp, Peer& peer, uint32_t key);
/** Copies `total` bytes into the buffers of a taken WQE, `skip` bytes from their start. A small
 * message for memory that no file backs goes into the ring (R35): the system call that copies into
 * another process takes longer than both copies. */
ScatterResult scatter(Qp& qp, Peer& peer, uint32_t index, Segment* segments, int count,
                      uint32_t total, uint32_t skip = 0);
/** WRITE or READ: REM_ACCESS_ERR unless the target QP and the region grant it. */
ibv_wc_status one_sided(Qp& qp, Peer& peer, const ibv_send_wr& wr, const Operation& op,
                        Segment* segments, int count, uint32_t total);
/** The checks of one_sided() alone. */
ibv_wc_status check_one_sided(Qp& qp, Peer& peer, const ibv_send_wr& wr, const Operation& op,
                              uint32_t total);

/** Between local elements and foreign memory of the peer (process_vm_*), or this process's own. */
bool move_foreign(Qp& qp, Peer& peer, Segment* segments, int count, uint64_t address,
                  uint32_t bytes, bool read);

// carry.cc ---------------------------------------------------------------------------------------

/** Where a message of so many bytes lies in the ring beside its entry; null: it is too long, as
 * many wait to be placed as there are slots, or there is no memory for them. */
std::byte* carry_slot(Qp& qp, RingUse& use, uint32_t bytes);

// atomic.cc --------------------------------------------------------------------------------------

/** CMP_AND_SWP and FETCH_AND_ADD: the value before goes into the local elements. May wait for
 * another process's atomic on foreign memory. */
MILLRACE_COLD Outcome run_atomic(Qp& qp, Peer& peer, const ibv_send_wr& wr, Segment* segments,
                                 int count, uint32_t total);

// commit.cc --------------------------------------------------------------------------------------

/** Room in the ring for one more entry; else false, and `seen` is the head (R3). */
bool has_room(Qp& qp, RingUse& use, uint64_t* seen);
/**
 * Fills the ring's next entry, which is nobody else's until commit(): what the receive completion
 * says of a WR of ours. The caller may change it; only `position` is the ring's.
 */
Entry& write_entry(Qp& qp, RingUse& use, const Peer& peer, const ibv_send_wr& wr,
                   const Operation& op, uint32_t index, uint32_t total,
                   const ScatterResult& copied);
/** Publishes the tail behind the entry that was written (R1). */
void commit(Qp& qp, RingUse& use, bool solicited);
/** After a list of WRs: one announcement for each ring that was committed into. */
void tell_receivers(Qp& qp);

// connected.cc -----------------------------------------------------------------------------------

/** The front WR of an XRC_SEND, RC or UC QP. */
Outcome run_connected(Qp& qp, const ibv_send_wr& wr);

}  // namespace millrace::soft
