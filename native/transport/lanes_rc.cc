#include <errno.h>
#include <poll.h>

#include <array>
#include <deque>
#include <unordered_map>

#include "base/rng.h"
#include "transport/errors.h"
#include "transport/lanes.h"
#include "transport/member.h"
#include "transport/wire.h"

/**
 * Lanes of a device without XRC: for each peer and lane number an RC QP of ours that sends, and for
 * each of a peer's lanes an RC QP of ours that receives into the inbox's basic SRQ. Two QPs for a
 * pair of members and a number, one for each direction, so that a direction that fails is made
 * again by its sender without a word about the other one.
 */
namespace millrace::transport {
namespace {

/** WRs that a lane to one peer may have outstanding: it is one of many. */
constexpr uint32_t kDepth = 64;
static_assert(kDepth > 2 * kControlReserve && kDepth <= kLaneDepth);
/** Targets in ERR that wait for their last receive; with more, the oldest goes. */
constexpr size_t kMaxRetired = 32;

class RcWire final : public Wire {
 public:
  static base::Result<std::unique_ptr<RcWire>> create(const LaneParts& parts, const Port& port,
                                                      ibv_cq* cq, uint64_t seed, uint32_t* sges) {
    std::unique_ptr<RcWire> wire(new RcWire(port, seed));
    ibv_qp_init_attr_ex attr = {};
    attr.qp_type = IBV_QPT_RC;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = parts.pd;
    attr.send_cq = cq;
    attr.recv_cq = cq;  // nothing is received
    attr.cap.max_send_wr = kDepth;
    attr.cap.max_send_sge = *sges;
    attr.cap.max_recv_wr = 1;
    attr.cap.max_recv_sge = 1;
    auto made = create_initiator(parts.context, &attr, "the sending RC QP of a lane");
    if (!made.ok()) return made.status();
    wire->qp_ = verbs::QpPtr(made.value());
    *sges = attr.cap.max_send_sge;
    return wire;
  }

  ibv_qp* initiator() const override { return qp_.get(); }
  void address(ibv_send_wr&, uint32_t) const override {}  // there is one receiver
  /** The peer takes its target to ERR when it hears the ask, and makes another. */
  void quiesce() override { psn_ = static_cast<uint32_t>(rng_.next()) & 0xFFFFFF; }
  base::Status connect() override {
    return bring_up(qp_.get(), End::kInitiator, port_, {remote_, target_, psn_});
  }
  uint32_t queue_pairs() const override { return 1; }

  QpInfo info() const { return {qp_->qp_num, psn_}; }
  void lead_to(const Address& remote, uint32_t target) {
    remote_ = remote;
    target_ = target;
  }

 private:
  RcWire(const Port& port, uint64_t seed) : port_(port), rng_(seed) { RcWire::quiesce(); }

  const Port port_;
  base::Rng rng_;
  verbs::QpPtr qp_;
  uint32_t psn_ = 0;
  Address remote_;
  uint32_t target_ = 0;
};

/** Where a peer's lane arrives. */
struct Target {
  verbs::QpPtr qp;
  uint64_t ask = 0;  ///< the ask that `qp` was made for
};

/** A target that was. It is in ERR, so nothing lands through it. */
struct Retired {
  verbs::QpPtr qp;
  uint64_t until = 0;  ///< goes then at the latest; 0: retire() has not seen it yet
  bool last_reached = false;
};

class RcLanes final : public Lanes {
 public:
  RcLanes(const LaneParts& parts, const Port& port) : Lanes(parts, port), peers_(kMaxPeers) {}
  ~RcLanes() override { shut(); }

  LaneKind kind() const override { return LaneKind::kRc; }

