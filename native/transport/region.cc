#include "transport/region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

// Newer than the headers that this shall build with.
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace millrace::transport {
namespace {

constexpr size_t kPiece = 4 << 20;  ///< populated between two looks at `stop`
constexpr uint64_t kGentle = 24;    ///< times as long as it works it pauses

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

base::Status map_error(int error, size_t bytes) {
  std::string detail = base::format("%zu bytes: %s", bytes, strerror(error));
  rlimit limit;
  if (error == ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    detail += base::format("; RLIMIT_AS is %llu bytes: raise it (ulimit -v unlimited)",
                           static_cast<unsigned long long>(limit.rlim_cur));
  }
  return base::Status::error(error, "map a region", std::move(detail));
}

/** A shared mapping at the hint if it is free, else at a multiple of kRegionAlignment. */
base::Result<std::shared_ptr<base::Mapping>> map(int fd, size_t bytes, bool writable, void* hint) {
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  const size_t length = round_up(bytes, page_bytes());
  if (hint != nullptr) {
    void* const at = mmap(hint, length, protection, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (at != MAP_FAILED) return std::make_shared<base::Mapping>(at, length);
    // Something is there already, or no program may map there: a hint is no demand.
  }
  // Room with a boundary in it, of which the rest is given back.
  const size_t room = length + kRegionAlignment;
  void* const found =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return map_error(errno, bytes);
  auto* const start = static_cast<std::byte*>(found);
  const size_t before = round_up(reinterpret_cast<uintptr_t>(found), kRegionAlignment) -
                        reinterpret_cast<uintptr_t>(found);
  if (before > 0) munmap(start, before);
  if (room - before > length) munmap(start + before + length, room - before - length);
  auto mapping = std::make_shared<base::Mapping>(start + before, length);
  if (mmap(mapping->data(), length, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
    return map_error(errno, bytes);
  return mapping;
}

/** What this process is to a file, of user, group and other. */
const char* class_of(const struct stat& info) {
  if (geteuid() == info.st_uid) return "user";
  gid_t groups[256];
  const int count = getgroups(256, groups);
  const bool in = getegid() == info.st_gid ||
                  (count > 0 && std::find(groups, groups + count, info.st_gid) != groups + count);
  return in ? "group" : "other";
}

base::Status open_error(int error, int folder, const std::string& name, RegionAccess access) {
  struct stat info;
  if ((error == EACCES || error == EPERM) &&
      fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return base::Status::error(
        EACCES, "open a region",
        base::format("asked for %s; granted: %s, to user %u and group %u, and this process "
                     "(user %u, group %u) counts as %s",
                     access == RegionAccess::kWrite ? "read and write" : "read",
                     rights_text(info.st_mode).c_str(), info.st_uid, info.st_gid, geteuid(),
                     getegid(), class_of(info)));
  }
  return base::Status::error(error, "open a region",
                             base::format("%s: %s", name.c_str(), strerror(error)));
}

/** The first line of a small file of the system; empty if there is none. */
std::string read_line(const char* path) {
  char text[256] = "";
  if (FILE* file = fopen(path, "re")) {
    if (fgets(text, sizeof(text), file) == nullptr) text[0] = '\0';
    fclose(file);
  }
  text[strcspn(text, "\n")] = '\0';
  return text;
}

/** One page each, as old kernels need it. Nothing changes in the pages. */
void touch(std::byte* from, std::byte* to, bool write) {
  for (std::byte* at = from; at < to; at += page_bytes()) {
    auto* const byte = reinterpret_cast<unsigned char*>(at);
    if (write) {
      __atomic_fetch_or(byte, 0, __ATOMIC_RELAXED);
    } else {
      (void)__atomic_load_n(byte, __ATOMIC_RELAXED);
    }
  }
}

}  // namespace

base::Result<RegionFile> RegionFile::create(int folder, const std::string& name,
                                            const RegionOptions& options) {
  if (options.bytes == 0) return base::Status::error(EINVAL, "create a region", "0 bytes");
  auto file = base::create_reserved(folder, name, options.bytes, options.mode, options.stop);
  if (!file.ok()) return file.status();
  const auto undo = [&](base::Status status) {
    unlinkat(folder, name.c_str(), 0);
    return status;
  };
  if (fchmod(file.value().get(), options.mode) != 0) {  // whatever the umask took away
    const int error = errno;
    return undo(base::Status::error(error, "set a region's rights", strerror(error)));
  }
  auto region = map_file(file.value(), RegionAccess::kWrite);
  if (!region.ok()) return undo(region.status());
  if (options.huge_pages) {
    const std::span<std::byte> bytes = region.value().bytes();
    (void)madvise(bytes.data(), bytes.size(), MADV_HUGEPAGE);  // pages that are still to come
  }
  return region;
}

base::Result<RegionFile> RegionFile::open(int folder, const std::string& name, RegionAccess access,
                                          void* hint) {
  auto file = open_file(folder, name, access);
  if (!file.ok()) return file.status();
  return map_file(file.value(), access, hint);
}

base::Result<base::Fd> RegionFile::open_file(int folder, const std::string& name,
                                             RegionAccess access) {
  const int mode = access == RegionAccess::kWrite ? O_RDWR : O_RDONLY;
  // O_NONBLOCK: opening never waits, should somebody have put a FIFO there.
  base::Fd fd(openat(folder, name.c_str(), mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return open_error(errno, folder, name, access);
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return base::Status::error(EINVAL, "open a region", name + " is not a regular file");
  return fd;
}

base::Result<RegionFile> RegionFile::map_file(base::Fd& file, RegionAccess access, void* hint) {
  constexpr const char* what = "map a region";
  struct stat info;
  if (fstat(file.get(), &info) != 0) {
    const int error = errno;
    return base::Status::error(error, what, strerror(error));
  }
  if (info.st_size <= 0) return base::Status::error(EINVAL, what, "the file is empty");
  if (reinterpret_cast<uintptr_t>(hint) % kRegionAlignment != 0) {
    return base::Status::error(
        EINVAL, what,
        base::format("the address hint %p is not a multiple of %zu", hint, kRegionAlignment));
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  auto mapping = map(file.get(), bytes, access == RegionAccess::kWrite, hint);
  if (!mapping.ok()) return mapping.status();
  return RegionFile(std::move(file), mapping.take(), bytes, access);
}

std::string rights_text(mode_t mode) {
  const auto words = [](mode_t bits) {
    return (bits & 6) == 6   ? "read and write"
           : (bits & 4) != 0 ? "read"
           : (bits & 2) != 0 ? "write"
                             : "nothing";
  };
  return base::format("user %s, group %s, other %s", words(mode >> 6 & 7), words(mode >> 3 & 7),
                      words(mode & 7));
}

namespace {

/** CPU time of this thread. */
uint64_t cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/** For so long, unless stopped. */
void pause(uint64_t ns, const std::atomic<bool>& stop) {
  constexpr uint64_t kLook = 10'000'000;
  for (uint64_t left = ns; left > 0 && !stop.load(std::memory_order_relaxed);) {
    const timespec step = {0, static_cast<long>(std::min(left, kLook))};
    nanosleep(&step, nullptr);
    left -= std::min(left, kLook);
  }
}

}  // namespace

void populate(std::span<std::byte> range, bool write, bool huge, const std::atomic<bool>& stop,
              Pace pace) {
  bool advised = true;  // by madvise(), as long as it works
  for (size_t at = 0; at < range.size() && !stop.load(std::memory_order_relaxed); at += kPiece) {
    const uint64_t began = cpu_ns();
    std::byte* const from = range.data() + at;
    const size_t length = round_up(std::min(kPiece, range.size() - at), page_bytes());
    if (huge) {
      (void)madvise(from, length, MADV_HUGEPAGE);
      (void)madvise(from, length, MADV_COLLAPSE);  // huge_bytes() tells what came of it
    }
    advised =
        advised && madvise(from, length, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
    if (!advised) touch(from, from + length, write);
    if (pace == Pace::kGentle && at + kPiece < range.size()) {
      pause(kGentle * (cpu_ns() - began), stop);
    }
  }
}

uint64_t huge_bytes(std::span<const std::byte> range) {
  const auto start = reinterpret_cast<uintptr_t>(range.data());
  FILE* smaps = fopen("/proc/self/smaps", "re");
  if (smaps == nullptr) return 0;
  uint64_t kib = 0;
  bool inside = false;
  char* line = nullptr;
  size_t room = 0;
  while (getline(&line, &room, smaps) > 0) {
    unsigned long long from, to, size;
    if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
      inside = from >= start && from < start + range.size();
    } else if (inside && (sscanf(line, "ShmemPmdMapped: %llu", &size) == 1 ||
                          sscanf(line, "FilePmdMapped: %llu", &size) == 1)) {
      kib += size;
    }
  }
  free(line);
  fclose(smaps);
  return kib * 1024;
}

std::string huge_note(int fd) {
  struct stat info;
  std::string mount;
  if (fstat(fd, &info) == 0) {
    if (FILE* mounts = fopen("/proc/self/mountinfo", "re")) {
      char* line = nullptr;
      size_t room = 0;
      while (getline(&line, &room, mounts) > 0) {
        unsigned high, low;
        char place[256];
        if (sscanf(line, "%*d %*d %u:%u %*s %255s", &high, &low, place) != 3) continue;
        if (high == major(info.st_dev) && low == minor(info.st_dev)) mount = place;
      }
      free(line);
      fclose(mounts);
    }
  }
  const std::string setting = read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (setting.empty()) return "this kernel has no transparent huge pages for shared memory";
  return base::format(
      "the kernel made no huge pages of it (shmem_enabled is \"%s\"); mount the folder's file "
      "system with them (mount -o "
      "remount,huge=advise %s), or use Linux 6.1 or later with shmem_enabled not at deny",
      setting.c_str(), mount.empty() ? "/dev/shm" : mount.c_str());
}

Population::Population(const RegionFile& file, bool huge)
    : mapping_(file.mapping()),
      work_([range = file.bytes(), write = file.writable(), huge](const std::atomic<bool>& stop) {
        populate(range, write, huge, stop);
      }) {}

}  // namespace millrace::transport
