#pragma once

#include "soft/layout/memory.h"
#include "soft/layout/objects.h"
#include "soft/layout/words.h"

/** The processes of a fabric: what each says of itself, and what lies at the start of its chunks.
 */
namespace millrace::soft {

inline constexpr uint64_t kProcessMagic = 0x31434F52504C494Dull;  // "MILPROC1"
inline constexpr uint32_t kPds = 4096;                            ///< a process

enum class ProcessState : uint32_t { kFree = 0, kLive = 1, kReaping = 2 };
constexpr uint64_t process_word(ProcessState state, uint32_t incarnation) {
  return (static_cast<uint64_t>(state) << 32) | incarnation;
}

/** One joined process. The state word changes only by CAS; the rest is written before it says LIVE.
 */
struct ProcessRecord {
  Word state;    ///< process_word()
  uint32_t pid;  ///< in the process's own pid namespace
  uint32_t reserved;
  uint64_t pid_namespace;  ///< inode of /proc/self/ns/pid: process_vm_* works only within one
  uint64_t boot;           ///< hash of the boot id
  uint64_t reserved2[4];
};
static_assert(sizeof(ProcessRecord) == 64);

/** Start of chunk 0 of each process. */
struct ProcessShared {
  uint64_t magic;
  uint64_t owner;
  uint32_t pid, reserved0;
  uint64_t reserved[5];
  MrRecord mrs[kMrs];
  Backing backings[kBackings];
  Half pds[kPds];  ///< numbers of its PDs, 0 is free; written by the owner only
  /** Grows whenever a bit of `faults` was set by somebody else (R31). */
  alignas(64) Word attention;
  /** QPs of this process, by index, that somebody else has found at fault. */
  alignas(64) Word faults[kQps / 64];
};
static_assert(offsetof(ProcessShared, mrs) == 64);

}  // namespace millrace::soft
