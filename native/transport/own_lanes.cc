#include <errno.h>

#include "transport/core.h"

/** Lanes of a member's own, besides the shared one. */
namespace millrace::transport {

base::Result<uint32_t> Member::Core::open_lane() {
  if (closed_) return base::Status::error(EBADF, "open a lane", "the member is closed");
  for (uint32_t number = 1; number < kMaxLanes; ++number) {
    if (lanes_->is_open(number)) continue;
    base::Status status = lanes_->open(number);
    if (!status.ok()) return status;
    event(EventKind::kLane, -1, static_cast<int32_t>(number), static_cast<int32_t>(LaneState::kUp));
    return number;
  }
  return base::Status::error(
      ENOBUFS, "open a lane",
      base::format("a member has at most %u lanes, its shared one included", kMaxLanes));
}

base::Status Member::Core::close_lane(uint32_t lane) {
  if (closed_ || lane == 0 || lane >= kMaxLanes || !lanes_->is_open(lane)) {
    return base::Status::error(EINVAL, "close a lane", base::format("lane %u is not open", lane));
  }
  closing_lanes_ |= 1u << lane;
  reap_closing_lanes();
  return base::Status::success();
}

void Member::Core::reap_closing_lanes() {
  for (uint32_t number = 1; number < kMaxLanes && closing_lanes_ != 0; ++number) {
    if ((closing_lanes_ & (1u << number)) == 0) continue;
    bool busy = !lanes_->idle(number);
    for (const Peer* peer : peers_.all()) {
      if (!peer->lanes[number]) continue;
      const Destination& dest = *peer->lanes[number];
      busy |= dest.held || !dest.backlog.empty() || dest.pending_head < dest.pending.size();
    }
    if (busy) continue;
    // The destinations stay: sequences per (sender, lane, receiver) go on when the number is used
    // again.
    lanes_->close(number);
    closing_lanes_ &= ~(1u << number);
  }
}

}  // namespace millrace::transport
