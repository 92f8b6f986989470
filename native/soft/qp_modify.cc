#include <errno.h>

#include <mutex>
#include <string>

#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/qp_internal.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** Values out of range, and EINVAL's text. */
bool values_are_ok(const Context& context, const ibv_qp_attr& attr, int mask, std::string* why) {
  const auto bad = [why](const char* name, unsigned value) {
    *why = base::format("%s is %u", name, value);
    return false;
  };
  if ((mask & IBV_QP_PORT) != 0 && attr.port_num != 1) return bad("port_num", attr.port_num);
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attr.pkey_index != 0)
    return bad("pkey_index", attr.pkey_index);
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (attr.path_mtu < IBV_MTU_256 || attr.path_mtu > IBV_MTU_4096))
    return bad("path_mtu", attr.path_mtu);
  if ((mask & IBV_QP_DEST_QPN) != 0 && attr.dest_qp_num > kNumberMask)
    return bad("dest_qp_num", attr.dest_qp_num);
  if ((mask & IBV_QP_TIMEOUT) != 0 && attr.timeout > 31) return bad("timeout", attr.timeout);
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attr.retry_cnt > 7) return bad("retry_cnt", attr.retry_cnt);
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attr.rnr_retry > 7) return bad("rnr_retry", attr.rnr_retry);
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attr.min_rnr_timer > 31)
    return bad("min_rnr_timer", attr.min_rnr_timer);
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attr.max_rd_atomic > kMaxRdAtomic)
    return bad("max_rd_atomic", attr.max_rd_atomic);
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && attr.max_dest_rd_atomic > kMaxRdAtomic)
    return bad("max_dest_rd_atomic", attr.max_dest_rd_atomic);
  if ((mask & IBV_QP_AV) != 0 && attr.ah_attr.port_num > 1)
    return bad("ah_attr.port_num", attr.ah_attr.port_num);
  if ((mask & IBV_QP_AV) != 0 && attr.ah_attr.is_global != 0 &&
      attr.ah_attr.grh.sgid_index >= gid_count(context.link))
    return bad("ah_attr.grh.sgid_index", attr.ah_attr.grh.sgid_index);
  if ((mask & IBV_QP_AV) != 0 && attr.ah_attr.is_global == 0 && context.link == Link::kEthernet) {
    *why = "ah_attr.is_global is 0; an Ethernet port has no LIDs";
    return false;
  }
  return true;
}

void keep_values(ibv_qp_attr& to, const ibv_qp_attr& from, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) to.qp_access_flags = from.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) to.pkey_index = from.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) to.port_num = from.port_num;
  if ((mask & IBV_QP_AV) != 0) to.ah_attr = from.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) to.path_mtu = from.path_mtu;
  if ((mask & IBV_QP_TIMEOUT) != 0) to.timeout = from.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) to.retry_cnt = from.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) to.rnr_retry = from.rnr_retry;
  if ((mask & IBV_QP_RQ_PSN) != 0) to.rq_psn = from.rq_psn;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) to.max_rd_atomic = from.max_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) to.min_rnr_timer = from.min_rnr_timer;
  if ((mask & IBV_QP_SQ_PSN) != 0) to.sq_psn = from.sq_psn;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if ((mask & IBV_QP_DEST_QPN) != 0) to.dest_qp_num = from.dest_qp_num;
  if ((mask & IBV_QP_QKEY) != 0) to.qkey = from.qkey;
}

/** What others need to know of the attributes. */
void record_values(QpRecord& record, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) record.access.store(attr.qp_access_flags);
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) record.min_rnr_timer.store(attr.min_rnr_timer);
  if ((mask & IBV_QP_DEST_QPN) != 0) record.dest_qpn.store(attr.dest_qp_num);
  if ((mask & IBV_QP_RQ_PSN) != 0) record.rq_psn.store(attr.rq_psn);
  if ((mask & IBV_QP_SQ_PSN) != 0) record.sq_psn.store(attr.sq_psn);
  if ((mask & IBV_QP_PATH_MTU) != 0) record.path_mtu.store(attr.path_mtu);
  if ((mask & IBV_QP_TIMEOUT) != 0) record.timeout.store(attr.timeout);
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0)
    record.max_dest_rd_atomic.store(attr.max_dest_rd_atomic);
  if ((mask & IBV_QP_QKEY) != 0) record.qkey.store(attr.qkey);
  if ((mask & IBV_QP_AV) != 0) record.remote.store(attr.ah_attr.dlid);
}

