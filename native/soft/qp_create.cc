#include <errno.h>
#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include "soft/channel.h"
#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/qp_internal.h"
#include "soft/reap.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

constexpr uint32_t kMaxSendWr = 16384;
constexpr uint32_t kMaxInline = 1024;

/** Puts this process's hold into a target's record. False: all holders are taken. */
bool add_hold(QpHolders& holders, uint32_t incarnation, uint32_t* index) {
  for (uint32_t i = 0; i < kQpHolders; ++i) {
    uint32_t expected = 0;
    if (holders.holder[i].load(std::memory_order_relaxed) == 0 &&
        holders.holder[i].compare_exchange_strong(expected, incarnation)) {
      *index = i;
      step("hold added");
      return true;
    }
  }
  return false;
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
  if (qp->recv_cq != nullptr) qp->recv_cq->users.fetch_add(1);
  if (qp->srq != nullptr) qp->srq->users.fetch_add(1);
  if (qp->xrcd != nullptr) qp->xrcd->users.fetch_add(1);
  if (qp->ex.qp_base.pd != nullptr) Pd::of(qp->ex.qp_base.pd).users.fetch_add(1);
  context.objects.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(context.qps_lock);
  context.qps.push_back(qp.get());
  return qp.release()->handle();
}

/** Whether the caller's objects and sizes will do; EINVAL's text. */
bool attributes_are_ok(Context& context, const ibv_qp_init_attr_ex& attr, std::string* why) {
  const bool receives = attr.qp_type != IBV_QPT_XRC_SEND;
  if (attr.pd == nullptr || attr.send_cq == nullptr || (receives && attr.recv_cq == nullptr)) {
    *why = receives ? "it needs a PD, a send CQ and a receive CQ" : "it needs a PD and a send CQ";
    return false;
  }
  if (attr.pd->context != context.handle() || attr.send_cq->context != context.handle() ||
      (receives && attr.recv_cq->context != context.handle())) {
    *why = "its PD and CQs must be of the same context";
    return false;
  }
  const ibv_qp_cap& cap = attr.cap;
  if (cap.max_send_wr > kMaxSendWr || cap.max_send_sge > kMaxSendSge ||
      cap.max_inline_data > kMaxInline) {
    *why =
        base::format("max_send_wr %u (at most %u), max_send_sge %u (%u), max_inline_data %u (%u)",
                     cap.max_send_wr, kMaxSendWr, cap.max_send_sge, kMaxSendSge,
                     cap.max_inline_data, kMaxInline);
    return false;
  }
  if (!receives) return true;
  if (attr.srq == nullptr && (cap.max_recv_wr > kMaxSrqWr || cap.max_recv_sge > kMaxRecvSge)) {
    *why = base::format("max_recv_wr %u (at most %u), max_recv_sge %u (%u)", cap.max_recv_wr,
                        kMaxSrqWr, cap.max_recv_sge, kMaxRecvSge);
    return false;
  }
  if (attr.srq != nullptr &&
      (attr.srq->context != context.handle() || Srq::of(attr.srq).type() != IBV_SRQT_BASIC)) {
    *why = "its SRQ must be a basic one of the same context";  // as the kernel says (VERBS 2)
    return false;
  }
  return true;
}

