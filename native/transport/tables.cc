#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "transport/core.h"

/** What a member shows: events, the tables of its environment, and its resources. */
namespace millrace::transport {

void Member::Core::event(EventKind kind, int32_t peer, int32_t a, int32_t b) {
  // A peer that sends rubbish without end must not make this grow without end; it is counted
  // anyway.
  if (kind == EventKind::kPeerFault && events_.size() >= kEventRows) return;
  events_.push_back({kind, peer, {a, b, 0, 0, 0, 0}, {}});
}

void Member::Core::touch(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_.push_back(peer.index);
}

void Member::Core::update_tables() {
  counter(kArenaFreed) = static_cast<double>(arena_->freed());
  counter(kBacklogBytes) = static_cast<double>(backlog_bytes_);
  for (uint32_t index : dirty_) {
    Peer* const peer = peers_.at(index);
    if (peer == nullptr || !peer->dirty) continue;
    peer->dirty = false;
    uint64_t prefix = peer->rows_accepted;
    for (uint32_t i = 0; i < kMaxLanes; ++i) {
      const Destination* const dest = peer->lanes[i].get();
      if (dest != nullptr && !dest->rows.empty())
        prefix = std::min(prefix, dest->rows.oldest() - 1);
    }
    peer->rows_completed = prefix;
    double* const row = &buffers_.peers[size_t{index} * kPeerStride];
    row[kRowsCompleted] = static_cast<double>(prefix);
    row[kRowsAccepted] = static_cast<double>(peer->rows_accepted);
    row[kPeerBacklogBytes] = static_cast<double>(peer->backlog_bytes);
    row[kPeerCredits] = static_cast<double>(peer->credits.available());
    row[kPeerGranted] = static_cast<double>(peer->book.outstanding());
    row[kPeerFramesReceived] = static_cast<double>(peer->frames_received);
    row[kPeerFramesLost] = static_cast<double>(peer->frames_lost);
  }
  dirty_.clear();
}

Resources Member::Core::resources() const {
  Resources r;
  if (closed_) return r;
  r.device = context_->device->name;
  r.note = note_;
  r.kind = lanes_->kind();
  r.gid_index = lanes_->port().sgid_index;
  r.lanes = lanes_->open_count();
  r.pds = 1;
  r.xrcds = r.kind == LaneKind::kXrc ? 1 : 0;
  r.srqs = 1;
  r.cqs = 1 + static_cast<uint32_t>(lanes_->all().size());
  r.qps = lanes_->queue_pairs();
  r.mrs = arena_->regions() + inbox_->regions();
  r.slots = inbox_->slots();
  r.slot_bytes = inbox_->slot_bytes();
  r.peers = static_cast<uint32_t>(peers_.all().size());
  r.inbox_bytes = inbox_->bytes();
  r.arena_bytes = arena_->bytes();
  r.backlog_bytes = backlog_bytes_;
  for (const GroupEnd& end : groups_) {
    if (!end.sender && !end.listener) continue;
    ++r.groups;
    ++r.qps;
    ++r.cqs;
    ++r.mrs;
    if (!end.listener) continue;
    r.group_slots += end.listener->slots();
    r.group_bytes += end.listener->bytes();
  }
  return r;
}

#ifdef MILLRACE_STEPS
void Member::Core::check_invariants() const {
  // I2: what others may send without asking is posted, or has arrived.
  uint64_t promised = 0;
  uint64_t shares = 0;
  for (const Peer* peer : peers_.all()) {
    promised += peer->book.outstanding() + kAnswerSlots;
    shares += peer->book.share();
  }
  promised += uint64_t{peers_.reserved()} * kFloorSlots;
  shares += uint64_t{peers_.reserved()} * kFloorSlots;
  for (const Due& due : due_) shares += due.number == 0 ? due.slots : 0;
  const uint64_t posted = inbox_->posted() + (arrived_ - demuxed_);
  if (promised > posted || shares + inbox_->pool() != inbox_->slots() || posted > inbox_->slots()) {
    std::fprintf(stderr, "I2: promised %llu, posted %llu, shares %llu, pool %u, slots %u\n",
                 static_cast<unsigned long long>(promised), static_cast<unsigned long long>(posted),
                 static_cast<unsigned long long>(shares), inbox_->pool(), inbox_->slots());
    std::abort();
  }
}
#endif

}  // namespace millrace::transport
