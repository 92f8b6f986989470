#include "transport/shared_region.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/step.h"
#include "transport_support.h"
#include "verbs/open.h"

namespace millrace::transport {
namespace {

/** A folder for regions, a fabric, and a PD of the device under test. */
class SharedRegions : public testing::Test {
 protected:
  SharedRegions() {
    before_ = getenv("MILLRACE_SHM_DIR") != nullptr ? getenv("MILLRACE_SHM_DIR") : "";
    setenv("MILLRACE_SHM_DIR", domain_.folder().c_str(), 1);
    auto context = verbs::open_device(test::device());
    EXPECT_TRUE(context.ok()) << context.status().detail;
    context_ = verbs::ContextPtr(context.value());
    pd_ = verbs::PdPtr(ibv_alloc_pd(context_.get()));
    EXPECT_TRUE(pd_);
  }
  ~SharedRegions() override {
    (void)pd_.close();
    (void)context_.close();
    EXPECT_FALSE(std::filesystem::exists(folder())) << "the regions' folder goes with the last one";
    if (before_.empty()) {
      unsetenv("MILLRACE_SHM_DIR");
    } else {
      setenv("MILLRACE_SHM_DIR", before_.c_str(), 1);
    }
  }

  std::unique_ptr<SharedRegion> make(size_t bytes, mode_t mode = 0600) {
    SharedRegionOptions options;
    options.pages = {.bytes = bytes, .mode = mode};
    auto made = SharedRegion::create(pd_.get(), options);
    EXPECT_TRUE(made.ok()) << made.status().detail;
    return made.ok() ? made.take() : nullptr;
  }
  auto open(const std::string& handle, int access = 0, void* address = nullptr) {
    return SharedRegion::open(pd_.get(), handle, access, address);
  }
  std::string folder() const { return domain_.folder() + "/millrace-regions.1"; }

  test::Domain domain_;
  std::string before_;
  verbs::ContextPtr context_;
  verbs::PdPtr pd_;
};

TEST_F(SharedRegions, AreRegisteredWithTheAccessThatWasAskedFor) {
  auto made = make(8192);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->mr()->addr, made->bytes().data());
  EXPECT_EQ(made->mr()->length, 8192u);
  const std::string handle = made->handle().value();
  for (const int access :
       {IBV_ACCESS_LOCAL_WRITE + 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC}) {
    auto opened = open(handle, access);
    ASSERT_TRUE(opened.ok()) << opened.status().detail;
    EXPECT_TRUE(opened.value()->writable()) << access;
    opened.value()->bytes()[1] = std::byte{7};
  }
  auto reader = open(handle, IBV_ACCESS_REMOTE_READ);
  ASSERT_TRUE(reader.ok()) << reader.status().detail;
  EXPECT_FALSE(reader.value()->writable());
  EXPECT_EQ(reader.value()->bytes()[1], std::byte{7});
}

TEST_F(SharedRegions, AreSharedByTheirMakerAlone) {
  auto made = make(4096);
  auto opened = open(made->handle().value());
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened.value()->handle().status().code, EPERM);
}

TEST_F(SharedRegions, WhatIsNoHandleIsTold) {
  auto made = make(4096);
  const std::string handle = made->handle().value();
  const std::vector<std::string> wrongs = {"",
                                           "r1",
                                           handle + " ",
                                           " " + handle,
                                           handle + "/../x",
                                           handle.substr(1),
                                           "r1-../../../../etc/x-1",
                                           "R" + handle.substr(1),
                                           "r1-gggggggggggggggg-1",
                                           handle.substr(0, 20),
                                           handle.substr(0, 20) + "00" + handle.substr(20),
                                           std::string(4096, 'r')};
  for (const std::string& wrong : wrongs) {
    EXPECT_EQ(open(wrong).status().code, EINVAL) << wrong;
    EXPECT_EQ(inspect_region(wrong).status().code, EINVAL) << wrong;
  }
  // The right form, and nothing behind it, or another file than the one that was shared.
  EXPECT_EQ(open("r1-" + std::string(16, '0') + "-1").status().code, ENOENT);
  EXPECT_EQ(open(handle.substr(0, 20) + "1").status().code, ENOENT);
  auto info = inspect_region(handle);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().mode, 0600u);
  EXPECT_EQ(info.value().bytes, 4096u);
}

