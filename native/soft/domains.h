#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

namespace millrace::soft {

struct Context;

/** A thread domain: a promise of the caller about its threads. Nothing here needs it; it is
 * counted.
 */
struct Td {
  ibv_td td = {};
  std::atomic<uint32_t> users{0};  ///< parent domains
  static Td& of(ibv_td* handle) { return *reinterpret_cast<Td*>(handle); }
};

/**
 * A protection domain: nothing but a number that SRQs, QPs and regions carry. The number is unique
 * in the fabric, because a PD may be imported by another process. A parent domain and an imported
 * PD are handles of their own with the number of the PD behind them.
 */
struct Pd {
  ibv_pd pd = {};
  uint32_t number = 0;
  std::atomic<uint32_t> users{0};  ///< regions, windows, SRQs, QPs, address handles; parent domains

  Pd* base = nullptr;     ///< of a parent domain: the PD that it extends
  Td* td = nullptr;       ///< of a parent domain, or null
  bool imported = false;  ///< made by ibv_import_pd()
  uint64_t owner = 0;     ///< the process whose PD it is
  uint32_t index = 0;     ///< in the owner's table of PDs; not of a parent domain
  static Pd& of(ibv_pd* handle) { return *reinterpret_cast<Pd*>(handle); }
};

ibv_pd* alloc_pd(ibv_context* context);
/** EBUSY while anything is in it. An imported one ends like with unimport_pd(). */
int dealloc_pd(ibv_pd* pd);

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attr);
int dealloc_td(ibv_td* td);
/**
 * A PD with a thread domain and allocators attached. It is used like the PD that it extends: keys
 * are checked against that one. The allocators are never called: queues lie in the fabric's shared
 * memory, where no caller can put them.
 */
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr);

/** EINVAL: there is no PD with this handle in the process behind the context. */
ibv_pd* import_pd(ibv_context* context, uint32_t handle);
/** Frees the handle; what was made with it stays usable as long as the context is open. */
void unimport_pd(ibv_pd* pd);

}  // namespace millrace::soft
