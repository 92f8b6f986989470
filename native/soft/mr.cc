#include "soft/mr.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "soft/device.h"
#include "soft/error.h"
#include "soft/fabric.h"
#include "soft/import.h"
#include "soft/mapped_range.h"
#include "soft/mw.h"
#include "soft/step.h"
#include "soft/translate.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#define PR_SET_PTRACER_ANY (static_cast<unsigned long>(-1))
#endif

namespace millrace::soft {
namespace {

/** The backing's index in our table, with one more user; kNoBacking when the table is full. Needs
 * registry(). */
uint32_t use_backing(ProcessShared& shared, const MappedFile& file) {
  uint32_t spare = kNoBacking;
  for (uint32_t i = 0; i < kBackings; ++i) {
    Backing& backing = shared.backings[i];
    if (backing.users.load(std::memory_order_relaxed) == 0) {
      if (spare == kNoBacking) spare = i;
    } else if (backing.device == file.device && backing.inode == file.inode &&
               file.path == backing.path) {
      backing.users.fetch_add(1, std::memory_order_relaxed);
      return i;
    }
  }
  if (spare == kNoBacking) return spare;
  Backing& backing = shared.backings[spare];
  backing.device = file.device;
  backing.inode = file.inode;
  memcpy(backing.path, file.path.c_str(), file.path.size() + 1);
  backing.users.store(1, std::memory_order_release);
  return spare;
}

void leave_backing(ProcessShared& shared, uint32_t backing) {
  if (backing < kBackings) shared.backings[backing].users.fetch_sub(1, std::memory_order_relaxed);
}

constexpr unsigned int kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned int kKnownAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
    IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;

/** The kernel's rules for access flags (ib_check_mr_access); optional ones are accepted unheard. */
base::Status check_access(unsigned int access) {
  constexpr const char* what = "register memory";
  if ((access & ~kKnownAccess) != 0) {
    return base::Status::error(EINVAL, what, base::format("access %#x has unknown bits", access));
  }
  if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return base::Status::error(EINVAL, what,
                               "remote write or atomic access needs local write access too");
  }
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) {
    return base::Status::error(EOPNOTSUPP, what,
                               "this device has no on-demand paging, and needs none: it pins "
                               "nothing; leave IBV_ACCESS_ON_DEMAND out");
  }
  return base::Status::success();
}

/** The range as memory to register, with a check that the rights asked for are there. */
base::Status check_range(const void* addr, size_t length, unsigned int access, MappedRange* out) {
  constexpr const char* what = "register memory";
  const uint64_t address = reinterpret_cast<uintptr_t>(addr);
  if (length == 0 || address + length < address) {
    return base::Status::error(EINVAL, what, base::format("%zu bytes at %p", length, addr));
  }
  *out = inspect(address, length);
  const bool writes = (access & (kRemoteWrites | IBV_ACCESS_LOCAL_WRITE)) != 0;
  if (!out->readable || (writes && !out->writable)) {
    return base::Status::error(
        EFAULT, what,
        base::format("%zu bytes at %p are not all %s", length, addr,
                     out->readable ? "writable; register read-only memory without write access"
                                   : "mapped and readable"));
  }
  if (!out->mapped_file) {
    // Peers reach it by process_vm_*; where Yama is on they need our leave. Without Yama this
    // fails, which is fine.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  }
  return base::Status::success();
}

/** What is the same for every way to a region's handle. */
ibv_mr* publish(Pd& pd, std::unique_ptr<Mr> mr, uint32_t key) {
  mr->mr.context = pd.pd.context;
  mr->mr.pd = &pd.pd;
  mr->mr.handle = mr->index;
  mr->mr.lkey = mr->mr.rkey = key;
  pd.users.fetch_add(1);
  Context::of(pd.pd.context).objects.fetch_add(1, std::memory_order_relaxed);
  return &mr.release()->mr;
}

void drop_handle(Mr* mr) {
  Pd::of(mr->mr.pd).users.fetch_sub(1);
  Context::of(mr->mr.context).objects.fetch_sub(1, std::memory_order_relaxed);
  delete mr;
}

}  // namespace

