#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "soft/layout/completions.h"
#include "soft/layout/memory.h"
#include "soft/layout/network.h"
#include "soft/layout/objects.h"
#include "soft/layout/process.h"
#include "soft/layout/queue.h"
#include "soft/layout/words.h"

// What lies in shared memory. Every structure is plain data plus lock-free atomics and starts
// zeroed (the files are fresh). Names of processes are (slot, incarnation); an incarnation is a
// number that is never used twice in the life of a fabric, so a word that carries one can be
// compared and swapped without fear of a newcomer in the same slot (R6, R10).
//
// A layout is major.minor. Only processes of the same layout share a fabric.
//   major  moves with the first release after a change, and minor goes back to 0. It is in the
//          folder's name: the layouts of two releases coexist unseen (`millrace ls` says so).
//   minor  moves with each change between releases, in size, place or meaning. Builds of it meet in
//          one folder: who finds a root of another layout makes it anew if nobody uses it, and else
//          says so. Sizes and places are in kLayoutFingerprint too, should the number be forgotten.
// The same in all layouts, so that each can judge any other: the first 40 bytes of the root file,
// an OFD lock on some byte of it for each process that uses it, and an flock on the folder while
// one joins, leaves or cleans.

namespace millrace::soft {

inline constexpr uint32_t kLayoutMajor = 1;
inline constexpr uint32_t kLayoutMinor = 3;
inline constexpr uint64_t kRootMagic = 0x314F4F52524C494Dull;  // "MILRROO1"
inline constexpr uint32_t kByteOrder = 0x01020304u;
inline constexpr uint32_t kAtomicLocks = 1024;

struct RootHeader {
  uint64_t magic;
  uint32_t major, minor;
  uint32_t byte_order;
  uint32_t page_size;
  uint64_t fingerprint;  ///< kLayoutFingerprint
  uint64_t bytes;        ///< of the whole file
  alignas(64) Word next_incarnation;
  Word next_srqn;
  Word next_qpn;
  Word next_pd;
  Word next_target;
  Word next_flow;       ///< age of flow rules
  Word groups_changed;  ///< counts changes of the table, after each (R32)
  Word flows_changed;
  Word flows_reserved;  ///< records of the table that have memory; only grows
};
static_assert(offsetof(RootHeader, bytes) == 32 && offsetof(RootHeader, next_incarnation) == 64);
static_assert(sizeof(RootHeader) == 192);

/** A table of the root file, of records of type T. */
template <class T>
struct Table {
  size_t offset;
  uint32_t count;
  constexpr size_t end() const { return offset + count * sizeof(T); }
};
inline constexpr Table<ProcessRecord> kProcessTable = {4096, kProcesses};
inline constexpr Table<XrcdRecord> kXrcdTable = {kProcessTable.end(), kXrcds};
inline constexpr Table<SrqRecord> kSrqTable = {kXrcdTable.end(), kSrqs};
inline constexpr Table<QpRecord> kQpTable = {kSrqTable.end(), kQps};
inline constexpr Table<QpHolders> kHolderTable = {kQpTable.end(), kTargetQps};
inline constexpr Table<GroupRecord> kGroupTable = {kHolderTable.end(), kGroups};
inline constexpr Table<PortRecord> kPortTable = {kGroupTable.end(), kPortRecords};
inline constexpr Table<SpreadRecord> kSpreadTable = {kPortTable.end(), kSpreads};
inline constexpr Table<Word> kLockTable = {kSpreadTable.end(), kAtomicLocks};  ///< see atomic.cc
/** The last: most fabrics have no rules, so its memory is reserved as it comes into use. */
inline constexpr Table<FlowRecord> kFlowTable = {align_up(kLockTable.end(), 64), kFlows};
inline constexpr size_t kRootBytes = kFlowTable.end();  ///< before it is rounded up to pages

/** Changes with the size, number or place of anything above (FNV-1a); its meaning is minor's. */
constexpr uint64_t layout_fingerprint() {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint64_t number : std::initializer_list<uint64_t>{kXrcdTable.offset,
                                                               kSrqTable.offset,
                                                               kQpTable.offset,
                                                               kHolderTable.offset,
                                                               kGroupTable.offset,
                                                               kFlowTable.offset,
                                                               kPortTable.offset,
                                                               kSpreadTable.offset,
                                                               kLockTable.offset,
                                                               kRootBytes,
                                                               sizeof(ProcessShared),
                                                               kMrs,
                                                               kBackings,
                                                               kPds,
                                                               sizeof(Entry),
                                                               sizeof(Ring),
                                                               sizeof(CqShared),
                                                               kRingsPerCq,
                                                               sizeof(QueueShared),
                                                               sizeof(ParkEntry),
                                                               kParkEntries,
                                                               sizeof(Wqe),
                                                               kUnit,
                                                               kChunkBytes})
    hash = (hash ^ number) * 0x100000001b3u;
  return hash;
}
inline constexpr uint64_t kLayoutFingerprint = layout_fingerprint();

}  // namespace millrace::soft