uint32_t create_flags(const ibv_qp_init_attr_ex& attr) {
  return (attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 ? attr.create_flags : 0;
}

/** What RAW_PACKET needs beside that. */
base::Status check_raw(const Context& context, const ibv_qp_init_attr_ex& attr) {
  const auto refuse = [](int code, std::string why) {
    return base::Status::error(code, "create a QP", std::move(why));
  };
  if (attr.qp_type != IBV_QPT_RAW_PACKET) return base::Status::success();
  if (context.link != Link::kEthernet)
    return refuse(EOPNOTSUPP, "RAW_PACKET needs an Ethernet port (MILLRACE_SOFT_LINK=ethernet)");
  if (!may_use_raw_frames(context))
    return refuse(EPERM, "this process has no CAP_NET_RAW, which RAW_PACKET needs");
  return base::Status::success();
}

/** A QP of this process alone: all types but XRC_RECV. */
ibv_qp* create_owned(Context& context, ibv_qp_init_attr_ex& attr) {
  Process& process = *context.process;
  Root& root = process.root();
  const char* what = "create a QP";
  std::string why;
  if (!attributes_are_ok(context, attr, &why)) return fail_null(EINVAL, what, why);
  if (base::Status refused = check_raw(context, attr); !refused.ok()) return fail_null(refused);
  const uint32_t number = root.claim_qp(process.incarnation());
  if (number == 0) {
    return fail_null(
        ENOMEM, what,
        base::format("all %u QP numbers of the fabric are in use", root.qps() - root.targets()));
  }
  step("qp number claimed");
  std::unique_ptr<Qp> qp = new_qp(context, attr.qp_type, number, attr.qp_context);
  QpRecord& record = *qp->record;
  const bool receives = attr.qp_type != IBV_QPT_XRC_SEND;
  const ibv_qp_cap& cap = attr.cap;
  qp->send_cq = &Cq::of(attr.send_cq);
  qp->pd = Pd::of(attr.pd).number;
  qp->sq_sig_all = attr.sq_sig_all != 0;
  qp->blocks_self = (create_flags(attr) & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) != 0;
  if (attr.qp_type == IBV_QPT_RAW_PACKET) qp->frame.resize(kMaxFrame);
  qp->cap.max_send_wr = std::max(cap.max_send_wr, 1u);
  qp->cap.max_send_sge = std::max(cap.max_send_sge, 1u);
  qp->cap.max_inline_data = cap.max_inline_data;
  ibv_qp& base = qp->ex.qp_base;
  base.pd = attr.pd;
  base.send_cq = attr.send_cq;

  // The epoch goes on from whoever had this record before: nobody's old CAS can hit us.
  const uint32_t epoch = health_epoch(record.health.load()) + 1;
  std::lock_guard objects(process.objects());
  record.owner = process.owner();
  record.type = attr.qp_type;
  record.xrcd = XrcdKey{};
  record.queue = Ref{};
  record.cq = Ref{};
  record.srqn = 0;
  record.pd = qp->pd;
  for (Half* value : {&record.access, &record.min_rnr_timer, &record.dest_qpn, &record.rq_psn,
                      &record.sq_psn, &record.path_mtu, &record.timeout, &record.max_dest_rd_atomic,
                      &record.qkey, &record.port, &record.remote}) {
    value->store(0, std::memory_order_relaxed);
  }
  // For XRC_SEND a receive queue and an SRQ are ignored, as the kernel does (VERBS 2.14).
  if (receives) {
    qp->recv_cq = &Cq::of(attr.recv_cq);
    base.recv_cq = attr.recv_cq;
    record.cq = qp->recv_cq->block.ref;
    if (attr.srq != nullptr) {
      qp->srq = &Srq::of(attr.srq);
      base.srq = attr.srq;
      record.srqn = qp->srq->number;
    } else {
      qp->cap.max_recv_wr = std::max(cap.max_recv_wr, 1u);
      qp->cap.max_recv_sge = std::max(cap.max_recv_sge, 1u);
      auto queue = std::make_unique<ReceiveQueue>();
      queue->context = &context;
      queue->process = &process;
      queue->cq = qp->recv_cq;
      queue->id = own_queue(number);
      queue->epoch = epoch;
      std::lock_guard registry(process.registry());
      base::Status status = queue->allocate(own_queue_layout(*qp), qp->pd, record.cq);
      if (!status.ok()) {
        record.word.store(record_word(number, Life::kFree, 0, 0));
        return fail_null(status);
      }
      record.queue = queue->block.ref;
      process.queues.push_back(queue.get());
      qp->queue = std::move(queue);
    }
  }
  record.wake.store(context.wake.number());
  if (receives) record.health.store(health_word(epoch, Fault::kHealthy));
  process.qp_table[number % kQps].store(qp.get(), std::memory_order_release);
  record.word.store(record_word(number, Life::kLive, IBV_QPS_RESET, process.incarnation()));
  step("qp live");
  attr.cap = qp->cap;
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0)
    enable_wr_ex(*qp, attr.send_ops_flags);
  return publish(std::move(qp));
}

ibv_qp* create_target(Context& context, ibv_qp_init_attr_ex& attr) {
  Process& process = *context.process;
  Root& root = process.root();
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_XRCD) == 0 || attr.xrcd == nullptr) {
    return fail_null(EINVAL, "create an XRC_RECV QP", "it needs an XRC domain");  // VERBS 2.4
  }
  const uint32_t number = root.claim_target(process.incarnation());
  if (number == 0) {
    return fail_null(ENOMEM, "create a QP",
                     base::format("all %u numbers for XRC targets are in use", root.targets()));
  }
  step("qp number claimed");
  std::unique_ptr<Qp> qp = new_qp(context, IBV_QPT_XRC_RECV, number, attr.qp_context);
  qp->xrcd = &Xrcd::of(attr.xrcd);
  QpRecord& record = *qp->record;
  record.owner = process.owner();
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
  if (!add_hold(*holders_of(root, number), process.incarnation(), &qp->holder)) {
    record.word.store(record_word(number, Life::kFree, 0, 0));
    return fail_null(ENOMEM, "create an XRC_RECV QP", "its record is still held by others");
  }
  record.word.store(record_word(number, Life::kLive, IBV_QPS_RESET, 0));
  step("target live");
  attr.cap = {};
  return publish(std::move(qp));
}

