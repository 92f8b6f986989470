#include "soft/qp.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/reap.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

constexpr uint32_t kMaxSendWr = 16384;
constexpr uint32_t kMaxInline = 1024;
constexpr uint32_t kMaxRdAtomic = 16;

/** Puts this process's hold into a target's record. False: all holders are taken. */
bool add_hold(QpRecord& record, uint32_t incarnation, uint32_t* index) {
  for (uint32_t i = 0; i < kQpHolders; ++i) {
    uint32_t expected = 0;
    if (record.holders[i].load(std::memory_order_relaxed) == 0 &&
        record.holders[i].compare_exchange_strong(expected, incarnation)) {
      *index = i;
      step("hold added");
      return true;
    }
  }
  return false;
}

void drop_hold(QpRecord& record, uint32_t incarnation, uint32_t index) {
  uint32_t expected = incarnation;
  record.holders[index].compare_exchange_strong(expected, 0);
  step("hold dropped");
}

std::unique_ptr<Qp> new_qp(Context& context, ibv_qp_type type, uint32_t number, void* user) {
  auto qp = std::make_unique<Qp>();
  qp->context = &context;
  qp->process = context.process;
  qp->number = number;
  qp->record = &context.process->root().qp(number % context.process->root().qps());
  ibv_qp& base = qp->ex.qp_base;
  base.context = context.handle();
  base.qp_context = user;
  base.handle = number;
  base.qp_num = number;
  base.state = IBV_QPS_RESET;
  base.qp_type = type;
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  return qp;
}

/** Enters the QP everywhere it is known and gives it to the caller. */
ibv_qp* publish(std::unique_ptr<Qp> qp) {
  Context& context = *qp->context;
  if (qp->send_cq != nullptr) qp->send_cq->users.fetch_add(1);
  if (qp->xrcd != nullptr) qp->xrcd->users.fetch_add(1);
  if (qp->ex.qp_base.pd != nullptr) Pd::of(qp->ex.qp_base.pd).users.fetch_add(1);
  context.objects.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(context.qps_lock);
  context.qps.push_back(qp.get());
  return qp.release()->handle();
}

uint64_t state_word(uint64_t word, ibv_qp_state state) {
  return record_word(record_number(word), record_life(word), state, record_incarnation(word));
}

ibv_qp* create_initiator(Context& context, ibv_qp_init_attr_ex& attr) {
  Process& process = *context.process;
  if (attr.send_cq == nullptr || attr.pd == nullptr) {
    return fail_null(EINVAL, "create an XRC_SEND QP", "it needs a PD and a send CQ");  // VERBS 2.5
  }
  const ibv_qp_cap& cap = attr.cap;
  if (cap.max_send_wr > kMaxSendWr || cap.max_send_sge > kMaxSendSge ||
      cap.max_inline_data > kMaxInline) {
    return fail_null(
        EINVAL, "create an XRC_SEND QP",
        base::format("max_send_wr %u (at most %u), max_send_sge %u (%u), max_inline_data %u (%u)",
                     cap.max_send_wr, kMaxSendWr, cap.max_send_sge, kMaxSendSge,
                     cap.max_inline_data, kMaxInline));
  }
  const uint32_t number = process.root().claim_qp(process.incarnation());
  if (number == 0) {
    return fail_null(
        ENOMEM, "create a QP",
        base::format("all %u QP numbers of the fabric are in use", process.root().qps()));
  }
  step("qp number claimed");
  std::unique_ptr<Qp> qp = new_qp(context, IBV_QPT_XRC_SEND, number, attr.qp_context);
  qp->send_cq = &Cq::of(attr.send_cq);
  qp->pd = Pd::of(attr.pd).number;
  qp->sq_sig_all = attr.sq_sig_all != 0;
  // A receive queue and an SRQ are ignored, as the kernel does for this type (VERBS 2.14).
  qp->cap.max_send_wr = std::max(cap.max_send_wr, 1u);
  qp->cap.max_send_sge = std::max(cap.max_send_sge, 1u);
  qp->cap.max_inline_data = cap.max_inline_data;
  qp->queue.resize(qp->cap.max_send_wr);
  qp->ex.qp_base.pd = attr.pd;
  qp->ex.qp_base.send_cq = attr.send_cq;
  QpRecord& record = *qp->record;
  record.creator = process.owner();
  record.type = IBV_QPT_XRC_SEND;
  record.xrcd = XrcdKey{};
  record.word.store(record_word(number, Life::kLive, IBV_QPS_RESET, process.incarnation()));
  step("qp live");
  attr.cap = qp->cap;
  return publish(std::move(qp));
}

