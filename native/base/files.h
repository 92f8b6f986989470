#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace millrace::base {

/** Owner of one file descriptor; closes it when destroyed. Move only. */
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  /** Gives the descriptor to the caller, who must close it. */
  int release() { return std::exchange(fd_, -1); }
  /** Closes now. errno is left as it was. */
  void reset();

 private:
  int fd_ = -1;
};

/** Owner of one mapping; unmaps when destroyed. Move only. */
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  std::byte* data() const { return static_cast<std::byte*>(address_); }
  size_t size() const { return bytes_; }
  bool valid() const { return address_ != nullptr; }
  /** Unmaps now. Pointers into it are dead afterwards. */
  void reset();

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

/**
 * Creates `name` in the folder `dir` (O_EXCL, mode, CLOEXEC) and reserves all its bytes, so that no
 * later access can end in SIGBUS. On failure nothing is left behind. ENOSPC says how many bytes the
 * filesystem has free and what to do. `dir` may be AT_FDCWD with an absolute `name`. Any thread.
 * ECANCELED soon after `stop` was set, if there is one.
 */
Result<Fd> create_reserved(int dir, const std::string& name, size_t bytes, mode_t mode = 0600,
                           const std::atomic<bool>* stop = nullptr);

/**
 * Reserves `bytes` of an open file (posix_fallocate, restarted on EINTR), or says what stands in
 * the way before anything is taken: ENOSPC with the free bytes, EFBIG with RLIMIT_FSIZE. `name` is
 * for the message. `stop` is that of create_reserved().
 */
Status reserve(int fd, size_t bytes, const std::string& name,
               const std::atomic<bool>* stop = nullptr);

/** Maps `bytes` of `fd` from `offset` (a page multiple), shared. The descriptor may be closed
 * afterwards. */
Result<Mapping> map_shared(int fd, size_t bytes, size_t offset = 0, bool writable = true);

/**
 * Tries to take the write lock on one byte of an open file (an OFD lock: it belongs to the open
 * file description, so the kernel drops it at the last close, at exit and at SIGKILL; forked
 * children share the description and must close it). EAGAIN: somebody else has it.
 */
Status lock_byte(int fd, off_t byte);

/** Gives a byte lock back. Errors can not happen for a valid descriptor and are ignored. */
void unlock_byte(int fd, off_t byte);

/**
 * Whether an open file description other than this one holds the lock on the byte. On an error of
 * the call it answers true: death is certain or it is not death (R5).
 */
bool byte_is_locked(int fd, off_t byte);

/** The same for any byte of the file. */
bool any_byte_is_locked(int fd);

/** Free bytes for this user on the filesystem of an open file or folder; 0 when it can not be told.
 */
uint64_t free_bytes(int fd);

/** The remedy text for a full shared-memory filesystem, with what was measured. */
std::string no_space_detail(const std::string& path, size_t wanted, uint64_t available);

/** Writes a whole short text to a new file; used for small marker files. */
Status write_file(int dir, const std::string& name, const std::string& text, mode_t mode = 0600);

#ifdef MILLRACE_STEPS
/**
 * Test builds only: the `nth` following reserve() of this process (counted from 1) fails with
 * `error` without touching the disk; 0 switches it off. Thread-safe.
 */
void fail_reserve(int nth, int error);
#endif

}  // namespace millrace::base
