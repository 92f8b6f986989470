#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::transport {

/**
 * The numbers of the rows of one destination that have not completed, in order, kept as intervals:
 * rows of one peer are numbered over all lanes, so that a peer with several lanes can say which
 * prefix of its rows is in the inbox. Constant time and memory while all rows go to one lane.
 */
class RowLedger {
 public:
  bool empty() const { return head_ == spans_.size(); }
  /** The oldest row that has not completed; only when not empty(). */
  uint64_t oldest() const { return spans_[head_].from; }

  /** Row number `row` was accepted; numbers only grow. */
  void accept(uint64_t row) {
    if (!empty() && spans_.back().to == row) {
      ++spans_.back().to;
      return;
    }
    if (empty()) clear();
    spans_.push_back({row, row + 1});
  }

  /** The `count` oldest rows completed. */
  void complete(uint64_t count) {
    while (count > 0) {
      assert(!empty());
      if (empty()) return;
      Span& span = spans_[head_];
      const uint64_t here = span.to - span.from;
      if (count < here) {
        span.from += count;
        return;
      }
      count -= here;
      ++head_;
    }
    if (empty()) {
      clear();
    } else if (head_ >= 64 && head_ * 2 >= spans_.size()) {
      spans_.erase(spans_.begin(), spans_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
  }

  void clear() {
    spans_.clear();
    head_ = 0;
  }

 private:
  struct Span {
    uint64_t from, to;
  };
  std::vector<Span> spans_;
  size_t head_ = 0;
};

}  // namespace millrace::transport
