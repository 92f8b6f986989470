#include "transport/lane.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <cassert>

#include "base/clock.h"
#include "transport/errors.h"

namespace millrace::transport {
namespace {

constexpr uint8_t kPort = 1;
constexpr int kGidIndex = 0;
constexpr uint8_t kAckTimeout = 14;  // 4.096 us * 2^14 = 67 ms a try
constexpr uint8_t kRetries = 7;
// Credits mean that an SRQ is never empty (I2). If one is all the same, a bounded number of tries,
// 16 ms together, and then the re-arm, which holds back that receiver alone: tries without end
// would hold back everybody on the lane.
constexpr uint8_t kRnrRetries = 6;
constexpr uint8_t kMinRnrTimer = 16;  // 2.56 ms
constexpr uint64_t kDrainNs = 2'000'000'000;
constexpr uint32_t kSgesPerWr = kMaxRuns + 1;

/** What both ends need to know of the port. */
struct Port {
  ibv_port_attr attr;
  ibv_gid gid;
};

base::Result<Port> query(ibv_context* context) {
  Port port;
  memset(&port, 0, sizeof(port));
  int error = ibv_query_port(context, kPort, &port.attr);
  if (error != 0) return verb_error(error, "ibv_query_port", "port 1");
  if (port.attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
    errno = 0;
    error = ibv_query_gid(context, kPort, kGidIndex, &port.gid);
    if (error != 0)
      return verb_error(errno != 0 ? errno : EINVAL, "ibv_query_gid", "port 1, index 0");
  }
  return port;
}

base::Status to_state(ibv_qp* qp, ibv_qp_attr* attr, ibv_qp_state state, int mask,
                      const char* detail) {
  attr->qp_state = state;
  const int error = ibv_modify_qp(qp, attr, mask | IBV_QP_STATE);
  if (error != 0) return verb_error(error, "ibv_modify_qp", detail);
  return base::Status::success();
}

/** RESET (which purges) to RTS; VERBS 2.8 has the masks of each end. */
base::Status bring_up(ibv_qp* qp, bool initiator, const Port& port, uint32_t dest_qpn,
                      uint32_t psn) {
  ibv_qp_attr attr;
  memset(&attr, 0, sizeof(attr));
  base::Status status = to_state(qp, &attr, IBV_QPS_RESET, 0, "to RESET");
  if (!status.ok()) return status;

  attr.pkey_index = 0;
  attr.port_num = kPort;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  status = to_state(qp, &attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                    "to INIT");
  if (!status.ok()) return status;

  attr.path_mtu = port.attr.active_mtu;
  attr.dest_qp_num = dest_qpn;
  attr.rq_psn = psn;
  attr.ah_attr.port_num = kPort;
  attr.ah_attr.dlid = port.attr.lid;
  if (port.attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = port.gid;
    attr.ah_attr.grh.sgid_index = kGidIndex;
    attr.ah_attr.grh.hop_limit = 1;  // both ends are on this host
  }
  int mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (!initiator) {
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = kMinRnrTimer;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  status = to_state(qp, &attr, IBV_QPS_RTR, mask, "to RTR");
  if (!status.ok()) return status;

  attr.timeout = kAckTimeout;
  attr.sq_psn = psn;
  mask = IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
  if (initiator) {
    attr.retry_cnt = kRetries;
    attr.rnr_retry = kRnrRetries;
    attr.max_rd_atomic = 1;
    mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  return to_state(qp, &attr, IBV_QPS_RTS, mask, "to RTS");
}

}  // namespace

base::Result<std::unique_ptr<Lane>> Lane::create(ibv_context* context, ibv_pd* pd, ibv_xrcd* xrcd,
                                                 ibv_comp_channel* channel, Arena* arena,
                                                 uint32_t number, uint64_t seed) {
  std::unique_ptr<Lane> lane(new Lane());
  lane->number_ = number;
  lane->arena_ = arena;
  lane->context_ = context;
  lane->rng_ = base::Rng(seed);
  lane->ring_.reset(new Posted[kLaneDepth]);
  lane->wrs_.reset(new ibv_send_wr[kList]);
  lane->sges_.reset(new ibv_sge[size_t{kList} * kSgesPerWr]);

  lane->cq_ = verbs::CqPtr(ibv_create_cq(context, kLaneDepth, nullptr, channel, 0));
  if (!lane->cq_) return verb_error(errno, "ibv_create_cq", "send CQ of a lane");

  ibv_qp_init_attr_ex target;
  memset(&target, 0, sizeof(target));
  target.qp_type = IBV_QPT_XRC_RECV;
  target.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  target.xrcd = xrcd;
  lane->target_ = verbs::QpPtr(ibv_create_qp_ex(context, &target));
  if (!lane->target_) return verb_error(errno, "ibv_create_qp_ex", "the XRC_RECV QP of a lane");

  ibv_qp_init_attr_ex initiator;
  memset(&initiator, 0, sizeof(initiator));
  initiator.qp_type = IBV_QPT_XRC_SEND;
  initiator.comp_mask = IBV_QP_INIT_ATTR_PD;
  initiator.pd = pd;
  initiator.send_cq = lane->cq_.get();
  initiator.cap.max_send_wr = kLaneDepth;
  initiator.cap.max_send_sge = kSgesPerWr;
  lane->initiator_ = verbs::QpPtr(ibv_create_qp_ex(context, &initiator));
  if (!lane->initiator_) {
    // A device with shorter gather lists: take what it has.
    ibv_device_attr attr;
    if (errno != EINVAL || ibv_query_device(context, &attr) != 0 ||
        attr.max_sge >= static_cast<int>(kSgesPerWr) || attr.max_sge < 2) {
      return verb_error(errno, "ibv_create_qp_ex", "the XRC_SEND QP of a lane");
    }
    lane->max_runs_ = static_cast<uint32_t>(attr.max_sge) - 1;
    initiator.cap.max_send_sge = static_cast<uint32_t>(attr.max_sge);
    initiator.cap.max_send_wr = kLaneDepth;
    lane->initiator_ = verbs::QpPtr(ibv_create_qp_ex(context, &initiator));
    if (!lane->initiator_)
      return verb_error(errno, "ibv_create_qp_ex", "the XRC_SEND QP of a lane");
  }
  base::Status status = lane->connect();
  if (!status.ok()) return status;
  return lane;
}

Lane::~Lane() {
  if (!initiator_) return;
  ibv_qp_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(initiator_.get(), &attr, IBV_QP_STATE);
  // A QP is not destroyed with work outstanding: the device may still read our memory.
  const uint64_t deadline = base::now_ns() + kDrainNs;
  struct : LaneSink {
    void completed(Posted&) override {}
  } nobody;
  while (accounted_ < (state_ == State::kDown ? limit_ : tail_) && base::now_ns() < deadline)
    (void)harvest(&nobody);
  quiesce();
}

base::Status Lane::connect() {
  auto port = query(context_);
  if (!port.ok()) return port.status();
  // A new PSN each time, so that no late packet of the old connection fits the new one.
  const uint32_t psn = static_cast<uint32_t>(rng_.next()) & 0xFFFFFF;
  base::Status status = bring_up(target_.get(), false, port.value(), initiator_->qp_num, psn);
  if (!status.ok()) return status;
  return bring_up(initiator_.get(), true, port.value(), target_->qp_num, psn);
}

void Lane::stage_frame(uint32_t srq_number) {
  const Posted& posted = next();
  ibv_send_wr& wr = wrs_[staged_];
  ibv_sge* const sges = &sges_[size_t{staged_} * kSgesPerWr];
  memset(&wr, 0, sizeof(wr));
  sges[0] = {reinterpret_cast<uint64_t>(header()), kFrameHeaderBytes, arena_->lkey()};
  int count = 1;
  if (posted.bounce >= 0) {
    sges[count++] = {reinterpret_cast<uint64_t>(arena_->bounce(posted.bounce)), posted.body_bytes,
                     arena_->lkey()};
  }
  for (uint32_t i = 0; i < posted.run_count; ++i) {
    sges[count++] = {reinterpret_cast<uint64_t>(arena_->at(posted.runs[i].offset)),
                     posted.runs[i].bytes, arena_->lkey()};
  }
  wr.wr_id = tail_++;
  wr.sg_list = sges;
  wr.num_sge = count;
  wr.opcode = IBV_WR_SEND;
  wr.qp_type.xrc.remote_srqn = srq_number;
  if (++staged_ == kList) post();
}

void Lane::stage_write(uint32_t srq_number, const uint64_t* from, uint64_t remote_address,
                       uint32_t rkey) {
  ibv_send_wr& wr = wrs_[staged_];
  ibv_sge* const sges = &sges_[size_t{staged_} * kSgesPerWr];
  memset(&wr, 0, sizeof(wr));
  sges[0] = {reinterpret_cast<uint64_t>(from), sizeof(*from), arena_->lkey()};
  wr.wr_id = tail_++;
  wr.sg_list = sges;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = remote_address;
  wr.wr.rdma.rkey = rkey;
  wr.qp_type.xrc.remote_srqn =
      srq_number;  // names the PD that the key is checked against (VERBS 2.10)
  if (++staged_ == kList) post();
}

void Lane::post() {
  if (staged_ == 0) return;
  const uint32_t count = staged_;
  staged_ = 0;
  if (!up()) {
    // Went down between staging and here: these were never given to the device.
    return;
  }
  for (uint32_t i = 0; i + 1 < count; ++i) wrs_[i].next = &wrs_[i + 1];
  wrs_[count - 1].next = nullptr;
  // Completions are in order, so the last one speaks for all; errors and flushes are always
  // reported.
  wrs_[count - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(initiator_.get(), wrs_.get(), &bad);
  if (error == 0) return;
  // Not taken, or in part: everything outstanding is in doubt, and what the receivers state decides
  // (R14). There may be WRs that no completion speaks for (only the last one of the list was
  // signaled), so none is waited for.
  fail(IBV_WC_GENERAL_ERR);
  accounted_ = tail_;
}

void Lane::fail(ibv_wc_status status) {
  if (state_ == State::kDown) return;
  state_ = State::kDown;
  first_error_ = status;
  ibv_qp_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(initiator_.get(), &attr, IBV_QP_STATE);  // it usually is there already
}

bool Lane::harvest(LaneSink* sink) {
  bool progress = false;
  ibv_wc wcs[16];
  while (accounted_ < tail_) {
    const int count = ibv_poll_cq(cq_.get(), 16, wcs);
    if (count <= 0) break;
    progress = true;
    for (int i = 0; i < count; ++i) {
      const uint64_t position = wcs[i].wr_id;
      if (position < accounted_ || position >= tail_) continue;  // not ours: ignored
      const bool success = wcs[i].status == IBV_WC_SUCCESS;
      if (state_ == State::kUp) {
        // In order: whatever is before this one succeeded.
        const uint64_t until = success ? position + 1 : position;
        while (head_ < until) sink->completed(ring_[head_++ % kLaneDepth]);
      }
      accounted_ = position + 1;
      if (!success && state_ == State::kUp) {
        limit_ = tail_ - staged_;
        culprit_known_ = wcs[i].status != IBV_WC_WR_FLUSH_ERR;
        fail(wcs[i].status);
      }
    }
  }
  if (state_ == State::kDown && accounted_ >= limit_) {
    staged_ = 0;
    accounted_ = tail_;
  }
  return progress;
}

void Lane::quiesce() {
  ibv_qp_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(target_.get(), &attr, IBV_QP_STATE);
}

base::Status Lane::rearm() {
  assert(drained());
  head_ = tail_;
  culprit_known_ = false;
  first_error_ = IBV_WC_SUCCESS;
  base::Status status = connect();
  if (status.ok()) state_ = State::kUp;
  return status;
}

}  // namespace millrace::transport
