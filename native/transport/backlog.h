#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>

#include "transport/frame.h"

namespace millrace::transport {

/** The body of one frame in heap memory: what a destination could not send at once (no credit, lane
 * down). */
struct Body {
  std::unique_ptr<uint8_t[]> data;
  uint32_t bytes = 0;
  uint32_t capacity = 0;
  uint32_t records = 0;
  uint32_t row_ends = 0;  ///< rows of `sends` whose last byte is in here

  static Body copy_of(const uint8_t* from, uint32_t bytes, uint32_t records, uint32_t row_ends);
};

/**
 * The frames that wait for one destination, oldest first, already cut to its slots. It takes
 * copies, so that the send arena never waits for a slow peer; how much may pile up is the
 * publisher's policy, above. Allocates per frame.
 */
class Backlog {
 public:
  bool empty() const { return bodies_.empty(); }
  uint64_t bytes() const { return bytes_; }
  size_t frames() const { return bodies_.size(); }

  /**
   * Appends records (checked by the caller: whole records, each of at most `frame_room` bytes).
   * `ends_row`: the last of these bytes ends a row.
   */
  void append(const uint8_t* records, uint32_t bytes, uint32_t frame_room, bool ends_row);

  /** The oldest frame; only when not empty(). */
  const Body& front() const { return bodies_.front(); }
  Body take_front();
  /** Puts frames that were lost on the way (R14) in front of everything, `bodies` being oldest
   * first. */
  void put_back(std::deque<Body>&& bodies);
  void clear();

 private:
  std::deque<Body> bodies_;
  uint64_t bytes_ = 0;
};

}  // namespace millrace::transport
