#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/peer.h"

namespace millrace::transport {

/**
 * The peers of a member, by number and by incarnation: reserved when an offer is made, connected
 * when theirs has come. A number that is free again gets another generation, so that what names an
 * earlier user finds nobody.
 */
class Peers {
 public:
  Peers();

  bool full() const { return free_.empty(); }
  /** A number for an offer; null when all are taken. Those that have been free for long come first:
   * late writes of an old peer should find nobody. */
  Peer* reserve();
  /** The reserved one is a member of that incarnation, which no other has. */
  void connect(Peer& peer, uint64_t incarnation);
  /** Forgets it; its incarnation is remembered for a while. */
  void remove(Peer& peer);
  void clear();

  /** Reserved or connected; null: nobody. */
  Peer* at(uint32_t number) const {
    return number < peers_.size() ? peers_[number].get() : nullptr;
  }
  /** Null if it is not connected. */
  Peer* connected(uint32_t number) const;
  /** The same, of that generation. */
  Peer* find(uint32_t number, uint32_t generation) const;
  /** The connected one of that incarnation, or null. */
  Peer* of(uint64_t incarnation) const {
    const auto known = by_incarnation_.find(incarnation);
    return known != by_incarnation_.end() ? known->second : nullptr;
  }
  /** Whether a member of that incarnation left lately: late frames of it are known for what they
   * are. */
  bool departed(uint64_t incarnation) const;

  /** Those that are connected, in no order. */
  const std::vector<Peer*>& all() const { return connected_; }
  /** Offers that were not answered yet. */
  uint32_t reserved() const { return reserved_; }

 private:
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<uint32_t> generations_;
  std::deque<uint32_t> free_;  ///< oldest first
  std::vector<Peer*> connected_;
  std::unordered_map<uint64_t, Peer*> by_incarnation_;
  std::deque<uint64_t> departed_;
  uint32_t reserved_ = 0;
};

}  // namespace millrace::transport
