#include <sched.h>

#include <algorithm>

#include "base/clock.h"
#include "transport/core.h"

/** How a member waits: by looking for a while, or by arming what wakes it. */
namespace millrace::transport {
namespace {

/** Nobody lingers for longer, whatever is asked: the event loop waits meanwhile. */
constexpr uint32_t kMaxLingerMicros = 1000;
/** Looks at the ring between two looks at the clock and at the rest. */
constexpr uint32_t kLooks = 64;
constexpr uint32_t kFewLooks = 2;
/** A CPU that was given away and comes back within this was wanted by nobody. */
constexpr uint64_t kSomebodyRanNs = 2500;
/** Who is away for so long lost the CPU to work that has nothing to do with us. */
constexpr uint64_t kTakenNs = 1'000'000;

}  // namespace

/**
 * A turn of an event loop costs microseconds, a look at a ring tens of nanoseconds. What else only
 * polling moves on (credits, a lane to re-arm) is poll()'s matter, so then this does not wait.
 */
Lingered Member::Core::linger(uint32_t micros) {
  if (closed_ || armed_ || anything_pending() || !active_.empty() || held_ > 0 || !due_.empty()) {
    return Lingered::kSomething;
  }
  uint64_t now = base::now_ns();
  const uint64_t until = now + uint64_t{std::min(micros, kMaxLingerMicros)} * 1000;
  for (;;) {
    for (uint32_t look = 0; look < looks_; ++look) {
      if (collect(UINT32_MAX) > 0 || look_at_groups()) return Lingered::kSomething;
      relax();
    }
    if (harvest_all()) return Lingered::kSomething;
    const uint64_t before = base::now_ns();
    if (before >= until) return Lingered::kNothing;
    // Where there are fewer CPUs than who polls, the other side may need this one. If somebody did
    // run meanwhile it is given away sooner the next time.
    sched_yield();
    const uint64_t last = now;
    now = base::now_ns();
    looks_ = now - before > kSomebodyRanNs ? kFewLooks : std::min(looks_ * 2, kLooks);
    // Said also when something is there by now: it was found later than by sleeping.
    if (now - last > kTakenNs) return Lingered::kTaken;
  }
}

int Member::Core::fd() const { return channel_ ? channel_->fd : -1; }

void Member::Core::drain_channel() {
  bool woken = false;
  // Bounded: a device that always has another event must not keep us here.
  for (int i = 0; i < 4096; ++i) {
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &cq, &cq_context) != 0) break;
    ibv_ack_cq_events(cq, 1);
    woken = true;
  }
  if (woken) ++counter(kWakeups);
}

bool Member::Core::anything_pending() const {
  return demuxed_ != arrived_ || strangers_.known() || !events_.empty() || rearm_pending_;
}

/** Arms the lanes on which something can complete. @return whether that went well */
bool Member::Core::arm_lanes() {
  for (const Lane* lane : lanes_->all()) {
    if (lane->outstanding() > 0 && ibv_req_notify_cq(lane->cq(), 0) != 0) return false;
  }
  return true;
}

bool Member::Core::arm() {
  if (closed_) return true;
  // What the last poll left because a send queue was full may go now; what is left then has
  // something that wakes us.
  pump_active();
  settle();
  pump_fetches();
  // What completes here is news: on a device that takes its time somebody waits for it.
  if (harvest_all() || anything_pending()) {
    update_tables();
    return false;
  }
  drain_channel();
  // Arm first, then look again: what completes in between makes the descriptor readable (R7).
  if (ibv_req_notify_cq(receive_cq_.get(), 0) != 0 || !arm_groups() || !arm_lanes()) return false;
  armed_ = true;
  (void)collect(1);
  const bool completed = harvest_all() || look_at_groups();
  free_arena();
  update_tables();
  if (completed || anything_pending()) return false;
  // One-sided grants wake nobody; they are only waited for where no WAIT is unanswered (R13).
  for (const auto& [peer, dest] : active_) {
    refresh_credits(*peer);
    const Lane* const lane = lane_of(*peer, *dest);
    if (!dest->held && lane != nullptr && lane->up() && lane->room(kControlReserve) &&
        peer->credits.may_send()) {
      return false;
    }
  }
  return true;
}

}  // namespace millrace::transport
