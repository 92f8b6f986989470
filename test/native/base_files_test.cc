#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/spinlock.h"

namespace millrace::base {
namespace {

class Folder {
 public:
  Folder() {
    const char* chosen = getenv("MILLRACE_SHM_DIR");
    std::string name = std::string(chosen != nullptr ? chosen : "/dev/shm") + "/base-test-XXXXXX";
    path_ = mkdtemp(name.data()) != nullptr ? name : "";
    fd_ = Fd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_TRUE(fd_.valid());
  }
  ~Folder() { EXPECT_EQ(rmdir(path_.c_str()), 0) << strerror(errno); }
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd fd_;
};

TEST(Files, ReservedFilesHaveTheirBytes) {
  Folder folder;
  Result<Fd> fd = create_reserved(folder.fd(), "a", 1 << 20);
  ASSERT_TRUE(fd.ok()) << fd.status().detail;
  struct stat info;
  ASSERT_EQ(fstat(fd.value().get(), &info), 0);
  EXPECT_EQ(info.st_size, 1 << 20);
  EXPECT_GE(info.st_blocks * 512, 1 << 20) << "reserved, not sparse";
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(fcntl(fd.value().get(), F_GETFD) & FD_CLOEXEC);
  Result<Mapping> map = map_shared(fd.value().get(), 1 << 20);
  ASSERT_TRUE(map.ok());
  map.value().data()[(1 << 20) - 1] = std::byte{7};
  EXPECT_EQ(create_reserved(folder.fd(), "a", 4096).status().code, EEXIST);
  unlinkat(folder.fd(), "a", 0);
}

TEST(Files, AFullFilesystemLeavesNothingAndSaysWhatToDo) {
  Folder folder;
  fail_reserve(1, ENOSPC);
  Result<Fd> fd = create_reserved(folder.fd(), "b", 4096);
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code, ENOSPC);
  EXPECT_NE(fd.status().detail.find("4096 bytes"), std::string::npos) << fd.status().detail;
  EXPECT_NE(fd.status().detail.find("--shm-size"), std::string::npos);
  EXPECT_NE(faccessat(folder.fd(), "b", F_OK, 0), 0);
  fail_reserve(2, EIO);
  Result<Fd> first = create_reserved(folder.fd(), "b", 4096);
  EXPECT_TRUE(first.ok());
  EXPECT_EQ(create_reserved(folder.fd(), "c", 4096).status().code, EIO);
  EXPECT_TRUE(create_reserved(folder.fd(), "c", 4096).ok()) << "one shot";
  unlinkat(folder.fd(), "b", 0);
  unlinkat(folder.fd(), "c", 0);
}

TEST(Files, PresenceLocksBelongToTheOpenFile) {
  Folder folder;
  Result<Fd> made = create_reserved(folder.fd(), "lock", 4096);
  ASSERT_TRUE(made.ok());
  const std::string path = folder.path() + "/lock";
  Fd other(open(path.c_str(), O_RDWR | O_CLOEXEC));
  Fd third(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(lock_byte(made.value().get(), 5).ok());
  EXPECT_EQ(lock_byte(other.get(), 5).code, EAGAIN);
  EXPECT_TRUE(lock_byte(other.get(), 6).ok()) << "a byte each";
  EXPECT_TRUE(byte_is_locked(third.get(), 5));
  EXPECT_TRUE(byte_is_locked(third.get(), 6));
  EXPECT_FALSE(byte_is_locked(third.get(), 7));
  EXPECT_FALSE(byte_is_locked(made.value().get(), 5))
      << "the own lock does not show on its own description";
  // A killed process's lock is free.
  const pid_t pid = fork();
  if (pid == 0) {
    Fd mine(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!lock_byte(mine.get(), 9).ok()) _exit(1);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(byte_is_locked(third.get(), 9));
  unlock_byte(made.value().get(), 5);
  EXPECT_FALSE(byte_is_locked(third.get(), 5));
  made.value().reset();
  EXPECT_TRUE(byte_is_locked(-1, 5)) << "what can't be told is not death";
  unlinkat(folder.fd(), "lock", 0);
}

TEST(Files, ALockOutlivesItsDescriptorWhileTheFileIsMapped) {
  Folder folder;
  Result<Fd> made = create_reserved(folder.fd(), "lock", 4096);
  ASSERT_TRUE(made.ok());
  Fd other(openat(folder.fd(), "lock", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(lock_byte(made.value().get(), 1).ok());
  Result<Mapping> map = map_shared(made.value().get(), 4096, 0, false);
  ASSERT_TRUE(map.ok());
  made.value().reset();
  EXPECT_TRUE(byte_is_locked(other.get(), 1));
  map.value().reset();
  EXPECT_FALSE(byte_is_locked(other.get(), 1));
  unlinkat(folder.fd(), "lock", 0);
}

TEST(Files, WriteFile) {
  Folder folder;
  ASSERT_TRUE(write_file(folder.fd(), "t", "text").ok());
  EXPECT_EQ(write_file(folder.fd(), "t", "text").code, EEXIST);
  unlinkat(folder.fd(), "t", 0);
}

TEST(Spinlock, ExcludesThreads) {
  Spinlock lock;
  uint64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50000; ++i) {
        std::lock_guard guard(lock);
        ++count;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(count, 200000u);
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
}

}  // namespace
}  // namespace millrace::base
