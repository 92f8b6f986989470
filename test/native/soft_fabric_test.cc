// Joining and leaving: what is left behind, who is kept out, and with which words.
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "soft/fabric.h"
#include "soft/layout.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

verbs::ContextPtr join(base::Status* status = nullptr) {
  base::Result<ibv_context*> opened = verbs::open_device("soft");
  if (status != nullptr) *status = opened.status();
  return opened.ok() ? verbs::ContextPtr(opened.value()) : verbs::ContextPtr();
}

/** A folder on its own as MILLRACE_SHM_DIR, put back at the end. */
class OwnBase {
 public:
  /** In MILLRACE_SHM_DIR, or in `above`. */
  explicit OwnBase(const char* above = nullptr) : before_(shm_base()) {
    path_ =
        base::format("%s/base-%d-%llx", above != nullptr ? above : before_.c_str(),
                     static_cast<int>(getpid()), static_cast<unsigned long long>(base::now_ns()));
    EXPECT_EQ(mkdir(path_.c_str(), 0755), 0);
    setenv("MILLRACE_SHM_DIR", path_.c_str(), 1);
  }
  ~OwnBase() {
    setenv("MILLRACE_SHM_DIR", before_.c_str(), 1);
    EXPECT_EQ(rmdir(path_.c_str()), 0) << path_ << ": " << strerror(errno);
  }
  const std::string& path() const { return path_; }
  std::string parent() const {
    return base::format("%s/millrace-soft.1.%u", path_.c_str(), static_cast<unsigned>(geteuid()));
  }

 private:
  std::string before_, path_;
};

MILLRACE_CHILD(joiner) {
  const int rounds = std::stoi(parent.arguments[0]);
  for (int i = 0; i < rounds; ++i) {
    base::Status status;
    verbs::ContextPtr context = join(&status);
    EXPECT_TRUE(context) << status.what << ": " << status.detail;
    if (!context) return 1;
    verbs::ChannelPtr channel(ibv_create_comp_channel(context.get()));
    verbs::CqPtr cq(ibv_create_cq(context.get(), 16, nullptr, channel.get(), 0));
    EXPECT_TRUE(cq);
  }
  return 0;
}

TEST(SoftFabric, JoinAndLeaveInLoopsLeavesNothing) {
  Fabric fabric;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(std::make_unique<Child>("joiner", std::vector<std::string>{"50"}));
  for (auto& child : children) EXPECT_EQ(child->wait(), 0);
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftFabric, ThreadsJoinAndLeaveInLoops) {
  Fabric fabric;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) {
        verbs::ContextPtr context = join();
        EXPECT_TRUE(context);
        verbs::ChannelPtr channel(ibv_create_comp_channel(context.get()));
        EXPECT_TRUE(channel);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(fabric.exists());
}

MILLRACE_CHILD(stays) {
  Endpoint end;
  parent.say("in");
  parent.hear();
  _exit(0);  // without any hook
}

TEST(SoftFabric, TheKilledAreReapedByTheNextAndByClean) {
  Fabric fabric;
  {
    Child a("stays"), b("stays");
    EXPECT_EQ(a.hear(), "in");
    EXPECT_EQ(b.hear(), "in");
    a.signal(SIGKILL);
    b.signal(SIGKILL);
    a.wait();
    b.wait();
  }
  EXPECT_TRUE(fabric.exists());
  EXPECT_EQ(fabric.files("alive").size(), 2u);
  {
    verbs::ContextPtr context = join();
    ASSERT_TRUE(context);
    EXPECT_EQ(fabric.files("alive").size(), 1u);
    EXPECT_EQ(fabric.files("p").size(), 1u);
  }
  EXPECT_FALSE(fabric.exists());
  {
    Child c("stays");
    EXPECT_EQ(c.hear(), "in");
    base::Result<soft::CleanReport> report = soft::clean_fabric();
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report.value().reaped, 0u) << "the living are left alone";
    EXPECT_TRUE(fabric.exists());
    c.signal(SIGKILL);
    c.wait();
  }
  base::Result<soft::CleanReport> report = soft::clean_fabric();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report.value().reaped, 1u);
  EXPECT_GT(report.value().bytes, uint64_t{1} << 20);
  EXPECT_FALSE(fabric.exists());
  report = soft::clean_fabric();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report.value().reaped, 0u);
}

