#include <mutex>

#include "soft/initiator.h"
#include "soft/pipeline.h"
#include "soft/step.h"

namespace millrace::soft {

// What stops the sending side (SQD, SQE) does not stop the receiving one.
bool can_receive(uint32_t state) { return state >= IBV_QPS_RTR && state <= IBV_QPS_SQE; }
static_assert(IBV_QPS_RTS == IBV_QPS_RTR + 1 && IBV_QPS_SQE == IBV_QPS_RTR + 3);

namespace {

/** Whether the path of our connection leads to the port of that QP. */
bool path_reaches(const Qp& qp, const QpRecord& record) {
  // On InfiniBand a LID of 0 stands for the port where the QP is, wherever that may be.
  if (qp.attr.ah_attr.is_global == 0 && qp.attr.ah_attr.dlid == 0) return true;
  return record.port.load(std::memory_order_relaxed) >> 8 ==
         port_place(qp.context->link, qp.route.device);
}

}  // namespace

bool xrc_target_ready(Qp& qp) {
  if (qp.target == nullptr) return false;
  const uint64_t word = qp.target->word.load(std::memory_order_acquire);
  if (word == qp.target_word) return true;
  const Life life = record_life(word);
  // CLOSING still is alive: its closer has not yet looked again (see closing_step).
  if (record_number(word) != qp.target_number || (life != Life::kLive && life != Life::kClosing) ||
      qp.target->type != IBV_QPT_XRC_RECV || !can_receive(record_state(word))) {
    qp.target_word = kUncheckedTarget;
    return false;
  }
  const XrcdKey key = qp.target->xrcd;
  if (qp.target->word.load(std::memory_order_acquire) != word) return xrc_target_ready(qp);
  if (!(key == qp.target_xrcd)) forget_peers(qp);  // they were checked against another domain
  qp.target_xrcd = key;
  qp.target_word = life == Life::kLive ? word : kUncheckedTarget;
  return true;
}

bool connected_target_ready(Qp& qp) {
  if (qp.target == nullptr) return false;
  QpRecord& record = *qp.target;
  for (;;) {
    const uint64_t word = record.word.load(std::memory_order_acquire);
    const uint64_t health = record.health.load(std::memory_order_acquire);
    if (word == qp.target_word && health == qp.target_health) return true;
    const bool ready =
        record_number(word) == qp.target_number && record_life(word) == Life::kLive &&
        can_receive(record_state(word)) && health_fault(health) == Fault::kHealthy &&
        record.type == qp.ex.qp_base.qp_type &&
        record.dest_qpn.load(std::memory_order_relaxed) == qp.number && path_reaches(qp, record);
    // What was read belongs together only if neither word has changed (R24).
    if (record.word.load(std::memory_order_acquire) != word ||
        record.health.load(std::memory_order_acquire) != health) {
      continue;
    }
    if (!ready) {
      qp.target_word = kUncheckedTarget;
      // A park entry of a queue that is being flushed or reset is of no use to us, and of use to
      // the next one who connects to it.
      for (const auto& peer : qp.peers) release_park(*peer);
      return false;
    }
    if (health != qp.target_health) forget_peers(qp);  // of an earlier connection (R24, R25)
    qp.target_word = word;
    qp.target_health = health;
    return true;
  }
}

void fail_responder(Qp& qp, Peer& peer, Fault fault) {
  QpRecord& record = *qp.target;
  step("fault found");
  if (!set_fault(record, *peer.shared, qp.target_number % qp.process->root().qps(),
                 qp.target_health, fault)) {
    return;  // somebody else did, or it has gone through RESET
  }
  std::lock_guard registry(qp.process->registry());
  peer.process->wake_now(record.wake.load(std::memory_order_relaxed));
}

}  // namespace millrace::soft
