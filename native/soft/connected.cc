#include "base/clock.h"
#include "soft/mw.h"
#include "soft/pipeline.h"
#include "soft/step.h"

// XRC, RC and UC: one connection, whose other end is known before the WR is.

namespace millrace::soft {
namespace {

/** UC says nothing of what it could not deliver (no acknowledgement, no RNR). */
Outcome sent(uint32_t bytes) {
  Outcome out;
  out.bytes = bytes;
  return out;
}

/** What both ends allow of READs and atomics in flight. XRC is not asked: programs leave an
 * initiator's max_dest_rd_atomic unset (VERBS 2.8). */
MILLRACE_COLD ibv_wc_status check_depth(Qp& qp, Peer& peer) {
  if (qp.attr.max_rd_atomic == 0) return IBV_WC_LOC_QP_OP_ERR;
  if (qp.target->max_dest_rd_atomic.load(std::memory_order_relaxed) == 0) {
    fail_responder(qp, peer, Fault::kRequest);
    return IBV_WC_REM_INV_REQ_ERR;
  }
  return IBV_WC_SUCCESS;
}

Fault fault_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
      return Fault::kAccess;
    case IBV_WC_REM_INV_REQ_ERR:
      return Fault::kRequest;
    default:
      return Fault::kOperation;
  }
}

/** The responder found it out, and has failed as well. */
bool is_responders(ibv_wc_status status) {
  return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
         status == IBV_WC_REM_OP_ERR;
}

/** The part of a WR that needs no WQE. */
Outcome run_one_sided(Qp& qp, Peer& peer, const ibv_send_wr& wr, const Operation& op,
                      Segment* segments, int count, uint32_t total) {
  Outcome out = sent(total);
  const ibv_qp_type type = qp.type();
  if (type == IBV_QPT_RC && op.fetches()) {
    out.status = check_depth(qp, peer);
    if (out.status != IBV_WC_SUCCESS) return out;
  }
  if (op.atomic) {
    out = run_atomic(qp, peer, wr, segments, count, total);
    if (type == IBV_QPT_RC && !out.waits && is_responders(out.status))
      fail_responder(qp, peer, fault_of(out.status));
    return out;
  }
  const ibv_wc_status status = one_sided(qp, peer, wr, op, segments, count, total);
  if (type == IBV_QPT_UC) return out;
  out.status = status;
  if (type == IBV_QPT_RC && status != IBV_WC_SUCCESS) fail_responder(qp, peer, fault_of(status));
  return out;
}

}  // namespace

[[gnu::flatten]] Outcome run_connected(Qp& qp, const ibv_send_wr& wr) {
  const Operation op = operation_of(wr.opcode);
  const ibv_qp_type type = qp.type();
  const bool xrc = type == IBV_QPT_XRC_SEND;
  Segment segments[kMaxSendSge];
  int count = 0;
  uint32_t total = 0;
  ibv_wc_status status =
      gather(qp, wr, op.fetches() ? static_cast<uint32_t>(IBV_ACCESS_LOCAL_WRITE) : 0, segments,
             &count, &total);
  if (status != IBV_WC_SUCCESS) return Outcome::failed(status);

  if (!(xrc ? xrc_target_ready(qp) : connected_target_ready(qp)))
    return type == IBV_QPT_UC ? sent(total) : unanswered(qp);

  Peer* peer = nullptr;
  int error = 0;
  bool full = false;
  if (xrc) {
    status = find_srq_peer(qp, wr.qp_type.xrc.remote_srqn & kNumberMask, &peer, &error, &full);
  } else {
    status = find_connected_peer(qp, op.takes_wqe, &peer, &error, &full);
    // Its process is ending or the QP has just changed: nobody answers, so far.
    if (status == IBV_WC_REM_INV_REQ_ERR) return type == IBV_QPT_UC ? sent(total) : unanswered(qp);
  }
  if (status != IBV_WC_SUCCESS) return Outcome::failed(status, error);
  if (full) {
    if (type == IBV_QPT_UC) return sent(total);
    return rnr(qp, WaitFor::kDirectory, nullptr, base::now_ns());
  }
  if (!op.takes_wqe) return run_one_sided(qp, *peer, wr, op, segments, count, total);
  fetch_lines(*peer);

  if (!xrc && op.remote_write) {
    // Checked before a WQE is taken: its flush then is the only completion of it.
    status = check_one_sided(qp, *peer, wr, op, total);
    if (status != IBV_WC_SUCCESS) {
      if (type == IBV_QPT_UC) return sent(total);
      fail_responder(qp, *peer, fault_of(status));
      return Outcome::failed(status);
    }
  }
  uint64_t seen = 0;
  if (!has_room(qp, *peer->ring, &seen)) {
    if (type == IBV_QPT_UC) return sent(total);
    return rnr(qp, WaitFor::kRing, peer, seen);
  }
  const uint32_t index = take(qp, *peer, &seen);
  if (index == peer->max_wr) {
    if (type == IBV_QPT_UC) return sent(total);
    // Parked, and looked again: a queue that went before that has woken us already, and nobody will
    // do so again (R25). On another connection by now, with which this peer went, all is found
    // anew.
    const uint64_t health = qp.target_health;
    if (!xrc && (!connected_target_ready(qp) || qp.target_health != health)) return unanswered(qp);
    if (!peer_is_live(*peer)) return xrc ? Outcome::failed(IBV_WC_REM_INV_REQ_ERR) : unanswered(qp);
    return rnr(qp, WaitFor::kWqe, peer, seen);
  }

  ScatterResult copied;
  if (op.remote_write) {
    copied.local = one_sided(qp, *peer, wr, op, segments, count, total);
    if (copied.local != IBV_WC_SUCCESS) copied.remote = IBV_WC_LOC_ACCESS_ERR;
  } else {
    copied = scatter(qp, *peer, index, segments, count, total);
    // Before the commit: whoever sees the completion finds the window out of use.
    if (op.invalidate && copied.remote == IBV_WC_SUCCESS &&
        !invalidate_remotely(*qp.process, *peer->process, wr.invalidate_rkey, peer->pd,
                             xrc ? 0 : qp.target_number)) {
      copied = {IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR};
    }
  }
  step("copied");
  write_entry(qp, *peer->ring, *peer, wr, op, index, total, copied);
  commit(qp, *peer->ring,
         (wr.send_flags & IBV_SEND_SOLICITED) != 0 || copied.remote != IBV_WC_SUCCESS);
  Outcome out = sent(total);
  if (type != IBV_QPT_UC) out.status = copied.local;
  // Its own completion says why. XRC targets are nobody's and stay as they are.
  if (!xrc && copied.remote != IBV_WC_SUCCESS) fail_responder(qp, *peer, Fault::kReported);
  return out;
}

}  // namespace millrace::soft
