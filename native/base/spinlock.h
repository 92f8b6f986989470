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
 * Asks for a cache line that another core has, to be written to. Several asked for one after the
 * other come together; each that is waited for takes a round trip between the cores.
 */
inline void fetch_for_write(const void* line) {
#if defined(__x86_64__)
  // The compiler's own builtin asks for it shared unless it may assume PREFETCHW; where a processor
  // has none it is a no-op.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
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
