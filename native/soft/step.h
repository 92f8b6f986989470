#pragma once

#include <cstdint>

namespace millrace::soft {

/**
 * A place where a process may be killed or stopped in a test: between any two steps of the
 * shared-memory protocol. Nothing at all in release builds.
 */
#ifdef MILLRACE_STEPS
void step(const char* name);

/**
 * Raises `signal` in this process at the `nth` following step (from 1); 0 switches it off. With a
 * filter only the steps of that name count. Test builds only.
 */
void signal_at_step(uint64_t nth, int signal, const char* filter = nullptr);
/** Steps passed since signal_at_step() was last called. */
uint64_t steps_passed();
#else
inline void step(const char*) {}
#endif

}  // namespace millrace::soft
