#include <algorithm>

#include "base/clock.h"
#include "soft/channel.h"
#include "soft/pipeline.h"

namespace millrace::soft {

uint64_t rnr_timer_ns(uint32_t code) {
  static constexpr uint32_t kTens[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                         16,    24,   32,   48,    64,    96,    128,   192,
                                         256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                         4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return static_cast<uint64_t>(kTens[code & 31]) * 10'000u;
}

uint32_t park_channel_of(const Qp& qp) { return qp.context->wake.number(); }

Outcome wait_or_fail(Qp& qp, WaitFor what, Peer* peer, uint64_t seen, uint64_t budget_ns,
                     ibv_wc_status exhausted) {
  if (qp.wait != what || qp.wait_peer != peer) {
    if (budget_ns == 0) return Outcome::failed(exhausted);
    qp.wait = what;
    qp.wait_peer = peer;
    qp.deadline = budget_ns == kForever ? 0 : base::now_ns() + budget_ns;
  } else if (qp.deadline != 0 && base::now_ns() >= qp.deadline) {
    return Outcome::failed(exhausted);
  }
  // Timers run in event mode too, where nobody polls. What nobody wakes us for is looked at from
  // time to time.
  uint64_t at = qp.deadline;
  const bool unparked = what == WaitFor::kWqe && peer->park == nullptr;
  if (what == WaitFor::kTarget || what == WaitFor::kDirectory || what == WaitFor::kLock ||
      unparked) {
    const uint64_t soon = base::now_ns() + kLookAgainNs;
    at = at == 0 ? soon : std::min(at, soon);
  }
  if (at != 0) qp.context->alarm.at(at);
  qp.wait_seen = seen;
  qp.wait_status = exhausted;
  Outcome out;
  out.waits = true;
  return out;
}

Outcome rnr(Qp& qp, WaitFor what, Peer* peer, uint64_t seen) {
  const uint32_t retries = qp.attr.rnr_retry;
  uint64_t budget = kForever;  // 7 is for ever
  if (retries < 7)
    budget = retries * rnr_timer_ns(qp.target->min_rnr_timer.load(std::memory_order_relaxed));
  return wait_or_fail(qp, what, peer, seen, budget, IBV_WC_RNR_RETRY_EXC_ERR);
}

Outcome unanswered(Qp& qp, WaitFor what) {
  uint64_t budget = kForever;
  if (qp.attr.timeout != 0) {
    budget = (uint64_t{4096} << qp.attr.timeout) * std::max<uint64_t>(1, qp.attr.retry_cnt);
  }
  return wait_or_fail(qp, what, nullptr, 0, budget, IBV_WC_RETRY_EXC_ERR);
}

void forget_wait(Qp& qp) {
  qp.wait = WaitFor::kNothing;
  qp.wait_peer = nullptr;
  qp.deadline = 0;
}

bool worth_trying(Qp& qp) {
  switch (qp.wait) {
    case WaitFor::kWqe:
      if (qp.wait_peer->queue->posted.load(std::memory_order_acquire) != qp.wait_seen) return true;
      // Woken for a WQE that another one took before we had parked: `posted` is what we saw, but
      // nobody will wake us again unless we park anew (R10: cleared before we are woken).
      if (qp.wait_peer->park != nullptr && qp.wait_peer->park->word.load() == 0) return true;
      break;
    case WaitFor::kRing:
      if (qp.wait_peer->ring->ring->head.load(std::memory_order_acquire) != qp.wait_seen)
        return true;
      break;
    case WaitFor::kDirectory:
      return base::now_ns() - qp.wait_seen >= kLookAgainNs;
    default:
      return true;
  }
  if (!peer_is_live(*qp.wait_peer)) return true;
  if (qp.target->word.load(std::memory_order_acquire) != qp.target_word) return true;
  if (qp.target->health.load(std::memory_order_acquire) != qp.target_health) return true;
  return qp.deadline != 0 && base::now_ns() >= qp.deadline;
}

}  // namespace millrace::soft
