#include "soft/srq.h"

#include <errno.h>
#include <pthread.h>

#include <memory>
#include <mutex>

#include "soft/error.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** Makes an SRQ of either type; `cq` and `xrcd` are null for a basic one. */
ibv_srq* make_srq(ibv_context* handle, ibv_pd* pd_handle, ibv_srq_attr* attr, void* user, Cq* cq,
                  Xrcd* xrcd) {
  const uint32_t max_wr = attr->max_wr;
  const uint32_t max_sge = attr->max_sge == 0 ? 1 : attr->max_sge;
  if (max_wr == 0 || max_wr > kMaxSrqWr || max_sge > kMaxSrqSge) {
    return fail_null(EINVAL, "create an SRQ",
                     base::format("max_wr %u (1 to %u), max_sge %u (at most %u)", max_wr, kMaxSrqWr,
                                  max_sge, kMaxSrqSge));
  }
  Context& context = Context::of(handle);
  Process& process = *context.process;
  Root& root = process.root();
  Pd& pd = Pd::of(pd_handle);
  auto srq = std::make_unique<Srq>();
  srq->context = &context;
  srq->cq = cq;
  srq->xrcd = xrcd;
  srq->srq.context = handle;
  srq->srq.srq_context = user;
  srq->srq.pd = pd_handle;
  pthread_mutex_init(&srq->srq.mutex, nullptr);
  pthread_cond_init(&srq->srq.cond, nullptr);
  ReceiveQueue& queue = srq->queue;
  queue.context = &context;
  queue.process = &process;
  queue.cq = cq;
  queue.srq = srq.get();

  std::lock_guard objects(process.objects());
  const uint32_t number = root.claim_srq(process.incarnation());
  if (number == 0) {
    return fail_null(ENOMEM, "create an SRQ",
                     base::format("all %u SRQ numbers of the fabric are in use", root.srqs()));
  }
  step("srq number claimed");
  SrqRecord& record = root.srq(number % root.srqs());
  srq->number = number;
  srq->srq.handle = number;
  queue.id = number;
  {
    std::lock_guard registry(process.registry());
    base::Status status = queue.allocate({max_wr, max_sge, kParkEntries}, pd.number,
                                         cq != nullptr ? cq->block.ref : Ref{});
    if (!status.ok()) {
      record.word.store(record_word(number, Life::kFree, 0, 0));
      return fail_null(status);
    }
  }
  process.queues.push_back(&queue);
  process.srq_table[number % kSrqs].store(srq.get(), std::memory_order_release);
  if (cq != nullptr) cq->users.fetch_add(1);
  if (xrcd != nullptr) xrcd->users.fetch_add(1);
  pd.users.fetch_add(1);
  context.objects.fetch_add(1, std::memory_order_relaxed);

  record.owner = process.owner();
  record.xrcd = xrcd != nullptr ? xrcd->key : XrcdKey{};
  record.queue = queue.block.ref;
  record.basic = cq == nullptr ? 1 : 0;
  // Release: pairs with connect(); who finds the number finds all of the above.
  record.word.store(record_word(number, Life::kLive, 0, process.incarnation()));
  step("srq live");
  attr->max_wr = max_wr;
  attr->max_sge = max_sge;
  return &srq.release()->srq;
}

}  // namespace

int post_srq_recv(ibv_srq* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (__builtin_expect(forked(), 0)) {
    *bad = wr;
    return fail(EPERM, "post a receive", "this process was forked from the one that owns the SRQ");
  }
  return Srq::of(handle).queue.post(wr, bad);
}

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  if (forked()) return fail_null(EPERM, "create an SRQ", "this process was forked");
  return make_srq(pd->context, pd, &attr->attr, attr->srq_context, nullptr, nullptr);
}

ibv_srq* create_srq_ex(ibv_context* handle, ibv_srq_init_attr_ex* attr) {
  if (forked()) return fail_null(EPERM, "create an SRQ", "this process was forked");
  const uint32_t known =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  if ((attr->comp_mask & ~known) != 0) {
    return fail_null(
        EOPNOTSUPP, "create an SRQ",
        base::format("comp_mask %#x has bits that this device does not know", attr->comp_mask));
  }
  const ibv_srq_type type =
      (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 ? attr->srq_type : IBV_SRQT_BASIC;
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attr->pd == nullptr)
    return fail_null(EINVAL, "create an SRQ", "it needs a PD");
  switch (type) {
    case IBV_SRQT_BASIC:
      return make_srq(handle, attr->pd, &attr->attr, attr->srq_context, nullptr, nullptr);
    case IBV_SRQT_XRC:
      if (!Context::of(handle).xrc)
        return fail_null(EOPNOTSUPP, "create an SRQ",
                         "this device has no XRC (MILLRACE_SOFT_XRC=0)");
      if ((attr->comp_mask & known) != known || attr->xrcd == nullptr || attr->cq == nullptr) {
        return fail_null(EINVAL, "create an SRQ",
                         "an XRC SRQ needs its type, PD, XRC domain and CQ");  // VERBS 2.3
      }
      return make_srq(handle, attr->pd, &attr->attr, attr->srq_context, &Cq::of(attr->cq),
                      &Xrcd::of(attr->xrcd));
    default:
      return fail_null(EOPNOTSUPP, "create an SRQ",
                       base::format("type %d is not offered: basic and XRC SRQs are", type));
  }
}

