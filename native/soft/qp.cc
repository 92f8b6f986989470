#include "soft/qp.h"

#include <errno.h>
#include <pthread.h>

#include <mutex>
#include <vector>

#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/qp_internal.h"
#include "soft/reap.h"
#include "soft/step.h"

namespace millrace::soft {

void drop_hold(QpHolders& holders, uint32_t incarnation, uint32_t index) {
  uint32_t expected = incarnation;
  holders.holder[index].compare_exchange_strong(expected, 0);
  step("hold dropped");
}

void publish_state(Qp& qp, ibv_qp_state state) {
  uint64_t word = qp.record->word.load();
  qp.record->word.compare_exchange_strong(word, state_word(word, state));
  step("state published");
}

int query_qp(ibv_qp* handle, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  if (forked()) return fail(EPERM, "query a QP", "this process was forked");
  Qp& qp = Qp::of(handle);
  std::lock_guard lock(qp.lock);
  notice_fault(qp);
  *attr = qp.attr;
  if (qp.is_target()) {
    // What another holder has set counts, too.
    QpRecord& record = *qp.record;
    attr->qp_state = static_cast<ibv_qp_state>(record_state(record.word.load()));
    attr->qp_access_flags = record.access.load();
    attr->min_rnr_timer = static_cast<uint8_t>(record.min_rnr_timer.load());
    attr->dest_qp_num = record.dest_qpn.load();
    attr->rq_psn = record.rq_psn.load();
    attr->sq_psn = record.sq_psn.load();
    attr->path_mtu = static_cast<ibv_mtu>(record.path_mtu.load());
    attr->timeout = static_cast<uint8_t>(record.timeout.load());
    handle->state = attr->qp_state;
  } else {
    attr->qp_state = qp.state;
    attr->sq_draining = qp.draining ? 1 : 0;
  }
  attr->cur_qp_state = attr->qp_state;
  attr->path_mig_state = IBV_MIG_MIGRATED;
  attr->cap = qp.cap;
  if (init != nullptr) {
    *init = {};
    init->qp_context = handle->qp_context;
    init->send_cq = handle->send_cq;
    init->recv_cq = handle->recv_cq;
    init->srq = handle->srq;
    init->cap = qp.cap;
    init->qp_type = handle->qp_type;
    init->sq_sig_all = qp.sq_sig_all ? 1 : 0;
  }
  return 0;
}

bool silence(Qp& qp) {
  bool quiet = true;
  if (qp.queue != nullptr) {
    qp.queue->close();
    quiet = qp.queue->wait_quiet(qp.recv_cq);
    qp.queue->shared->posted.fetch_add(1);
    qp.queue->wake_parked();  // their WRs find that nobody answers
  } else if (qp.srq != nullptr) {
    qp.srq->queue.wait_quiet(qp.recv_cq, peer_owner(qp));
  }
  qp.send_cq->purge(qp.number);
  if (qp.receives() && qp.recv_cq != qp.send_cq) qp.recv_cq->purge(qp.number);
  return quiet;
}

int post_recv(ibv_qp* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Qp& qp = Qp::of(handle);
  const auto refuse = [&](int error, const char* why) {
    *bad = wr;
    return fail(error, "post a receive", why);
  };
  if (__builtin_expect(forked(), 0))
    return refuse(EPERM, "this process was forked from the one that owns the QP");
  // XRC has none: receives go to SRQs (VERBS 2.4).
  if (__builtin_expect(qp.queue == nullptr, 0))
    return refuse(EINVAL, "this QP has no receive queue of its own");
  std::lock_guard lock(qp.lock);
  if (__builtin_expect(qp.state == IBV_QPS_ERR, 0)) {
    for (; wr != nullptr; wr = wr->next) push_flushed(*qp.queue, wr->wr_id);
    return 0;
  }
  if (__builtin_expect(qp.state == IBV_QPS_RESET, 0)) return refuse(EINVAL, "the QP is in RESET");
  return qp.queue->post(wr, bad);
}

namespace {

/** Frees an XRC target's handle: its hold goes, and with the last one the target (VERBS 2.7). */
void let_go_of_target(Qp& qp) {
  Root& root = qp.process->root();
  drop_hold(*holders_of(root, qp.number), qp.process->incarnation(), qp.holder);
  closing_step(root, qp.number % root.qps());
  qp.xrcd->users.fetch_sub(1);
}

/** R25 for a QP: the number, the POSTED words, the copies under way, then the waiters. */
void end_owned(Qp& qp) {
  Process& process = *qp.process;
  uint64_t word = qp.record->word.load();
  qp.record->word.compare_exchange_strong(word, record_word(qp.number, Life::kFree, 0, 0));
  step("qp number freed");
  const bool quiet = silence(qp);
  {
    std::lock_guard objects(process.objects());
    std::lock_guard attending(process.attending);
    process.qp_table[qp.number % kQps].store(nullptr, std::memory_order_release);
    if (qp.queue != nullptr) std::erase(process.queues, qp.queue.get());
    // A poll that still uses it is over when we have its CQ's lock.
    if (qp.receives()) std::lock_guard polls(qp.recv_cq->lock);
  }
  if (qp.queue != nullptr && quiet) qp.queue->give_back();
  // else: the memory stays with this incarnation, unused, for whoever still is inside (R6)
  qp.send_cq->users.fetch_sub(1);
  if (qp.receives()) qp.recv_cq->users.fetch_sub(1);
  if (qp.srq != nullptr) qp.srq->users.fetch_sub(1);
  Pd::of(qp.ex.qp_base.pd).users.fetch_sub(1);
}

}  // namespace

int destroy_qp(ibv_qp* handle) {
  if (forked()) return fail(EPERM, "destroy a QP", "this process was forked");
  Qp* qp = &Qp::of(handle);
  Context& context = *qp->context;
  const uint32_t steered = qp->steered.load();
  if (steered != 0) {
    return fail(EBUSY, "destroy a QP",
                base::format("%u multicast groups and flows lead to it", steered));  // VERBS 3
  }
  {
    std::lock_guard list(context.qps_lock);
    std::erase(context.qps, qp);
    std::lock_guard lock(qp->lock);
    if (!qp->is_target()) {
      drop_waiting(*qp);
      disconnect_all(*qp);
      qp->state = IBV_QPS_RESET;  // attend() leaves it alone from here on
    }
  }
  if (qp->is_target()) {
    let_go_of_target(*qp);
  } else {
    end_owned(*qp);
  }
  end_spread(*qp);
  step("qp destroyed");
  retire_events(handle);
  context.objects.fetch_sub(1, std::memory_order_relaxed);
  pthread_mutex_destroy(&handle->mutex);
  pthread_cond_destroy(&handle->cond);
  delete qp;
  return 0;
}

}  // namespace millrace::soft
