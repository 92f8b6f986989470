#include "transport/strangers.h"

#include <algorithm>

namespace millrace::transport {

void Strangers::keep(const FrameHeader& header, const uint8_t* body) {
  strange_.push_back({header, {body, body + header.body_bytes}});
}

void Strangers::recognise(uint64_t incarnation) {
  const auto others =
      std::stable_partition(strange_.begin(), strange_.end(),
                            [=](const Frame& frame) { return frame.header.sender != incarnation; });
  known_.insert(known_.end(), std::make_move_iterator(others),
                std::make_move_iterator(strange_.end()));
  strange_.erase(others, strange_.end());
}

void Strangers::forget(uint64_t incarnation) {
  known_.erase(
      std::remove_if(known_.begin(), known_.end(),
                     [=](const Frame& frame) { return frame.header.sender == incarnation; }),
      known_.end());
}

void Strangers::clear() {
  strange_.clear();
  known_.clear();
}

}  // namespace millrace::transport