TEST_F(SharedRegions, ASweepTakesWhatNobodyHoldsAndNothingElse) {
  auto held = make(65536);
  const pid_t child = fork();
  if (child == 0) {
    // The device is the parent's; files, which are what a killed maker leaves, need none.
    const std::string own = folder() + "/0123456789abcdef";
    mkdir(own.c_str(), 0700);
    base::Fd at(::open(own.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    auto file = RegionFile::create(at.get(), "pages", {.bytes = 65536});
    if (file.ok()) raise(SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  mkdir((folder() + "/fedcba9876543210").c_str(), 0700);  // killed before it made a file
  std::filesystem::create_directory(folder() + "/something else");
  const SweptRegions swept = sweep_regions();
  EXPECT_EQ(swept.regions, 1u);
  EXPECT_EQ(swept.bytes, 65536u);
  EXPECT_TRUE(open(held->handle().value()).ok());
  size_t names = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder())) ++names;
  EXPECT_EQ(names, 2u) << "what is held, and what is not ours";
  std::filesystem::remove(folder() + "/something else");
}

TEST_F(SharedRegions, AFolderThatAnybodyMayRemoveFromIsRefused) {
  ASSERT_EQ(mkdir(folder().c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder().c_str(), 0777), 0);
  SharedRegionOptions options;
  options.pages = {.bytes = 4096};
  const auto made = SharedRegion::create(pd_.get(), options);
  EXPECT_EQ(made.status().code, EPERM);
  EXPECT_NE(made.status().detail.find("chmod 1777"), std::string::npos) << made.status().detail;
  ASSERT_EQ(chmod(folder().c_str(), 01777), 0);
  EXPECT_TRUE(SharedRegion::create(pd_.get(), options).ok());
}

TEST_F(SharedRegions, WhatDoesNotFitLeavesNothing) {
  for (int nth = 1; nth <= 1; ++nth) {
    base::fail_reserve(nth, ENOSPC);
    SharedRegionOptions options;
    options.pages = {.bytes = 4096};
    const auto made = SharedRegion::create(pd_.get(), options);
    base::fail_reserve(0, 0);
    EXPECT_EQ(made.status().code, ENOSPC);
    EXPECT_NE(made.status().detail.find("--shm-size"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(folder()));
  }
}

TEST_F(SharedRegions, MemoryThatCannotBeRegisteredIsGivenBack) {
  // A region of the vendor's flags that no device takes: the last step fails.
  SharedRegionOptions options;
  options.pages = {.bytes = 4096};
  options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND | (1 << 19);
  const auto made = SharedRegion::create(pd_.get(), options);
  EXPECT_FALSE(made.ok());
  EXPECT_STREQ(made.status().what, "ibv_reg_mr");
  EXPECT_FALSE(std::filesystem::exists(folder()));
}

/** What killed and stopped processes leave; this process has no device, since its children have. */
class SharedRegionSteps : public testing::Test {
 protected:
  SharedRegionSteps() {
    before_ = getenv("MILLRACE_SHM_DIR") != nullptr ? getenv("MILLRACE_SHM_DIR") : "";
    setenv("MILLRACE_SHM_DIR", domain_.folder().c_str(), 1);
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    witness_ = fork();
    if (witness_ == 0) {
      const Device device;
      auto held = SharedRegion::create(device.pd.get(), options());
      const std::string handle = held.ok() ? held.value()->handle().value() : "";
      (void)!write(ends[1], handle.c_str(), handle.size() + 1);
      for (;;) pause();
    }
    char handle[64] = "";
    EXPECT_GT(read(ends[0], handle, sizeof(handle) - 1), 0);
    handle_ = handle;
    close(ends[0]);
    close(ends[1]);
  }
  ~SharedRegionSteps() override {
    kill(witness_, SIGKILL);
    (void)waitpid(witness_, nullptr, 0);
    EXPECT_EQ(sweep_regions().regions, 1u);
    EXPECT_FALSE(std::filesystem::exists(folder()));
    if (before_.empty()) {
      unsetenv("MILLRACE_SHM_DIR");
    } else {
      setenv("MILLRACE_SHM_DIR", before_.c_str(), 1);
    }
  }

  struct Device {
    verbs::ContextPtr context{verbs::open_device(test::device()).take()};
    verbs::PdPtr pd{ibv_alloc_pd(context.get())};
  };
  static SharedRegionOptions options() {
    SharedRegionOptions options;
    options.pages = {.bytes = 65536};
    return options;
  }
  std::string folder() const { return domain_.folder() + "/millrace-regions.1"; }
  size_t regions() const {
    size_t names = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder()))
      ++names;
    return names;
  }

  /** A child that makes a region, opens it and the witness's, and closes all; a signal at its nth
   * step. */
  pid_t victim(uint64_t nth, int signal) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    const Device device;
    base::signal_at_step(nth, signal);
    {
      auto made = SharedRegion::create(device.pd.get(), options());
      const std::string own = made.value()->handle().value();
      auto again = SharedRegion::open(device.pd.get(), own, 0);
      auto other = SharedRegion::open(device.pd.get(), handle_, IBV_ACCESS_LOCAL_WRITE);
      if (!again.ok() || !other.ok()) _exit(2);
    }
    base::signal_at_step(0, 0);
    _exit(base::steps_passed() < nth ? 0 : 1);
  }

  test::Domain domain_;
  std::string before_, handle_;
  pid_t witness_ = -1;
};

