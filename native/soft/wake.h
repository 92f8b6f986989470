#pragma once

#include <cstdint>
#include <mutex>
#include <set>

#include "base/files.h"
#include "base/status.h"

namespace millrace::soft {

class Process;
struct Context;

/**
 * What is written into a wake-up FIFO: for which arming of which CQ it is. So a wake-up that comes
 * late, after the CQ was emptied and armed anew, is known for what it is and raises no event:
 * programs exist that take an event for a promise that a poll finds something.
 */
struct WakeUp {
  uint64_t cq = 0;      ///< serial of the CQ; 0: none, whoever reads it looks; kEveryCq
  uint64_t arming = 0;  ///< the number that was read from `armed` (R7)
};
/** Every CQ that is armed shall be looked at (a peer died, R8). */
inline constexpr uint64_t kEveryCq = ~uint64_t{0};

/** Writes a wake-up into a FIFO; nothing if `fd` is -1. A FIFO that is full is readable already,
 * and its reader knows that some may be missing. */
void write_wake(int fd, const WakeUp& wake);

/**
 * A FIFO in the fabric's folder that peers write into to wake somebody of this process. Named by a
 * number that is never used again. Any thread may wake and drain.
 */
class WakeFifo {
 public:
  WakeFifo() = default;
  WakeFifo(WakeFifo&&) = default;
  WakeFifo& operator=(WakeFifo&&) = default;
  /** EMFILE when the process has made all the FIFOs of its life. Takes the registry mutex. */
  static base::Result<WakeFifo> create(Process& process);
  /** Takes the name away; peers that have it open write into nothing. */
  void remove(Process& process);

  uint32_t number() const { return number_; }
  int fd() const { return fd_.get(); }
  /** What a FIFO can hold (Linux's default, which nobody here changes). Whoever reads as many at
   * once must reckon with more that found no room. */
  static constexpr size_t kCapacity = 65536 / sizeof(WakeUp);

  /** Makes the descriptor readable. */
  void wake(const WakeUp& wake = {}) const { write_wake(fd_.get(), wake); }
  /** Reads up to `count` wake-ups; @return how many. */
  size_t read(WakeUp* wakes, size_t count) const;
  /** Reads all wake-ups away; true if there was one. */
  bool drain() const;

 private:
  uint32_t number_ = 0;
  base::Fd fd_;
};

/**
 * A timer with any number of times at which somebody wants to look again. Its descriptor is
 * readable when one of them has come. Any thread.
 */
class Alarm {
 public:
  /** Times are rounded up to this, so that what polls ask for again and again does not pile up. */
  static constexpr uint64_t kGrainNs = 100'000;

  base::Status open();
  int fd() const { return fd_.get(); }
  /** Monotonic ns. A time in the past is soon. */
  void at(uint64_t ns);
  /** Takes the times that have come away. */
  void drain();

 private:
  void arm();

  base::Fd fd_;
  std::mutex lock_;
  std::set<uint64_t> times_;  ///< needs lock_
};

/** Which of a context's own descriptors are readable behind an event wait. */
struct Woken {
  bool work = false;      ///< Context::wake
  bool time = false;      ///< Context::alarm
  bool presence = false;  ///< somebody may have died
  bool frames = false;    ///< Context::feed
};

/**
 * What whoever was woken in an event wait does for the whole context: takes its wake-ups, notices
 * deaths, and carries waiting work requests on. No lock may be held.
 */
void serve(Context& context, const Woken& woken);

}  // namespace millrace::soft
