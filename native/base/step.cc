#include "base/step.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"

namespace millrace::base {

std::atomic<bool> delays_on{false};

namespace {

std::atomic<uint64_t> delay_seed{0};
std::atomic<uint64_t> delayed_threads{0};

}  // namespace

bool read_delays(const char** why) {
  const char* text = getenv("MILLRACE_SOFT_DELAYS");
  if (text == nullptr || *text == '\0') {
    delays_on.store(false, std::memory_order_relaxed);
    return true;
  }
  char* end = nullptr;
  errno = 0;
  const unsigned long long seed = strtoull(text, &end, 0);
  if (errno != 0 || *end != '\0') {
    *why = "MILLRACE_SOFT_DELAYS must be a number, the seed";
    return false;
  }
  delay_seed.store(seed, std::memory_order_relaxed);
  delays_on.store(true, std::memory_order_relaxed);
  return true;
}

void delay() {
  thread_local Rng random(delay_seed.load(std::memory_order_relaxed) ^
                          (delayed_threads.fetch_add(1, std::memory_order_relaxed) << 32));
  const uint64_t dice = random.next() >> 8;
  if (dice % 64 == 0) {
    const timespec pause = {0, static_cast<long>(1'000 + dice / 64 % 50'000)};
    nanosleep(&pause, nullptr);
  } else if (dice % 8 == 1) {
    sched_yield();
  }
}

#ifdef MILLRACE_STEPS
namespace {
std::atomic<uint64_t> passed{0};
std::atomic<uint64_t> target{0};
std::atomic<int> chosen_signal{0};
std::atomic<const char*> chosen_name{nullptr};
}  // namespace

void count_step(const char* name) {
  const char* filter = chosen_name.load(std::memory_order_relaxed);
  if (filter != nullptr && strcmp(filter, name) != 0) return;
  const uint64_t now = passed.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t nth = target.load(std::memory_order_relaxed);
  if (nth == now || nth == kEachStep) raise(chosen_signal.load(std::memory_order_relaxed));
}

void signal_at_step(uint64_t nth, int signal, const char* filter) {
  target.store(0, std::memory_order_relaxed);
  chosen_signal.store(signal, std::memory_order_relaxed);
  chosen_name.store(filter, std::memory_order_relaxed);
  passed.store(0, std::memory_order_relaxed);
  target.store(nth, std::memory_order_relaxed);
}

uint64_t steps_passed() { return passed.load(std::memory_order_relaxed); }
#endif

}  // namespace millrace::base
