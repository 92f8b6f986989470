#pragma once

#include <time.h>

#include <cstdint>

namespace millrace::base {

/** Monotonic time in nanoseconds. No system call on Linux (vDSO). Any thread. */
inline uint64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

/**
 * Monotonic time in nanoseconds as of the last kernel tick (1 to 10 ms): a few nanoseconds to read,
 * where now_ns() may cost 30 or more. For things that are done from time to time. Never ahead of
 * now_ns().
 */
inline uint64_t coarse_now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

/** Wall-clock time in milliseconds since the epoch, with a fraction. Any thread. */
inline double wall_ms() {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<double>(ts.tv_sec) * 1e3 + static_cast<double>(ts.tv_nsec) / 1e6;
}

}  // namespace millrace::base