/** A RAW_PACKET QP that spreads what it gets over work queues: it only receives, and needs no CQ.
 */
ibv_qp* create_spreading(Context& context, ibv_qp_init_attr_ex& attr) {
  if (base::Status refused = check_spread(attr); !refused.ok()) return fail_null(refused);
  ibv_qp_init_attr_ex inner = attr;
  inner.send_cq = inner.recv_cq = IndirectionTable::of(attr.rwq_ind_tbl).wqs.front()->wq.cq;
  inner.srq = nullptr;
  inner.cap = {};
  ibv_qp* qp = create_owned(context, inner);
  if (qp == nullptr) return nullptr;
  base::Status status = begin_spread(Qp::of(qp), attr);
  if (status.ok()) return qp;
  (void)destroy_qp(qp);
  return fail_null(status);
}

/** What comp_mask asks for beyond the PD and the domain. */
base::Status check_extensions(const ibv_qp_init_attr_ex& attr) {
  const char* what = "create a QP";
  constexpr uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
                             IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER |
                             IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_RX_HASH |
                             IBV_QP_INIT_ATTR_IND_TABLE;
  if ((attr.comp_mask & ~known) != 0) {
    return base::Status::error(
        EOPNOTSUPP, what,
        base::format("comp_mask %#x has bits that this device does not know", attr.comp_mask));
  }
  const uint32_t offered = attr.qp_type == IBV_QPT_UD ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0;
  if ((create_flags(attr) & ~offered) != 0) {
    return base::Status::error(EOPNOTSUPP, what,
                               base::format("create_flags %#x are not offered for this type",
                                            create_flags(attr) & ~offered));
  }
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER) != 0 && attr.max_tso_header != 0)
    return base::Status::error(EOPNOTSUPP, what, "this device has no segmentation offload");
  const uint64_t ops = send_ops_of(attr.qp_type);
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 &&
      (attr.send_ops_flags & ~ops) != 0) {
    return base::Status::error(EOPNOTSUPP, what,
                               base::format("send_ops_flags %#llx, of which this type has %#llx",
                                            static_cast<unsigned long long>(attr.send_ops_flags),
                                            static_cast<unsigned long long>(ops)));
  }
  return base::Status::success();
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context* handle, ibv_qp_init_attr_ex* attr) {
  if (forked()) return fail_null(EPERM, "create a QP", "this process was forked");
  Context& context = Context::of(handle);
  if (base::Status status = check_extensions(*attr); !status.ok()) return fail_null(status);
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) attr->pd = nullptr;
  const bool xrc = attr->qp_type == IBV_QPT_XRC_SEND || attr->qp_type == IBV_QPT_XRC_RECV;
  if (xrc && !context.xrc)
    return fail_null(EOPNOTSUPP, "create a QP", "this device has no XRC (MILLRACE_SOFT_XRC=0)");
  switch (attr->qp_type) {
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
      return wants_spread(*attr) ? create_spreading(context, *attr) : create_owned(context, *attr);
    case IBV_QPT_XRC_RECV:
      return create_target(context, *attr);
    default:
      return fail_null(EOPNOTSUPP, "create a QP",
                       base::format("type %d is not offered", attr->qp_type));
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
  QpHolders* holders = holders_of(root, number);
  const auto there = [&](uint64_t word) {
    return record_number(word) == number && attr->qp_num == number &&
           (record_life(word) == Life::kLive || record_life(word) == Life::kClosing);
  };
  const auto not_there = [&] {
    return fail_null(EINVAL, "open a QP",
                     base::format("there is no XRC_RECV QP %#x in this domain", attr->qp_num));
  };
  if (holders == nullptr || !there(record.word.load())) return not_there();
  uint32_t holder = 0;
  if (!add_hold(*holders, process.incarnation(), &holder)) {
    return fail_null(ENOMEM, "open a QP",
                     base::format("it has %u handles, which is all there is room for", kQpHolders));
  }
  // The hold first, then the word (seq_cst): see closing_step() for the other half.
  for (;;) {
    uint64_t word = record.word.load();
    if (!there(word) || record.type != IBV_QPT_XRC_RECV || !(record.xrcd == xrcd.key)) {
      drop_hold(*holders, process.incarnation(), holder);
      closing_step(
          root,
          number % root.qps());  // our mistaken hold may have kept the last holder from closing
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

}  // namespace millrace::soft
