#include "soft/mr.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "soft/error.h"
#include "soft/fabric.h"
#include "soft/import.h"
#include "soft/mw.h"
#include "soft/step.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#define PR_SET_PTRACER_ANY (static_cast<unsigned long>(-1))
#endif

namespace millrace::soft {
namespace {

/** The file that a range of this process is a shared mapping of. */
struct MappedFile {
  std::string path;
  uint64_t device = 0, inode = 0;
  uint64_t offset = 0;  ///< of the range in the file
};

/** What a range of this process's memory is. */
struct Range {
  bool readable = false, writable = false;  ///< all of it
  bool mapped_file = false;  ///< all of it is one shared mapping of a file with a name
  MappedFile file;
};

/** One line of /proc/self/maps. */
struct MapsLine {
  unsigned long long start = 0, end = 0, offset = 0, inode = 0;
  unsigned major = 0, minor = 0;
  char flags[8] = {};
  const char* path = "";
};

bool parse_line(const char* line, MapsLine* out) {
  int path_at = 0;
  if (sscanf(line, "%llx-%llx %7s %llx %x:%x %llu %n", &out->start, &out->end, out->flags,
             &out->offset, &out->major, &out->minor, &out->inode, &path_at) < 7) {
    return false;
  }
  out->path = path_at == 0 ? "" : line + path_at;
  return true;
}

/** The file of a shared, writable mapping; false if others can't open it by name. */
bool file_of(const MapsLine& line, uint64_t address, MappedFile* out) {
  if (line.flags[3] != 's' || line.flags[1] != 'w' || line.inode == 0) return false;
  std::string path = line.path;
  while (!path.empty() && path.back() == '\n') path.pop_back();
  // A name that the kernel had to escape, or no name in the filesystem any more.
  if (path.empty() || path[0] != '/' || path.find('\\') != std::string::npos ||
      path.size() >= kBackingPath)
    return false;
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || info.st_ino != line.inode ||
      info.st_dev != makedev(line.major, line.minor))
    return false;
  out->path = path;
  out->device = static_cast<uint64_t>(info.st_dev);
  out->inode = line.inode;
  out->offset = line.offset + (address - line.start);
  return true;
}

/** Looks the range up in /proc/self/maps. */
Range inspect(uint64_t address, uint64_t length) {
  Range range;
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) {
    range.readable = range.writable = true;  // can't be told: the first access will
    return range;
  }
  char* text = nullptr;
  size_t room = 0;
  uint64_t at = address;
  const uint64_t end = address + length;
  bool all_readable = true, all_writable = true;
  while (at < end && getline(&text, &room, maps) > 0) {
    MapsLine line;
    if (!parse_line(text, &line) || line.end <= at) continue;
    if (line.start > at) break;  // a hole
    all_readable &= line.flags[0] == 'r';
    all_writable &= line.flags[1] == 'w';
    if (at == address && end <= line.end) range.mapped_file = file_of(line, address, &range.file);
    at = line.end;
  }
  free(text);
  fclose(maps);
  range.readable = at >= end && all_readable;
  range.writable = at >= end && all_writable;
  return range;
}

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
base::Status check_range(const void* addr, size_t length, unsigned int access, Range* out) {
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

/** The table that a key leads to from `peer`: its own, or that of the process that the key names.
 */
std::shared_ptr<PeerProcess> maker_of(Process& process, const PeerProcess& peer, uint32_t key) {
  const uint32_t slot = key_slot(key);
  if (slot == peer.slot() || slot >= process.root().processes()) return nullptr;
  const uint64_t word = process.root().process(slot).state.load();
  if (static_cast<ProcessState>(word >> 32) != ProcessState::kLive) return nullptr;
  auto maker = process.attach(slot, static_cast<uint32_t>(word));
  return maker.ok() && !is_gone(process, *maker.value()) ? maker.take() : nullptr;
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

/** A region of another process whose key a program here uses as a local key. Takes the registry
 * mutex; not on the data path. */
static std::byte* imported_address(Process& process, uint32_t pd, const ibv_sge& sge,
                                   uint32_t access) {
  std::lock_guard registry(process.registry());
  auto found = process.imported.find(sge.lkey);
  if (found == process.imported.end()) return nullptr;
  const Translation& region = *found->second;
  if (region.record->load(std::memory_order_acquire) != region.state || region.pd != pd ||
      region.maker->dead() || (region.access & access) != access ||
      !in_region(region.iova, region.length, sge.addr, sge.length)) {
    return nullptr;
  }
  return region.base + (sge.addr - region.iova);
}

std::byte* local_address(Process& process, uint32_t pd, const ibv_sge& sge, uint32_t access) {
  if (__builtin_expect(key_slot(sge.lkey) != process.slot(), 0))
    return imported_address(process, pd, sge, access);
  const MrRecord& record = process.shared().mrs[key_index(sge.lkey)];
  const uint64_t state = record.state.load(std::memory_order_acquire);  // pairs with reg_mr
  if (state == 0 || (state & 0xFF) != (sge.lkey & 0xFF)) return nullptr;
  if (record.kind != MrKind::kRegion || record.pd != pd || (record.access & access) != access ||
      !in_region(record.iova, record.length, sge.addr, sge.length)) {
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(record.address + (sge.addr - record.iova));
}

bool translate(Process& process, PeerProcess& peer, uint32_t key, Translation* out) {
  out->record = nullptr;
  out->map.reset();
  out->maker = maker_of(process, peer, key);
  if (out->maker == nullptr && key_slot(key) != peer.slot()) return false;
  PeerProcess& maker = out->maker != nullptr ? *out->maker : peer;
  base::Result<ProcessShared*> shared = maker.shared();
  if (!shared.ok()) return false;
  const MrRecord& record = shared.value()->mrs[key_index(key)];
  const uint64_t state = record.state.load(std::memory_order_acquire);
  if (state == 0 || (state & 0xFF) != (key & 0xFF)) return false;
  // A private copy, valid if the record is still the same afterwards (I9, R34).
  out->key = key;
  out->state = state;
  out->iova = record.iova;
  out->length = record.length;
  out->address = record.address;
  out->access = record.access;
  out->pd = record.pd;
  out->kind = record.kind;
  out->qp = record.qp;
  out->base = nullptr;
  const uint32_t backing_index = record.backing;
  const uint64_t offset = record.file_offset;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record.state.load(std::memory_order_acquire) != state) return false;

  if (maker.owner() == process.owner()) {
    out->base = reinterpret_cast<std::byte*>(out->address);  // our own memory
  } else if (backing_index < kBackings) {
    const Backing& backing = shared.value()->backings[backing_index];
    char path[kBackingPath];
    memcpy(path, backing.path, sizeof(path));
    path[sizeof(path) - 1] = '\0';
    const XrcdKey file = {backing.device, backing.inode};
    out->map = process.map_backing(file, path, offset + out->length);
    if (out->map != nullptr) out->base = out->map->data() + offset;
    // else: not reachable by name from here (another mount namespace); process_vm_* may still work
  }
  out->backed = backing_index < kBackings;
  if (out->base == nullptr && out->maker != nullptr) return false;
  out->record = &record.state;
  return true;
}

ibv_mr* reg_mr_iova2(ibv_pd* pd_handle, void* addr, size_t length, uint64_t iova,
                     unsigned int access) {
  if (forked()) return fail_null(EPERM, "register memory", "this process was forked");
  if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
  if (iova + length < iova) {
    return fail_null(EINVAL, "register memory",
                     base::format("%zu bytes from iova %#llx wrap round", length,
                                  static_cast<unsigned long long>(iova)));
  }
  Range range;
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
  Range range;
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