  base::Result<InboxQueue> create_queue(uint32_t max_wr) override {
    ibv_srq_init_attr attr = {};
    attr.attr.max_wr = max_wr;
    attr.attr.max_sge = 1;
    errno = 0;
    InboxQueue queue{verbs::SrqPtr(ibv_create_srq(parts_.pd, &attr)), 0};
    if (!queue.srq) return verb_error(errno, "ibv_create_srq", "the SRQ of the inbox");
    srq_ = queue.srq.get();
    return queue;
  }

  base::Status open(uint32_t number) override {
    open_ |= 1u << number;
    return base::Status::success();
  }
  bool idle(uint32_t number) const override {
    for (const Lane* lane : all()) {
      if (lane->number() == number && lane->outstanding() > 0) return false;
    }
    return true;
  }
  void close(uint32_t number) override {
    open_ &= ~(1u << number);
    for (auto& peer : peers_) {
      if (peer && peer->lanes[number]) destroy(peer->lanes[number]);
    }
  }

  Lane* to(uint32_t peer, uint32_t number) const override {
    return peers_[peer] ? peers_[peer]->lanes[number].get() : nullptr;
  }
  base::Result<Lane*> reach(uint32_t index, uint32_t generation, uint32_t number) override {
    std::unique_ptr<Lane>& place = at(index).lanes[number];
    if (place) return place.get();
    auto lane = Lane::create(parts_.context, parts_.channel, parts_.arena, number, kDepth);
    if (!lane.ok()) return lane.status();
    uint32_t sges = kMaxRuns + 1;
    auto wire = RcWire::create(parts_, port_, lane.value()->cq(), parts_.seed + ++made_, &sges);
    if (!wire.ok()) return wire.status();
    place = lane.take();
    place->belong(index, generation);
    place->attach(wire.take(), sges - 1, Lane::State::kAsking);
    remember(place.get());
    return place.get();
  }

  Revival revive(Lane& lane) override {
    for (auto it = parting_.begin(); it != parting_.end(); ++it) {
      if (it->get() != &lane) continue;
      destroy(*it);
      parting_.erase(it);
      return Revival::kGone;
    }
    lane.await();
    return Revival::kAsk;
  }
  QpInfo asking(const Lane& lane) const override { return wire_of(lane).info(); }
  base::Status answered(Lane& lane, const Address& remote, const QpInfo& target) override {
    if (target.number == 0)
      return base::Status::error(EPROTO, "connect a lane", "the answer names no target");
    wire_of(lane).lead_to(remote, target.number);
    return lane.rearm();
  }

  void quiesce(uint32_t peer, uint32_t number, uint64_t ask) override {
    const Target& target = at(peer).targets[number];
    if (target.qp && target.ask < ask) to_error(target.qp.get());
  }
  base::Result<QpInfo> accept(uint32_t peer, uint32_t number, uint64_t ask, const Address& remote,
                              const QpInfo& initiator) override {
    if (initiator.number == 0)
      return base::Status::error(EPROTO, "accept a lane", "the ask names no queue pair");
    Target& target = at(peer).targets[number];
    if (target.qp && target.ask > ask)
      return base::Status::error(ESTALE, "accept a lane", "a later ask was answered");
    if (target.qp && target.ask == ask) return QpInfo{target.qp->qp_num, 0};
    ibv_qp_init_attr_ex attr = {};
    attr.qp_type = IBV_QPT_RC;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = parts_.pd;
    attr.send_cq = parts_.receive_cq;  // nothing is sent
    attr.recv_cq = parts_.receive_cq;
    attr.srq = srq_;
    attr.cap.max_send_wr = 1;
    attr.cap.max_send_sge = 1;
    errno = 0;
    verbs::QpPtr qp(ibv_create_qp_ex(parts_.context, &attr));
    if (!qp) return verb_error(errno, "ibv_create_qp_ex", "the receiving RC QP of a lane");
    base::Status status =
        bring_up(qp.get(), End::kTarget, port_, {remote, initiator.number, initiator.psn});
    if (!status.ok()) return status;
    retire_target(target);
    target.qp = std::move(qp);
    target.ask = ask;
    origins_[target.qp->qp_num] = {static_cast<int32_t>(peer), number};
    return QpInfo{target.qp->qp_num, 0};
  }