ibv_qp* create_target(Context& context, ibv_qp_init_attr_ex& attr) {
  Process& process = *context.process;
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_XRCD) == 0 || attr.xrcd == nullptr) {
    return fail_null(EINVAL, "create an XRC_RECV QP", "it needs an XRC domain");  // VERBS 2.4
  }
  const uint32_t number = process.root().claim_qp(process.incarnation());
  if (number == 0) {
    return fail_null(
        ENOMEM, "create a QP",
        base::format("all %u QP numbers of the fabric are in use", process.root().qps()));
  }
  step("qp number claimed");
  std::unique_ptr<Qp> qp = new_qp(context, IBV_QPT_XRC_RECV, number, attr.qp_context);
  qp->xrcd = &Xrcd::of(attr.xrcd);
  QpRecord& record = *qp->record;
  record.creator = process.owner();
  record.type = IBV_QPT_XRC_RECV;
  record.xrcd = qp->xrcd->key;
  record.access.store(0);
  record.min_rnr_timer.store(0);
  record.dest_qpn.store(0);
  record.rq_psn.store(0);
  record.sq_psn.store(0);
  record.path_mtu.store(0);
  record.timeout.store(0);
  // The own hold first: a target is never seen without one.
  if (!add_hold(record, process.incarnation(), &qp->holder)) {
    record.word.store(record_word(number, Life::kFree, 0, 0));
    return fail_null(ENOMEM, "create an XRC_RECV QP", "its record is still held by others");
  }
  record.word.store(record_word(number, Life::kLive, IBV_QPS_RESET, 0));
  step("target live");
  attr.cap = {};
  return publish(std::move(qp));
}

/** Values out of range, and EINVAL's text. */
bool values_are_ok(const ibv_qp_attr& attr, int mask, std::string* why) {
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
}

int modify_target(Qp& qp, const ibv_qp_attr& attr, int mask, ibv_qp_state to) {
  QpRecord& record = *qp.record;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) record.access.store(attr.qp_access_flags);
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) record.min_rnr_timer.store(attr.min_rnr_timer);
  if ((mask & IBV_QP_DEST_QPN) != 0) record.dest_qpn.store(attr.dest_qp_num);
  if ((mask & IBV_QP_RQ_PSN) != 0) record.rq_psn.store(attr.rq_psn);
  if ((mask & IBV_QP_SQ_PSN) != 0) record.sq_psn.store(attr.sq_psn);
  if ((mask & IBV_QP_PATH_MTU) != 0) record.path_mtu.store(attr.path_mtu);
  if ((mask & IBV_QP_TIMEOUT) != 0) record.timeout.store(attr.timeout);
  // Another holder may change the state at the same time; the life part may change too while
  // somebody closes.
  uint64_t word = record.word.load();
  while (record_number(word) == qp.number &&
         !record.word.compare_exchange_weak(word, state_word(word, to))) {
  }
  return 0;
}

int modify_initiator(Qp& qp, ibv_qp_state from, ibv_qp_state to) {
  qp.state = to;
  qp.ex.qp_base.state = to;
  if (to == IBV_QPS_RESET) {
    drop_waiting(qp);
    forget_peers(qp);  // rings stay: what was committed is the receivers'
    qp.target = nullptr;
    qp.target_word = kUncheckedTarget;
    qp.send_cq->purge(qp.number);
  } else if (to == IBV_QPS_ERR) {
    flush_waiting(qp);
  } else if (to == IBV_QPS_RTR && from == IBV_QPS_INIT) {
    Root& root = qp.process->root();
    qp.target_number = qp.attr.dest_qp_num;
    qp.target = &root.qp(qp.target_number % root.qps());
    qp.target_word = kUncheckedTarget;
    qp.target_xrcd = {};
  }
  // The kernel's record shows the state to tools; nothing of the protocol reads it.
  uint64_t word = qp.record->word.load();
  qp.record->word.compare_exchange_strong(word, state_word(word, to));
  return 0;
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context* handle, ibv_qp_init_attr_ex* attr) {
  if (forked()) return fail_null(EPERM, "create a QP", "this process was forked");
  Context& context = Context::of(handle);
  const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
  if ((attr->comp_mask & ~known) != 0) {
    return fail_null(
        EOPNOTSUPP, "create a QP",
        base::format("comp_mask %#x has bits that this device does not know", attr->comp_mask));
  }
  switch (attr->qp_type) {
    case IBV_QPT_XRC_SEND:
      if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) attr->pd = nullptr;
      return create_initiator(context, *attr);
    case IBV_QPT_XRC_RECV:
      return create_target(context, *attr);
    default:
      return fail_null(EOPNOTSUPP, "create a QP", "this device has XRC QPs only, so far");
  }
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  ibv_qp_init_attr_ex extended = {};
  extended.qp_context = attr->qp_context;
  extended.send_cq = attr->send_cq;
  extended.recv_cq = attr->recv_cq;
  extended.srq = attr->srq;
  extended.cap = attr->cap;
  extended.qp_type = attr->qp_type;
  extended.sq_sig_all = attr->sq_sig_all;
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd;
  ibv_qp* qp = create_qp_ex(pd->context, &extended);
  if (qp != nullptr) attr->cap = extended.cap;
  return qp;
}

