#include "soft/step.h"

#ifdef MILLRACE_STEPS

#include <signal.h>
#include <string.h>

#include <atomic>

namespace millrace::soft {
namespace {
std::atomic<uint64_t> passed{0};
std::atomic<uint64_t> target{0};
std::atomic<int> chosen_signal{0};
std::atomic<const char*> chosen_name{nullptr};
}  // namespace

void step(const char* name) {
  const char* filter = chosen_name.load(std::memory_order_relaxed);
  if (filter != nullptr && strcmp(filter, name) != 0) return;
  const uint64_t now = passed.fetch_add(1, std::memory_order_relaxed) + 1;
  if (now == target.load(std::memory_order_relaxed))
    raise(chosen_signal.load(std::memory_order_relaxed));
}

void signal_at_step(uint64_t nth, int signal, const char* filter) {
  target.store(0, std::memory_order_relaxed);
  chosen_signal.store(signal, std::memory_order_relaxed);
  chosen_name.store(filter, std::memory_order_relaxed);
  passed.store(0, std::memory_order_relaxed);
  target.store(nth, std::memory_order_relaxed);
}

uint64_t steps_passed() { return passed.load(std::memory_order_relaxed); }

}  // namespace millrace::soft

#endif
