#include "transport/peers.h"

#include <algorithm>

namespace millrace::transport {
namespace {

/** Incarnations that are remembered after they left. */
constexpr size_t kDeparted = 256;

}  // namespace

Peers::Peers() : peers_(kMaxPeers), generations_(kMaxPeers, 0) {
  for (uint32_t i = 0; i < kMaxPeers; ++i) free_.push_back(i);
}

Peer* Peers::reserve() {
  if (free_.empty()) return nullptr;
  const uint32_t number = free_.front();
  free_.pop_front();
  auto peer = std::make_unique<Peer>();
  peer->index = number;
  peer->generation = ++generations_[number];
  // Not 0, so that memory that was never written says nothing.
  peer->tag = static_cast<uint16_t>(1 + (peer->generation - 1) % 0xFFFF);
  ++reserved_;
  peers_[number] = std::move(peer);
  return peers_[number].get();
}

void Peers::connect(Peer& peer, uint64_t incarnation) {
  peer.state = Peer::State::kConnected;
  peer.incarnation = incarnation;
  --reserved_;
  connected_.push_back(&peer);
  by_incarnation_[incarnation] = &peer;
}

void Peers::remove(Peer& peer) {
  if (peer.state == Peer::State::kReserved) {
    --reserved_;
  } else {
    connected_.erase(std::find(connected_.begin(), connected_.end(), &peer));
    by_incarnation_.erase(peer.incarnation);
    departed_.push_back(peer.incarnation);
    if (departed_.size() > kDeparted) departed_.pop_front();
  }
  const uint32_t number = peer.index;
  peers_[number].reset();
  free_.push_back(number);
}

void Peers::clear() {
  peers_.clear();
  connected_.clear();
  by_incarnation_.clear();
  reserved_ = 0;
}

Peer* Peers::connected(uint32_t number) const {
  Peer* const peer = at(number);
  return peer != nullptr && peer->state == Peer::State::kConnected ? peer : nullptr;
}

Peer* Peers::find(uint32_t number, uint32_t generation) const {
  Peer* const peer = connected(number);
  return peer != nullptr && peer->generation == generation ? peer : nullptr;
}

bool Peers::departed(uint64_t incarnation) const {
  return std::find(departed_.begin(), departed_.end(), incarnation) != departed_.end();
}

}  // namespace millrace::transport
