#include "soft/domains.h"

#include <errno.h>

#include <memory>
#include <mutex>

#include "soft/device.h"
#include "soft/error.h"
#include "soft/import.h"
#include "soft/process.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

ibv_pd* publish(Context& context, std::unique_ptr<Pd> pd) {
  pd->pd.context = context.handle();
  pd->pd.handle = pd->number;
  context.objects.fetch_add(1, std::memory_order_relaxed);
  return &pd.release()->pd;
}

/** The index of a PD in its owner's table, kPds if it is not there. */
uint32_t find_pd(const ProcessShared& shared, uint32_t number) {
  for (uint32_t i = 0; number != 0 && i < kPds; ++i) {
    if (shared.pds[i].load(std::memory_order_acquire) == number) return i;
  }
  return kPds;
}

}  // namespace

ibv_pd* alloc_pd(ibv_context* handle) {
  if (forked()) return fail_null(EPERM, "allocate a PD", "this process was forked");
  Context& context = Context::of(handle);
  Process& process = *context.process;
  auto pd = std::make_unique<Pd>();
  do {
    pd->number = static_cast<uint32_t>(process.root().header().next_pd.fetch_add(1) + 1);
  } while (pd->number == 0);
  pd->owner = process.owner();
  {
    std::lock_guard registry(process.registry());
    Half* table = process.shared().pds;
    while (pd->index < kPds && table[pd->index].load(std::memory_order_relaxed) != 0) ++pd->index;
    if (pd->index == kPds) {
      return fail_null(ENOMEM, "allocate a PD",
                       base::format("all %u PDs of this process are in use", kPds));
    }
    table[pd->index].store(pd->number, std::memory_order_release);
  }
  step("pd made");
  return publish(context, std::move(pd));
}

int dealloc_pd(ibv_pd* handle) {
  if (forked()) return fail(EPERM, "free a PD", "this process was forked");
  Pd* pd = &Pd::of(handle);
  Process& process = *Context::of(handle->context).process;
  const uint32_t users = pd->users.load();
  if (users != 0) {
    return fail(EBUSY, "free a PD",
                base::format("%u regions, windows, SRQs, QPs, address handles or parent domains "
                             "are in it",
                             users));
  }
  if (pd->base != nullptr) {
    pd->base->users.fetch_sub(1);
    if (pd->td != nullptr) pd->td->users.fetch_sub(1);
  } else if (!pd->imported) {
    process.shared().pds[pd->index].store(0, std::memory_order_release);
  }
  Context::of(handle->context).objects.fetch_sub(1, std::memory_order_relaxed);
  delete pd;
  return 0;
}

ibv_td* alloc_td(ibv_context* handle, ibv_td_init_attr* attr) {
  if (forked()) return fail_null(EPERM, "allocate a thread domain", "this process was forked");
  if (attr->comp_mask != 0) {
    return fail_null(EINVAL, "allocate a thread domain",
                     base::format("comp_mask %#x has unknown bits", attr->comp_mask));
  }
  Td* td = new Td;
  td->td.context = handle;
  Context::of(handle).objects.fetch_add(1, std::memory_order_relaxed);
  return &td->td;
}

int dealloc_td(ibv_td* handle) {
  if (forked()) return fail(EPERM, "free a thread domain", "this process was forked");
  Td* td = &Td::of(handle);
  if (const uint32_t users = td->users.load()) {
    return fail(EBUSY, "free a thread domain", base::format("%u parent domains use it", users));
  }
  Context::of(handle->context).objects.fetch_sub(1, std::memory_order_relaxed);
  delete td;
  return 0;
}

ibv_pd* alloc_parent_domain(ibv_context* handle, ibv_parent_domain_init_attr* attr) {
  if (forked()) return fail_null(EPERM, "allocate a parent domain", "this process was forked");
  const uint32_t known =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if ((attr->comp_mask & ~known) != 0) {
    return fail_null(EINVAL, "allocate a parent domain",
                     base::format("comp_mask %#x has unknown bits", attr->comp_mask));
  }
  if (attr->pd == nullptr || attr->pd->context != handle || Pd::of(attr->pd).base != nullptr) {
    return fail_null(EINVAL, "allocate a parent domain",
                     "pd must be a PD of this context, and no parent domain itself");
  }
  if ((attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0 &&
      (attr->alloc == nullptr || attr->free == nullptr)) {
    return fail_null(EINVAL, "allocate a parent domain", "alloc and free belong together");
  }
  auto parent = std::make_unique<Pd>();
  parent->base = &Pd::of(attr->pd);
  parent->number = parent->base->number;
  parent->owner = parent->base->owner;
  parent->base->users.fetch_add(1);
  if (attr->td != nullptr) {
    parent->td = &Td::of(attr->td);
    parent->td->users.fetch_add(1);
  }
  return publish(Context::of(handle), std::move(parent));
}

ibv_pd* import_pd(ibv_context* handle, uint32_t number) {
  if (forked()) return fail_null(EPERM, "import a PD", "this process was forked");
  Context& context = Context::of(handle);
  Process& process = *context.process;
  auto pd = std::make_unique<Pd>();
  pd->number = number;
  pd->imported = true;
  pd->owner = context.objects_owner;
  {
    std::lock_guard registry(process.registry());
    auto peer = process.attach(owner_slot(pd->owner), owner_incarnation(pd->owner));
    if (!peer.ok()) return fail_null(peer.status());
    auto shared = peer.value()->shared();
    if (is_gone(process, *peer.value()) || !shared.ok()) {
      return fail_null(ENODEV, "import a PD", "the process that it belongs to has ended");
    }
    pd->index = find_pd(*shared.value(), number);
  }
  if (pd->index == kPds) {
    return fail_null(EINVAL, "import a PD",
                     base::format("the process behind this context has no PD %#x", number));
  }
  return publish(context, std::move(pd));
}

void unimport_pd(ibv_pd* handle) {
  if (forked()) return;
  std::unique_ptr<Pd> pd(&Pd::of(handle));
  Context& context = Context::of(handle->context);
  context.objects.fetch_sub(1, std::memory_order_relaxed);
  if (pd->users.load() == 0) return;
  // QPs may outlive it, as they may on a kernel device, and count themselves out of it.
  std::lock_guard objects(context.process->objects());
  context.orphans.push_back(std::move(pd));
}

}  // namespace millrace::soft
