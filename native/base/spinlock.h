#pragma once

#include <sched.h>

#include <atomic>

namespace millrace::base {

/** Tells the processor that this is a waiting loop. */
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

/**
 * A lock between threads of ONE process, for sections of a few hundred nanoseconds. It never lives
 * in memory that another process maps (a process killed inside would leave it locked: invariant
 * I7). Uncontended it is one exchange. Usable with std::lock_guard.
 */
class Spinlock {
 public:
  void lock() {
    for (int spins = 0;
         locked_.exchange(true, std::memory_order_acquire);) {  // pairs with unlock()
      while (locked_.load(std::memory_order_relaxed)) {
        cpu_relax();
        // The holder may have lost its core: two threads on one core must not burn a whole time
        // slice.
        if (++spins % 256 == 0) sched_yield();
      }
    }
  }
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() { locked_.store(false, std::memory_order_release); }  // pairs with lock()

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace millrace::base
