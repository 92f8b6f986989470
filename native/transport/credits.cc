#include "transport/credits.h"

#include <cassert>

namespace millrace::transport {

void SendCredits::reset(uint64_t granted) {
  *this = SendCredits();
  seen_ = granted;
}

bool SendCredits::see(uint64_t granted) {
  if (granted <= seen_) return true;  // an older write or frame
  if (granted - used_ > kMaxCredits) return false;
  seen_ = granted;
  return true;
}

bool SendCredits::take() {
  assert(may_send());
  ++used_;
  if (used_ != seen_) return false;
  waiting_ = true;  // it was not before, or may_send() had said no
  return true;
}

uint32_t SendCredits::burn(uint32_t recall, bool* obeyed) {
  *obeyed = static_cast<int32_t>(recall - recall_answered_) > 0;
  if (!*obeyed) return 0;
  recall_answered_ = recall;
  if (available() <= kUsableFloor) return 0;
  const uint32_t burnt = static_cast<uint32_t>(available() - kUsableFloor);
  used_ += burnt;
  returned_ += burnt;
  return burnt;
}

void SendCredits::lost(uint32_t frames, bool wait) {
  assert(used_ >= frames);
  used_ -= frames;
  if (wait) waiting_ = false;  // nobody heard it, so nobody will answer
}

void GrantBook::reset() {
  *this = GrantBook();
  granted_ = kUsableFloor;
}

void GrantBook::consumed() {
  ++consumed_;
  // What the sender burnt is not granted again: it went to the pool (R11).
  if (outstanding() < kUsableFloor + lent_) ++granted_;
}

void GrantBook::lend(uint32_t n) {
  lent_ += n;
  granted_ += n;
}

bool GrantBook::recall() {
  if (recalling()) return false;
  ++recall_;
  return true;
}

bool GrantBook::stated(uint32_t returned, uint32_t recall_answered, uint32_t* back) {
  *back = 0;
  const int32_t more = static_cast<int32_t>(returned - returned_seen_);
  const int32_t answered = static_cast<int32_t>(recall_answered - recall_answered_);
  if (answered > 0 && static_cast<int32_t>(recall_ - recall_answered) < 0) return false;
  if (more > 0) {
    const uint32_t burnt = static_cast<uint32_t>(more);
    if (burnt > lent_ || burnt > outstanding()) return false;
    returned_seen_ = returned;
    returned_total_ += burnt;
    lent_ -= burnt;
    *back = burnt;
  }
  if (answered > 0) recall_answered_ = recall_answered;
  return true;
}

}  // namespace millrace::transport
