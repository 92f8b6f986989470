#include <algorithm>
#include <cassert>
#include <cstring>

#include "transport/core.h"

/** Flush: rows become frames, or backlog. */
namespace millrace::transport {
namespace {

/** Most reads of the granted words that a flush makes when it is out of credit, each about 50 ns.
 */
constexpr uint32_t kMaxSpins = 256;
constexpr uint32_t kProbeSpins = 16;

}  // namespace

Destination& Member::Core::destination(Peer& peer, uint32_t lane) {
  auto& slot = peer.lanes[lane];
  if (!slot) {
    slot = std::make_unique<Destination>();
    slot->lane = lane;
  }
  if (lane_of(peer, *slot) == nullptr && !peer.refused) {
    // RC: the first frame to this peer on that number.
    auto made = lanes_->reach(peer.index, peer.generation, lane);
    if (!made.ok()) {
      refuse(peer, IBV_WC_GENERAL_ERR);
    } else if (!made.value()->up()) {
      hold(peer, *slot);
    }
  }
  return *slot;
}

void Member::Core::accept_row(const int32_t* row) {
  const uint32_t index = static_cast<uint32_t>(row[0]);
  const uint32_t offset = static_cast<uint32_t>(row[1]);
  const uint32_t length = static_cast<uint32_t>(row[2]);
  const uint32_t lane = static_cast<uint32_t>(row[3]);
  const bool bytes_ok = length > 0 && length % kRecordAlign == 0 && offset % kRecordAlign == 0 &&
                        uint64_t{offset} + length <= arena_->bytes();
  if (bytes_ok) rows_end_ = std::max(rows_end_, arena_->position(offset) + length);
  if (row[0] == kGroupRow && bytes_ok) return accept_group_row(lane, offset, length);
  Peer* const peer = peers_.connected(index);
  if (peer == nullptr) return;  // just left: nothing to tell, and nobody to tell it about
  touch(*peer);
  const uint64_t number = ++peer->rows_accepted;
  FaultReason reason = FaultReason::kRow;
  uint32_t records = 0;
  bool ok =
      bytes_ok && lane < kMaxLanes && lanes_->is_open(lane) && (closing_lanes_ & (1u << lane)) == 0;
  for (uint32_t at = 0; ok && at < length; ++records) {
    const uint32_t size = record_bytes(arena_->at(offset + at), length - at);
    if (size == 0 || size > peer->frame_room) {
      ok = false;
      if (size != 0) reason = FaultReason::kTooLarge;
    }
    at += size;
  }
  if (!ok || peer->refused) {
    ++peer->frames_lost;
    if (!ok)
      event(EventKind::kPeerFault, static_cast<int32_t>(index), 0, static_cast<int32_t>(reason));
    return;
  }
  Destination& dest = destination(*peer, lane);
  if (peer->refused) {
    ++peer->frames_lost;
    return;
  }
  dest.rows.accept(number);
  dest.pending.push_back({offset, length, records});
  if (!dest.touched) {
    dest.touched = true;
    touched_.emplace_back(peer, &dest);
  }
}

uint32_t Member::Core::flush(uint32_t rows) {
  if (closed_) return 0;
  progress_ = false;
  rows = std::min(rows, kSendRows);
  for (uint32_t i = 0; i < rows; ++i) accept_row(&buffers_.sends[size_t{i} * kSendStride]);

  pump_active();
  for (auto& [peer, dest] : touched_) (void)pump(*peer, *dest);
  post_lanes();
  // Behind the lanes: a first datagram should not come before the word that there is a publisher.
  post_groups();
  (void)harvest_all();

  // Out of credit: others may be returning some right now, on another CPU. A bounded look, so that
  // a loop that never yields to the event loop makes progress; how long is adapted to whether it
  // helps.
  const auto starved = [this] {
    return std::any_of(touched_.begin(), touched_.end(), [](const auto& entry) {
      return entry.second->pending_head < entry.second->pending.size();
    });
  };
  if (starved()) {
    const uint32_t budget = spins_ > 0 ? spins_ : (++spin_pause_ % 64 == 0 ? kProbeSpins : 0);
    bool helped = false;
    for (uint32_t spin = 0; spin < budget && !helped; ++spin) {
      relax();
      for (auto& [peer, dest] : touched_) {
        if (dest->pending_head == dest->pending.size() || dest->held ||
            !lane_of(*peer, *dest)->up())
          continue;
        refresh_credits(*peer);
        if (!peer->credits.may_send()) continue;
        helped = true;
        (void)pump(*peer, *dest);
      }
    }
    if (budget > 0) spins_ = helped ? std::min(kMaxSpins, budget * 2) : budget / 2;
    post_lanes();
    (void)harvest_all();
  }

  for (auto& [peer, dest] : touched_) {
    if (dest->pending_head < dest->pending.size()) copy_pending(*peer, *dest);
    dest->pending.clear();
    dest->pending_head = 0;
    dest->touched = false;
  }
  touched_.clear();

  const double wish = counter(kArenaRelease);
  arena_->release(wish >= 0 && wish < 9e15 ? static_cast<uint64_t>(wish) : rows_end_);
  flush_low_ = arena_->released();
  free_arena();
  if (closing_lanes_ != 0) reap_closing_lanes();
  const bool news = armed_ && arm_posted();
  update_tables();
#ifdef MILLRACE_STEPS
  check_invariants();
#endif
  return (active_.empty() && held_ == 0 && !news ? 0u : uint32_t{kUnsent}) |
         (progress_ ? uint32_t{kProgress} : 0u);
}

/**
 * Who sleeps has armed the lanes on which something was outstanding then. What he has posted since
 * is to wake him as well, and an error of it all the more (R7).
 * @return whether something has completed meanwhile, which is a reason to poll
 */
bool Member::Core::arm_posted() { return !arm_lanes() || harvest_all(); }

void Member::Core::refresh_credits(Peer& peer) {
  const uint64_t word = inbox_->granted_word(peer.index);
  // The tag says that it was written by this peer, and not late by one that had the index before.
  if (word >> 48 != peer.tag) return;
  (void)peer.credits.see(word & ((uint64_t{1} << 48) - 1));
}

Member::Core::Blocked Member::Core::pump(Peer& peer, Destination& dest) {
  Lane* const to = lane_of(peer, dest);
  if (to == nullptr) return Blocked::kLane;
  Lane& lane = *to;
  while (!dest.backlog.empty() || dest.pending_head < dest.pending.size()) {
    if (!lane.up() || dest.held) return Blocked::kLane;
    if (peer.credits.available() <= 1) refresh_credits(peer);  // the last credit costs a WAIT
    if (!peer.credits.may_send()) return Blocked::kCredit;
    if (!lane.room(kControlReserve)) {
      lane.post();
      (void)harvest(lane);
      if (!lane.up() || dest.held) return Blocked::kLane;
      if (!lane.room(kControlReserve)) return Blocked::kRoom;
    }
    if (dest.backlog.empty()) {
      stage_runs(peer, dest, lane);
    } else if (!stage_backlog(peer, dest, lane)) {
      return Blocked::kRoom;
    }
  }
  return Blocked::kNo;
}

bool Member::Core::stage_backlog(Peer& peer, Destination& dest, Lane& lane) {
  int32_t bounce = arena_->take_bounce();
  if (bounce < 0) {
    lane.post();
    (void)harvest(lane);
    if (!lane.up() || dest.held) return false;
    bounce = arena_->take_bounce();
    if (bounce < 0) return false;
  }
  const uint64_t before = dest.backlog.bytes();
  const Body body = dest.backlog.take_front();
  std::memcpy(arena_->bounce(bounce), body.data.get(), body.bytes);
  Posted& posted = lane.next();
  posted.bounce = bounce;
  posted.run_count = 0;
  posted.body_bytes = body.bytes;
  posted.records = body.records;
  posted.row_ends = body.row_ends;
  stage_frame(peer, dest, lane, 0);
  count_backlog(peer, before, dest.backlog.bytes());
  return true;
}

void Member::Core::stage_runs(Peer& peer, Destination& dest, Lane& lane) {
  Posted& posted = lane.next();
  posted.bounce = -1;
  posted.run_count = 0;
  posted.body_bytes = 0;
  posted.records = 0;
  posted.row_ends = 0;
  while (dest.pending_head < dest.pending.size()) {
    PendingRun& run = dest.pending[dest.pending_head];
    const uint32_t room = peer.frame_room - posted.body_bytes;
    uint32_t take = run.bytes;
    uint32_t records = run.records;
    if (take > room) {  // as many whole records as fit
      take = records = 0;
      for (;;) {
        const uint32_t size = record_bytes(arena_->at(run.offset + take), run.bytes - take);
        if (size == 0 || take + size > room) break;
        take += size;
        ++records;
      }
      if (take == 0) break;
    }
    const uint8_t* const from = arena_->at(run.offset);
    if (posted.bounce >= 0) {
      std::memcpy(arena_->bounce(posted.bounce) + posted.body_bytes, from, take);
    } else if (posted.run_count > 0 &&
               posted.runs[posted.run_count - 1].offset + posted.runs[posted.run_count - 1].bytes ==
                   run.offset) {
      posted.runs[posted.run_count - 1].bytes += take;
    } else if (posted.run_count < lane.max_runs()) {
      posted.runs[posted.run_count++] = {run.offset, take};
    } else {
      // More pieces than the gather list holds: from here on, a copy.
      posted.bounce = arena_->take_bounce();
      if (posted.bounce < 0) break;
      uint8_t* to = arena_->bounce(posted.bounce);
      for (uint32_t i = 0; i < posted.run_count; ++i) {
        std::memcpy(to, arena_->at(posted.runs[i].offset), posted.runs[i].bytes);
        to += posted.runs[i].bytes;
      }
      posted.run_count = 0;
      std::memcpy(to, from, take);
    }
    posted.body_bytes += take;
    posted.records += records;
    run.offset += take;
    run.bytes -= take;
    run.records -= records;
    if (run.bytes > 0) break;  // the frame is full
    ++dest.pending_head;
    ++posted.row_ends;
  }
  if (posted.body_bytes == 0) {
    // Can't be: accept_row() saw records that fit. Somebody wrote into the arena since; drop the
    // row, not the process.
    ++peer.frames_lost;
    dest.pending[dest.pending_head].bytes = 0;
    ++dest.pending_head;
    return;
  }
  stage_frame(peer, dest, lane, 0);
}

void Member::Core::stage_frame(Peer& peer, Destination& dest, Lane& lane, uint8_t flags) {
  Posted& posted = lane.next();
  if ((flags & kFlagControl) != 0) {
    posted.bounce = -1;
    posted.run_count = 0;
    posted.body_bytes = 0;
    posted.records = 0;
    posted.row_ends = 0;
  }
  // Whatever frame takes the last credit carries the WAIT bit; the answer needs no credit (R13).
  if ((flags & kFlagAnswer) == 0 && peer.credits.take()) {
    flags |= kFlagWait;
    ++counter(kWaitsSent);
  }
  posted.kind = Posted::Kind::kFrame;
  posted.flags = flags;
  posted.carried = static_cast<uint8_t>((peer.owes_statement ? kCarriedStatement : 0) |
                                        (peer.owes_recall && dest.lane == 0 ? kCarriedRecall : 0));
  posted.lane = static_cast<uint8_t>(dest.lane);
  posted.peer = peer.index;
  posted.generation = peer.generation;
  posted.sequence = dest.next_sequence++;
  posted.arena_low = flush_low_;

  FrameHeader* const header = lane.header();
  header->magic = kFrameMagic;
  header->version = kFrameVersion;
  header->flags = flags;
  header->lane = static_cast<uint16_t>(dest.lane);
  header->sender = options_.incarnation;
  header->receiver = peer.incarnation;
  header->sequence = posted.sequence;
  header->body_bytes = posted.body_bytes;
  header->records = posted.records;
  header->returned = peer.credits.returned();
  header->recall_answered = peer.credits.recall_answered();
  header->used = peer.credits.used();
  header->granted = peer.book.granted();
  peer.announced = peer.book.granted();
  peer.announce_again = false;
  peer.owes_statement = false;
  if (dest.lane == 0) peer.owes_recall = false;
  progress_ = true;
  touch(peer);
  lane.stage_frame(peer.remote.srq_number);
}

void Member::Core::copy_pending(Peer& peer, Destination& dest) {
  ++counter(kCreditStalls);
  const uint64_t before = dest.backlog.bytes();
  for (; dest.pending_head < dest.pending.size(); ++dest.pending_head) {
    const PendingRun& run = dest.pending[dest.pending_head];
    dest.backlog.append(arena_->at(run.offset), run.bytes, peer.frame_room, true);
  }
  count_backlog(peer, before, dest.backlog.bytes());
  activate(peer, dest);
}

void Member::Core::activate(Peer& peer, Destination& dest) {
  if (dest.active || dest.backlog.empty()) return;
  dest.active = true;
  active_.emplace_back(&peer, &dest);
}

void Member::Core::count_backlog(Peer& peer, uint64_t before, uint64_t after) {
  backlog_bytes_ += after - before;  // modular: may go down
  peer.backlog_bytes += after - before;
  touch(peer);
  if (after < before && peer.backlog_bytes == 0)
    event(EventKind::kDrained, static_cast<int32_t>(peer.index));
}

void Member::Core::pump_active() {
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    auto [peer, dest] = active_[i];
    (void)pump(*peer, *dest);
    if (dest->backlog.empty()) {
      dest->active = false;
    } else {
      active_[kept++] = active_[i];
    }
  }
  active_.resize(kept);
}

