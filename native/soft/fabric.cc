#include "soft/fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "soft/reap.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

constexpr const char* kRootBuilding = "root.new";

/** Pid of the holder of an flock on this inode, 0 if /proc/locks does not show it. For messages
 * only. */
int flock_holder(const struct stat& folder) {
  FILE* locks = fopen("/proc/locks", "re");
  if (locks == nullptr) return 0;
  int found = 0;
  char line[256];
  while (found == 0 && fgets(line, sizeof(line), locks) != nullptr) {
    int pid = 0;
    unsigned long long inode = 0;
    // "3: FLOCK  ADVISORY  WRITE 1234 00:19:4711 0 EOF"
    if (strstr(line, "FLOCK") != nullptr && strstr(line, "->") == nullptr &&
        sscanf(line, "%*d: FLOCK %*s %*s %d %*x:%*x:%llu", &pid, &inode) == 2 &&
        inode == folder.st_ino) {
      found = pid;
    }
  }
  fclose(locks);
  return found;
}

base::Status check_folder(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    return base::Status::error(error, "inspect fabric folder", path + ": " + strerror(error));
  }
  if (info.st_uid != geteuid()) {
    return base::Status::error(EACCES, "open fabric folder",
                               base::format("%s belongs to user %u and this process runs as user "
                                            "%u; remove it, or set MILLRACE_SHM_DIR "
                                            "to a folder of your own",
                                            path.c_str(), static_cast<unsigned>(info.st_uid),
                                            static_cast<unsigned>(geteuid())));
  }
  if ((info.st_mode & 077) != 0) {
    return base::Status::error(
        EACCES, "open fabric folder",
        base::format("%s has mode %03o and must be 700 (chmod 700 %s)", path.c_str(),
                     static_cast<unsigned>(info.st_mode & 0777), path.c_str()));
  }
  return base::Status::success();
}

base::Result<base::Fd> open_folder(const std::string& path) {
  base::Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.valid()) return fd;
  const int error = errno;
  std::string detail = path + ": " + strerror(error);
  if (error == EACCES) {
    struct stat info;
    if (lstat(path.c_str(), &info) == 0) {
      detail = base::format(
          "%s belongs to user %u and this process runs as user %u; remove it, or set "
          "MILLRACE_SHM_DIR to a folder of your own",
          path.c_str(), static_cast<unsigned>(info.st_uid), static_cast<unsigned>(geteuid()));
    }
  }
  return base::Status::error(error, "open fabric folder", detail);
}

base::Status make_folder(const std::string& path) {
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    const int error = errno;
    std::string detail = path + ": " + strerror(error);
    if (error == ENOENT) detail += " (MILLRACE_SHM_DIR must name an existing folder)";
    return base::Status::error(error, "make fabric folder", detail);
  }
  base::Result<base::Fd> fd = open_folder(path);
  if (!fd.ok()) {
    if (made) rmdir(path.c_str());
    return fd.status();
  }
  return check_folder(fd.value().get(), path);
}

/** What a root is and this build is not; success if they fit. Read and not mapped: the file may be
 * short. */