int modify_srq(ibv_srq* handle, ibv_srq_attr* attr, int mask) {
  Srq& srq = Srq::of(handle);
  ReceiveQueue& queue = srq.queue;
  if (forked()) return fail(EPERM, "modify an SRQ", "this process was forked");
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
    return fail(EINVAL, "modify an SRQ", "unknown attribute in the mask");
  if ((mask & IBV_SRQ_MAX_WR) != 0)
    return fail(EOPNOTSUPP, "modify an SRQ", "this device does not resize SRQs");
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attr->srq_limit > queue.max_wr) {
    return fail(EINVAL, "modify an SRQ",
                base::format("limit %u is above max_wr %u", attr->srq_limit, queue.max_wr));
  }
  std::lock_guard guard(queue.lock);
  queue.limit = attr->srq_limit;
  if (queue.limit != 0 && queue.max_wr - queue.free_count < queue.limit) {
    queue.limit = 0;
    raise_srq_event(handle, IBV_EVENT_SRQ_LIMIT_REACHED);
  }
  return 0;
}

int query_srq(ibv_srq* handle, ibv_srq_attr* attr) {
  ReceiveQueue& queue = Srq::of(handle).queue;
  if (forked()) return fail(EPERM, "query an SRQ", "this process was forked");
  std::lock_guard guard(queue.lock);
  attr->max_wr = queue.max_wr;
  attr->max_sge = queue.max_sge;
  attr->srq_limit = queue.limit;
  return 0;
}

int get_srq_num(ibv_srq* handle, uint32_t* number) {
  const Srq& srq = Srq::of(handle);
  if (srq.type() != IBV_SRQT_XRC)
    return fail(EOPNOTSUPP, "read an SRQ's number", "only XRC SRQs have one");  // VERBS 2.3
  *number = srq.number;
  return 0;
}

int destroy_srq(ibv_srq* handle) {
  if (forked()) return fail(EPERM, "destroy an SRQ", "this process was forked");
  Srq* srq = &Srq::of(handle);
  ReceiveQueue& queue = srq->queue;
  Process& process = *srq->context->process;
  Root& root = process.root();
  const uint32_t users = srq->users.load();
  if (users != 0)
    return fail(EBUSY, "destroy an SRQ", base::format("%u QPs still receive from it", users));
  // R25: the number, the POSTED words, the copies under way, then the waiters.
  uint64_t live = record_word(srq->number, Life::kLive, 0, process.incarnation());
  root.srq(srq->number % root.srqs())
      .word.compare_exchange_strong(live, record_word(srq->number, Life::kFree, 0, 0));
  step("srq number freed");
  queue.close();
  bool quiet = false;
  {
    std::lock_guard objects(process.objects());
    // Who has taken a WQE is copying into a buffer of ours: wait for its commit, but not for
    // somebody who is stopped.
    quiet = queue.wait_quiet(srq->cq);
    std::erase(process.queues, &queue);
    process.srq_table[srq->number % kSrqs].store(nullptr, std::memory_order_release);
    // A poll that still uses it is over when we have its CQ's lock.
    for (Cq* cq : process.cqs) std::lock_guard polls(cq->lock);
  }
  queue.shared->posted.fetch_add(1);
  queue.wake_parked();  // their WRs fail now
  retire_events(&srq->srq);
  if (quiet) queue.give_back();
  // else: the memory stays with this incarnation, unused, for whoever still is inside (R6)
  if (srq->cq != nullptr) srq->cq->users.fetch_sub(1);
  if (srq->xrcd != nullptr) srq->xrcd->users.fetch_sub(1);
  Pd::of(srq->srq.pd).users.fetch_sub(1);
  srq->context->objects.fetch_sub(1, std::memory_order_relaxed);
  pthread_mutex_destroy(&srq->srq.mutex);
  pthread_cond_destroy(&srq->srq.cond);
  delete srq;
  return 0;
}

}  // namespace millrace::soft
