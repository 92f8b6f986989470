#include <errno.h>

#include <algorithm>
#include <string_view>

#include "transport/core.h"
#include "verbs/open.h"

/** Peers come and go: offers, connections, and what is left of those that are gone. */
namespace millrace::transport {
namespace {

/** When a peer is added, the inbox grows so that about that much can be lent on top of the floors.
 */
constexpr uint32_t kLendRoom = 32;

}  // namespace

/** What we offer to anybody. */
OfferData Member::Core::ours() const {
  const bool soft = std::string_view(verbs::provider_of(context_->device)->name) == "soft";
  OfferData data;
  data.incarnation = options_.incarnation;
  data.credit_rkey = inbox_->credit_rkey();
  data.srq_number = inbox_->srq_number();
  data.slot_bytes = inbox_->slot_bytes();
  data.lanes = lanes_->kind();
  data.medium = soft ? Medium::kSoft : Medium::kAdapters;
  data.address = lanes_->port().address;
  return data;
}

base::Result<Offer> Member::Core::offer() {
  if (closed_) return base::Status::error(EBADF, "offer", "the member is closed");
  if (peers_.full()) {
    return base::Status::error(ENOBUFS, "offer",
                               base::format("a member has at most %u peers", kMaxPeers));
  }
  // The floor is promised for ever, so it must be posted (I2). Beyond it, growing is welcome but
  // not needed.
  if (inbox_->pool() < kFloorSlots) {
    base::Status status = inbox_->grow();
    if (!status.ok()) return status;
  } else if (inbox_->pool() < kFloorSlots + kLendRoom && inbox_->slots() < inbox_->max_slots()) {
    (void)inbox_->grow();
  }
  if (inbox_->pool() < kFloorSlots) {
    return base::Status::error(
        ENOBUFS, "offer",
        base::format("the inbox has %u slots, all promised, and maxSlots is %u", inbox_->slots(),
                     inbox_->max_slots()));
  }
  (void)inbox_->take(kFloorSlots);

  Peer& peer = *peers_.reserve();
  peer.book.reset();
  peer.announced = peer.book.granted();

  OfferData data = ours();
  data.credit_address = inbox_->credit_address(peer.index);
  data.credit_tag = peer.tag;
  data.granted = static_cast<uint32_t>(peer.book.granted());
  std::fill_n(buffers_.peers.begin() + peer.index * kPeerStride, kPeerStride, 0.0);
  Offer out;
  out.peer = peer.index;
  out.bytes = encode_offer(data);
  return out;
}

base::Status Member::Core::connect(uint32_t index, uint64_t incarnation,
                                   std::span<const uint8_t> offer) {
  if (closed_) return base::Status::error(EBADF, "connect", "the member is closed");
  Peer* const reserved = peers_.at(index);
  if (reserved == nullptr) {
    return base::Status::error(EINVAL, "connect",
                               base::format("peer %u was not reserved by offer()", index));
  }
  Peer& peer = *reserved;
  if (peer.state == Peer::State::kConnected) {
    return base::Status::error(EEXIST, "connect",
                               base::format("peer %u is connected already", index));
  }
  const auto data = decode_offer(offer);
  if (!data) return base::Status::error(EPROTO, "connect", "the offer is not one of this version");
  if (data->incarnation != incarnation || incarnation == options_.incarnation) {
    return base::Status::error(EPROTO, "connect",
                               "the offer is of another incarnation than it came from");
  }
  if (peers_.of(incarnation) != nullptr) {
    return base::Status::error(EEXIST, "connect", "that incarnation is connected already");
  }
  base::Status status = check_reachable(ours(), *data, context_->device->name);
  if (!status.ok()) return status;
  peers_.connect(peer, incarnation);
  peer.remote = *data;
  peer.frame_room = std::min(data->slot_bytes, options_.slot_bytes) - kFrameHeaderBytes;
  peer.credits.reset(data->granted);
  strangers_.recognise(incarnation);  // what it sent before we knew it
  (void)destination(peer, 0);  // with RC its lane is asked for now, not when something is sent
  touch(peer);
  update_tables();
  return base::Status::success();
}

void Member::Core::disconnect(uint32_t index) {
  Peer* const found = peers_.at(index);
  if (closed_ || found == nullptr) return;
  Peer& peer = *found;
  if (peer.state == Peer::State::kConnected) {
    for (auto& dest : peer.lanes) {
      if (dest && dest->held) --held_;
    }
    backlog_bytes_ -= peer.backlog_bytes;
    peer.backlog_bytes = 0;
    touch(peer);
    update_tables();
  }
  const auto names = [&peer](const auto& entry) { return entry.first == &peer; };
  touched_.erase(std::remove_if(touched_.begin(), touched_.end(), names), touched_.end());
  active_.erase(std::remove_if(active_.begin(), active_.end(), names), active_.end());
  const int32_t number = static_cast<int32_t>(index);
  events_.erase(std::remove_if(events_.begin(), events_.end(),
                               [=](const Event& e) { return e.peer == number; }),
                events_.end());
  strangers_.forget(peer.incarnation);
  // Its slots go back when everything that has landed by now has been demultiplexed (R12).
  lanes_->part(index);
  collect_all();
  due_.push_back({arrived_, 0, 0, 0, 0, peer.book.share(), {}});
  end_fetches_of(index);
  peers_.remove(peer);
  if (peers_.reserved() == 0) strangers_.clear_strange();
  settle_due();
}

}  // namespace millrace::transport