TEST_F(SharedRegionSteps, WhoIsKilledAtAnyStepLeavesNothingThatASweepDoesNotTake) {
  for (uint64_t nth = 1;; ++nth) {
    int status = 0;
    const pid_t killed = victim(nth, SIGKILL);
    ASSERT_EQ(waitpid(killed, &status, 0), killed);
    (void)sweep_regions();
    EXPECT_EQ(regions(), 1u) << "after step " << nth;
    EXPECT_TRUE(inspect_region(handle_).ok()) << "after step " << nth;
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      EXPECT_GT(nth, 8u);
      break;
    }
  }
}

TEST_F(SharedRegionSteps, WhoIsStoppedAtAnyStepKeepsNobodyWaiting) {
  for (uint64_t nth = 1;; ++nth) {
    const pid_t stopped = victim(nth, SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(stopped, &status, WUNTRACED), stopped);
    (void)sweep_regions();
    EXPECT_TRUE(inspect_region(handle_).ok()) << "at step " << nth;
    if (!WIFSTOPPED(status)) {
      EXPECT_EQ(status, 0);
      break;
    }
    // Another one does the whole of it meanwhile.
    const pid_t other = victim(1000, SIGKILL);
    ASSERT_EQ(waitpid(other, &status, 0), other);
    EXPECT_EQ(status, 0) << "at step " << nth;
    kill(stopped, SIGCONT);
    ASSERT_EQ(waitpid(stopped, &status, 0), stopped);
    EXPECT_TRUE(WIFEXITED(status)) << "at step " << nth;
    (void)sweep_regions();
    EXPECT_EQ(regions(), 1u) << "at step " << nth;
  }
}

/** Runs shared_region; its output goes to the pipe. */
pid_t start(const std::vector<std::string>& words, int* out) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    std::vector<char*> arguments = {const_cast<char*>(MILLRACE_SHARED_REGION)};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(MILLRACE_SHARED_REGION, arguments.data());
    _exit(127);
  }
  close(ends[1]);
  *out = ends[0];
  return child;
}

int exit_code(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string line_of(FILE* out) {
  char text[256] = "";
  return fgets(text, sizeof(text), out) != nullptr ? text : "";
}

TEST_F(SharedRegions, TheProgramFillsInOneProcessAndVerifiesInAnother) {
  const std::vector<std::string> common = {"-d", test::device()};
  for (const char* size : {"1", "4096", "5000001"}) {
    int out = -1;
    const pid_t server = start({"-d", test::device(), "-p", "0", "-s", size, "-n", "3"}, &out);
    FILE* const said = fdopen(out, "r");
    unsigned port = 0;
    ASSERT_EQ(sscanf(line_of(said).c_str(), "waiting on port %u", &port), 1);
    int client_out = -1;
    const pid_t client =
        start({"-d", test::device(), "-p", std::to_string(port), "-a", "7ec000000000", "127.0.0.1"},
              &client_out);
    FILE* const client_said = fdopen(client_out, "r");
    EXPECT_EQ(exit_code(client), 0);
    EXPECT_EQ(exit_code(server), 0);
    EXPECT_EQ(line_of(said).find("verified " + std::string(size) + " bytes"), 0u);
    EXPECT_EQ(line_of(client_said).find("filled " + std::string(size) + " bytes at 0x7ec000000000"),
              0u);
    fclose(said);
    fclose(client_said);
  }
}

TEST_F(SharedRegions, TheProgramRefusesWhatItDoesNotTake) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"-p", "70000"},
                                                {"-s", "0"},
                                                {"-n", "x"},
                                                {"-a", "-1"},
                                                {"-x"},
                                                {"a", "b"}}) {
    int out = -1;
    const pid_t child = start(words, &out);
    EXPECT_EQ(exit_code(child), 2) << words[0];
    close(out);
  }
}

}  // namespace
}  // namespace millrace::transport
