#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/files.h"
#include "base/status.h"
#include "transport/member.h"
#include "verbs/owners.h"

namespace millrace::transport {

/** Memory of frame headers, one for each WR that a lane may have outstanding. */
struct HeaderBlock {
  uint8_t* base = nullptr;
  uint32_t lkey = 0;
};

/**
 * All local memory that WRs name, in one private mapping with one MR: the send arena (which
 * JavaScript writes), the header blocks of the lanes, the bounce slots and the words that credit
 * WRITEs are taken from. Where more lanes come up than there are blocks (RC: one for each peer),
 * blocks are added, so many at a time with an MR of their own. Pages are touched when they are
 * first used. The mapping and the tables outlive the member while anybody holds buffers().owner.
 */
class Arena {
 public:
  /** `lanes` header blocks of `lane_depth` headers; `slot_bytes` is the size of a bounce slot. */
  static base::Result<std::unique_ptr<Arena>> create(ibv_pd* pd, uint64_t arena_bytes,
                                                     uint32_t slot_bytes, uint32_t lanes,
                                                     uint32_t lane_depth);

  const Buffers& buffers() const { return buffers_; }
  uint32_t lkey() const { return mr_->lkey; }
  uint64_t bytes() const { return arena_bytes_; }

  uint8_t* at(uint32_t offset) const { return base_ + offset; }
  /** Errors: ENOMEM, or what registering says. */
  base::Result<HeaderBlock> take_headers();
  void give_headers(const HeaderBlock& block) { free_headers_.push_back(block); }
  /** MRs that it holds. */
  uint32_t regions() const { return 1 + static_cast<uint32_t>(more_headers_.size()); }
  /** The word that the grant (0) or recall number (1) for this peer is written from. */
  uint64_t* word(uint32_t peer, uint32_t which) const { return words_ + peer * 8 + which; }

  /** A free bounce slot, or -1. */
  int32_t take_bounce();
  void free_bounce(int32_t slot) { free_bounces_.push_back(slot); }
  uint8_t* bounce(int32_t slot) const {
    return bounces_ + static_cast<uint64_t>(slot) * slot_bytes_;
  }

  // The ring. Positions are cumulative bytes; an offset is a position modulo bytes().

  /** Everything below is free. */
  uint64_t freed() const { return freed_; }
  /** Everything below is not needed by JavaScript any more. */
  uint64_t released() const { return released_; }
  /** The position of an offset that a row names: the first one at or after freed(). */
  uint64_t position(uint32_t offset) const {
    const uint64_t behind = freed_ % arena_bytes_;
    return freed_ + (offset >= behind ? offset - behind : offset + arena_bytes_ - behind);
  }
  /** JavaScript needs nothing below `position` any more; ignored when it is not ahead, or more than
   * a ring ahead. */
  void release(uint64_t position) {
    if (position > released_ && position - freed_ <= arena_bytes_) released_ = position;
  }
  /** Frees up to what was released, but not beyond `lowest`, the oldest position that a posted WR
   * may name. */
  void free_up_to(uint64_t lowest) {
    const uint64_t to = lowest < released_ ? lowest : released_;
    if (to > freed_) freed_ = to;
  }

 private:
  Arena() = default;

  Buffers buffers_;
  verbs::MrPtr mr_;
  uint8_t* base_ = nullptr;
  uint8_t* bounces_ = nullptr;
  uint64_t* words_ = nullptr;
  uint64_t arena_bytes_ = 0;
  uint32_t slot_bytes_ = 0;
  uint32_t lane_depth_ = 0;
  ibv_pd* pd_ = nullptr;
  struct Extent {
    base::Mapping mapping;
    verbs::MrPtr mr;
  };
  std::vector<Extent> more_headers_;
  std::vector<HeaderBlock> free_headers_;
  std::vector<int32_t> free_bounces_;
  uint64_t freed_ = 0;
  uint64_t released_ = 0;
};

}  // namespace millrace::transport