ibv_qp* open_qp(ibv_context* handle, ibv_qp_open_attr* attr) {
  if (forked()) return fail_null(EPERM, "open a QP", "this process was forked");
  const uint32_t need = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if ((attr->comp_mask & need) != need ||
      (attr->comp_mask & ~(need | IBV_QP_OPEN_ATTR_CONTEXT)) != 0 || attr->xrcd == nullptr) {
    return fail_null(EINVAL, "open a QP",
                     "the number, the XRC domain and the type must be given");  // VERBS 2.6
  }
  if (attr->qp_type != IBV_QPT_XRC_RECV)
    return fail_null(EINVAL, "open a QP", "only XRC_RECV QPs can be opened");
  Context& context = Context::of(handle);
  Process& process = *context.process;
  Root& root = process.root();
  Xrcd& xrcd = Xrcd::of(attr->xrcd);
  const uint32_t number = attr->qp_num & kNumberMask;
  QpRecord& record = root.qp(number % root.qps());
  const auto there = [&](uint64_t word) {
    return record_number(word) == number && attr->qp_num == number &&
           (record_life(word) == Life::kLive || record_life(word) == Life::kClosing);
  };
  const auto not_there = [&] {
    return fail_null(EINVAL, "open a QP",
                     base::format("there is no XRC_RECV QP %#x in this domain", attr->qp_num));
  };
  if (!there(record.word.load())) return not_there();
  uint32_t holder = 0;
  if (!add_hold(record, process.incarnation(), &holder)) {
    return fail_null(ENOMEM, "open a QP",
                     base::format("it has %u handles, which is all there is room for", kQpHolders));
  }
  // The hold first, then the word (seq_cst): see closing_step() for the other half.
  for (;;) {
    uint64_t word = record.word.load();
    if (!there(word) || record.type != IBV_QPT_XRC_RECV || !(record.xrcd == xrcd.key)) {
      drop_hold(record, process.incarnation(), holder);
      closing_step(root, record);  // our mistaken hold may have kept the last holder from closing
      return not_there();
    }
    if (record_life(word) == Life::kLive) break;
    // Somebody is closing it: help it back. If that fails, look again.
    const uint64_t live = record_word(number, Life::kLive, record_state(word), 0);
    if (record.word.compare_exchange_strong(word, live)) break;
  }
  step("target opened");
  std::unique_ptr<Qp> qp =
      new_qp(context, IBV_QPT_XRC_RECV, number,
             (attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0 ? attr->qp_context : nullptr);
  qp->opened = true;
  qp->holder = holder;
  qp->xrcd = &xrcd;
  qp->ex.qp_base.state = static_cast<ibv_qp_state>(record_state(record.word.load()));
  return publish(std::move(qp));
}

int modify_qp(ibv_qp* handle, ibv_qp_attr* attr, int mask) {
  if (forked()) return fail(EPERM, "modify a QP", "this process was forked");
  Qp& qp = Qp::of(handle);
  const ibv_qp_type type = handle->qp_type;
  std::lock_guard lock(qp.lock);
  const ibv_qp_state from =
      qp.is_target() ? static_cast<ibv_qp_state>(record_state(qp.record->word.load())) : qp.state;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != from) {
    return fail(EINVAL, "modify a QP",
                base::format("cur_qp_state is %d, the QP is in %d", attr->cur_qp_state, from));
  }
  mask = strip_mask(type, mask);
  std::string why;
  if (!mask_is_ok(type, from, to, mask, &why) || !values_are_ok(*attr, mask, &why))
    return fail(EINVAL, "modify a QP", why);
  keep_values(qp.attr, *attr, mask);
  if (!qp.is_target()) return modify_initiator(qp, from, to);
  qp.ex.qp_base.state = to;
  return modify_target(qp, *attr, mask, to);
}

int query_qp(ibv_qp* handle, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  if (forked()) return fail(EPERM, "query a QP", "this process was forked");
  Qp& qp = Qp::of(handle);
  std::lock_guard lock(qp.lock);
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

int destroy_qp(ibv_qp* handle) {
  if (forked()) return fail(EPERM, "destroy a QP", "this process was forked");
  Qp* qp = &Qp::of(handle);
  Context& context = *qp->context;
  Process& process = *qp->process;
  {
    std::lock_guard list(context.qps_lock);
    std::erase(context.qps, qp);
    std::lock_guard lock(qp->lock);
    if (!qp->is_target()) {
      drop_waiting(*qp);
      disconnect_all(*qp);
    }
  }
  if (qp->is_target()) {
    drop_hold(*qp->record, process.incarnation(), qp->holder);
    closing_step(process.root(), *qp->record);
    qp->xrcd->users.fetch_sub(1);
  } else {
    qp->send_cq->purge(qp->number);
    uint64_t word = qp->record->word.load();
    qp->record->word.compare_exchange_strong(word, record_word(qp->number, Life::kFree, 0, 0));
    qp->send_cq->users.fetch_sub(1);
    Pd::of(handle->pd).users.fetch_sub(1);
  }
  step("qp destroyed");
  context.objects.fetch_sub(1, std::memory_order_relaxed);
  pthread_mutex_destroy(&handle->mutex);
  pthread_cond_destroy(&handle->cond);
  delete qp;
  return 0;
}

}  // namespace millrace::soft