ibv_mr* reg_mr_iova2(ibv_pd* pd_handle, void* addr, size_t length, uint64_t iova,
                     unsigned int access) {
  if (forked()) return fail_null(EPERM, "register memory", "this process was forked");
  if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
  if (iova + length < iova) {
    return fail_null(EINVAL, "register memory",
                     base::format("%zu bytes from iova %#llx wrap round", length,
                                  static_cast<unsigned long long>(iova)));
  }
  MappedRange range;
  base::Status status = check_access(access);
  if (status.ok()) status = check_range(addr, length, access, &range);
  if (!status.ok()) return fail_null(std::move(status));
  Pd& pd = Pd::of(pd_handle);
  Process& process = *Context::of(pd_handle->context).process;
  auto mr = std::make_unique<Mr>();
  std::lock_guard registry(process.registry());
  ProcessShared& shared = process.shared();
  const uint32_t index = process.claim_mr();
  if (index == kMrs) {
    return fail_null(ENOMEM, "register memory",
                     base::format("all %u regions and windows of this process are in use", kMrs));
  }
  MrRecord& record = shared.mrs[index];
  record.address = reinterpret_cast<uintptr_t>(addr);
  record.length = length;
  record.iova = iova;
  record.access = access;
  record.pd = pd.number;
  record.backing = range.mapped_file ? use_backing(shared, range.file) : kNoBacking;
  record.file_offset = range.mapped_file ? range.file.offset : 0;
  record.kind = MrKind::kRegion;
  record.qp = 0;
  ++record.generation;
  step("region filled");
  record.state.store(mr_live(record.generation),
                     std::memory_order_release);  // pairs with translate, local_address
  mr->index = index;
  mr->owner = process.owner();
  mr->mr.addr = addr;
  mr->mr.length = length;
  process.regions.insert(mr.get());
  return publish(pd, std::move(mr), mr_key(process.slot(), index, record.generation));
}

ibv_mr* reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return reg_mr_iova2(pd, addr, length, reinterpret_cast<uintptr_t>(addr),
                      static_cast<unsigned int>(access));
}

ibv_mr* reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return reg_mr_iova2(pd, addr, length, iova, static_cast<unsigned int>(access));
}

int dereg_mr(ibv_mr* handle) {
  if (forked()) return fail(EPERM, "deregister memory", "this process was forked");
  Mr* mr = &Mr::of(handle);
  Process& process = *Context::of(handle->context).process;
  if (mr->imported) {
    unimport_mr(handle);
    return 0;
  }
  {
    std::lock_guard registry(process.registry());
    if (const uint32_t windows = windows_on(process, *mr)) {
      return fail(EBUSY, "deregister memory",
                  base::format("%u memory windows are bound to it", windows));
    }
    ProcessShared& shared = process.shared();
    MrRecord& record = shared.mrs[mr->index];
    record.state.store(0, std::memory_order_release);
    leave_backing(shared, record.backing);
    process.release_mr(mr->index);
    process.regions.erase(mr);
  }
  drop_handle(mr);
  return 0;
}

