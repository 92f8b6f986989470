// Names of statuses, states and events, as the exported libibverbs calls give them.
#include <infiniband/verbs.h>

#include "verbs/provider.h"

extern "C" {

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
