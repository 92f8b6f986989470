#include <mutex>
#include <vector>

#include "soft/initiator.h"
#include "soft/qp_internal.h"
#include "soft/step.h"

// How a QP comes into ERR, by its own fault or by what somebody else finds at it (R31).

namespace millrace::soft {

uint64_t peer_owner(const Qp& qp) {
  if (qp.target == nullptr) return 0;
  const uint64_t word = qp.target->word.load(std::memory_order_acquire);
  const uint64_t owner = qp.target->owner;
  return record_number(word) == qp.target_number &&
                 qp.target->word.load(std::memory_order_acquire) == word
             ? owner
             : 0;
}

void push_flushed(ReceiveQueue& queue, uint64_t wr_id) {
  ibv_wc wc = {};
  wc.wr_id = wr_id;
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = queue.id & kNumberMask;
  queue.cq->push(wc, true);
}

void enter_error(Qp& qp) {
  if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_RESET) return;
  qp.state = IBV_QPS_ERR;
  qp.ex.qp_base.state = IBV_QPS_ERR;
  publish_state(qp, IBV_QPS_ERR);
  flush_waiting(qp);
  if (qp.queue != nullptr) {
    ReceiveQueue& queue = *qp.queue;
    queue.close();
    queue.wait_quiet(qp.recv_cq);
    qp.recv_cq->collect();
    for (uint64_t wr_id : queue.take_back(qp.recv_cq)) push_flushed(queue, wr_id);
    queue.shared->posted.fetch_add(1);
    queue.wake_parked();  // who waits for us finds that nobody answers
  } else if (qp.srq != nullptr && !qp.last_wqe_told) {
    qp.srq->queue.wait_quiet(qp.recv_cq, peer_owner(qp));
    qp.last_wqe_told = true;
    raise_qp_event(qp.handle(), IBV_EVENT_QP_LAST_WQE_REACHED);
  }
}

bool set_fault(QpRecord& record, ProcessShared& owner, uint32_t index, uint64_t healthy,
               Fault fault) {
  // From the word of this connection: its owner's RESET, or another QP in the record, is not hit.
  if (!record.health.compare_exchange_strong(healthy, health_word(health_epoch(healthy), fault)))
    return false;
  step("responder failed");
  if (index < kQps) {
    owner.faults[index / 64].fetch_or(uint64_t{1} << (index % 64));
    step("fault bit");
    owner.attention.fetch_add(1);
  }
  step("owner told");
  return true;
}

void fail_receiver(Process& process, uint32_t qpn) {
  const Qp* qp = process.qp_table[qpn % kQps].load(std::memory_order_acquire);
  if (qp == nullptr || qp->number != qpn || !qp->receives()) return;
  const uint64_t health = qp->record->health.load(std::memory_order_acquire);
  if (health_fault(health) != Fault::kHealthy) return;
  set_fault(*qp->record, process.shared(), qpn % process.root().qps(), health, Fault::kReported);
  qp->context->wake.wake();
}

void fail_sends(Qp& qp) {
  const bool connected = qp.type() != IBV_QPT_UD && qp.type() != IBV_QPT_UC;
  if (connected || (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD)) {
    enter_error(qp);
    return;
  }
  qp.state = IBV_QPS_SQE;
  qp.ex.qp_base.state = IBV_QPS_SQE;
  publish_state(qp, IBV_QPS_SQE);
  flush_waiting(qp);
}

void notice_fault(Qp& qp) {
  if (!qp.receives() || qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_RESET) return;
  const Fault fault = health_fault(qp.record->health.load(std::memory_order_acquire));
  switch (fault) {
    case Fault::kHealthy:
      return;
    case Fault::kAccess:
      raise_qp_event(qp.handle(), IBV_EVENT_QP_ACCESS_ERR);
      break;
    case Fault::kRequest:
      raise_qp_event(qp.handle(), IBV_EVENT_QP_REQ_ERR);
      break;
    case Fault::kOperation:
      raise_qp_event(qp.handle(), IBV_EVENT_QP_FATAL);
      break;
    case Fault::kReported:
      break;
  }
  enter_error(qp);
}

void attend(Process& process) {
  std::unique_lock attending(process.attending, std::try_to_lock);
  if (!attending.owns_lock()) return;  // another thread does, or somebody destroys a QP
  ProcessShared& shared = process.shared();
  // Read before the bits: who sets one later counts up once more.
  process.attention_seen.store(shared.attention.load(), std::memory_order_relaxed);
  for (uint32_t w = 0; w < kQps / 64; ++w) {
    if (shared.faults[w].load() == 0) continue;
    for (uint64_t bits = shared.faults[w].exchange(0); bits != 0; bits &= bits - 1) {
      const uint32_t index = w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      Qp* qp = process.qp_table[index].load(std::memory_order_acquire);
      if (qp == nullptr) continue;
      std::lock_guard lock(qp->lock);
      notice_fault(*qp);
    }
  }
}

}  // namespace millrace::soft