int rereg_mr(ibv_mr* handle, int flags, ibv_pd* pd_handle, void* addr, size_t length, int access) {
  const auto refuse = [](base::Status status) {
    fail(std::move(status));
    return static_cast<int>(IBV_REREG_MR_ERR_INPUT);
  };
  const auto invalid = [&](int code, std::string why) {
    return refuse(base::Status::error(code, "re-register memory", std::move(why)));
  };
  if (forked()) return invalid(EPERM, "this process was forked");
  Mr& mr = Mr::of(handle);
  Process& process = *Context::of(handle->context).process;
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  if (flags == 0 || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0)
    return invalid(EINVAL, base::format("flags are %#x", static_cast<unsigned>(flags)));
  if (access != 0 && (flags & IBV_REREG_MR_CHANGE_ACCESS) == 0)
    return invalid(EINVAL, "access is given without IBV_REREG_MR_CHANGE_ACCESS");
  if (moves && (addr == nullptr || length == 0))
    return invalid(EINVAL, "a new place needs an address and a length");
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0 &&
      (pd_handle == nullptr || pd_handle->context != handle->context)) {
    return invalid(EINVAL, "the new PD must be one of the same context");
  }
  if (mr.imported) return invalid(EINVAL, "only the process that made a region changes it");

  ProcessShared& shared = process.shared();
  MrRecord& record = shared.mrs[mr.index];
  const unsigned int rights =
      (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 ? static_cast<unsigned int>(access) : record.access;
  MappedRange range;
  base::Status status = check_access(rights);
  if (status.ok()) {
    status =
        check_range(moves ? addr : handle->addr, moves ? length : handle->length, rights, &range);
  }
  if (!status.ok()) return refuse(std::move(status));

  std::lock_guard registry(process.registry());
  if (const uint32_t windows = windows_on(process, mr))
    return invalid(EBUSY, base::format("%u memory windows are bound to it", windows));
  // 0 first (R34): who has copied the old record finds that it is another one, who copies it now
  // waits for nothing and finds no region.
  record.state.store(0);
  step("region closed");
  if (moves) {
    leave_backing(shared, record.backing);
    record.address = reinterpret_cast<uintptr_t>(addr);
    record.length = length;
    record.iova = (rights & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : record.address;
    record.backing = range.mapped_file ? use_backing(shared, range.file) : kNoBacking;
    record.file_offset = range.mapped_file ? range.file.offset : 0;
    handle->addr = addr;
    handle->length = length;
  }
  record.access = rights;
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
    Pd::of(handle->pd).users.fetch_sub(1);
    Pd::of(pd_handle).users.fetch_add(1);
    handle->pd = pd_handle;
    record.pd = Pd::of(pd_handle).number;
  }
  record.generation += 256;  // another record with the same key
  record.state.store(mr_live(record.generation), std::memory_order_release);
  return 0;
}

ibv_mr* import_mr(ibv_pd* pd_handle, uint32_t index) {
  if (forked()) return fail_null(EPERM, "import a region", "this process was forked");
  Pd& pd = Pd::of(pd_handle);
  Process& process = *Context::of(pd_handle->context).process;
  const auto not_there = [&] {
    return fail_null(EINVAL, "import a region",
                     base::format("there is no region %u in PD %#x", index, pd.number));
  };
  if (index >= kMrs) return not_there();
  std::lock_guard registry(process.registry());
  auto peer = process.attach(owner_slot(pd.owner), owner_incarnation(pd.owner));
  if (!peer.ok()) return fail_null(peer.status());
  auto shared = peer.value()->shared();
  if (is_gone(process, *peer.value()) || !shared.ok())
    return fail_null(ENODEV, "import a region", "the process that it belongs to has ended");
  const uint64_t state = shared.value()->mrs[index].state.load(std::memory_order_acquire);
  const uint32_t key = mr_key(owner_slot(pd.owner), index, static_cast<uint32_t>(state));
  auto region = std::make_shared<Translation>();
  if (state == 0) return not_there();
  if (!translate(process, *peer.value(), key, region.get())) return not_there();
  if (region->pd != pd.number || region->kind != MrKind::kRegion) return not_there();
  if (pd.owner != process.owner()) {
    if (region->base == nullptr) {
      return fail_null(EOPNOTSUPP, "import a region",
                       "it is memory of another process that is no shared mapping of a file");
    }
    region->maker = peer.take();
    process.imported.emplace(key, region);
  }
  auto mr = std::make_unique<Mr>();
  mr->index = index;
  mr->owner = pd.owner;
  mr->imported = true;
  mr->mr.length = region->length;
  return publish(pd, std::move(mr), key);
}

void unimport_mr(ibv_mr* handle) {
  if (forked()) return;
  Mr* mr = &Mr::of(handle);
  Process& process = *Context::of(handle->context).process;
  if (mr->owner != process.owner()) {
    std::lock_guard registry(process.registry());
    const auto found = process.imported.find(handle->lkey);
    if (found != process.imported.end()) process.imported.erase(found);
  }
  drop_handle(mr);
}

}  // namespace millrace::soft
