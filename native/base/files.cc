#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace millrace::base {
namespace {

#ifdef MILLRACE_STEPS
std::atomic<int> fail_countdown{0};
std::atomic<int> fail_error{0};
#endif

/** 0 when the injected fault does not fire, else the errno to report. */
int injected_fault() {
#ifdef MILLRACE_STEPS
  if (fail_countdown.load(std::memory_order_relaxed) > 0 &&
      fail_countdown.fetch_sub(1, std::memory_order_relaxed) == 1) {
    return fail_error.load(std::memory_order_relaxed);
  }
#endif
  return 0;
}

struct flock byte_range(short type, off_t byte) {
  struct flock range;
  memset(&range, 0, sizeof(range));  // l_pid must be 0 for OFD locks
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return range;
}

}  // namespace

#ifdef MILLRACE_STEPS
void fail_reserve(int nth, int error) {
  fail_error.store(error, std::memory_order_relaxed);
  fail_countdown.store(nth, std::memory_order_relaxed);
}
#endif

void Fd::reset() {
  if (fd_ < 0) return;
  const int saved = errno;
  close(std::exchange(fd_, -1));
  errno = saved;
}

void Mapping::reset() {
  if (address_ == nullptr) return;
  const int saved = errno;
  munmap(std::exchange(address_, nullptr), std::exchange(bytes_, 0));
  errno = saved;
}

uint64_t free_bytes(int fd) {
  struct statvfs fs;
  if (fstatvfs(fd, &fs) != 0) return 0;
  return static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
}

std::string no_space_detail(const std::string& path, size_t wanted, uint64_t available) {
  return format(
      "%s needs %zu bytes and the filesystem has %llu bytes free; give the container more shared "
      "memory "
      "(docker run --shm-size=1g) or set MILLRACE_SHM_DIR to a folder on a larger tmpfs",
      path.c_str(), wanted, static_cast<unsigned long long>(available));
}

namespace {

/** Why the file system of `fd` says ENOSPC: it may lack inodes instead of bytes. */
std::string no_room(int fd, const std::string& name, size_t bytes) {
  struct statvfs fs;
  if (fstatvfs(fd, &fs) == 0 && fs.f_files > 0 && fs.f_ffree == 0) {
    return format("%s: the filesystem has room for %llu files, and none is left", name.c_str(),
                  static_cast<unsigned long long>(fs.f_files));
  }
  return no_space_detail(name, bytes, free_bytes(fd));
}

/** What is known to fail, found before anything is taken from the others on the filesystem. */
Status check_room(int fd, size_t bytes, const std::string& name) {
  rlimit limit;
  // The kernel would end the process with SIGXFSZ.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    return Status::error(
        EFBIG, "reserve shared memory",
        format("%s needs %zu bytes and RLIMIT_FSIZE is %llu bytes: raise it "
               "(ulimit -f unlimited)",
               name.c_str(), bytes, static_cast<unsigned long long>(limit.rlim_cur)));
  }
  struct stat info;
  struct statvfs fs;
  if (fstat(fd, &info) != 0 || fstatvfs(fd, &fs) != 0 || fs.f_blocks == 0) {
    return Status::success();  // can't be told, or a tmpfs without a limit
  }
  const uint64_t available = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
  const auto has = static_cast<uint64_t>(info.st_blocks) * 512;
  if (bytes <= has || bytes - has <= available) return Status::success();
  return Status::error(ENOSPC, "reserve shared memory", no_space_detail(name, bytes, available));
}

/** Reserved by one call: a signal makes the kernel give back what the call had got. */
constexpr size_t kReservePiece = 64 << 20;

}  // namespace

Status reserve(int fd, size_t bytes, const std::string& name, const std::atomic<bool>* stop) {
  int error = injected_fault();
  if (error == 0) {
    Status room = check_room(fd, bytes, name);
    if (!room.ok()) return room;
  }
  for (size_t at = 0; error == 0 && at < bytes;) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return Status::error(ECANCELED, "reserve shared memory", name + ": not needed any more");
    }
    const size_t piece = std::min(kReservePiece, bytes - at);
    // posix_fallocate returns its error and does not set errno; a signal may end it early.
    error = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(piece));
    if (error == EINTR) {
      error = 0;
    } else {
      at += piece;
    }
  }
  if (error == 0) return Status::success();
  if (error == ENOSPC) {
    return Status::error(error, "reserve shared memory",
                         no_space_detail(name, bytes, free_bytes(fd)));
  }
  return Status::error(error, "reserve shared memory",
                       format("%s, %zu bytes: %s", name.c_str(), bytes, strerror(error)));
}

Result<Fd> create_reserved(int dir, const std::string& name, size_t bytes, mode_t mode,
                           const std::atomic<bool>* stop) {
  Fd fd(openat(dir, name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd.valid()) {
    const int error = errno;
    if (error == ENOSPC) {
      return Status::error(error, "create shared memory file", no_room(dir, name, bytes));
    }
    return Status::error(error, "create shared memory file",
                         format("%s: %s", name.c_str(), strerror(error)));
  }
  Status status = reserve(fd.get(), bytes, name, stop);
  if (!status.ok()) {
    unlinkat(dir, name.c_str(), 0);
    return status;
  }
  return fd;
}

Result<Mapping> map_shared(int fd, size_t bytes, size_t offset, bool writable) {
  void* address = mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd,
                       static_cast<off_t>(offset));
  if (address == MAP_FAILED) {
    const int error = errno;
    return Status::error(error, "map shared memory",
                         format("%zu bytes: %s", bytes, strerror(error)));
  }
  return Mapping(address, bytes);
}

Status lock_byte(int fd, off_t byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  if (fcntl(fd, F_OFD_SETLK, &range) == 0) return Status::success();
  const int error = errno == EACCES ? EAGAIN : errno;  // POSIX lets both say "held"
  return Status::error(error, "take presence lock",
                       format("byte %lld: %s", static_cast<long long>(byte), strerror(error)));
}

void unlock_byte(int fd, off_t byte) {
  struct flock range = byte_range(F_UNLCK, byte);
  (void)fcntl(fd, F_OFD_SETLK, &range);
}

namespace {

bool range_is_locked(int fd, struct flock range) {
  if (fcntl(fd, F_OFD_GETLK, &range) != 0) return true;
  return range.l_type != F_UNLCK;
}

}  // namespace

bool byte_is_locked(int fd, off_t byte) { return range_is_locked(fd, byte_range(F_WRLCK, byte)); }

bool any_byte_is_locked(int fd) {
  struct flock range = byte_range(F_WRLCK, 0);
  range.l_len = 0;  // to the end, and beyond
  return range_is_locked(fd, range);
}

Status write_file(int dir, const std::string& name, const std::string& text, mode_t mode) {
  Fd fd(openat(dir, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd.valid()) {
    const int error = errno;
    return Status::error(error, "create file", format("%s: %s", name.c_str(), strerror(error)));
  }
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd.get(), text.data() + done, text.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    const int error = n < 0 ? errno : EIO;
    unlinkat(dir, name.c_str(), 0);
    return Status::error(error, "write file", format("%s: %s", name.c_str(), strerror(error)));
  }
  return Status::success();
}

}  // namespace millrace::base
