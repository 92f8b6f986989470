#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/files.h"
#include "soft/layout/memory.h"
#include "soft/peer.h"
#include "soft/process.h"

/** From keys to memory: what a work request names, of this process and of others. */
namespace millrace::soft {

/**
 * A peer's region as this process reaches it: a checked copy of its record and, if it is a shared
 * mapping of a file, our own mapping of that file. Valid while the record's state is `state`.
 */
struct Translation {
  uint32_t key = 0;
  uint64_t state = 0;            ///< 0: nothing
  const Word* record = nullptr;  ///< the live state word, in the chunk of `maker`
  uint64_t iova = 0;
  uint64_t length = 0;
  uint64_t address = 0;  ///< in the peer, for process_vm_*
  uint32_t access = 0;
  uint32_t pd = 0;
  MrKind kind = MrKind::kRegion;
  uint32_t qp = 0;            ///< of a type 2 window: the only QP that it is good for
  std::byte* base = nullptr;  ///< of `iova` here; null: foreign memory
  bool backed = false;        ///< by a file: whoever has it maps it
  std::shared_ptr<base::Mapping> map;
  /** Whose region it is when that is not the peer: it was imported. Keeps `record` mapped. */
  std::shared_ptr<PeerProcess> maker;

  /** Whether an operation that arrives at QP `qpn` may use this key. Regions don't ask. */
  bool good_for(uint32_t qpn) const { return kind != MrKind::kWindow2 || qp == qpn; }
};

/**
 * Fills a translation of `key` in a peer's table, or, if the key names another process, in that
 * one's (an imported region: its PD is what the caller compares). Needs the process's registry
 * mutex. False: there is no such region, or it is an imported one in memory that no file backs.
 */
bool translate(Process& process, PeerProcess& peer, uint32_t key, Translation* out);

/** Checks [address, +length) against a region without wrapping round. */
inline bool in_region(uint64_t iova, uint64_t region, uint64_t address, uint64_t length) {
  return address >= iova && address - iova <= region && length <= region - (address - iova);
}

/** Checks a local gather or scatter element: the pointer to use, or null. */
std::byte* local_address(Process& process, uint32_t pd, const ibv_sge& sge, uint32_t access);

}  // namespace millrace::soft