/** Joins and leaves with a signal at a chosen step. */
MILLRACE_CHILD(killed_joiner) {
  soft::signal_at_step(std::stoull(parent.arguments[0]), SIGKILL);
  { verbs::ContextPtr context = join(); }
  parent.say("through");
  return 0;
}

TEST(SoftFabric, KilledAtEveryStepOfJoiningAndLeaving) {
  Fabric fabric;
  for (const bool alone : {true, false}) {
    verbs::ContextPtr other;
    if (!alone) other = join();
    bool through = false;
    uint64_t step = 1;
    for (; !through && step < 1000; ++step) {
      Child child("killed_joiner", {std::to_string(step)});
      through = child.hear() == "through";
      const int code = child.wait();
      if (code != 0) through = false;
      ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << code;
      // Whatever it left, the next one gets in.
      base::Status status;
      verbs::ContextPtr next = join(&status);
      ASSERT_TRUE(next) << status.what << " " << status.detail;
    }
    expect_walked(through, step - 1);
  }
  ASSERT_TRUE(soft::clean_fabric().ok());
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftFabric, SlotsRunOut) {
  Fabric fabric;
  verbs::ContextPtr context = join();
  ASSERT_TRUE(context);
  // Somebody holds the locks of all other slots.
  base::Fd root(open((fabric.folder() + "/root").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(root.valid());
  for (int slot = 0; slot < 256; ++slot) (void)base::lock_byte(root.get(), slot).ok();
  Child child("joiner_fails");
  const std::string line = child.hear();
  EXPECT_NE(line.find(std::to_string(EAGAIN) + " "), std::string::npos) << line;
  EXPECT_NE(line.find("256"), std::string::npos) << line;
  EXPECT_EQ(child.wait(), 0);
}

MILLRACE_CHILD(joiner_fails) {
  base::Status status;
  verbs::ContextPtr context = join(&status);
  EXPECT_FALSE(context);
  parent.say(base::format("%d %s: %s", status.code, status.what, status.detail.c_str()));
  return 0;
}

TEST(SoftFabric, AStoppedJoinerIsNamed) {
  Fabric fabric;
  verbs::ContextPtr context = join();
  ASSERT_TRUE(context);
  base::Fd folder(open(fabric.folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(folder.get(), LOCK_EX), 0);
  Child child("joiner_fails");
  const std::string line = child.hear();
  EXPECT_NE(line.find(std::to_string(ETIMEDOUT) + " "), std::string::npos) << line;
  EXPECT_NE(line.find("process " + std::to_string(getpid())), std::string::npos) << line;
  EXPECT_EQ(child.wait(), 0);
}

/** The root of a fabric whose only process is killed by die(); what is done to it is seen by the
 * next. */
class OldRoot {
 public:
  explicit OldRoot(const Fabric& fabric) : path_(fabric.folder() + "/root") {
    EXPECT_EQ(child_.hear(), "in");
  }
  void die() {
    child_.signal(SIGKILL);
    child_.wait();
  }
  void patch(size_t offset, uint32_t value) {
    base::Fd fd(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(pwrite(fd.get(), &value, sizeof(value), static_cast<off_t>(offset)), 4);
  }
  void resize(off_t bytes) { EXPECT_EQ(truncate(path_.c_str(), bytes), 0); }

 private:
  std::string path_;
  Child child_{"stays"};
};

/** Root, chunk, presence, and the wake-up FIFO of a context. */
constexpr size_t kFilesOfOne = 4;
constexpr uint32_t kOtherMinor = soft::kLayoutMinor + 1;
const std::string kOwnLayout = base::format("%u.%u", soft::kLayoutMajor, soft::kLayoutMinor);
const std::string kOtherLayout = base::format("%u.%u", soft::kLayoutMajor, kOtherMinor);

TEST(SoftFabric, ARootThatDoesNotFitIsRefusedWhileSomebodyUsesItAndElseMadeAnew) {
  struct Damage {
    std::function<void(OldRoot&)> living, dead;  // nobody can use a file that was cut
    int code;
    std::string text;
  };
  const auto patch = [](size_t offset, uint32_t value) {
    return [=](OldRoot& root) { root.patch(offset, value); };
  };
  using Header = soft::RootHeader;
  const std::vector<Damage> cases = {
      {patch(offsetof(Header, minor), kOtherMinor), {}, EPROTONOSUPPORT, "layout " + kOtherLayout},
      {patch(offsetof(Header, major), 9), {}, EPROTONOSUPPORT, "layout 9."},
      {patch(offsetof(Header, fingerprint), 7), {}, EPROTONOSUPPORT, "layout " + kOwnLayout},
      {patch(offsetof(Header, byte_order), 0x04030201), {}, EPROTONOSUPPORT, "04030201"},
      {patch(offsetof(Header, page_size), 64), {}, EPROTONOSUPPORT, "pages of 64"},
      {patch(offsetof(Header, magic), 0), {}, EPROTO, "not a fabric"},
      {[](OldRoot& root) { root.resize(64 << 20); }, [](OldRoot& root) { root.resize(8192); },
       EPROTO, "damaged"},
      {patch(offsetof(Header, magic), 0), [](OldRoot& root) { root.resize(10); }, EPROTO, ""},
      {patch(offsetof(Header, magic), 0), [](OldRoot& root) { root.resize(0); }, EPROTO, ""},
  };
  for (const Damage& damage : cases) {
    SCOPED_TRACE(damage.text);
    Fabric fabric;
    OldRoot root(fabric);
    damage.living(root);
    base::Status status;
    EXPECT_FALSE(join(&status));
    EXPECT_EQ(status.code, damage.code) << status.detail;
    EXPECT_NE(status.detail.find(damage.text), std::string::npos) << status.detail;
    EXPECT_NE(status.detail.find("MILLRACE_FABRIC"), std::string::npos) << status.detail;
    if (damage.code == EPROTONOSUPPORT && damage.text.find("layout") != std::string::npos) {
      EXPECT_NE(status.detail.find("this build has " + kOwnLayout), std::string::npos)
          << status.detail;
    }
    EXPECT_EQ(soft::clean_fabric().status().code, damage.code);
    EXPECT_EQ(fabric.files("alive").size(), 1u) << "the living keep what is theirs";
    root.die();
    if (damage.dead) damage.dead(root);
    {
      verbs::ContextPtr context = join(&status);
      EXPECT_TRUE(context) << status.detail;
      EXPECT_EQ(fabric.files("alive").size(), 1u);
      EXPECT_EQ(fabric.files().size(), kFilesOfOne) << "nothing of the old is left";
    }
    EXPECT_FALSE(fabric.exists());
  }
}

TEST(SoftFabric, ARootThatDoesNotFitIsCleaned) {
  Fabric fabric;
  OldRoot root(fabric);
  root.die();
  root.patch(offsetof(soft::RootHeader, minor), kOtherMinor);
  const base::Result<soft::CleanReport> report = soft::clean_fabric();
  ASSERT_TRUE(report.ok()) << report.status().detail;
  EXPECT_GT(report.value().bytes, uint64_t{1} << 20);
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftFabric, ManyStartAtOnceOnARootThatDoesNotFit) {
  for (int round = 0; round < 5; ++round) {
    Fabric fabric;
    OldRoot root(fabric);
    root.die();
    root.patch(offsetof(soft::RootHeader, minor), kOtherMinor);
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 4; ++i) children.push_back(std::make_unique<Child>("stays"));
    for (auto& child : children) EXPECT_EQ(child->hear(), "in");
    EXPECT_EQ(fabric.files("alive").size(), children.size()) << "all are in the same one";
    base::Status status;
    EXPECT_TRUE(join(&status)) << status.detail;
    for (auto& child : children) child->say("leave");
    for (auto& child : children) EXPECT_EQ(child->wait(), 0);
    EXPECT_TRUE(soft::clean_fabric().ok());
    EXPECT_FALSE(fabric.exists());
  }
}

TEST(SoftFabric, KilledAtEveryStepOfMakingARootAnew) {
  bool through = false;
  uint64_t step = 1;
  for (; !through && step < 1000; ++step) {
    Fabric fabric;
    OldRoot root(fabric);
    root.die();
    root.patch(offsetof(soft::RootHeader, minor), kOtherMinor);
    Child child("killed_joiner", {std::to_string(step)});
    through = child.hear() == "through";
    ASSERT_EQ(child.wait(), through ? 0 : 128 + SIGKILL) << step;
    base::Status status;
    {
      verbs::ContextPtr next = join(&status);
      ASSERT_TRUE(next) << step << " " << status.what << " " << status.detail;
      EXPECT_EQ(fabric.files().size(), kFilesOfOne) << step;
    }
    EXPECT_FALSE(fabric.exists());
  }
  expect_walked(through, step - 1);
}

/** Sends a number to itself and waits to be told to leave, as a build of another layout. */
MILLRACE_CHILD(of_layout) {
  soft::pretend_layout({static_cast<uint32_t>(std::stoul(parent.arguments[0])),
                        static_cast<uint32_t>(std::stoul(parent.arguments[1]))});
  base::Status status;
  if (!join(&status)) {
    parent.say(base::format("%d %s", status.code, status.detail.c_str()));
    return 0;
  }
  Endpoint end;
  EXPECT_EQ(end.connect(end.target_qpn()), 0);
  parent.say("in");
  while (parent.hear() == "send") {
    const uint32_t value = 7;
    ibv_wc wc = {};
    EXPECT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
    EXPECT_TRUE(end.poll(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
    parent.say("sent");
  }
  return 0;
}

TEST(SoftFabric, TwoMajorLayoutsDoNotSeeEachOther) {
  OwnBase base;
  {
    Fabric fabric;
    const std::string next = base::format("%s/millrace-soft.%u.%u", base.path().c_str(),
                                          soft::kLayoutMajor + 1, static_cast<unsigned>(geteuid()));
    Child one("of_layout", {std::to_string(soft::kLayoutMajor), "0"});
    Child two("of_layout", {std::to_string(soft::kLayoutMajor + 1), "0"});
    for (Child* child : {&one, &two}) EXPECT_EQ(child->hear(), "in");
    EXPECT_EQ(access(next.c_str(), F_OK), 0);
    for (int i = 0; i < 100; ++i) {
      for (Child* child : {&one, &two}) child->say("send");
      for (Child* child : {&one, &two}) ASSERT_EQ(child->hear(), "sent");
    }
    // The end of one is no matter for the other, however it ends.
    one.signal(SIGKILL);
    one.wait();
    EXPECT_TRUE(soft::clean_fabric().ok());
    EXPECT_FALSE(fabric.exists());
    two.say("send");
    EXPECT_EQ(two.hear(), "sent");
    two.say("leave");
    EXPECT_EQ(two.wait(), 0);
    EXPECT_NE(access(next.c_str(), F_OK), 0);
  }
}

TEST(SoftFabric, TwoMinorLayoutsTakeTurns) {
  Fabric fabric;
  const auto of_minor = [](uint32_t minor) {
    return std::vector<std::string>{std::to_string(soft::kLayoutMajor), std::to_string(minor)};
  };
  for (const uint32_t minor : {soft::kLayoutMinor, kOtherMinor, soft::kLayoutMinor}) {
    const uint32_t other = minor == kOtherMinor ? soft::kLayoutMinor : kOtherMinor;
    Child one("of_layout", of_minor(minor));
    EXPECT_EQ(one.hear(), "in");
    Child two("of_layout", of_minor(other));
    const std::string line = two.hear();
    EXPECT_EQ(line.rfind(std::to_string(EPROTONOSUPPORT) + " ", 0), 0u) << line;
    for (const uint32_t each : {minor, other}) {
      EXPECT_NE(line.find(base::format("%u.%u", soft::kLayoutMajor, each)), std::string::npos)
          << line;
    }
    EXPECT_EQ(two.wait(), 0);
    one.say("send");
    EXPECT_EQ(one.hear(), "sent");
    one.signal(SIGKILL);  // its root stays behind, for the next
    one.wait();
  }
  EXPECT_TRUE(soft::clean_fabric().ok());
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftFabric, AnotherUsersFolder) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a folder away";
  OwnBase base;
  Fabric fabric;
  ASSERT_EQ(mkdir(base.parent().c_str(), 0700), 0);
  ASSERT_EQ(chown(base.parent().c_str(), 12345, 12345), 0);
  base::Status status;
  EXPECT_FALSE(join(&status));
  EXPECT_EQ(status.code, EACCES);
  EXPECT_NE(status.detail.find("user 12345"), std::string::npos) << status.detail;
  ASSERT_EQ(chown(base.parent().c_str(), geteuid(), getegid()), 0);
  ASSERT_EQ(chmod(base.parent().c_str(), 0777), 0);
  EXPECT_FALSE(join(&status));
  EXPECT_EQ(status.code, EACCES);
  EXPECT_NE(status.detail.find("777"), std::string::npos) << status.detail;
  ASSERT_EQ(rmdir(base.parent().c_str()), 0);
  // A link to somewhere else is not followed.
  ASSERT_EQ(symlink("/tmp", base.parent().c_str()), 0);
  EXPECT_FALSE(join(&status));
  EXPECT_NE(status.code, 0);
  unlink(base.parent().c_str());
}

constexpr uid_t kOtherUser = 12345;

/** Sends a number to itself and says it, over and over, as another user. */
MILLRACE_CHILD(other_user) {
  // With a domain file of its own, since the test's is the other user's.
  const std::string domain = shm_base() + "/other-user.domain";
  EXPECT_EQ(setresgid(kOtherUser, kOtherUser, kOtherUser), 0);
  EXPECT_EQ(setresuid(kOtherUser, kOtherUser, kOtherUser), 0);
  base::Fd file(open(domain.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  EXPECT_TRUE(file.valid());
  setenv("MILLRACE_TEST_DOMAIN", domain.c_str(), 1);
  EXPECT_EQ(open(parent.arguments[0].c_str(), O_RDONLY), -1) << "nobody else's fabric";
  EXPECT_EQ(errno, EACCES);
  {
    Endpoint end;
    EXPECT_EQ(end.connect(end.target_qpn()), 0);
    parent.say(base::format("%u %u", end.target_qpn(), end.srqn()));
    while (parent.hear() == "send") {
      const uint32_t value = 7;
      ibv_wc wc = {};
      EXPECT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
      EXPECT_TRUE(end.poll(&wc));
      EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
      uint32_t got = 0;
      memcpy(&got, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(got));
      parent.say(std::to_string(got));
    }
  }
  unlink(domain.c_str());
  return 0;
}

TEST(SoftFabric, TwoUsersDoNotCollide) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  OwnBase base("/dev/shm");  // as for real; the tests' own folder may be closed to others
  ASSERT_EQ(chmod(base.path().c_str(), 01777), 0);
  {
    // The same fabric and the same numbers, and nothing else in common.
    Fabric fabric;
    const std::string theirs =
        base::format("%s/millrace-soft.%u.%u", base.path().c_str(), soft::kLayoutMajor, kOtherUser);
    Endpoint end;
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    Child other("other_user", {fabric.folder()});
    EXPECT_EQ(other.hear(), base::format("%u %u", end.target_qpn(), end.srqn()));
    for (uint32_t i = 0; i < 100; ++i) {
      other.say("send");
      ibv_wc wc = {};
      ASSERT_EQ(end.send(end.srqn(), &i, sizeof(i)), 0);
      ASSERT_TRUE(end.poll(&wc));
      uint32_t got = 0;
      memcpy(&got, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(got));
      ASSERT_EQ(got, i);
      ASSERT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
      ASSERT_EQ(other.hear(), "7");
    }
    // Cleaning is of one's own; not even root takes the other's away.
    other.signal(SIGKILL);
    other.wait();
    ASSERT_TRUE(soft::clean_fabric().ok());
    EXPECT_EQ(access(theirs.c_str(), F_OK), 0);
    Child next("other_user", {fabric.folder()});
    EXPECT_NE(next.hear(), "");
    next.say("leave");
    EXPECT_EQ(next.wait(), 0);
    EXPECT_NE(access(theirs.c_str(), F_OK), 0) << "the last of that user has removed it";
  }
  for (const std::string& name : names_in(base.path(), "other-user"))
    unlink((base.path() + "/" + name).c_str());  // the killed one's memory
}

TEST(SoftFabric, NamesAndFolders) {
  base::Status status;
  for (const char* name :
       {"..", ".", "a/b",
        "0123456789012345678901234567890123456789012345678901234567890123456789"}) {
    setenv("MILLRACE_FABRIC", name, 1);
    EXPECT_FALSE(join(&status));
    EXPECT_EQ(status.code, EINVAL) << name;
  }
  const std::string before = shm_base();
  setenv("MILLRACE_FABRIC", "x", 1);
  setenv("MILLRACE_SHM_DIR", "/nonexistent-folder", 1);
  EXPECT_FALSE(join(&status));
  EXPECT_EQ(status.code, ENOENT);
  EXPECT_NE(status.detail.find("MILLRACE_SHM_DIR"), std::string::npos) << status.detail;
  setenv("MILLRACE_SHM_DIR", before.c_str(), 1);
  unsetenv("MILLRACE_FABRIC");
}

TEST(SoftFabric, AFolderThatIsRemovedWhileItIsUsed) {
  Fabric fabric;
  {
    Endpoint end;
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    const uint32_t value = 1;
    const auto send = [&] {
      ibv_wc wc = {};
      EXPECT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
      EXPECT_TRUE(end.poll_sent(&wc));
      return wc.status;
    };
    EXPECT_EQ(send(), IBV_WC_SUCCESS);
    std::filesystem::remove_all(fabric.folder());
    base::Status status;
    EXPECT_FALSE(join(&status));
    EXPECT_EQ(status.code, ENOENT);
    EXPECT_STREQ(status.what, "use the fabric folder");
    EXPECT_NE(status.detail.find("removed"), std::string::npos) << status.detail;
    // Who has joined goes on with what is mapped.
    EXPECT_EQ(send(), IBV_WC_SUCCESS);
  }
  EXPECT_TRUE(join());  // makes it anew
}

TEST(SoftFabric, NoSpaceByInjection) {
  Fabric fabric;
  for (int nth = 1; nth <= 2; ++nth) {  // the root, then chunk 0
    base::fail_reserve(nth, ENOSPC);
    base::Status status;
    EXPECT_FALSE(join(&status));
    EXPECT_EQ(status.code, ENOSPC);
    EXPECT_NE(status.detail.find("--shm-size"), std::string::npos) << status.detail;
    EXPECT_NE(status.detail.find("bytes free"), std::string::npos) << status.detail;
    EXPECT_FALSE(fabric.exists());
  }
  base::fail_reserve(0, 0);
  {
    // A ring that can't be made fails its work request and nothing else.
    Endpoint end;
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    base::fail_reserve(1, ENOSPC);
    const uint32_t value = 1;
    ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
    base::fail_reserve(0, 0);
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll_sent(&wc));
    EXPECT_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(wc.vendor_err, static_cast<uint32_t>(ENOSPC));
    EXPECT_NE(soft::last_error().detail.find("--shm-size"), std::string::npos);
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RESET;
    ASSERT_EQ(ibv_modify_qp(end.initiator.get(), &attr, IBV_QP_STATE), 0);
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
    ASSERT_TRUE(end.poll_sent(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftFabric, NoSpaceForReal) {
  OwnBase base;
  if (mount("none", base.path().c_str(), "tmpfs", 0, "size=2500k,mode=755") != 0) {
    GTEST_SKIP() << "mount is not permitted: " << strerror(errno);
  }
  {
    Fabric fabric;
    base::Status status;
    EXPECT_FALSE(join(&status));  // the root fits, chunk 0 does not
    EXPECT_EQ(status.code, ENOSPC);
    EXPECT_NE(status.detail.find("--shm-size"), std::string::npos) << status.detail;
    EXPECT_FALSE(fabric.exists());
    struct statvfs fs;
    ASSERT_EQ(statvfs(base.path().c_str(), &fs), 0);
    EXPECT_GT(fs.f_bavail * fs.f_frsize, 2'400'000u) << "nothing stays allocated";
  }
  EXPECT_EQ(umount(base.path().c_str()), 0);
}

TEST(SoftFabric, AForkedChildIsToldSo) {
  Fabric fabric;
  {
    Endpoint end;
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      int bad = 0;
      const uint32_t value = 1;
      ibv_wc wc = {};
      ibv_recv_wr recv = {};
      ibv_recv_wr* bad_recv = nullptr;
      ibv_qp_attr attr = {};
      bad += end.send(end.srqn(), &value, sizeof(value)) != EPERM;
      bad += ibv_poll_cq(end.cq.get(), 1, &wc) != -EPERM;
      bad += ibv_req_notify_cq(end.cq.get(), 0) != EPERM;
      bad += ibv_post_srq_recv(end.srq.get(), &recv, &bad_recv) != EPERM;
      bad += ibv_modify_qp(end.initiator.get(), &attr, IBV_QP_STATE) != EPERM;
      bad += ibv_alloc_pd(end.context.get()) != nullptr || errno != EPERM;
      bad += ibv_create_comp_channel(end.context.get()) != nullptr || errno != EPERM;
      bad += ibv_create_cq(end.context.get(), 1, nullptr, nullptr, 0) != nullptr || errno != EPERM;
      bad += ibv_reg_mr(end.pd.get(), &bad, 4, 0) != nullptr || errno != EPERM;
      bad += ibv_destroy_qp(end.initiator.get()) != EPERM;
      bad += ibv_destroy_srq(end.srq.get()) != EPERM;
      bad += ibv_destroy_cq(end.cq.get()) != EPERM;
      bad += ibv_close_device(end.context.get()) != EPERM;
      ibv_cq* which = nullptr;
      void* user = nullptr;
      bad += ibv_get_cq_event(end.channel.get(), &which, &user) != -1;
      const base::Result<ibv_context*> again = verbs::open_device("soft");
      bad += again.ok() || again.status().code != EPERM ||
             again.status().detail.find("forked") == std::string::npos;
      exit(bad);  // with its hooks: they must not leave on the parent's behalf
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    // The parent is untouched.
    const uint32_t value = 1;
    ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftFabric, RegisteredMemoryIsTheParentsAfterAFork) {
  // What ibv_fork_init() promises on hardware, and what needs no promise here.
  Fabric fabric;
  {
    Endpoint::Options options;
    options.foreign = true;  // ordinary memory, which a fork shares until somebody writes to it
    Endpoint end(options);
    ASSERT_EQ(end.connect(end.target_qpn()), 0);
    int ready[2], done[2];
    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(done), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      memset(end.slots, 0xEE, end.private_memory.size());
      memset(end.buffer, 0xEE, end.send_memory.size());
      char byte = 0;
      (void)!write(ready[1], &byte, 1);
      (void)!read(done[0], &byte, 1);
      const bool own = std::all_of(end.private_memory.begin(), end.private_memory.end(),
                                   [](std::byte b) { return b == std::byte{0xEE}; });
      _exit(own ? 0 : 1);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    for (uint32_t i = 0; i < 100; ++i) {
      ibv_wc wc = {};
      ASSERT_EQ(end.send(end.srqn(), &i, sizeof(i)), 0);
      ASSERT_TRUE(end.poll(&wc));
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      uint32_t got = 0;
      memcpy(&got, end.slot(static_cast<uint32_t>(wc.wr_id)), sizeof(got));
      ASSERT_EQ(got, i);
      ASSERT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
    }
    ASSERT_EQ(write(done[1], &byte, 1), 1);
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "and the child's copy is the child's";
    for (int fd : {ready[0], ready[1], done[0], done[1]}) close(fd);
  }
  EXPECT_FALSE(fabric.exists());
}

MILLRACE_CHILD(forks_and_dies) {
  Endpoint end;
  const pid_t pid = fork();
  if (pid == 0) {
    parent.say("in");
    parent.hear();  // lives on, with everything that a fork leaves it
    _exit(0);
  }
  parent.hear();
  return 0;
}

TEST(SoftFabric, AForkedChildDoesNotKeepItsParentAlive) {
  Fabric fabric;
  {
    Child child("forks_and_dies");
    EXPECT_EQ(child.hear(), "in");  // said by the grandchild
    child.signal(SIGKILL);
    EXPECT_EQ(child.wait(), 128 + SIGKILL);
    base::Result<soft::CleanReport> report = soft::clean_fabric();
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report.value().reaped, 1u);
  }
  EXPECT_FALSE(fabric.exists());
}

/** Closes all descriptors and goes on, as some daemons do (R5). */
MILLRACE_CHILD(closes_everything) {
  Endpoint end;
  EXPECT_EQ(end.connect(end.target_qpn()), 0);
  parent.say(base::format("%u %u", end.target_qpn(), end.srqn()));
  for (bool first = true;; first = false) {
    ibv_wc wc = {};
    if (!end.poll(&wc)) _exit(3);
    if (first) {
      for (int fd = 4; fd < 200; ++fd) close(fd);
    }
    end.post(static_cast<uint32_t>(wc.wr_id));
    parent.say("got one");
  }
}

TEST(SoftFabric, AProgramThatClosesItsDescriptorsIsNotDead) {
  Fabric fabric;
  {
    Endpoint end;
    Child child("closes_everything");
    unsigned target = 0, srqn = 0;
    ASSERT_EQ(sscanf(child.hear().c_str(), "%u %u", &target, &srqn), 2);
    ASSERT_EQ(end.connect(target), 0);
    for (int i = 0; i < 200; ++i) {
      const uint32_t value = 1;
      ASSERT_EQ(end.send(srqn, &value, sizeof(value)), 0);
      ibv_wc wc = {};
      ASSERT_TRUE(end.poll_sent(&wc));
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << i;
      ASSERT_EQ(child.hear(), "got one");
      ibv_poll_cq(end.cq.get(), 1, &wc);  // looks for deaths
    }
    child.signal(SIGKILL);
    child.wait();
    const uint32_t value = 1;
    ibv_wc wc = {};
    do {
      ASSERT_EQ(end.send(srqn, &value, sizeof(value)), 0);
      ASSERT_TRUE(end.poll_sent(&wc));
    } while (wc.status == IBV_WC_SUCCESS);
    EXPECT_EQ(fabric.files("alive").size(), 1u);
  }
  EXPECT_FALSE(fabric.exists());
}

/** Joins with ever more descriptors, until it gets in. */
MILLRACE_CHILD(few_descriptors) {
  for (rlim_t limit = 4; limit < 64; ++limit) {
    const rlimit few = {limit, 64};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    base::Status status;
    {
      verbs::ContextPtr context = join(&status);
      if (context) break;
    }
    EXPECT_EQ(status.code, EMFILE) << limit << " " << status.what << ": " << status.detail;
    parent.say("failed");
    EXPECT_EQ(parent.hear(), "go on");
  }
  parent.say("in");
  return 0;
}

TEST(SoftFabric, AJoinThatFailsHalfWayLeavesNothing) {
  OwnBase base;
  {
    Fabric fabric;
    Child child("few_descriptors");
    int failed = 0;
    for (std::string line = child.hear(); line == "failed"; line = child.hear()) {
      ++failed;
      EXPECT_NE(access(base.parent().c_str(), F_OK), 0) << "after " << failed;
      child.say("go on");
    }
    EXPECT_GT(failed, 5);
    EXPECT_EQ(child.wait(), 0);
    EXPECT_FALSE(fabric.exists());
  }
}

}  // namespace
}  // namespace millrace::test
