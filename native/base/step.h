#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::base {

/**
 * MILLRACE_SOFT_DELAYS=<seed>: threads give up their core or pause for some microseconds at step
 * points, each by a sequence of its own that follows from the seed. Shows what depends on timing,
 * in any build. Read when the process joins a fabric; EINVAL's text in `why` for what is no number.
 */
bool read_delays(const char** why);
extern std::atomic<bool> delays_on;
void delay();

#ifdef MILLRACE_STEPS
/** Counts a step, and raises the signal that was chosen for it. */
void count_step(const char* name);

/** For signal_at_step(): not one step, but each. */
inline constexpr uint64_t kEachStep = ~uint64_t{0};

/**
 * Raises `signal` in this process at the `nth` following step (from 1), or at kEachStep; 0 switches
 * it off. With a filter only the steps of that name count. Test builds only.
 */
void signal_at_step(uint64_t nth, int signal, const char* filter = nullptr);
/** Steps passed since signal_at_step() was last called. */
uint64_t steps_passed();
#else
inline void count_step(const char*) {}
#endif

/**
 * A place between any two steps of the shared-memory protocol: where a process may be killed or
 * stopped in a test (test builds), or delayed. One branch that is not taken in release builds.
 */
inline void step(const char* name) {
  count_step(name);
  if (__builtin_expect(delays_on.load(std::memory_order_relaxed), 0)) delay();
}

}  // namespace millrace::base