void Member::Core::post_lanes() {
  for (Lane* lane : lanes_->all()) lane->post();
}

void Member::Core::free_arena() {
  uint64_t lowest = ~uint64_t{0};
  for (const Lane* lane : lanes_->all()) lowest = std::min(lowest, lane->arena_low());
  arena_->free_up_to(lowest);
}

void Member::Core::completed(Posted& posted) {
  progress_ = true;
  if (posted.bounce >= 0) arena_->free_bounce(posted.bounce);
  if (posted.kind == Posted::Kind::kGrant) return;
  if (posted.kind == Posted::Kind::kRead) return piece_landed(posted, true, false, IBV_WC_SUCCESS);
  ++counter(kFramesSent);
  counter(kBytesSent) += kFrameHeaderBytes + posted.body_bytes;
  Peer* const peer = peers_.find(posted.peer, posted.generation);
  if (peer == nullptr) return;  // it left meanwhile
  frame_completed(*peer, destination(*peer, posted.lane), posted.sequence, posted.row_ends);
}

void Member::Core::frame_completed(Peer& peer, Destination& dest, uint64_t sequence,
                                   uint32_t row_ends) {
  dest.completed = sequence;
  dest.failures = 0;
  dest.rows.complete(row_ends);
  touch(peer);
}

}  // namespace millrace::transport
