#include <errno.h>
#include <fcntl.h>

#include <array>

#include "base/rng.h"
#include "transport/errors.h"
#include "transport/lanes.h"
#include "transport/member.h"
#include "transport/wire.h"

/** Lanes of a device with XRC: a lane is an XRC_SEND and an XRC_RECV QP of ours, connected to each
 * other, in the XRC domain of all members of this host; each WR names its receiver's SRQ. */
namespace millrace::transport {
namespace {

class XrcWire final : public Wire {
 public:
  static base::Result<std::unique_ptr<XrcWire>> create(const LaneParts& parts, const Port& port,
                                                       ibv_xrcd* xrcd, ibv_cq* cq, uint64_t seed,
                                                       uint32_t* sges) {
    std::unique_ptr<XrcWire> wire(new XrcWire(port, seed));
    ibv_qp_init_attr_ex target = {};
    target.qp_type = IBV_QPT_XRC_RECV;
    target.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    target.xrcd = xrcd;
    errno = 0;
    wire->target_ = verbs::QpPtr(ibv_create_qp_ex(parts.context, &target));
    if (!wire->target_) return verb_error(errno, "ibv_create_qp_ex", "the XRC_RECV QP of a lane");
    ibv_qp_init_attr_ex initiator = {};
    initiator.qp_type = IBV_QPT_XRC_SEND;
    initiator.comp_mask = IBV_QP_INIT_ATTR_PD;
    initiator.pd = parts.pd;
    initiator.send_cq = cq;
    initiator.cap.max_send_wr = kLaneDepth;
    initiator.cap.max_send_sge = *sges;
    auto made = create_initiator(parts.context, &initiator, "the XRC_SEND QP of a lane");
    if (!made.ok()) return made.status();
    wire->initiator_ = verbs::QpPtr(made.value());
    *sges = initiator.cap.max_send_sge;
    return wire;
  }

  ibv_qp* initiator() const override { return initiator_.get(); }
  void address(ibv_send_wr& wr, uint32_t srq_number) const override {
    // For a WRITE it names the PD that the key is checked against (VERBS 2.10).
    wr.qp_type.xrc.remote_srqn = srq_number;
  }
  void quiesce() override { to_error(target_.get()); }
  base::Status connect() override {
    // A new PSN each time, so that no late packet of the old connection fits the new one.
    Connection connection{port_.address, initiator_->qp_num,
                          static_cast<uint32_t>(rng_.next()) & 0xFFFFFF};
    base::Status status = bring_up(target_.get(), End::kTarget, port_, connection);
    if (!status.ok()) return status;
    connection.remote_qp = target_->qp_num;
    return bring_up(initiator_.get(), End::kInitiator, port_, connection);
  }
  uint32_t queue_pairs() const override { return 2; }

 private:
  XrcWire(const Port& port, uint64_t seed) : port_(port), rng_(seed) {}

  const Port port_;
  base::Rng rng_;
  verbs::QpPtr target_;
  verbs::QpPtr initiator_;
};

class XrcLanes final : public Lanes {
 public:
  XrcLanes(const LaneParts& parts, const Port& port, verbs::XrcdPtr xrcd)
      : Lanes(parts, port), xrcd_(std::move(xrcd)) {}
  ~XrcLanes() override { shut(); }

  LaneKind kind() const override { return LaneKind::kXrc; }

  base::Result<InboxQueue> create_queue(uint32_t max_wr) override {
    ibv_srq_init_attr_ex attr = {};
    attr.attr.max_wr = max_wr;
    attr.attr.max_sge = 1;
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_XRC;
    attr.pd = parts_.pd;
    attr.xrcd = xrcd_.get();
    attr.cq = parts_.receive_cq;
    errno = 0;
    InboxQueue queue{verbs::SrqPtr(ibv_create_srq_ex(parts_.context, &attr)), 0};
    if (!queue.srq) return verb_error(errno, "ibv_create_srq_ex", "the XRC SRQ of the inbox");
    const int error = ibv_get_srq_num(queue.srq.get(), &queue.number);
    if (error != 0) return verb_error(error, "ibv_get_srq_num", "the XRC SRQ of the inbox");
    return queue;
  }

  base::Status open(uint32_t number) override {
    auto lane = Lane::create(parts_.context, parts_.channel, parts_.arena, number, kLaneDepth);
    if (!lane.ok()) return lane.status();
    uint32_t sges = kMaxRuns + 1;
    auto wire = XrcWire::create(parts_, port_, xrcd_.get(), lane.value()->cq(),
                                parts_.seed + number, &sges);
    if (!wire.ok()) return wire.status();
    base::Status status = wire.value()->connect();
    if (!status.ok()) return status;
    lanes_[number] = lane.take();
    lanes_[number]->attach(wire.take(), sges - 1, Lane::State::kUp);
    open_ |= 1u << number;
    remember(lanes_[number].get());
    return status;
  }

  bool idle(uint32_t number) const override {
    return lanes_[number]->outstanding() == 0 && lanes_[number]->up();
  }
  void close(uint32_t number) override {
    open_ &= ~(1u << number);
    forget(lanes_[number].get());
    lanes_[number].reset();
  }

  Lane* to(uint32_t, uint32_t number) const override { return lanes_[number].get(); }
  base::Result<Lane*> reach(uint32_t, uint32_t, uint32_t number) override {
    return lanes_[number].get();
  }

  // Both ends of a lane are ours, so it is armed again at once. What waits for a peer's statement
  // is what was meant for that peer.
  Revival revive(Lane& lane) override {
    return lane.rearm().ok() ? Revival::kUp : Revival::kFailed;
  }
  QpInfo asking(const Lane&) const override { return {}; }
  base::Status answered(Lane&, const Address&, const QpInfo&) override {
    return base::Status::success();
  }
  void quiesce(uint32_t, uint32_t, uint64_t) override {}
  base::Result<QpInfo> accept(uint32_t, uint32_t, uint64_t, const Address&,
                              const QpInfo&) override {
    return QpInfo{};
  }

  Origin origin(uint32_t) const override { return {}; }
  bool retire(uint64_t) override { return false; }
  void bury() override {}

  void part(uint32_t) override {}
  void shut() override {
    for (uint32_t number = 0; number < kMaxLanes; ++number) {
      if (lanes_[number]) close(number);
    }
  }
  uint32_t queue_pairs() const override { return 2 * open_count(); }

 private:
  verbs::XrcdPtr xrcd_;
  std::array<std::unique_ptr<Lane>, kMaxLanes> lanes_;
};

}  // namespace

base::Result<std::unique_ptr<Lanes>> create_xrc_lanes(const LaneParts& parts, const Port& port) {
  ibv_xrcd_init_attr domain = {};
  domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain.fd = parts.folder;
  domain.oflags = O_CREAT;
  errno = 0;
  verbs::XrcdPtr xrcd(ibv_open_xrcd(parts.context, &domain));
  if (!xrcd) return verb_error(errno, "ibv_open_xrcd", "the domain's folder");
  return std::unique_ptr<Lanes>(new XrcLanes(parts, port, std::move(xrcd)));
}

}  // namespace millrace::transport
