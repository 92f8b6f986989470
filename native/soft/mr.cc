#include "soft/mr.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdio>
#include <mutex>

#include "soft/error.h"
#include "soft/fabric.h"
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

/** Looks the range up in /proc/self/maps; false unless one shared mapping of a file with a name
 * holds all of it. */
bool find_mapped_file(uint64_t address, uint64_t length, MappedFile* out) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  char* line = nullptr;
  size_t room = 0;
  bool found = false;
  while (!found && getline(&line, &room, maps) > 0) {
    unsigned long long start = 0, end = 0, offset = 0, inode = 0;
    unsigned major = 0, minor = 0;
    char flags[8] = {};
    int path_at = 0;
    if (sscanf(line, "%llx-%llx %7s %llx %x:%x %llu %n", &start, &end, flags, &offset, &major,
               &minor, &inode, &path_at) < 7) {
      continue;
    }
    if (address < start || address >= end) continue;
    if (length > end - address || flags[3] != 's' || flags[1] != 'w' || inode == 0 || path_at == 0)
      break;
    std::string path = line + path_at;
    while (!path.empty() && path.back() == '\n') path.pop_back();
    // A name that the kernel had to escape, or no name in the filesystem any more: others can't
    // open it.
    if (path.empty() || path[0] != '/' || path.find('\\') != std::string::npos ||
        path.size() >= kBackingPath)
      break;
    struct stat info;
    if (stat(path.c_str(), &info) != 0 || info.st_ino != inode ||
        info.st_dev != makedev(major, minor))
      break;
    out->path = path;
    out->device = static_cast<uint64_t>(info.st_dev);
    out->inode = inode;
    out->offset = offset + (address - start);
    found = true;
  }
  free(line);
  fclose(maps);
  return found;
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

}  // namespace

std::byte* local_address(Process& process, uint32_t pd, const ibv_sge& sge, uint32_t access) {
  const uint32_t index = sge.lkey >> 8;
  if (index >= kMrs) return nullptr;
  const MrRecord& record = process.shared().mrs[index];
  const uint64_t state = record.state.load(std::memory_order_acquire);  // pairs with reg_mr
  if (state == 0 || (state & 0xFF) != (sge.lkey & 0xFF)) return nullptr;
  if (record.pd != pd || (record.access & access) != access ||
      !in_region(record.iova, record.length, sge.addr, sge.length)) {
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(record.address + (sge.addr - record.iova));
}

bool translate(Process& process, PeerProcess& peer, uint32_t key, Translation* out) {
  out->record = nullptr;
  out->map.reset();
  const uint32_t index = key >> 8;
  if (index >= kMrs) return false;
  base::Result<ProcessShared*> shared = peer.shared();
  if (!shared.ok()) return false;
  const MrRecord& record = shared.value()->mrs[index];
  const uint64_t state = record.state.load(std::memory_order_acquire);
  if (state == 0 || (state & 0xFF) != (key & 0xFF)) return false;
  // A private copy, valid if the record is still the same afterwards (I9).
  out->key = key;
  out->state = state;
  out->iova = record.iova;
  out->length = record.length;
  out->address = record.address;
  out->access = record.access;
  out->pd = record.pd;
  out->base = nullptr;
  const uint32_t backing_index = record.backing;
  const uint64_t offset = record.file_offset;
  if (record.state.load(std::memory_order_acquire) != state) return false;

  if (peer.owner() == process.owner()) {
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
  out->record = &record.state;
  return true;
}

ibv_mr* reg_mr_iova2(ibv_pd* pd_handle, void* addr, size_t length, uint64_t iova,
                     unsigned int access) {
  if (forked()) return fail_null(EPERM, "register memory", "this process was forked");
  if (length == 0 ||
      reinterpret_cast<uintptr_t>(addr) + length < reinterpret_cast<uintptr_t>(addr) ||
      iova + length < iova) {
    return fail_null(EINVAL, "register memory", base::format("%zu bytes at %p", length, addr));
  }
  const unsigned int remote_writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((access & remote_writes) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return fail_null(EINVAL, "register memory",
                     "remote write or atomic access needs local write access too");
  }
  Pd& pd = Pd::of(pd_handle);
  Context& context = Context::of(pd_handle->context);
  Process& process = *context.process;
  MappedFile file;
  const bool mapped = find_mapped_file(reinterpret_cast<uintptr_t>(addr), length, &file);
  if (!mapped && (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)) != 0) {
    // Peers reach it by process_vm_*; where Yama is on they need our leave. Without Yama this
    // fails, which is fine.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  }
  auto mr = std::make_unique<Mr>();
  std::lock_guard registry(process.registry());
  ProcessShared& shared = process.shared();
  const uint32_t index = process.claim_mr();
  if (index == kMrs) {
    return fail_null(ENOMEM, "register memory",
                     base::format("all %u regions of this process are in use", kMrs));
  }
  MrRecord& record = shared.mrs[index];
  record.address = reinterpret_cast<uintptr_t>(addr);
  record.length = length;
  record.iova = iova;
  record.access = access;
  record.pd = pd.number;
  record.backing = mapped ? use_backing(shared, file) : kNoBacking;
  record.file_offset = mapped ? file.offset : 0;
  ++record.generation;
  step("region filled");
  record.state.store(mr_live(record.generation),
                     std::memory_order_release);  // pairs with translate, local_address
  mr->index = index;
  mr->pd = pd.number;
  mr->mr.context = pd_handle->context;
  mr->mr.pd = pd_handle;
  mr->mr.addr = addr;
  mr->mr.length = length;
  mr->mr.handle = index;
  mr->mr.lkey = mr->mr.rkey = (index << 8) | (record.generation & 0xFF);
  pd.users.fetch_add(1);
  context.objects.fetch_add(1, std::memory_order_relaxed);
  return &mr.release()->mr;
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
  Context& context = Context::of(handle->context);
  Process& process = *context.process;
  {
    std::lock_guard registry(process.registry());
    ProcessShared& shared = process.shared();
    MrRecord& record = shared.mrs[mr->index];
    record.state.store(0, std::memory_order_release);
    if (record.backing < kBackings)
      shared.backings[record.backing].users.fetch_sub(1, std::memory_order_relaxed);
    process.release_mr(mr->index);
  }
  Pd::of(handle->pd).users.fetch_sub(1);
  context.objects.fetch_sub(1, std::memory_order_relaxed);
  delete mr;
  return 0;
}

}  // namespace millrace::soft
