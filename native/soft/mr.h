#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

struct Mr {
  ibv_mr mr = {};
  uint32_t index = 0;
  uint64_t owner = 0;     ///< the process whose table it is in
  bool imported = false;  ///< by ibv_import_mr()
  static Mr& of(ibv_mr* handle) { return *reinterpret_cast<Mr*>(handle); }
};

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