base::Status check_root(int fd, const std::string& path) {
  const auto refuse = [](int error, std::string why) {
    return base::Status::error(error, "open fabric root", std::move(why));
  };
  RootHeader h = {};
  struct stat info;
  const ssize_t n = pread(fd, static_cast<void*>(&h), offsetof(RootHeader, next_incarnation), 0);
  if (n < 0 || fstat(fd, &info) != 0) {
    const int error = errno;
    return refuse(error, path + ": " + strerror(error));
  }
  if (n != offsetof(RootHeader, next_incarnation) || h.magic != kRootMagic)
    return refuse(EPROTO, path + " is not a fabric of this device");
  const Layout own = build_layout();
  if (h.major != own.major || h.minor != own.minor || h.fingerprint != kLayoutFingerprint) {
    return refuse(
        EPROTONOSUPPORT,
        base::format("%s has layout %u.%u (%016llx), this build has %u.%u (%016llx)", path.c_str(),
                     h.major, h.minor, static_cast<unsigned long long>(h.fingerprint), own.major,
                     own.minor, static_cast<unsigned long long>(kLayoutFingerprint)));
  }
  const uint32_t page = static_cast<uint32_t>(sysconf(_SC_PAGESIZE));
  if (h.byte_order != kByteOrder || h.page_size != page) {
    return refuse(EPROTONOSUPPORT,
                  base::format("%s was made with byte order %08x and pages of %u bytes, here they "
                               "are %08x and %u",
                               path.c_str(), h.byte_order, h.page_size, kByteOrder, page));
  }
  if (h.bytes != align_up(kRootBytes, page) || static_cast<uint64_t>(info.st_size) != h.bytes) {
    return refuse(EPROTO, base::format("%s is damaged: it has %llu bytes, and should have %zu",
                                       path.c_str(), static_cast<unsigned long long>(info.st_size),
                                       align_up(kRootBytes, page)));
  }
  return base::Status::success();
}

/** Makes a root under another name and renames it: one that was not finished (a kill) is never
 * seen. */
base::Result<base::Fd> make_root(int folder, const std::string& path) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = align_up(kRootBytes, page);
  unlinkat(folder, kRootBuilding, 0);
  base::Result<base::Fd> made =
      base::create_reserved(folder, kRootBuilding, align_up(kFlowTable.offset, page));
  if (!made.ok()) return made.status();
  if (ftruncate(made.value().get(), static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    unlinkat(folder, kRootBuilding, 0);
    return base::Status::error(error, "create fabric root", path + ": " + strerror(error));
  }
  step("root reserved");
  base::Result<base::Mapping> map = base::map_shared(made.value().get(), bytes);
  if (!map.ok()) {
    unlinkat(folder, kRootBuilding, 0);
    return map.status();
  }
  RootHeader& h = *reinterpret_cast<RootHeader*>(map.value().data());
  h.magic = kRootMagic;
  h.major = build_layout().major;
  h.minor = build_layout().minor;
  h.byte_order = kByteOrder;
  h.page_size = static_cast<uint32_t>(page);
  h.fingerprint = kLayoutFingerprint;
  h.bytes = bytes;
  if (renameat(folder, kRootBuilding, folder, kRootName) != 0) {
    const int error = errno;
    return base::Status::error(error, "create fabric root", path + ": " + strerror(error));
  }
  step("root made");
  return made;
}

#ifdef MILLRACE_STEPS
Layout pretended = {kLayoutMajor, kLayoutMinor};
#endif

}  // namespace

#ifdef MILLRACE_STEPS
Layout build_layout() { return pretended; }
void pretend_layout(const Layout& layout) { pretended = layout; }
#else
Layout build_layout() { return {kLayoutMajor, kLayoutMinor}; }
#endif

std::string chunk_name(uint32_t slot, uint32_t incarnation, uint32_t chunk) {
  return base::format("p%u.%u.%u", slot, incarnation, chunk);
}
std::string wake_name(uint32_t slot, uint32_t incarnation, uint32_t channel) {
  return base::format("w%u.%u.%u", slot, incarnation, channel);
}
std::string alive_name(uint32_t slot, uint32_t incarnation) {
  return base::format("alive.%u.%u", slot, incarnation);
}

std::string ring_name(uint64_t receiver, uint64_t cq_serial, uint64_t directory_entry) {
  return base::format("r%u.%u.%llu.%u.%u.%u", owner_slot(receiver), owner_incarnation(receiver),
                      static_cast<unsigned long long>(cq_serial), directory_slot(directory_entry),
                      directory_incarnation(directory_entry), directory_qpn(directory_entry));
}

