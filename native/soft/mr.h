#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/files.h"
#include "soft/device.h"
#include "soft/layout/memory.h"

namespace millrace::soft {

struct Mr {
  ibv_mr mr = {};
  uint32_t index = 0;
  uint64_t owner = 0;     ///< the process whose table it is in
  bool imported = false;  ///< by ibv_import_mr()
  static Mr& of(ibv_mr* handle) { return *reinterpret_cast<Mr*>(handle); }
};

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

ibv_mr* reg_mr(ibv_pd* pd, void* addr, size_t length, int access);
ibv_mr* reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access);
ibv_mr* reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned int access);
/** EBUSY while a window is bound to it. */
int dereg_mr(ibv_mr* mr);
/**
 * Changes the PD, the access rights or the place of a region; its keys stay, and peers that have
 * looked it up look again. A failure is always IBV_REREG_MR_ERR_INPUT with errno: the old region is
 * as it was. EBUSY: a window is bound to it.
 */
int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access);
/**
 * A handle on a region of the process that `pd` belongs to: same keys, `addr` null. EINVAL: no such
 * region in that PD; EOPNOTSUPP: it is another process's and in memory that no file backs.
 */
ibv_mr* import_mr(ibv_pd* pd, uint32_t handle);
void unimport_mr(ibv_mr* mr);

}  // namespace millrace::soft
