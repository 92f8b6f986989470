// The exported libibverbs names, defined here with hidden visibility and dispatched by device to
// the provider that made it. Everything above this file (transport, tests) writes plain `ibv_*`
// calls and runs on any provider; nothing of the system's libibverbs is linked, so a machine
// without rdma-core still loads us.
#include <errno.h>
#include <infiniband/verbs.h>

#include "verbs/faults.h"
#include "verbs/open.h"
#include "verbs/provider.h"

// verbs.h wraps these in macros or inlines that choose an exported function; here the functions are
// defined.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

namespace millrace::verbs {

namespace {
const Provider& of(const ibv_context* context) { return *provider_of(context->device); }
}  // namespace

}  // namespace millrace::verbs

using millrace::verbs::of;
using millrace::verbs::provider_of;

extern "C" {

const char* ibv_get_device_name(ibv_device* device) {
  return provider_of(device)->get_device_name(device);
}
__be64 ibv_get_device_guid(ibv_device* device) {
  return provider_of(device)->get_device_guid(device);
}
int ibv_get_device_index(ibv_device* device) {
  return provider_of(device)->get_device_index(device);
}
ibv_context* ibv_open_device(ibv_device* device) {
  return provider_of(device)->open_device(device);
}
int ibv_close_device(ibv_context* context) { return of(context).close_device(context); }

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  return of(context).query_device(context, attr);
}
int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  return of(context).query_port(context, port, attr);
}
int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  return of(context).query_gid(context, port, index, gid);
}
int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* pkey) {
  return of(context).query_pkey(context, port, index, pkey);
}
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return of(context).get_async_event(context, event);
}
void ibv_ack_async_event(ibv_async_event* event) {
  // The event carries no context: every element is an object whose first field is its context.
  ibv_context* context = nullptr;
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      context = event->element.cq->context;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      context = event->element.qp->context;
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      context = event->element.srq->context;
      break;
    case IBV_EVENT_WQ_FATAL:
      context = event->element.wq->context;
      break;
    default:
      return;  // port and device events need no acknowledgement
  }
  of(context).ack_async_event(event);
}

ibv_pd* ibv_alloc_pd(ibv_context* context) { return of(context).alloc_pd(context); }
int ibv_dealloc_pd(ibv_pd* pd) { return of(pd->context).dealloc_pd(pd); }
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  const auto may_register = millrace::verbs::may_register.load();
  if (may_register != nullptr && !may_register(pd->context, length)) {
    errno = ENOMEM;
    return nullptr;
  }
  return of(pd->context).reg_mr(pd, addr, length, access);
}
ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return of(pd->context).reg_mr_iova(pd, addr, length, iova, access);
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                         unsigned int access) {
  return of(pd->context).reg_mr_iova2(pd, addr, length, iova, access);
}
int ibv_dereg_mr(ibv_mr* mr) { return of(mr->context).dereg_mr(mr); }

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  return of(context).create_comp_channel(context);
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  return of(channel->context).destroy_comp_channel(channel);
}
ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector) {
  return of(context).create_cq(context, cqe, cq_context, channel, comp_vector);
}
int ibv_resize_cq(ibv_cq* cq, int cqe) { return of(cq->context).resize_cq(cq, cqe); }
int ibv_destroy_cq(ibv_cq* cq) { return of(cq->context).destroy_cq(cq); }
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  return of(channel->context).get_cq_event(channel, cq, cq_context);
}
void ibv_ack_cq_events(ibv_cq* cq, unsigned int nevents) {
  of(cq->context).ack_cq_events(cq, nevents);
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  return of(pd->context).create_srq(pd, attr);
}
int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  return of(srq->context).modify_srq(srq, attr, mask);
}
int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  return of(srq->context).query_srq(srq, attr);
}
int ibv_destroy_srq(ibv_srq* srq) { return of(srq->context).destroy_srq(srq); }

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  return of(pd->context).create_qp(pd, attr);
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  return of(qp->context).modify_qp(qp, attr, mask);
}
int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  return of(qp->context).query_qp(qp, attr, mask, init);
}
int ibv_destroy_qp(ibv_qp* qp) { return of(qp->context).destroy_qp(qp); }

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) { return of(pd->context).create_ah(pd, attr); }
int ibv_destroy_ah(ibv_ah* ah) { return of(ah->context).destroy_ah(ah); }
int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return of(qp->context).attach_mcast(qp, gid, lid);
}
int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return of(qp->context).detach_mcast(qp, gid, lid);
}

}  // extern "C"
