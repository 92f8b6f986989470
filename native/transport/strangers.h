#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transport/frame.h"

namespace millrace::transport {

/**
 * Frames of members that took our offer and send already, while theirs is still on the way to us.
 * They are kept until those are connected, and are then the first of them to be taken.
 */
class Strangers {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<uint8_t> body;
  };

  /** Frames of members that are not connected. */
  size_t size() const { return strange_.size(); }
  void keep(const FrameHeader& header, const uint8_t* body);
  /** That member is connected: its frames are known from here on, in their order. */
  void recognise(uint64_t incarnation);
  /** It is gone again. */
  void forget(uint64_t incarnation);
  /** Nobody is awaited any more. */
  void clear_strange() { strange_.clear(); }
  void clear();

  /** Whether there are frames of members that are connected by now; the oldest of them. */
  bool known() const { return !known_.empty(); }
  const Frame& front() const { return known_.front(); }
  void pop() { known_.pop_front(); }

 private:
  std::deque<Frame> strange_;
  std::deque<Frame> known_;
};

}  // namespace millrace::transport
