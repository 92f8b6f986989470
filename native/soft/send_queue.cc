#include <errno.h>

#include <algorithm>
#include <mutex>

#include "soft/datagram.h"
#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/mw.h"
#include "soft/pipeline.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** A WR that stays in this process. */
Outcome run_local(Qp& qp, const ibv_send_wr& wr) {
  Outcome out;
  out.status =
      wr.opcode == IBV_WR_BIND_MW ? run_bind(qp, wr) : run_local_invalidate(qp, wr.invalidate_rkey);
  return out;
}

/** The front WR, by the service that its QP's type has. */
Outcome run(Qp& qp, const ibv_send_wr& wr) {
  if (__builtin_expect(operation_of(wr.opcode).local, 0)) return run_local(qp, wr);
  switch (qp.type()) {
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_RC:
    case IBV_QPT_UC:
      return run_connected(qp, wr);
    case IBV_QPT_UD:
      return run_datagram(qp, wr);
    case IBV_QPT_RAW_PACKET:
      return run_frame(qp, wr);
    default:
      return Outcome::failed(IBV_WC_LOC_QP_OP_ERR);
  }
}

/** False: the completion is lost, because its CQ is overrun. */
bool complete(Qp& qp, const ibv_send_wr& wr, const Outcome& out) {
  const bool signaled = qp.sq_sig_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  if (!signaled && out.status == IBV_WC_SUCCESS) return true;
  ibv_wc wc = {};
  wc.wr_id = wr.wr_id;
  wc.status = out.status;
  wc.vendor_err = out.vendor;
  wc.opcode = operation_of(wr.opcode).sent;
  wc.byte_len = out.bytes;
  wc.qp_num = qp.number;
  return qp.send_cq->push(wc, out.status != IBV_WC_SUCCESS);
}

/** A QP that can't say what became of its work has failed, too. */
void fail_silenced(Qp& qp) {
  if (qp.state == IBV_QPS_ERR) return;
  raise_qp_event(qp.handle(), IBV_EVENT_QP_FATAL);
  enter_error(qp);
}

/** Enters the QP in its context's list of those with WRs that wait, or takes it out. */
void set_waiting(Qp& qp, bool on) {
  Context& context = *qp.context;
  std::lock_guard lock(context.waiting_lock);
  if (qp.listed == on) return;
  qp.listed = on;
  if (on) {
    context.waiting.push_back(&qp);
  } else {
    std::erase(context.waiting, &qp);
  }
  context.waiting_qps.store(static_cast<uint32_t>(context.waiting.size()),
                            std::memory_order_relaxed);
}

void pop_waiting(Qp& qp) {
  qp.waiting_head = (qp.waiting_head + 1) % static_cast<uint32_t>(qp.waiting.size());
  --qp.waiting_count;
  forget_wait(qp);
  if (qp.waiting_count == 0) set_waiting(qp, false);
}

/** SQD: what had begun is done. */
void drained(Qp& qp) {
  qp.draining = false;
  if (qp.notify_drained) raise_qp_event(qp.handle(), IBV_EVENT_SQ_DRAINED);
  qp.notify_drained = false;
}

/** Runs what waits, in order, as far as it goes. Needs the QP's lock. */
void run_waiting(Qp& qp) {
  while (qp.waiting_count > 0 &&
         (qp.state == IBV_QPS_RTS || (qp.state == IBV_QPS_SQD && qp.draining))) {
    if (!worth_trying(qp)) break;
    const Waiting& front = qp.waiting[qp.waiting_head];
    const Outcome out = run(qp, front.wr);
    if (out.waits) break;
    const bool told = complete(qp, front.wr, out);
    pop_waiting(qp);
    if (out.status != IBV_WC_SUCCESS) {
      fail_sends(qp);
    } else if (!told) {
      fail_silenced(qp);
    } else if (qp.draining) {
      drained(qp);
    }
  }
}

/** Copies a WR with all that it points to; ENOMEM when the send queue is full. */
int enqueue(Qp& qp, const ibv_send_wr& wr) {
  if (qp.waiting.empty()) qp.waiting.resize(qp.cap.max_send_wr);
  const uint32_t size = static_cast<uint32_t>(qp.waiting.size());
  if (qp.waiting_count == size) return ENOMEM;
  Waiting& slot = qp.waiting[(qp.waiting_head + qp.waiting_count) % size];
  slot.wr = wr;
  slot.wr.next = nullptr;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    slot.inline_data.clear();
    for (int i = 0; i < wr.num_sge; ++i) {
      const std::byte* data = reinterpret_cast<const std::byte*>(wr.sg_list[i].addr);
      slot.inline_data.insert(slot.inline_data.end(), data, data + wr.sg_list[i].length);
    }
    slot.inline_sge = {};
    slot.inline_sge.addr = reinterpret_cast<uintptr_t>(slot.inline_data.data());
    slot.inline_sge.length = static_cast<uint32_t>(slot.inline_data.size());
    slot.wr.sg_list = &slot.inline_sge;
    slot.wr.num_sge = 1;
  } else {
    slot.sge.assign(wr.sg_list, wr.sg_list + wr.num_sge);
    slot.wr.sg_list = slot.sge.data();
  }
  ++qp.waiting_count;
  set_waiting(qp, true);
  return 0;
}

