#include "verbs/faults.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/rng.h"

namespace millrace::verbs {
namespace {

/** A number that the device does not give out soon; 24 bits. */
constexpr uint32_t kNoSrq = 0xFFFFFE;

enum class Fate { kNormal, kError, kAmbiguous, kDeadSrq, kDropped };

struct HeldSend {
  ibv_send_wr wr;
  std::vector<ibv_sge> sges;
  Fate fate;
  uint32_t polls;  ///< still to wait, once it is the oldest
};

struct HeldReceive {
  ibv_srq* srq;
  uint64_t wr_id;
  std::vector<ibv_sge> sges;
  uint32_t polls;
};

bool in_error(const ibv_qp* qp) { return qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE; }
bool can_send(const ibv_qp* qp) { return qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD; }

ibv_wc completion(const ibv_qp* qp, const ibv_send_wr& wr, ibv_wc_status status) {
  ibv_wc wc;
  memset(&wc, 0, sizeof(wc));
  wc.wr_id = wr.wr_id;
  wc.status = status;
  wc.opcode = wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
                  ? IBV_WC_RDMA_WRITE
              : wr.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
                                              : IBV_WC_SEND;
  wc.qp_num = qp->qp_num;
  return wc;
}

}  // namespace

/** The decoration of one context. Everything is done under its mutex: this is for tests. */
class Decoration {
 public:
  Decoration(ibv_context* context, const FaultPlan& plan)
      : context_(context), original_(context->ops), plan_(plan), rng_(plan.seed) {}

  int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
  int poll_cq(ibv_cq* cq, int count, ibv_wc* wcs);
  int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
  int req_notify_cq(ibv_cq* cq, int solicited_only);

  void restore() { context_->ops = original_; }
  bool may_register(size_t bytes) const {
    return plan_.lock_limit == 0 || bytes <= plan_.lock_limit;
  }
  FaultCounts counts() {
    std::lock_guard<std::mutex> guard(mutex_);
    return counts_;
  }
  const ibv_context* context() const { return context_; }

 private:
  uint32_t some_polls() {
    return 1 + static_cast<uint32_t>(rng_.below(std::max(1u, plan_.max_delay_polls)));
  }
  int execute(ibv_qp* qp, ibv_send_wr wr, Fate fate);
  void to_error(ibv_qp* qp);
  void drain(ibv_cq* cq);
  void advance(ibv_qp* qp, std::deque<HeldSend>& held, bool all);
  void advance_receives(bool all);

