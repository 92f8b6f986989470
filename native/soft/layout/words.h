#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

/** What shared memory is made of: words, names of processes, and places in their chunks. */
namespace millrace::soft {

inline constexpr uint32_t kProcesses = 256;
inline constexpr uint32_t kNumberBits = 24;  ///< QP and SRQ numbers
inline constexpr uint32_t kNumberMask = (1u << kNumberBits) - 1;
inline constexpr size_t kUnit = 64;  ///< references count in cache lines
inline constexpr size_t kChunkBytes = size_t{1} << 20;
inline constexpr uint16_t kNoChannel = 0xFFFF;

using Word = std::atomic<uint64_t>;
using Half = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);
static_assert(Half::is_always_lock_free && sizeof(Half) == 4);

/** (slot, incarnation) in one word; never 0 for a process, because incarnations start at 1. */
constexpr uint64_t owner_word(uint32_t slot, uint32_t incarnation) {
  return (static_cast<uint64_t>(slot) << 32) | incarnation;
}
constexpr uint32_t owner_slot(uint64_t owner) {
  return static_cast<uint32_t>(owner >> 32) & 0xFFFF;
}
constexpr uint32_t owner_incarnation(uint64_t owner) { return static_cast<uint32_t>(owner); }

/** A place in a chunk of a process that is known from the context. */
struct Ref {
  uint32_t chunk = 0;
  uint32_t unit = 0;   ///< offset / kUnit
  uint32_t bytes = 0;  ///< size of the structure, to be checked against the mapping before use (I9)
  uint32_t reserved = 0;
};
static_assert(sizeof(Ref) == 16);

constexpr size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace millrace::soft
