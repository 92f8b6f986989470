#include <errno.h>

#include <cassert>
#include <cstring>

#include "base/clock.h"
#include "transport/core.h"

/**
 * A lane that went down (R14, model d3). A failed WR may or may not have been delivered, and the
 * flushed ones behind it were meant for healthy receivers. So: the target goes to ERR too, so that
 * nothing more of the old connection can land; every receiver that has frames in doubt is asked,
 * over the control connection, for the last one that it has after it has demultiplexed all that
 * landed; both ends go through RESET to RTS.
 *
 * The lane is used again at once for everybody else. What waits for the statement is the
 * destination alone: nothing is posted to it until then, which is what R14 needs, and a receiver
 * that is stopped, or that died and whose death is not known yet, does not keep the lane down for
 * the others.
 */
namespace millrace::transport {
namespace {

/** So many error completions that name one peer, with none of its frames getting through between
 * them, are enough. */
constexpr uint32_t kMaxFailures = 16;
/** An ask whose answer does not come is repeated: the control connection may have been replaced
 * meanwhile. */
constexpr uint64_t kAskAgainNs = 1'000'000'000;

}  // namespace

bool Member::Core::harvest(Lane& lane) {
  const bool progress = lane.harvest(this);
  if (lane.drained()) recover(lane);
  return progress;
}

bool Member::Core::harvest_all() {
  rearm_pending_ = false;
  bool progress = false;
  for (size_t i = 0; i < lanes_->all().size();) {
    Lane* const lane = lanes_->all()[i];
    progress |= harvest(*lane);
    // A lane of a peer that is gone goes when it is drained.
    if (i < lanes_->all().size() && lanes_->all()[i] == lane) ++i;
  }
  return progress;
}

void Member::Core::recover(Lane& lane) {
  const int32_t number = static_cast<int32_t>(lane.number());
  if (lane.first_error() != IBV_WC_SUCCESS && !lane.parted()) {  // else it is another try
    ++counter(kErrorCompletions);
    if (lane.first_error() == IBV_WC_RNR_RETRY_EXC_ERR) ++counter(kRnr);
    event(EventKind::kLane, -1, number, static_cast<int32_t>(LaneState::kDown));
  }
  lane.quiesce();
  const bool culprit_known = lane.culprit_known();
  for (uint32_t i = 0; i < lane.doubtful(); ++i) {
    Posted& posted = lane.doubt(i);
    const bool culprit = i == 0 && culprit_known;
    if (posted.kind == Posted::Kind::kRead) {
      piece_landed(posted, false, culprit, lane.first_error());
    } else {
      doubt(posted, culprit);
    }
  }
  const uint32_t index = lane.peer();
  const uint32_t generation = lane.generation();
  switch (lanes_->revive(lane)) {
    case Lanes::Revival::kUp:
      rearmed(number);
      break;
    case Lanes::Revival::kFailed:
      rearm_pending_ = true;
      break;
    case Lanes::Revival::kAsk:
      // Its peer is asked, if no frame in doubt has done so already.
      if (Peer* const peer = peers_.find(index, generation); peer != nullptr && !peer->refused)
        hold(*peer, destination(*peer, static_cast<uint32_t>(number)));
      break;
    case Lanes::Revival::kGone:
      break;
  }
}

void Member::Core::rearmed(int32_t number) {
  ++counter(kRearms);
  event(EventKind::kLane, -1, number, static_cast<int32_t>(LaneState::kRearmed));
}

void Member::Core::doubt(Posted& posted, bool culprit) {
  Peer* const peer = peers_.find(posted.peer, posted.generation);
  if (peer != nullptr && !peer->refused) {
    Destination& dest = destination(*peer, posted.lane);
    if (posted.kind == Posted::Kind::kGrant) {
      // Cumulative, so it is simply written again; but not before that peer has shown that it is
      // there.
      peer->announce_again = true;
      if ((posted.carried & kCarriedRecall) != 0)
        peer->recall_announced = peer->book.recall_number() - 1;
      attend(*peer);
      if (culprit) hold(*peer, dest);
    } else {
      Body body;
      if (posted.bounce >= 0) {
        body = Body::copy_of(arena_->bounce(posted.bounce), posted.body_bytes, posted.records,
                             posted.row_ends);
      } else if (posted.body_bytes > 0) {
        // Out of the arena, which does not wait for a peer.
        body.data.reset(new uint8_t[posted.body_bytes]);
        body.capacity = posted.body_bytes;
        body.records = posted.records;
        body.row_ends = posted.row_ends;
        for (uint32_t i = 0; i < posted.run_count; ++i) {
          std::memcpy(body.data.get() + body.bytes, arena_->at(posted.runs[i].offset),
                      posted.runs[i].bytes);
          body.bytes += posted.runs[i].bytes;
        }
      }
      dest.doubtful.push_back(
          {posted.sequence, posted.flags, posted.carried, posted.row_ends, std::move(body)});
      hold(*peer, dest);
    }
    if (culprit && ++dest.failures >= kMaxFailures) {
      const Lane* const lane = lane_of(*peer, dest);
      refuse(*peer, lane != nullptr ? lane->first_error() : IBV_WC_GENERAL_ERR);
    }
  }
  if (posted.bounce >= 0) arena_->free_bounce(posted.bounce);
  posted.bounce = -1;
}

void Member::Core::hold(Peer& peer, Destination& dest) {
  if (dest.held) return;
  dest.held = true;
  ++held_;
  dest.ask = ++asks_;
  ask(peer, dest);
}

void Member::Core::ask(Peer& peer, Destination& dest) {
  dest.asked_ns = base::now_ns();
  TunnelMessage message;
  message.type = TunnelType::kAsk;
  message.lane = static_cast<uint16_t>(dest.lane);
  message.sender = options_.incarnation;
  message.receiver = peer.incarnation;
  message.number = dest.ask;
  if (const Lane* const lane = lane_of(peer, dest)) message.qp = lanes_->asking(*lane);
  events_.push_back(
      {EventKind::kTunnel, static_cast<int32_t>(peer.index), {}, encode_tunnel(message)});
}

void Member::Core::ask_again() {
  if (held_ == 0) return;
  const uint64_t now = base::now_ns();
  for (Peer* peer : peers_.all()) {
    for (auto& dest : peer->lanes) {
      if (dest && dest->held && now - dest->asked_ns > kAskAgainNs) ask(*peer, *dest);
    }
  }
}

void Member::Core::tunnel(uint32_t index, std::span<const uint8_t> bytes) {
  Peer* const peer = peers_.connected(index);
  if (peer == nullptr) return;
  const auto message = decode_tunnel(bytes);
  if (!message || message->sender != peer->incarnation ||
      message->receiver != options_.incarnation) {
    event(EventKind::kPeerFault, static_cast<int32_t>(index), 0,
          static_cast<int32_t>(FaultReason::kTunnel));
    return;
  }
  if (message->type == TunnelType::kAsk) {
    asked(*peer, *message);
  } else {
    Destination* const dest = peer->lanes[message->lane].get();
    // An answer to an older ask, or to one that was repeated: the lane has gone on since.
    if (dest == nullptr || !dest->held || dest->ask != message->number) return;
    stated(*peer, *dest, *message);
  }
  pump_active();
  settle();
  post_lanes();
  (void)harvest_all();
  update_tables();
}

/** A peer wants to know what we have of its lane. */
void Member::Core::asked(Peer& peer, const TunnelMessage& message) {
  lanes_->quiesce(peer.index, message.lane, message.number);
  // Everything that has landed is demultiplexed first; the answer is one of the next poll's events.
  collect_all();
  auto target =
      lanes_->accept(peer.index, message.lane, message.number, peer.remote.address, message.qp);
  if (!target.ok()) {
    // It asks again: what is short here may be there then.
    if (target.status().code != ESTALE)
      event(EventKind::kPeerFault, static_cast<int32_t>(peer.index), 0,
            static_cast<int32_t>(FaultReason::kTunnel));
    return;
  }
  due_.push_back(
      {arrived_, peer.index, peer.generation, message.lane, message.number, 0, target.value()});
  settle_due();
}

/** The receiver has all frames up to `last` and none after it: goes on from the next (R14). */
void Member::Core::stated(Peer& peer, Destination& dest, const TunnelMessage& message) {
  const uint64_t last = message.last;
  Lane* const lane = lane_of(peer, dest);
  if (last < dest.completed || last >= dest.next_sequence || lane == nullptr) {
    event(EventKind::kPeerFault, static_cast<int32_t>(peer.index), 0,
          static_cast<int32_t>(FaultReason::kTunnel));
    return;
  }
  const bool was_up = lane->was_up();
  const bool down = !lane->up();
  if (!lanes_->answered(*lane, peer.remote.address, message.qp).ok()) {
    // Not with that target; a later ask brings another.
    event(EventKind::kPeerFault, static_cast<int32_t>(peer.index), 0,
          static_cast<int32_t>(FaultReason::kTunnel));
    return;
  }
  if (down && was_up && lane->up()) rearmed(static_cast<int32_t>(dest.lane));
  dest.held = false;
  --held_;
  std::deque<Body> again;
  uint32_t credits = 0;
  bool wait = false;
  for (DoubtfulFrame& frame : dest.doubtful) {
    if (frame.sequence <= last) {
      ++counter(kFramesSent);
      counter(kBytesSent) += kFrameHeaderBytes + frame.body.bytes;
      frame_completed(peer, dest, frame.sequence, frame.row_ends);
      continue;
    }
    if ((frame.flags & kFlagAnswer) != 0) {
      peer.owes_answer = true;
    } else {
      ++credits;
      wait |= (frame.flags & kFlagWait) != 0;
    }
    if ((frame.carried & kCarriedStatement) != 0) peer.owes_statement = true;
    if ((frame.carried & kCarriedRecall) != 0) peer.owes_recall = true;
    if (frame.body.bytes > 0) again.push_back(std::move(frame.body));
  }
  dest.doubtful.clear();
  dest.completed = last;
  dest.next_sequence = last + 1;
  peer.credits.lost(credits, wait);
  const uint64_t before = dest.backlog.bytes();
  dest.backlog.put_back(std::move(again));
  count_backlog(peer, before, dest.backlog.bytes());
  activate(peer, dest);
  attend(peer);
}

/** Its inbox fails again and again although it answers: this peer alone is given up, the cluster
 * decides about it. */
void Member::Core::refuse(Peer& peer, ibv_wc_status status) {
  peer.refused = true;
  for (auto& dest : peer.lanes) {
    if (!dest) continue;
    if (dest->held) {
      dest->held = false;
      --held_;
    }
    peer.frames_lost += dest->doubtful.size() + dest->backlog.frames() +
                        (dest->pending.size() - dest->pending_head);
    dest->doubtful.clear();
    dest->pending_head = dest->pending.size();
    dest->backlog.clear();
  }
  backlog_bytes_ -= peer.backlog_bytes;
  peer.backlog_bytes = 0;
  touch(peer);
  event(EventKind::kPeerFault, static_cast<int32_t>(peer.index), static_cast<int32_t>(status),
        static_cast<int32_t>(FaultReason::kRefused));
}

}  // namespace millrace::transport