int check_wr(const Qp& qp, const ibv_send_wr& wr) {
  const Operation op = operation_of(wr.opcode);
  if (!op.known || !service_has(qp.type(), op) || qp.spread != 0) return EINVAL;
  if (wr.opcode == IBV_WR_BIND_MW) return check_bind(qp, wr);
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (op.fetches()) return EINVAL;
    uint64_t sum = 0;
    for (int i = 0; i < wr.num_sge; ++i) sum += wr.sg_list[i].length;
    if (sum > qp.cap.max_inline_data && !(op.atomic_write && sum == 8)) return EINVAL;
  }
  return 0;
}

}  // namespace

bool service_has(ibv_qp_type type, const Operation& op) {
  switch (type) {
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_RC:
      return true;
    case IBV_QPT_UC:
      return !op.fetches() && !op.atomic_write;
    case IBV_QPT_UD:
      return op.takes_wqe && !op.remote_write && !op.invalidate && !op.local;
    case IBV_QPT_RAW_PACKET:
      return op.takes_wqe && !op.remote_write && !op.invalidate && !op.local && !op.immediate;
    default:
      return false;
  }
}

/** Posts a list up to the first that can't be; `bad` is that one. Needs the QP's lock. */
static int post_list(Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  int error = 0;
  for (; wr != nullptr; wr = wr->next) {
    error = check_wr(qp, *wr);
    if (error != 0) break;
    if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_SQE) {
      complete(qp, *wr, Outcome::failed(IBV_WC_WR_FLUSH_ERR));
      continue;
    }
    if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD) {
      error = EINVAL;
      break;
    }
    if (qp.waiting_count > 0 || qp.state == IBV_QPS_SQD) {
      error = enqueue(qp, *wr);
      if (error != 0) break;
      continue;
    }
    const Outcome out = run(qp, *wr);
    if (out.waits) {
      error = enqueue(qp, *wr);
      if (error != 0) {
        forget_wait(qp);
        break;
      }
      continue;
    }
    const bool told = complete(qp, *wr, out);
    if (__builtin_expect(out.status != IBV_WC_SUCCESS, 0)) fail_sends(qp);
    if (__builtin_expect(!told, 0)) fail_silenced(qp);
  }
  if (__builtin_expect(qp.waiting_count > 0, 0)) run_waiting(qp);
  tell_receivers(qp);
  if (error != 0) *bad = wr;
  return error;
}

int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp& qp = Qp::of(handle);
  if (__builtin_expect(forked(), 0)) {
    *bad = wr;
    return fail(EPERM, "post a send", "this process was forked from the one that owns the QP");
  }
  std::lock_guard lock(qp.lock);
  return post_list(qp, wr, bad);
}

int post_all(Qp& qp, ibv_send_wr* first, uint32_t count) {
  if (forked())
    return fail(EPERM, "post a send", "this process was forked from the one that owns the QP");
  std::lock_guard lock(qp.lock);
  if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD && qp.state != IBV_QPS_ERR)
    return fail(EINVAL, "post a send", base::format("the QP is in state %d", qp.state));
  if (qp.waiting_count + count > qp.cap.max_send_wr && qp.state != IBV_QPS_ERR) {
    return fail(ENOMEM, "post a send",
                base::format("%u work requests, and %u that wait, are more than max_send_wr, %u",
                             count, qp.waiting_count, qp.cap.max_send_wr));
  }
  for (const ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
    if (const int error = check_wr(qp, *wr)) return fail(error, "post a send", "bad work request");
  }
  ibv_send_wr* bad = nullptr;
  return post_list(qp, first, &bad);
}

void progress(Context& context) {
  if (context.process->wants_attention()) attend(*context.process);
  if (context.waiting_qps.load(std::memory_order_relaxed) == 0) return;
  // Keeps QPs from being destroyed while they are worked on.
  std::lock_guard alive(context.qps_lock);
  {
    std::lock_guard lock(context.waiting_lock);
    context.visiting = context.waiting;
  }
  for (Qp* qp : context.visiting) {
    std::lock_guard lock(qp->lock);
    run_waiting(*qp);
    tell_receivers(*qp);
  }
}

void go_on(Qp& qp) {
  run_waiting(qp);
  tell_receivers(qp);
}

void stop_sending(Qp& qp, bool notify) {
  qp.draining = qp.waiting_count > 0 && qp.wait != WaitFor::kNothing;
  qp.notify_drained = notify;
  if (!qp.draining) drained(qp);
}

void flush_waiting(Qp& qp) {
  while (qp.waiting_count > 0) {
    complete(qp, qp.waiting[qp.waiting_head].wr, Outcome::failed(IBV_WC_WR_FLUSH_ERR));
    pop_waiting(qp);
  }
  qp.draining = qp.notify_drained = false;
}

void drop_waiting(Qp& qp) {
  while (qp.waiting_count > 0) pop_waiting(qp);
  qp.draining = qp.notify_drained = false;
}

}  // namespace millrace::soft