base::Result<FabricPath> FabricPath::from_environment() {
  const char* base_folder = getenv("MILLRACE_SHM_DIR");
  const char* fabric = getenv("MILLRACE_FABRIC");
  FabricPath path;
  path.base = base_folder != nullptr && *base_folder != '\0' ? base_folder : "/dev/shm";
  const std::string name = fabric != nullptr && *fabric != '\0' ? fabric : "default";
  if (name.size() > 64 || name == "." || name == ".." || name.find('/') != std::string::npos) {
    return base::Status::error(
        EINVAL, "choose fabric",
        base::format("MILLRACE_FABRIC=\"%s\" must be a file name of at most 64 bytes",
                     name.c_str()));
  }
  path.parent = base::format("%s/millrace-soft.%u.%u", path.base.c_str(), build_layout().major,
                             static_cast<unsigned>(geteuid()));
  path.folder = path.parent + "/" + name;
  return path;
}

base::Status make_folders(const FabricPath& path) {
  base::Status status = make_folder(path.parent);
  if (!status.ok()) return status;
  status = make_folder(path.folder);
  if (!status.ok())
    rmdir(path.parent.c_str());  // ours, as was just checked; others' fabrics keep it
  return status;
}

base::Result<FolderLock> FolderLock::take(const FabricPath& path, int wait_ms) {
  const uint64_t deadline = base::now_ns() + static_cast<uint64_t>(wait_ms) * 1'000'000u;
  for (;;) {
    base::Result<base::Fd> fd = open_folder(path.folder);
    if (!fd.ok()) return fd.status();
    struct stat mine, there;
    if (fstat(fd.value().get(), &mine) != 0) {
      const int error = errno;
      return base::Status::error(error, "inspect fabric folder",
                                 path.folder + ": " + strerror(error));
    }
    while (flock(fd.value().get(), LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error != EWOULDBLOCK && error != EINTR) {
        return base::Status::error(error, "lock fabric folder",
                                   path.folder + ": " + strerror(error));
      }
      if (base::now_ns() >= deadline) {
        return base::Status::error(ETIMEDOUT, "lock fabric folder",
                                   base::format("%s is locked by process %d, which has not let go "
                                                "for %d ms; if it is stopped, continue "
                                                "(kill -CONT) or end it",
                                                path.folder.c_str(), flock_holder(mine), wait_ms));
      }
      const timespec pause = {0, 1'000'000};
      nanosleep(&pause, nullptr);
    }
    step("folder locked");
    // The last leaver may have removed the folder between our open and our lock: then the path is
    // another inode.
    if (stat(path.folder.c_str(), &there) == 0 && there.st_dev == mine.st_dev &&
        there.st_ino == mine.st_ino) {
      return FolderLock(fd.take());
    }
    if (base::now_ns() >= deadline) {
      return base::Status::error(
          ETIMEDOUT, "lock fabric folder",
          path.folder + " was replaced again and again while it was being locked");
    }
    if (access(path.folder.c_str(), F_OK) != 0) {
      return base::Status::error(ENOENT, "lock fabric folder", path.folder + " was just removed");
    }
  }
}

Root::Root(FabricPath path, base::Fd folder, base::Fd fd, base::Mapping map)
    : path_(std::move(path)), folder_(std::move(folder)), fd_(std::move(fd)), map_(std::move(map)) {
  while (incarnation_ == 0)
    incarnation_ = static_cast<uint32_t>(header().next_incarnation.fetch_add(1) + 1);
}