int modify_target(Qp& qp, const ibv_qp_attr& attr, int mask, ibv_qp_state to) {
  QpRecord& record = *qp.record;
  record_values(record, attr, mask);
  // Another holder may change the state at the same time; the life part may change too while
  // somebody closes.
  uint64_t word = record.word.load();
  while (record_number(word) == qp.number &&
         !record.word.compare_exchange_weak(word, state_word(word, to))) {
  }
  qp.ex.qp_base.state = to;
  return 0;
}

/** Everything begins anew: the queues, the connection, what is in the CQs. */
int reset(Qp& qp) {
  drop_waiting(qp);
  forget_peers(qp);  // rings stay: what was committed is the receivers'
  qp.target = nullptr;
  qp.target_word = kUncheckedTarget;
  qp.attr = {};
  qp.last_wqe_told = false;
  publish_state(qp, IBV_QPS_RESET);
  const bool quiet = silence(qp);
  if (!qp.receives()) return 0;
  QpRecord& record = *qp.record;
  const uint32_t epoch = health_epoch(record.health.load()) + 1;
  if (qp.queue != nullptr) {
    if (!quiet) {
      // Whoever is inside may go on there as long as it likes (R6, R25).
      std::lock_guard registry(qp.process->registry());
      base::Status status = qp.queue->allocate(own_queue_layout(qp), qp.pd, record.cq);
      if (!status.ok()) return fail(status);
      record.queue = qp.queue->block.ref;
    }
    qp.queue->reopen(epoch);
  }
  step("queue reopened");
  record.health.store(health_word(epoch, Fault::kHealthy));
  return 0;
}

int modify_owned(Qp& qp, const ibv_qp_attr& attr, int mask, ibv_qp_state from, ibv_qp_state to) {
  qp.state = to;
  qp.ex.qp_base.state = to;
  if (to == IBV_QPS_RESET) return reset(qp);
  if (to == IBV_QPS_ERR) {
    qp.state = from;
    enter_error(qp);
    return 0;
  }
  record_values(*qp.record, attr, mask);
  if ((mask & IBV_QP_PORT) != 0)
    qp.record->port.store(port_place(qp.context->link, qp.context->device) << 8 | attr.port_num);
  if ((mask & IBV_QP_AV) != 0) {
    qp.route = route_of(*qp.context, qp.attr.ah_attr);
    qp.target_word = kUncheckedTarget;
  }
  if (to == IBV_QPS_RTR && from == IBV_QPS_INIT && (mask & IBV_QP_DEST_QPN) != 0) {
    Root& root = qp.process->root();
    qp.target_number = qp.attr.dest_qp_num;
    qp.target = &root.qp(qp.target_number % root.qps());
    qp.target_word = kUncheckedTarget;
    qp.target_health = qp.receives() ? kUncheckedTarget : 0;
    qp.target_xrcd = {};
    if (qp.queue != nullptr) qp.queue->expect(qp.target_number);
  }
  publish_state(qp, to);
  if (to == IBV_QPS_SQD && from == IBV_QPS_RTS)
    stop_sending(qp, (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attr.en_sqd_async_notify != 0);
  if (to == IBV_QPS_RTS && from == IBV_QPS_SQD) go_on(qp);
  return 0;
}

}  // namespace

int modify_qp(ibv_qp* handle, ibv_qp_attr* attr, int mask) {
  if (forked()) return fail(EPERM, "modify a QP", "this process was forked");
  Qp& qp = Qp::of(handle);
  const ibv_qp_type type = handle->qp_type;
  if (qp.spread != 0)
    return fail(EOPNOTSUPP, "modify a QP", "one that spreads frames over WQs has no states");
  std::lock_guard lock(qp.lock);
  notice_fault(qp);
  const ibv_qp_state from =
      qp.is_target() ? static_cast<ibv_qp_state>(record_state(qp.record->word.load())) : qp.state;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != from) {
    return fail(EINVAL, "modify a QP",
                base::format("cur_qp_state is %d, the QP is in %d", attr->cur_qp_state, from));
  }
  mask = strip_mask(type, mask);
  std::string why;
  if (!mask_is_ok(type, from, to, mask, &why) || !values_are_ok(*qp.context, *attr, mask, &why))
    return fail(EINVAL, "modify a QP", why);
  keep_values(qp.attr, *attr, mask);
  return qp.is_target() ? modify_target(qp, *attr, mask, to)
                        : modify_owned(qp, *attr, mask, from, to);
}

}  // namespace millrace::soft