  ibv_context* const context_;
  const ibv_context_ops original_;
  const FaultPlan plan_;
  std::mutex mutex_;
  base::Rng rng_;
  FaultCounts counts_;
  std::unordered_map<ibv_qp*, std::deque<HeldSend>> held_;
  std::unordered_map<ibv_cq*, std::deque<ibv_wc>>
      ready_;  ///< to be polled before what the device has
  std::vector<HeldReceive> receives_;
};

int Decoration::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (; wr != nullptr; wr = wr->next) {
    // Always four draws, so that plans which differ in one number stay in step.
    Fate fate = Fate::kNormal;
    if (rng_.chance(plan_.error)) fate = Fate::kError;
    if (rng_.chance(plan_.ambiguous) && fate == Fate::kNormal) fate = Fate::kAmbiguous;
    const bool xrc_send = qp->qp_type == IBV_QPT_XRC_SEND;
    if (rng_.chance(plan_.dead_srq) && fate == Fate::kNormal && xrc_send) fate = Fate::kDeadSrq;
    const bool delay = rng_.chance(plan_.delay);
    // One more for a datagram alone, so that what lanes meet does not depend on it.
    if (qp->qp_type == IBV_QPT_UD && rng_.chance(plan_.drop) && fate == Fate::kNormal)
      fate = Fate::kDropped;
    if (!can_send(qp) && !in_error(qp)) {
      *bad = wr;
      return EINVAL;
    }
    std::deque<HeldSend>& held = held_[qp];
    if (in_error(qp)) {
      advance(qp, held, true);
      fate = Fate::kNormal;  // the device flushes it
    } else if (delay || !held.empty()) {
      if (delay) ++counts_.delayed;
      HeldSend entry{*wr, std::vector<ibv_sge>(wr->sg_list, wr->sg_list + wr->num_sge), fate,
                     delay ? some_polls() : 0};
      entry.wr.next = nullptr;
      held.push_back(std::move(entry));
      continue;
    }
    const int error = execute(qp, *wr, fate);
    if (error != 0) {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

int Decoration::execute(ibv_qp* qp, ibv_send_wr wr, Fate fate) {
  ibv_send_wr* bad = nullptr;
  wr.next = nullptr;
  if (fate == Fate::kError) {
    ++counts_.errors;
    to_error(qp);
    drain(qp->send_cq);
    ready_[qp->send_cq].push_back(completion(qp, wr, IBV_WC_RETRY_EXC_ERR));
    return 0;
  }
  if (fate == Fate::kDropped) {
    // Who sends a datagram is never told.
    ++counts_.dropped;
    drain(qp->send_cq);
    if ((wr.send_flags & IBV_SEND_SIGNALED) != 0)
      ready_[qp->send_cq].push_back(completion(qp, wr, IBV_WC_SUCCESS));
    return 0;
  }
  if (fate == Fate::kDeadSrq) {
    ++counts_.dead_srqs;
    wr.qp_type.xrc.remote_srqn = kNoSrq;
  }
  if (fate == Fate::kAmbiguous) wr.send_flags |= IBV_SEND_SIGNALED;
  const int error = original_.post_send(qp, &wr, &bad);
  if (error != 0 || fate != Fate::kAmbiguous) return error;
  ++counts_.ambiguous;
  // What is not through yet is flushed by this, and then it was not delivered: ambiguous all the
  // same.
  to_error(qp);
  drain(qp->send_cq);
  for (ibv_wc& wc : ready_[qp->send_cq]) {
    if (wc.qp_num == qp->qp_num && wc.wr_id == wr.wr_id && wc.status == IBV_WC_SUCCESS) {
      wc = completion(qp, wr, IBV_WC_RETRY_EXC_ERR);
    }
  }
  return 0;
}

void Decoration::to_error(ibv_qp* qp) {
  ibv_qp_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/** Takes what the device has completed, so that what we add comes behind it. */
void Decoration::drain(ibv_cq* cq) {
  std::deque<ibv_wc>& ready = ready_[cq];
  ibv_wc wcs[16];
  for (;;) {
    const int count = original_.poll_cq(cq, 16, wcs);
    if (count <= 0) return;
    ready.insert(ready.end(), wcs, wcs + count);
  }
}

/** One poll's time passes for the oldest held send of a QP, or, with `all`, as much as it takes. */
void Decoration::advance(ibv_qp* qp, std::deque<HeldSend>& held, bool all) {
  if (held.empty()) return;
  if (!in_error(qp) && !can_send(qp)) {  // was reset: its work is gone
    held.clear();
    return;
  }
  if (!all && held.front().polls > 0 && --held.front().polls > 0) return;
  bool first = true;
  while (!held.empty()) {
    if (in_error(qp)) {
      drain(qp->send_cq);
      for (const HeldSend& entry : held) {
        ready_[qp->send_cq].push_back(completion(qp, entry.wr, IBV_WC_WR_FLUSH_ERR));
      }
      held.clear();
      return;
    }
    if (!first && !all && held.front().polls > 0) return;
    first = false;
    HeldSend entry = std::move(held.front());
    held.pop_front();
    entry.wr.sg_list = entry.sges.data();
    if (execute(qp, entry.wr, entry.fate) != 0) {
      // It was taken from the caller already, so it can only fail by completion.
      to_error(qp);
      drain(qp->send_cq);
      ready_[qp->send_cq].push_back(completion(qp, entry.wr, IBV_WC_LOC_QP_OP_ERR));
    }
  }
}

void Decoration::advance_receives(bool all) {
  for (size_t i = 0; i < receives_.size();) {
    HeldReceive& held = receives_[i];
    if (!all && --held.polls > 0) {
      ++i;
      continue;
    }
    ibv_recv_wr wr;
    ibv_recv_wr* bad = nullptr;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = held.wr_id;
    wr.sg_list = held.sges.data();
    wr.num_sge = static_cast<int>(held.sges.size());
    (void)original_.post_srq_recv(held.srq, &wr, &bad);
    receives_[i] = std::move(receives_.back());
    receives_.pop_back();
  }
}

int Decoration::poll_cq(ibv_cq* cq, int count, ibv_wc* wcs) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [qp, held] : held_) {
    if (!held.empty() && qp->send_cq == cq) advance(qp, held, false);
  }
  advance_receives(false);
  std::deque<ibv_wc>& ready = ready_[cq];
  int n = 0;
  while (n < count && !ready.empty()) {
    wcs[n++] = ready.front();
    ready.pop_front();
  }
  if (n == count) return n;
  const int more = original_.poll_cq(cq, count - n, wcs + n);
  return more < 0 ? (n > 0 ? n : more) : n + more;
}

int Decoration::post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (; wr != nullptr; wr = wr->next) {
    if (rng_.chance(plan_.rnr)) {
      ++counts_.withheld;
      receives_.push_back({srq, wr->wr_id,
                           std::vector<ibv_sge>(wr->sg_list, wr->sg_list + wr->num_sge),
                           some_polls()});
      continue;
    }
    ibv_recv_wr one = *wr;
    ibv_recv_wr* bad_one = nullptr;
    one.next = nullptr;
    const int error = original_.post_srq_recv(srq, &one, &bad_one);
    if (error != 0) {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

int Decoration::req_notify_cq(ibv_cq* cq, int solicited_only) {
  std::lock_guard<std::mutex> guard(mutex_);
  // Whoever arms is about to sleep, which is longer than any number of polls.
  for (auto& [qp, held] : held_) advance(qp, held, true);
  advance_receives(true);
  return original_.req_notify_cq(cq, solicited_only);
}

namespace {

std::mutex registry_mutex;
std::vector<std::shared_ptr<Decoration>>& registry() {
  // Never destroyed: a context may outlive static destructors.
  static auto* const all = new std::vector<std::shared_ptr<Decoration>>();
  return *all;
}

std::shared_ptr<Decoration> find(const ibv_context* context) {
  std::lock_guard<std::mutex> guard(registry_mutex);
  for (const auto& decoration : registry()) {
    if (decoration->context() == context) return decoration;
  }
  return nullptr;
}

int faulty_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return find(qp->context)->post_send(qp, wr, bad);
}
int faulty_poll_cq(ibv_cq* cq, int count, ibv_wc* wcs) {
  return find(cq->context)->poll_cq(cq, count, wcs);
}
int faulty_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return find(srq->context)->post_srq_recv(srq, wr, bad);
}
int faulty_req_notify_cq(ibv_cq* cq, int solicited_only) {
  return find(cq->context)->req_notify_cq(cq, solicited_only);
}

bool within_lock_limit(ibv_context* context, size_t bytes) {
  const std::shared_ptr<Decoration> decoration = find(context);
  return decoration == nullptr || decoration->may_register(bytes);
}

}  // namespace

base::Status install_faults(ibv_context* context, const FaultPlan& plan) {
  for (double p : {plan.error, plan.ambiguous, plan.delay, plan.rnr, plan.dead_srq, plan.drop}) {
    if (!(p >= 0 && p <= 1)) {
      return base::Status::error(EINVAL, "install faults",
                                 base::format("%g is not a probability (0..1)", p));
    }
  }
  if (find(context) != nullptr)
    return base::Status::error(EEXIST, "install faults", "the context has some already");
  auto decoration = std::make_shared<Decoration>(context, plan);
  {
    std::lock_guard<std::mutex> guard(registry_mutex);
    registry().push_back(decoration);
  }
  may_register = within_lock_limit;
  context->ops.post_send = faulty_post_send;
  context->ops.poll_cq = faulty_poll_cq;
  context->ops.post_srq_recv = faulty_post_srq_recv;
  context->ops.req_notify_cq = faulty_req_notify_cq;
  return base::Status::success();
}

void remove_faults(ibv_context* context) {
  const std::shared_ptr<Decoration> decoration = find(context);
  if (decoration == nullptr) return;
  decoration->restore();
  std::lock_guard<std::mutex> guard(registry_mutex);
  auto& all = registry();
  all.erase(std::remove(all.begin(), all.end(), decoration), all.end());
}

FaultCounts fault_counts(ibv_context* context) {
  const std::shared_ptr<Decoration> decoration = find(context);
  return decoration != nullptr ? decoration->counts() : FaultCounts{};
}

}  // namespace millrace::verbs
