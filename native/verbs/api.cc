// The exported libibverbs names, defined here with hidden visibility and dispatched by device to
// the provider that made it. Everything above this file (transport, tests) writes plain `ibv_*`
// calls and runs on any provider; nothing of the system's libibverbs is linked, so a machine
// without rdma-core still loads us.
#include <errno.h>
#include <infiniband/verbs.h>

#include "soft/provider.h"
#include "verbs/open.h"
#include "verbs/provider.h"

// verbs.h wraps these in macros or inlines that choose an exported function; here the functions are
// defined.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

namespace millrace::verbs {

const Provider* provider_of(const ibv_device* device) {
  // One provider for now; the system's library becomes the fallback here when it is loaded.
  return soft::provider();
}

namespace {
const Provider& of(const ibv_context* context) { return *provider_of(context->device); }
}  // namespace

}  // namespace millrace::verbs

using millrace::verbs::of;
using millrace::verbs::provider_of;

extern "C" {

ibv_device** ibv_get_device_list(int* num_devices) {
  return millrace::soft::provider()->get_device_list(num_devices);
}
void ibv_free_device_list(ibv_device** list) { millrace::soft::provider()->free_device_list(list); }
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

const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local QP operation error";
    case IBV_WC_LOC_EEC_OP_ERR:
      return "local EE context operation error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "work request flushed";
    case IBV_WC_MW_BIND_ERR:
      return "memory window bind error";
    case IBV_WC_BAD_RESP_ERR:
      return "bad response";
    case IBV_WC_LOC_ACCESS_ERR:
      return "local access error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_REM_OP_ERR:
      return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retries exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "receiver-not-ready retries exceeded";
    case IBV_WC_LOC_RDD_VIOL_ERR:
      return "local RDD violation";
    case IBV_WC_REM_INV_RD_REQ_ERR:
      return "remote invalid RD request";
    case IBV_WC_REM_ABORT_ERR:
      return "remote aborted";
    case IBV_WC_INV_EECN_ERR:
      return "invalid EE context number";
    case IBV_WC_INV_EEC_STATE_ERR:
      return "invalid EE context state";
    case IBV_WC_FATAL_ERR:
      return "fatal error";
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "response timeout";
    case IBV_WC_GENERAL_ERR:
      return "general error";
    case IBV_WC_TM_ERR:
      return "tag matching error";
    case IBV_WC_TM_RNDV_INCOMPLETE:
      return "tag matching rendezvous incomplete";
  }
  return "unknown completion status";
}

const char* ibv_node_type_str(ibv_node_type type) {
  switch (type) {
    case IBV_NODE_CA:
      return "channel adapter";
    case IBV_NODE_SWITCH:
      return "switch";
    case IBV_NODE_ROUTER:
      return "router";
    case IBV_NODE_RNIC:
      return "RNIC";
    default:
      return "unknown node type";
  }
}

const char* ibv_port_state_str(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP:
      return "no state change";
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "init";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "active deferred";
  }
  return "unknown port state";
}

const char* ibv_event_type_str(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_CQ_ERR:
      return "CQ error";
    case IBV_EVENT_QP_FATAL:
      return "QP fatal error";
    case IBV_EVENT_QP_REQ_ERR:
      return "QP request error";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "QP access error";
    case IBV_EVENT_COMM_EST:
      return "communication established";
    case IBV_EVENT_SQ_DRAINED:
      return "SQ drained";
    case IBV_EVENT_SRQ_ERR:
      return "SRQ error";
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return "SRQ limit reached";
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return "last WQE reached";
    case IBV_EVENT_DEVICE_FATAL:
      return "device fatal error";
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    default:
      return "other event";
  }
}

/** Memory of this library is in files of their own; fork needs no preparation. */
int ibv_fork_init(void) { return 0; }

}  // extern "C"

namespace millrace::verbs {

const char* wc_status_name(ibv_wc_status status) {
  switch (status) {
#define MILLRACE_NAME(x) \
  case x:                \
    return #x
    MILLRACE_NAME(IBV_WC_SUCCESS);
    MILLRACE_NAME(IBV_WC_LOC_LEN_ERR);
    MILLRACE_NAME(IBV_WC_LOC_QP_OP_ERR);
    MILLRACE_NAME(IBV_WC_LOC_EEC_OP_ERR);
    MILLRACE_NAME(IBV_WC_LOC_PROT_ERR);
    MILLRACE_NAME(IBV_WC_WR_FLUSH_ERR);
    MILLRACE_NAME(IBV_WC_MW_BIND_ERR);
    MILLRACE_NAME(IBV_WC_BAD_RESP_ERR);
    MILLRACE_NAME(IBV_WC_LOC_ACCESS_ERR);
    MILLRACE_NAME(IBV_WC_REM_INV_REQ_ERR);
    MILLRACE_NAME(IBV_WC_REM_ACCESS_ERR);
    MILLRACE_NAME(IBV_WC_REM_OP_ERR);
    MILLRACE_NAME(IBV_WC_RETRY_EXC_ERR);
    MILLRACE_NAME(IBV_WC_RNR_RETRY_EXC_ERR);
    MILLRACE_NAME(IBV_WC_LOC_RDD_VIOL_ERR);
    MILLRACE_NAME(IBV_WC_REM_INV_RD_REQ_ERR);
    MILLRACE_NAME(IBV_WC_REM_ABORT_ERR);
    MILLRACE_NAME(IBV_WC_INV_EECN_ERR);
    MILLRACE_NAME(IBV_WC_INV_EEC_STATE_ERR);
    MILLRACE_NAME(IBV_WC_FATAL_ERR);
    MILLRACE_NAME(IBV_WC_RESP_TIMEOUT_ERR);
    MILLRACE_NAME(IBV_WC_GENERAL_ERR);
    MILLRACE_NAME(IBV_WC_TM_ERR);
    MILLRACE_NAME(IBV_WC_TM_RNDV_INCOMPLETE);
#undef MILLRACE_NAME
  }
  return "IBV_WC_UNKNOWN";
}

}  // namespace millrace::verbs
