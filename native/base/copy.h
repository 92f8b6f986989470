#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace millrace::base {

/** From here on, and between cache lines' starts, the processor's own copy is the faster one. */
inline constexpr size_t kStringCopy = 1 << 20;

/**
 * Copies `bytes` bytes between places that don't overlap. What does not fit into the caches goes by
 * the processor's string copy, which does not read the lines that it overwrites: 12.7 GB/s for
 * 64 MiB where memcpy() takes 8.7 (an EPYC with 32 MiB of cache, glibc 2.36), the same at 1 MiB.
 * Stores that follow are seen after it, as after memcpy() (Intel SDM 3A, 9.2.4). Any thread.
 */
inline void copy_bytes(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr uintptr_t kLine = 64;  // the string copy is slow where the two lie differently in lines
  const uintptr_t places = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (__builtin_expect(bytes >= kStringCopy && places % kLine == 0, 0)) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  memcpy(to, from, bytes);
}

}  // namespace millrace::base
