#include <errno.h>

#include <algorithm>
#include <cstring>

#include "transport/core.h"

/** Multicast groups: opening and closing them, their rows, and their datagrams. */
namespace millrace::transport {
namespace {

/** Records that a datagram may hold; all others go on lanes. */
constexpr uint32_t kGroupKinds = 1u << kRecordData | 1u << kRecordHeartbeat | 1u << kRecordFragment;
/** Names of slot files are numbered on from here, the inbox's from 0. */
constexpr uint32_t kFirstFile = 1'000'000'000;

}  // namespace

base::Result<OpenGroup> Member::Core::open_group(const GroupKey& key, uint32_t slots) {
  constexpr const char* kWhat = "open a multicast group";
  if (closed_) return base::Status::error(EBADF, kWhat, "the member is closed");
  auto at = std::find_if(groups_.begin(), groups_.end(),
                         [](const GroupEnd& end) { return !end.sender && !end.listener; });
  if (at == groups_.end() && groups_.size() == kMaxGroups) {
    return base::Status::error(ENOBUFS, kWhat,
                               base::format("a member has at most %u open at once", kMaxGroups));
  }
  const GroupParts parts = {context_.get(),  pd_.get(),     channel_.get(),
                            &lanes_->port(), folder_.get(), options_.incarnation};
  GroupEnd end;
  if (slots == 0) {
    auto made = GroupSender::create(parts, key);
    if (!made.ok()) return made.status();
    end.sender = made.take();
  } else {
    auto made = GroupListener::create(parts, key, slots, kFirstFile + group_files_++);
    if (!made.ok()) return made.status();
    end.listener = made.take();
  }
  if (at == groups_.end()) at = groups_.emplace(at);
  *at = std::move(end);
  return OpenGroup{static_cast<uint32_t>(at - groups_.begin()), group_room(lanes_->port())};
}

void Member::Core::close_group(uint32_t number) {
  if (closed_ || number >= groups_.size()) return;
  groups_[number] = {};
}

/** A row for a group: its records are a datagram, copied now. */
void Member::Core::accept_group_row(uint32_t number, uint32_t offset, uint32_t length) {
  if (number >= groups_.size() || !groups_[number].sender) return;  // closed meanwhile
  uint32_t records = 0;
  for (uint32_t at = 0; at < length; ++records) {
    const uint32_t size = record_bytes(arena_->at(offset + at), length - at);
    if (size == 0 || length > group_room(lanes_->port())) {
      event(EventKind::kPeerFault, -1, 0, static_cast<int32_t>(FaultReason::kRow));
      return;
    }
    at += size;
  }
  const bool staged = groups_[number].sender->stage(arena_->at(offset), length, records);
  ++counter(staged ? kDatagramsSent : kDatagramsLost);
}

void Member::Core::post_groups() {
  for (GroupEnd& end : groups_) {
    if (!end.sender) continue;
    counter(kDatagramsLost) += end.sender->post();
    counter(kErrorCompletions) += end.sender->harvest();
  }
}

bool Member::Core::look_at_groups() {
  bool any = false;
  for (GroupEnd& end : groups_) any |= end.listener && end.listener->collect();
  return any;
}

bool Member::Core::arm_groups() {
  for (GroupEnd& end : groups_) {
    if (end.listener && ibv_req_notify_cq(end.listener->cq(), 0) != 0) return false;
  }
  return true;
}

/** Copies datagrams to the target, as many as have room, and gives their slots back. */
void Member::Core::take_datagrams(std::span<uint8_t> target, uint32_t max_frames) {
  for (GroupEnd& end : groups_) {
    if (!end.listener) continue;
    GroupListener& listener = *end.listener;
    // What came before this poll, and no more: whoever sends without end must not keep us here.
    (void)listener.collect();
    while (listener.any() && max_frames > 0 && event_rows_ < kEventRows && need_room_ == 0) {
      const Took took = take_datagram(listener, target);
      if (took == Took::kNoRoom) break;
      if (took == Took::kFrame) --max_frames;
      listener.pop();
    }
    listener.post();
  }
}

Member::Core::Took Member::Core::take_datagram(const GroupListener& listener,
                                               std::span<uint8_t> target) {
  const GroupListener::Arrived arrived = listener.front();
  // Copied, then checked, then used (I9).
  FrameHeader header = {};
  std::memcpy(&header, arrived.frame, std::min<size_t>(arrived.bytes, sizeof(header)));
  // Anybody can send to a group, and other groups may have its address: what is not for us is only
  // counted. A sender hears itself; subscribers of its own member get it without the device.
  const Peer* const peer = peers_.of(header.sender);
  if (!check_group_header(header, arrived.bytes, listener.tag()) || peer == nullptr) {
    if (header.sender != options_.incarnation) ++counter(kDatagramsStray);
    return Took::kNothing;
  }
  if (cursor_ + header.body_bytes > target.size()) {
    need_room_ = header.body_bytes;
    return Took::kNoRoom;
  }
  uint8_t* const to = target.data() + cursor_;
  std::memcpy(to, arrived.frame + kFrameHeaderBytes, header.body_bytes);
  const int32_t index = static_cast<int32_t>(peer->index);
  if (!check_records(to, header.body_bytes, header.records, kGroupKinds))
    return bad_frame(index, FaultReason::kRecords);
  ++counter(kDatagramsReceived);
  counter(kBytesReceived) += kFrameHeaderBytes + header.body_bytes;
  int32_t* const row = next_row(EventKind::kDatagram, index);
  row[2] = static_cast<int32_t>(cursor_);
  row[3] = static_cast<int32_t>(header.body_bytes);
  row[4] = static_cast<int32_t>(header.records);
  cursor_ = (cursor_ + header.body_bytes + (kRecordAlign - 1)) & ~size_t{kRecordAlign - 1};
  return Took::kFrame;
}

}  // namespace millrace::transport