  Origin origin(uint32_t qp_number) const override {
    const auto found = origins_.find(qp_number);
    return found != origins_.end() ? found->second : Origin{kNobody, 0};
  }

  bool retire(uint64_t now_ns) override {
    if (retired_.empty()) return false;
    read_events();
    bool any = false;
    for (Retired& one : retired_) {
      if (one.until == 0) one.until = now_ns + kRetireNs;
      one.last_reached |= now_ns >= one.until;
      any |= one.last_reached;
    }
    return any;
  }
  void bury() override {
    std::erase_if(retired_, [this](const Retired& one) {
      if (one.last_reached) origins_.erase(one.qp->qp_num);
      return one.last_reached;
    });
  }

  void part(uint32_t index) override {
    if (!peers_[index]) return;
    for (std::unique_ptr<Lane>& lane : peers_[index]->lanes) {
      if (!lane) continue;
      lane->part();
      parting_.push_back(std::move(lane));
    }
    for (Target& target : peers_[index]->targets) retire_target(target);
    std::erase_if(origins_, [index](const auto& entry) {
      return entry.second.peer == static_cast<int32_t>(index);
    });
    peers_[index].reset();
  }
  void shut() override {
    for (auto& peer : peers_) {
      if (!peer) continue;
      for (auto& lane : peer->lanes) {
        if (lane) destroy(lane);
      }
      peer.reset();
    }
    for (auto& lane : parting_) destroy(lane);
    parting_.clear();
    retired_.clear();
    origins_.clear();
    open_ = 0;
  }

  uint32_t queue_pairs() const override {
    size_t count = all().size() + retired_.size();
    for (const auto& peer : peers_) {
      if (!peer) continue;
      for (const Target& target : peer->targets) count += target.qp ? 1u : 0u;
    }
    return static_cast<uint32_t>(count);
  }

 private:
  struct PeerLanes {
    std::array<std::unique_ptr<Lane>, kMaxLanes> lanes;
    std::array<Target, kMaxLanes> targets;
  };

  static RcWire& wire_of(const Lane& lane) { return static_cast<RcWire&>(lane.wire()); }
  PeerLanes& at(uint32_t peer) {
    if (!peers_[peer]) peers_[peer] = std::make_unique<PeerLanes>();
    return *peers_[peer];
  }
  void destroy(std::unique_ptr<Lane>& lane) {
    forget(lane.get());
    lane.reset();
  }
  void retire_target(Target& target) {
    if (!target.qp) return;
    to_error(target.qp.get());
    retired_.push_back({std::move(target.qp)});
    if (retired_.size() <= kMaxRetired) return;
    origins_.erase(retired_.front().qp->qp_num);
    retired_.pop_front();
  }
  /** Nobody else reads this context's asynchronous events, and of these, one kind matters. */
  void read_events() {
    pollfd readable = {parts_.context->async_fd, POLLIN, 0};
    ibv_async_event event;
    while (poll(&readable, 1, 0) == 1 && ibv_get_async_event(parts_.context, &event) == 0) {
      for (Retired& one : retired_) {
        one.last_reached |=
            event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == one.qp.get();
      }
      ibv_ack_async_event(&event);
    }
  }

  ibv_srq* srq_ = nullptr;
  std::vector<std::unique_ptr<PeerLanes>> peers_;
  std::vector<std::unique_ptr<Lane>> parting_;
  std::deque<Retired> retired_;
  std::unordered_map<uint32_t, Origin> origins_;  ///< of targets, also retired ones
  uint64_t made_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<Lanes>> create_rc_lanes(const LaneParts& parts, const Port& port) {
  return std::unique_ptr<Lanes>(new RcLanes(parts, port));
}

}  // namespace millrace::transport
