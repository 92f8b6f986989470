#include "addon/presence.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/files.h"

namespace millrace::addon {
namespace {

constexpr int kAttempts = 100;

/** Every descriptor that holds a lock. Never destroyed: exit handlers of others may still come
 * here. */
struct Held {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  std::vector<int> descriptors;
};

Held& held() {
  static Held* const instance = new Held;
  return *instance;
}

// The mutex is held across fork(), so the child sees a whole list. Closing is all that the child
// does.
void before_fork() { pthread_mutex_lock(&held().mutex); }
void after_fork_in_parent() { pthread_mutex_unlock(&held().mutex); }
void after_fork_in_child() {
  for (const int fd : held().descriptors) close(fd);
  held().descriptors.clear();
  pthread_mutex_unlock(&held().mutex);
}

class Guard {
 public:
  Guard() {
    static const int installed =
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    (void)installed;
    pthread_mutex_lock(&held().mutex);
  }
  ~Guard() { pthread_mutex_unlock(&held().mutex); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

/** A file that lost its name between open() and the lock was cleaned up as a dead member's. */
bool is_at(const std::string& path, int fd) {
  struct stat named;
  struct stat opened;
  return lstat(path.c_str(), &named) == 0 && fstat(fd, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

}  // namespace

base::Result<int> take_presence(const std::string& path) {
  // Under the guard from open() on: a fork in between would give the child a descriptor that is not
  // listed.
  const Guard guard;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    base::Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) {
      const int error = errno;
      return base::Status::error(error, "open presence file",
                                 base::format("%s: %s", path.c_str(), strerror(error)));
    }
    base::Status status = base::lock_byte(fd.get(), 0);
    if (!status.ok()) {
      if (status.code == EAGAIN) status.detail = path + ": another member holds it";
      return status;
    }
    if (!is_at(path, fd.get())) continue;
    held().descriptors.push_back(fd.get());
    return fd.release();
  }
  return base::Status::error(EAGAIN, "take presence lock",
                             path + ": the file is removed again and again by someone else");
}

void release_presence(int fd) {
  const Guard guard;
  std::vector<int>& all = held().descriptors;
  const auto found = std::find(all.begin(), all.end(), fd);
  if (found == all.end())
    return;  // a forked child: closed already, and the number may be another file now
  all.erase(found);
  close(fd);
}

bool is_present(const std::string& path) {
  // Whatever it is that somebody put there: opening a FIFO would wait for a writer.
  const base::Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return errno != ENOENT && errno != ENOTDIR;
  return base::any_byte_is_locked(fd.get());
}

}  // namespace millrace::addon
