#include "transport/region.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace millrace::transport {
namespace {

/** Runs `body` in a child; the test fails unless it returns true. */
void in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

class RegionFiles : public testing::Test {
 protected:
  RegionFiles() {
    const char* chosen = getenv("MILLRACE_SHM_DIR");
    path_ = std::string(chosen != nullptr ? chosen : "/dev/shm") + "/region-test-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
    folder_ = base::Fd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_TRUE(folder_.valid());
  }
  ~RegionFiles() override {
    unlinkat(folder(), "a", 0);
    EXPECT_EQ(rmdir(path_.c_str()), 0) << strerror(errno);
  }
  int folder() const { return folder_.get(); }

  std::string path_;
  base::Fd folder_;
};

TEST_F(RegionFiles, HasItsBytesAndItsRights) {
  const mode_t before = umask(0077);
  auto region = RegionFile::create(folder(), "a", {.bytes = 100'001, .mode = 0664});
  umask(before);
  ASSERT_TRUE(region.ok()) << region.status().detail;
  EXPECT_EQ(region.value().bytes().size(), 100'001u);
  struct stat info;
  ASSERT_EQ(fstat(region.value().fd(), &info), 0);
  EXPECT_EQ(info.st_size, 100'001);
  EXPECT_GE(info.st_blocks * 512, 100'001) << "reserved, not sparse";
  EXPECT_EQ(info.st_mode & 0777, 0664u) << "whatever the umask is";
  EXPECT_EQ(RegionFile::create(folder(), "a", {.bytes = 1}).status().code, EEXIST);
}

TEST_F(RegionFiles, OthersSeeTheSamePages) {
  auto made = RegionFile::create(folder(), "a", {.bytes = 8192});
  auto read = RegionFile::open(folder(), "a", RegionAccess::kRead);
  ASSERT_TRUE(made.ok() && read.ok());
  EXPECT_FALSE(read.value().writable());
  made.value().bytes()[5000] = std::byte{0x7b};
  EXPECT_EQ(read.value().bytes()[5000], std::byte{0x7b});
  in_child([&] {
    auto child = RegionFile::open(folder(), "a", RegionAccess::kWrite);
    if (!child.ok() || child.value().bytes()[5000] != std::byte{0x7b}) return false;
    child.value().bytes()[5001] = std::byte{0x7c};
    return true;
  });
  EXPECT_EQ(read.value().bytes()[5001], std::byte{0x7c});
}

TEST_F(RegionFiles, PagesStayAsLongAsTheMappingIsHeld) {
  std::shared_ptr<base::Mapping> held;
  {
    auto region = RegionFile::create(folder(), "a", {.bytes = 4096});
    ASSERT_TRUE(region.ok());
    region.value().bytes()[0] = std::byte{1};
    held = region.value().mapping();
  }
  unlinkat(folder(), "a", 0);
  EXPECT_EQ(held->data()[0], std::byte{1});
}

TEST_F(RegionFiles, AHintIsTakenWhereNothingIs) {
  auto made = RegionFile::create(folder(), "a", {.bytes = 8192});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(made.value().bytes().data()) % kRegionAlignment, 0u);
  // A place that is free: one that was just given back.
  void* const room =
      mmap(nullptr, 2 * kRegionAlignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(room) + kRegionAlignment - 1) /
                            kRegionAlignment * kRegionAlignment;
  auto* const hint = reinterpret_cast<void*>(aligned);
  munmap(room, 2 * kRegionAlignment);
  auto there = RegionFile::open(folder(), "a", RegionAccess::kWrite, hint);
  ASSERT_TRUE(there.ok()) << there.status().detail;
  EXPECT_EQ(there.value().bytes().data(), hint);
  auto elsewhere = RegionFile::open(folder(), "a", RegionAccess::kWrite, hint);
  ASSERT_TRUE(elsewhere.ok()) << "a hint is no demand";
  EXPECT_NE(elsewhere.value().bytes().data(), hint);
  there.value().bytes()[1] = std::byte{3};
  EXPECT_EQ(elsewhere.value().bytes()[1], std::byte{3});
  auto crooked = RegionFile::open(folder(), "a", RegionAccess::kWrite,
                                  reinterpret_cast<void*>(aligned + 4096));
  EXPECT_EQ(crooked.status().code, EINVAL);
}

TEST_F(RegionFiles, TheKernelChecksRightsAndTheErrorNamesBothSides) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(chmod(path_.c_str(), 0755), 0);
  auto made = RegionFile::create(folder(), "a", {.bytes = 4096, .mode = 0604});
  ASSERT_TRUE(made.ok());
  in_child([&] {
    if (setgid(65534) != 0 || setuid(65534) != 0) return false;
    auto read = RegionFile::open(folder(), "a", RegionAccess::kRead);
    auto write = RegionFile::open(folder(), "a", RegionAccess::kWrite);
    const std::string said = write.status().detail;
    return read.ok() && write.status().code == EACCES &&
           said.find(
               "asked for read and write; granted: user read and write, group nothing, other "
               "read") == 0 &&
           said.find("counts as other") != std::string::npos;
  });
}

TEST_F(RegionFiles, NoRoomIsSaidBeforeAnythingIsTaken) {
  auto region = RegionFile::create(folder(), "a", {.bytes = size_t{1} << 50});
  EXPECT_EQ(region.status().code, ENOSPC);
  EXPECT_NE(region.status().detail.find("bytes free"), std::string::npos) << region.status().detail;
  EXPECT_NE(region.status().detail.find("--shm-size"), std::string::npos);
  EXPECT_NE(faccessat(folder(), "a", F_OK, 0), 0) << "nothing is left";
  in_child([&] {
    const rlimit small = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &small) != 0) return false;
    auto large = RegionFile::create(folder(), "a", {.bytes = 2 << 20});
    return large.status().code == EFBIG &&
           large.status().detail.find("RLIMIT_FSIZE is 1048576") != std::string::npos &&
           faccessat(folder(), "a", F_OK, 0) != 0;
  });
}

/** Without sanitizers, whose shadow memory has faults of its own. */
__attribute__((no_sanitize("address", "thread"))) void write_each_page(std::span<std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += 4096) bytes.data()[i] = std::byte{1};
}

TEST_F(RegionFiles, PopulatedPagesDoNotFault) {
  auto made = RegionFile::create(folder(), "a", {.bytes = 8 << 20});
  ASSERT_TRUE(made.ok());
  {
    Population population(made.value(), false);
    while (!population.done()) sched_yield();
  }
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  write_each_page(made.value().bytes());
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, 100) << "of 2048 pages";
}

TEST_F(RegionFiles, AStoppedPopulationEnds) {
  auto made = RegionFile::create(folder(), "a", {.bytes = 64 << 20});
  ASSERT_TRUE(made.ok());
  const Population population(made.value(), false);  // joined by its destructor
}

TEST_F(RegionFiles, HugePagesOrTheReasonWhyNot) {
  auto made = RegionFile::create(folder(), "a", {.bytes = 8 << 20, .huge_pages = true});
  ASSERT_TRUE(made.ok());
  const std::atomic<bool> stop{false};
  made.value().bytes()[12345] = std::byte{9};
  populate(made.value().bytes(), true, true, stop);
  EXPECT_EQ(made.value().bytes()[12345], std::byte{9});
  const uint64_t huge = huge_bytes(made.value().bytes());
  EXPECT_LE(huge, made.value().bytes().size());
  EXPECT_NE(huge_note(made.value().fd()).find("huge"), std::string::npos);
}

}  // namespace
}  // namespace millrace::transport