base::Result<std::unique_ptr<Root>> Root::open(int folder, const FabricPath& path, bool create,
                                               uint64_t* bytes) {
  const std::string full = path.folder + "/" + kRootName;
  base::Fd fd(openat(folder, kRootName, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  int error = errno;
  if (fd.valid()) {
    base::Status status = check_root(fd.get(), full);
    if (!status.ok()) {
      // Whoever uses it holds a lock; whoever is about to, the folder's, which is ours.
      if (base::any_byte_is_locked(fd.get())) {
        status.detail += "; processes use it (fuser -v " + full +
                         " shows them): stop them, or choose another MILLRACE_FABRIC";
        return status;
      }
      step("root found stale");
      remove_files(folder, kRootName, bytes);
      fd.reset();
      error = ENOENT;
    }
  }
  if (!fd.valid() && error == ENOENT && create) {
    base::Result<base::Fd> made = make_root(folder, full);
    if (!made.ok()) return made.status();
    fd = made.take();
  } else if (!fd.valid()) {
    return base::Status::error(error, "open fabric root", full + ": " + strerror(error));
  }
  base::Result<base::Mapping> map =
      base::map_shared(fd.get(), align_up(kRootBytes, static_cast<size_t>(sysconf(_SC_PAGESIZE))));
  if (!map.ok()) return map.status();
  // Not a dup: the folder's lock belongs to the open file description and would live as long as
  // this object.
  base::Fd own_folder(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own_folder.valid()) {
    error = errno;
    return base::Status::error(error, "open fabric folder", strerror(error));
  }
  return std::unique_ptr<Root>(new Root(path, std::move(own_folder), std::move(fd), map.take()));
}

base::Status Root::reserve_flows() {
  const uint32_t had = flows();
  const uint32_t more = std::min(std::max(2 * had, kFlowStep), kFlowTable.count);
  if (more == had) {
    return base::Status::error(ENOMEM, "reserve flow rules",
                               base::format("all %u rules of the fabric are in use", had));
  }
  // Before anybody looks there: a page without memory would be a SIGBUS.
  base::Status status =
      base::reserve(fd_.get(), kFlowTable.offset + more * sizeof(FlowRecord), kRootName);
  if (!status.ok()) return status;
  step("flows reserved");
  uint64_t seen = had;
  header().flows_reserved.compare_exchange_strong(seen, more);  // or somebody else has
  return base::Status::success();
}

uint32_t Root::claim_srq(uint32_t incarnation) {
  for (uint32_t tries = 0; tries < 2 * srqs(); ++tries) {
    const uint32_t n = static_cast<uint32_t>(header().next_srqn.fetch_add(1) + 1) & kNumberMask;
    if (n == 0) continue;
    SrqRecord& record = srq(n % srqs());
    uint64_t word = record.word.load();
    if (record_life(word) != Life::kFree) continue;
    if (record.word.compare_exchange_strong(word, record_word(n, Life::kCreating, 0, incarnation)))
      return n;
  }
  return 0;
}

uint32_t Root::claim_record(uint32_t n, uint32_t incarnation) {
  QpRecord& record = qp(n % qps());
  uint64_t word = record.word.load();
  if (n <= 1 || record_life(word) != Life::kFree) return 0;  // 0 and 1 are InfiniBand's special QPs
  return record.word.compare_exchange_strong(word, record_word(n, Life::kCreating, 0, incarnation))
             ? n
             : 0;
}

uint32_t Root::claim_qp(uint32_t incarnation) {
  // Counts over the indices behind the targets' only, and the numbers with them.
  const uint32_t own = qps() - targets();
  for (uint32_t tries = 0; tries < 2 * own; ++tries) {
    const uint64_t count = header().next_qpn.fetch_add(1);
    const uint64_t n = count / own * qps() + targets() + count % own;
    if (uint32_t number = claim_record(static_cast<uint32_t>(n & kNumberMask), incarnation))
      return number;
  }
  return 0;
}

uint32_t Root::claim_target(uint32_t incarnation) {
  for (uint32_t tries = 0; tries < 2 * targets(); ++tries) {
    const uint64_t count = header().next_target.fetch_add(1) + 2;  // not 0 and 1
    const uint64_t n = count / targets() * qps() + count % targets();
    if (uint32_t number = claim_record(static_cast<uint32_t>(n & kNumberMask), incarnation))
      return number;
  }
  return 0;
}

bool Root::is_dead(uint32_t slot, uint32_t incarnation) {
  if (slot >= processes()) return true;
  // The lock first: while it is held by that incarnation the word can not change to another one's.
  // REAPING with the lock held is a process that ends and still has threads: not dead yet.
  const bool locked = slot_locked(slot);
  const uint64_t word = process(slot).state.load();
  return !locked || static_cast<uint32_t>(word) != incarnation ||
         static_cast<ProcessState>(word >> 32) == ProcessState::kFree;
}

}  // namespace millrace::soft
