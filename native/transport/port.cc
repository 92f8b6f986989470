#include "transport/port.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "transport/errors.h"
#include "verbs/gid.h"

namespace millrace::transport {
namespace {

// 4.096 us * 2^15 = 134 ms a try.
constexpr uint8_t kAckTimeout = 15;
constexpr uint8_t kRetries = 7;
// Credits mean that an SRQ is never empty (I2). If one is all the same, a bounded number of tries,
// 16 ms together, and then the re-arm, which holds back that receiver alone: tries without end
// would hold back everybody on the lane.
constexpr uint8_t kRnrRetries = 6;
constexpr uint8_t kMinRnrTimer = 16;  // 2.56 ms
constexpr uint8_t kHopLimit = 64;
/** READs that a queue pair may have on the way, as asker and as answerer: every device has as many.
 */
constexpr uint8_t kReads = 4;

/** XRC's two ends are two types, and each refuses the attributes of the other (VERBS 2.8); an RC QP
 * wants both. */
bool answers(const ibv_qp* qp) { return qp->qp_type != IBV_QPT_XRC_SEND; }
bool asks(const ibv_qp* qp) { return qp->qp_type != IBV_QPT_XRC_RECV; }

base::Status to_state(ibv_qp* qp, ibv_qp_attr* attr, ibv_qp_state state, int mask,
                      const char* detail) {
  attr->qp_state = state;
  const int error = ibv_modify_qp(qp, attr, mask | IBV_QP_STATE);
  if (error != 0) return verb_error(error, "ibv_modify_qp", detail);
  return base::Status::success();
}

}  // namespace

base::Result<Port> Port::query(ibv_context* context) {
  Port port;
  ibv_port_attr attr = {};
  const int error = ibv_query_port(context, port.number, &attr);
  if (error != 0) return verb_error(error, "ibv_query_port", "port 1");
  port.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.address.ethernet = port.ethernet;
  port.address.lid = attr.lid;
  port.address.mtu = static_cast<uint8_t>(attr.active_mtu);
  const auto gid = verbs::choose_gid(context, port.number);
  if (gid.ok()) {
    static_assert(sizeof(ibv_gid) == sizeof(port.address.gid));
    memcpy(port.address.gid.data(), gid.value().gid.raw, sizeof(ibv_gid));
    port.sgid_index = static_cast<uint8_t>(gid.value().index);
    port.interface = gid.value().interface;
  } else if (port.ethernet || gid.status().code == EINVAL) {
    return gid.status();  // without one, an InfiniBand port is still addressed by its LID
  }
  return port;
}

base::Status bring_up(ibv_qp* qp, End end, const Port& port, const Connection& connection) {
  ibv_qp_attr attr = {};
  base::Status status = to_state(qp, &attr, IBV_QPS_RESET, 0, "to RESET");
  if (!status.ok()) return status;

  attr.pkey_index = 0;
  attr.port_num = port.number;
  // XRC's two ends are one connection, of which the target's flags count.
  attr.qp_access_flags = end == End::kTarget || qp->qp_type == IBV_QPT_XRC_SEND
                             ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
                             : 0;
  status = to_state(qp, &attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                    "to INIT");
  if (!status.ok()) return status;

  attr.path_mtu =
      static_cast<ibv_mtu>(std::min(port.address.mtu, connection.remote.mtu));  // the smaller one
  attr.dest_qp_num = connection.remote_qp;
  attr.rq_psn = connection.psn;
  attr.ah_attr.port_num = port.number;
  attr.ah_attr.dlid = connection.remote.lid;
  if (port.ethernet) {
    attr.ah_attr.is_global = 1;
    memcpy(attr.ah_attr.grh.dgid.raw, connection.remote.gid.data(), sizeof(ibv_gid));
    attr.ah_attr.grh.sgid_index = port.sgid_index;
    attr.ah_attr.grh.hop_limit = kHopLimit;
  }
  int mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (answers(qp)) {
    attr.max_dest_rd_atomic = kReads;
    attr.min_rnr_timer = kMinRnrTimer;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  status = to_state(qp, &attr, IBV_QPS_RTR, mask, "to RTR");
  if (!status.ok() || end == End::kTarget) return status;

  attr.timeout = kAckTimeout;
  attr.sq_psn = connection.psn;
  mask = IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
  if (asks(qp)) {
    attr.retry_cnt = kRetries;
    attr.rnr_retry = kRnrRetries;
    attr.max_rd_atomic = kReads;
    mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  return to_state(qp, &attr, IBV_QPS_RTS, mask, "to RTS");
}

base::Status bring_up_datagrams(ibv_qp* qp, const Port& port, uint32_t qkey) {
  ibv_qp_attr attr = {};
  base::Status status = to_state(qp, &attr, IBV_QPS_RESET, 0, "to RESET");
  if (!status.ok()) return status;
  attr.port_num = port.number;
  attr.qkey = qkey;
  status =
      to_state(qp, &attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, "to INIT");
  if (!status.ok()) return status;
  status = to_state(qp, &attr, IBV_QPS_RTR, 0, "to RTR");
  if (!status.ok()) return status;
  return to_state(qp, &attr, IBV_QPS_RTS, IBV_QP_SQ_PSN, "to RTS");
}

void to_error(ibv_qp* qp) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

}  // namespace millrace::transport
