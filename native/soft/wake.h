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
 * A FIFO in the fabric's folder that peers write a byte into to wake somebody of this process.
 * Named by a number that is never used again. Any thread may wake and drain.
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
  /** Makes the descriptor readable; a full FIFO is readable already. */
  void wake() const;
  /** Reads the wake-ups away; true if there was one. */
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

/**
 * What whoever was woken in an event wait does for the whole context: takes its wake-ups, notices
 * deaths, and carries waiting work requests on. No lock may be held.
 */
void serve(Context& context);

}  // namespace millrace::soft
