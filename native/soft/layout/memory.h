#pragma once

#include "soft/layout/words.h"

/** Regions and windows of a process, and the files that they are mappings of. */
namespace millrace::soft {

inline constexpr uint32_t kMrs = 4096;      ///< regions and windows of a process
inline constexpr uint32_t kBackings = 512;  ///< mapped files a process has regions in
inline constexpr uint32_t kBackingPath = 480;

/** A file that some registered regions of a process are a shared mapping of. */
struct Backing {
  uint64_t device, inode;
  Half users;  ///< regions in it; written by the owner only
  uint32_t reserved;
  char path[kBackingPath];  ///< absolute, zero-terminated
  uint64_t reserved2;
};
static_assert(sizeof(Backing) == 512);

inline constexpr uint32_t kNoBacking = 0xFFFFFFFF;
constexpr uint64_t mr_live(uint32_t generation) { return (uint64_t{1} << 32) | generation; }

/**
 * Key of a region or window: the slot of its process, the index in that process's table, and a tag,
 * which is the low byte of the generation. So a key names one process of the fabric, and a region
 * that was imported (ibv_import_mr) is found with the key that its maker has.
 */
constexpr uint32_t mr_key(uint32_t slot, uint32_t index, uint32_t tag) {
  return (slot << 20) | (index << 8) | (tag & 0xFF);
}
constexpr uint32_t key_slot(uint32_t key) { return key >> 20; }
constexpr uint32_t key_index(uint32_t key) { return (key >> 8) & (kMrs - 1); }
static_assert(kMrs == 1u << 12 && kProcesses <= 1u << 12);

enum class MrKind : uint32_t { kRegion = 0, kWindow1 = 1, kWindow2 = 2 };

/**
 * A registered region or a memory window. Written by its owner while `state` is 0; a peer copies
 * it, reads `state` again and uses the copy. `state` is 0 or mr_live(generation). A generation is
 * never used twice for an index; what is registered or bound again with the key it had moves its
 * upper bits on. A window's state is also taken from live to 0, by CAS, by a peer that sends with
 * invalidate.
 */
struct MrRecord {
  Word state;
  uint64_t address;  ///< in the owner's address space
  uint64_t length;
  uint64_t iova;  ///< the address that work requests use for the first byte
  uint32_t access;
  uint32_t pd;
  uint32_t backing;  ///< index, or kNoBacking: memory that only process_vm_* reaches
  uint32_t generation;
  uint64_t file_offset;  ///< of `address` in the backing file
  MrKind kind;
  uint32_t qp;  ///< of a type 2 window: the QP that it was bound on, and is good for alone
};
static_assert(sizeof(MrRecord) == 64);

}  // namespace millrace::soft
