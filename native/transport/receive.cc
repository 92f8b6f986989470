#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "transport/core.h"

/** Poll: completions become frames in the target, and slots are posted again. */
namespace millrace::transport {
namespace {

constexpr uint32_t kPollBatch = 64;

size_t aligned(size_t offset) { return (offset + (kRecordAlign - 1)) & ~size_t{kRecordAlign - 1}; }

}  // namespace

/** Takes up to `limit` completions of the receive CQ into the ring; returns how many. Never more
 * than there are slots. */
uint32_t Member::Core::collect(uint32_t limit) {
  ibv_wc wcs[kPollBatch];
  const int count =
      ibv_poll_cq(receive_cq_.get(), static_cast<int>(std::min(limit, kPollBatch)), wcs);
  if (count <= 0) return 0;
  for (int i = 0; i < count; ++i) {
    if (wcs[i].wr_id >= inbox_->slots()) continue;  // none of ours
    inbox_->taken();
    ring_[arrived_++ & (ring_.size() - 1)] = {static_cast<uint32_t>(wcs[i].wr_id), wcs[i].byte_len,
                                              wcs[i].status, lanes_->origin(wcs[i].qp_num)};
  }
  return static_cast<uint32_t>(count);
}

/**
 * Takes everything that has landed by now. Slots are not posted meanwhile, so this ends after as
 * many completions as there are slots, whatever others send.
 */
void Member::Core::collect_all() {
  while (arrived_ - demuxed_ < inbox_->slots() && collect(kPollBatch) > 0) {
  }
}

int32_t* Member::Core::next_row(EventKind kind, int32_t peer) {
  int32_t* const row = &buffers_.events[size_t{event_rows_++} * kEventStride];
  row[0] = static_cast<int32_t>(kind);
  row[1] = peer;
  std::fill_n(row + 2, kEventStride - 2, 0);
  return row;
}

void Member::Core::emit_events(std::span<uint8_t> target) {
  while (!events_.empty() && event_rows_ < kEventRows && need_room_ == 0) {
    const Event& event = events_.front();
    if (event.kind == EventKind::kTunnel && cursor_ + kTunnelBytes > target.size()) {
      need_room_ = kTunnelBytes;
      return;
    }
    int32_t* const row = next_row(event.kind, event.peer);
    std::copy(event.values.begin(), event.values.end(), row + 2);
    if (event.kind == EventKind::kTunnel) {
      std::memcpy(target.data() + cursor_, event.message.data(), kTunnelBytes);
      row[2] = static_cast<int32_t>(cursor_);
      row[3] = static_cast<int32_t>(kTunnelBytes);
      cursor_ = aligned(cursor_ + kTunnelBytes);
    }
    events_.pop_front();
  }
}

uint32_t Member::Core::poll(std::span<uint8_t> target, size_t offset, uint32_t max_frames) {
  if (closed_) return 0;
  ++counter(kPolls);
  event_rows_ = 0;
  need_room_ = 0;
  cursor_ = aligned(std::min(offset, target.size()));
  if (armed_) {
    armed_ = false;
    drain_channel();
  }
  (void)harvest_all();
  ask_again();
  if (lanes_->retire(base::coarse_now_ns())) {
    collect_all();
    lanes_->bury();
  }
  emit_events(target);

  for (uint32_t taken = 0; taken < max_frames && event_rows_ < kEventRows && need_room_ == 0;
       ++taken) {
    if (strangers_.known()) {
      const Strangers::Frame& frame = strangers_.front();
      Peer* const peer = peers_.of(frame.header.sender);
      if (peer != nullptr &&
          demultiplex(*peer, frame.header, frame.body.data(), target) == Took::kNoRoom) {
        break;
      }
      strangers_.pop();
      continue;
    }
    if (demuxed_ == arrived_ && collect(max_frames - taken) == 0) break;
    if (demuxed_ == arrived_) continue;
    const Arrived& arrived = ring_[demuxed_ & (ring_.size() - 1)];
    if (take_arrived(arrived, target) == Took::kNoRoom) break;
    ++demuxed_;
    inbox_->repost(arrived.slot);
  }
  if (!groups_.empty()) {
    post_groups();
    take_datagrams(target, max_frames);
  }
  // Posted again first, granted again only then (d1, I2).
  inbox_->post();
  settle_due();
  pump_active();
  settle();
  pump_fetches();
  (void)harvest_all();
  reap_fetches();
  free_arena();
  if (closing_lanes_ != 0) reap_closing_lanes();
  emit_events(target);
  if (need_room_ > 0) {
    // The row that says so may need the place of another event: kEventRows is checked before each
    // row, so it has one unless the table is full, and then the next poll says it.
    if (event_rows_ < kEventRows)
      next_row(EventKind::kNeedRoom, -1)[2] = static_cast<int32_t>(need_room_);
  }
  update_tables();
#ifdef MILLRACE_STEPS
  check_invariants();
#endif
  return event_rows_;
}

Member::Core::Took Member::Core::bad_frame(int32_t peer, FaultReason reason) {
  ++counter(kBadFrames);
  event(EventKind::kPeerFault, peer, 0, static_cast<int32_t>(reason));
  return Took::kNothing;
}

Member::Core::Took Member::Core::take_arrived(const Arrived& arrived, std::span<uint8_t> target) {
  const int32_t origin = arrived.from.peer;
  const bool told = origin != Lanes::kAnybody;
  if (arrived.status == IBV_WC_WR_FLUSH_ERR) return Took::kNothing;  // of a target that ended
  if (arrived.status != IBV_WC_SUCCESS || arrived.bytes < kFrameHeaderBytes ||
      arrived.bytes > inbox_->slot_bytes()) {
    return bad_frame(told ? origin : -1, FaultReason::kHeader);
  }
  // Copied, then checked, then used (I9). The slot itself is not written by anybody before it is
  // posted again.
  const uint8_t* const slot = inbox_->slot(arrived.slot);
  FrameHeader header;
  std::memcpy(&header, slot, sizeof(header));
  const HeaderFault fault = check_header(header, arrived.bytes, options_.incarnation, kMaxLanes);
  Peer* const peer = peers_.of(header.sender);
  const int32_t sender = peer != nullptr ? static_cast<int32_t>(peer->index) : -1;
  if (fault != HeaderFault::kNone) {
    const int32_t said = fault == HeaderFault::kMagic ? -1 : sender;
    return bad_frame(told ? origin : said, FaultReason::kHeader);
  }
  if (peer == nullptr) return from_stranger(header, arrived.from, slot + kFrameHeaderBytes);
  // Somebody else's name in the header: whoever has that lane is to blame, and nobody else.
  if (told && arrived.from != Lanes::Origin{sender, header.lane})
    return bad_frame(origin, FaultReason::kHeader);
  return demultiplex(*peer, header, slot + kFrameHeaderBytes, target);
}

/**
 * A frame of a member that we don't know. Either it took our offer and sends already, while its own
 * is still on the way to us: kept for connect(), and bounded by what the offers granted. Or it
 * comes late, from one that left: dropped. With RC nobody can send before it is connected.
 */
Member::Core::Took Member::Core::from_stranger(const FrameHeader& header, Lanes::Origin from,
                                               const uint8_t* body) {
  if (peers_.departed(header.sender)) {
    ++counter(kDuplicates);
    return Took::kNothing;
  }
  if (from.peer != Lanes::kAnybody) return bad_frame(from.peer, FaultReason::kHeader);
  if (strangers_.size() >= size_t{peers_.reserved()} * kFloorSlots)
    return bad_frame(-1, FaultReason::kOrder);
  strangers_.keep(header, body);
  return Took::kNothing;
}

Member::Core::Took Member::Core::demultiplex(Peer& peer, const FrameHeader& header,
                                             const uint8_t* body, std::span<uint8_t> target) {
  const int32_t index = static_cast<int32_t>(peer.index);
  uint64_t& last = peer.last[header.lane];
  if (header.sequence <= last) {
    // Arrived before: dropped, and worth no credit (R14).
    ++counter(kDuplicates);
    return Took::kNothing;
  }
  const bool answer = (header.flags & kFlagAnswer) != 0;
  if (header.sequence != last + 1 || (!answer && peer.book.outstanding() == 0)) {
    return bad_frame(index, FaultReason::kOrder);
  }
  bool good = true;
  if (header.body_bytes > 0) {
    if (cursor_ + header.body_bytes > target.size()) {
      need_room_ = header.body_bytes;
      return Took::kNoRoom;
    }
    std::memcpy(target.data() + cursor_, body, header.body_bytes);
    good = check_records(target.data() + cursor_, header.body_bytes, header.records);
  }
  last = header.sequence;
  ++peer.frames_received;
  ++counter(kFramesReceived);
  counter(kBytesReceived) += kFrameHeaderBytes + header.body_bytes;
  if (header.body_bytes > 0 && good) {
    counter(kRecordsReceived) += header.records;
    int32_t* const row = next_row(EventKind::kFrame, index);
    row[2] = static_cast<int32_t>(cursor_);
    row[3] = static_cast<int32_t>(header.body_bytes);
    row[4] = static_cast<int32_t>(header.records);
    row[5] = header.lane;
    row[6] = static_cast<int32_t>(static_cast<uint32_t>(header.sequence));
    row[7] = static_cast<int32_t>(static_cast<uint32_t>(header.sequence >> 32));
    cursor_ = aligned(cursor_ + header.body_bytes);
  }
  if (answer) {
    peer.credits.answered();
  } else {
    peer.book.consumed();
  }
  read_credit_fields(peer, header);
  if ((header.flags & kFlagWait) != 0) {
    peer.owes_answer = true;
    lend_to(peer);
  }
  obey_recall(peer);
  attend(peer);
  touch(peer);
  return good ? Took::kFrame : bad_frame(index, FaultReason::kRecords);
}

void Member::Core::read_credit_fields(Peer& peer, const FrameHeader& header) {
  uint32_t back = 0;
  const bool possible = (header.granted == 0 || peer.credits.see(header.granted)) &&
                        peer.book.stated(header.returned, header.recall_answered, &back);
  if (back > 0) inbox_->give(back);
  if (!possible) (void)bad_frame(static_cast<int32_t>(peer.index), FaultReason::kOrder);
}

/** Does what waits for everything that had arrived at some moment: answers to asks (R14), slots of
 * who left (R12). */
void Member::Core::settle_due() {
  if (due_.empty() || strangers_.known()) return;
  size_t kept = 0;
  for (const Due& due : due_) {
    if (due.at > demuxed_) {
      due_[kept++] = due;
      continue;
    }
    if (due.number == 0) {
      inbox_->give(due.slots);
      continue;
    }
    const Peer* const peer = peers_.find(due.peer, due.generation);
    if (peer == nullptr) continue;
    TunnelMessage message;
    message.type = TunnelType::kState;
    message.lane = due.lane;
    message.sender = options_.incarnation;
    message.receiver = peer->incarnation;
    message.number = due.number;
    message.last = peer->last[due.lane];
    message.qp = due.target;
    events_.push_back(
        {EventKind::kTunnel, static_cast<int32_t>(due.peer), {}, encode_tunnel(message)});
  }
  due_.resize(kept);
}

}  // namespace millrace::transport
