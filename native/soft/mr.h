#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/files.h"
#include "soft/device.h"
#include "soft/layout.h"

namespace millrace::soft {

struct Mr {
  ibv_mr mr = {};
  uint32_t index = 0;
  uint32_t pd = 0;
  static Mr& of(ibv_mr* handle) { return *reinterpret_cast<Mr*>(handle); }
};

/**
 * A peer's region as this process reaches it: a checked copy of its record and, if it is a shared
 * mapping of a file, our own mapping of that file. Valid while the record's state is `state`.
 */
struct Translation {
  uint32_t key = 0;
  uint64_t state = 0;            ///< 0: nothing
  const Word* record = nullptr;  ///< the live state word, in the peer's chunk
  uint64_t iova = 0;
  uint64_t length = 0;
  uint64_t address = 0;  ///< in the peer, for process_vm_*
  uint32_t access = 0;
  uint32_t pd = 0;
  std::byte* base = nullptr;  ///< of `iova` here; null: foreign memory
  std::shared_ptr<base::Mapping> map;
};

/**
 * Fills a translation of `key` in a peer's table; needs the process's registry mutex. False: there
 * is no such region.
 */
bool translate(Process& process, PeerProcess& peer, uint32_t key, Translation* out);

/** Checks [address, +length) against a region without wrapping round. */
inline bool in_region(uint64_t iova, uint64_t region, uint64_t address, uint64_t length) {
  return address >= iova && address - iova <= region && length <= region - (address - iova);
}

/** Checks a local gather or scatter element: the pointer to use, or null. */
std::byte* local_address(Process& process, uint32_t pd, const ibv_sge& sge, uint32_t access);

ibv_mr* reg_mr(ibv_pd* pd, void* addr, size_t length, int access);
ibv_mr* reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access);
ibv_mr* reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned int access);
int dereg_mr(ibv_mr* mr);

}  // namespace millrace::soft
