// Processes that come and go, thousands of them: what they leave in the fabric, and in a process
// that stays, does not grow.
#include <malloc.h>

#include <fstream>

#include "soft/process.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kGenerations = 60;  // each forks a process with a sanitizer in it
#else
constexpr int kGenerations = 400;
#endif

/** How many, from MILLRACE_GENERATIONS; a tenth of them once before anything is counted. */
int generations() {
  const char* given = getenv("MILLRACE_GENERATIONS");
  return given != nullptr && *given != '\0' ? std::stoi(given) : kGenerations;
}

/** What may grow with the number of processes that have been there. */
struct Held {
  std::map<std::string, size_t> counts;
  size_t heap = 0;  ///< 0 under a sanitizer
};

/** In use: processes, SRQs, QPs, holds, XRC domains, groups, flows and spreads of the root. */
size_t records_in_use(soft::Root& root) {
  size_t used = 0;
  for (uint32_t i = 0; i < root.processes(); ++i)
    used += static_cast<soft::ProcessState>(root.process(i).state.load() >> 32) !=
            soft::ProcessState::kFree;
  const auto lives = [](const soft::Word& word) {
    return soft::record_life(word.load()) != soft::Life::kFree;
  };
  for (uint32_t i = 0; i < root.srqs(); ++i) used += lives(root.srq(i).word);
  for (uint32_t i = 0; i < root.qps(); ++i) used += lives(root.qp(i).word);
  for (uint32_t i = 0; i < root.targets(); ++i) {
    for (const soft::Half& holder : root.holders(i).holder) used += holder.load() != 0;
  }
  for (uint32_t i = 0; i < root.xrcds(); ++i) used += root.xrcd(i).owner.load() != 0;
  for (uint32_t i = 0; i < root.groups(); ++i) used += root.group(i).owner.load() != 0;
  for (uint32_t i = 0; i < root.flows(); ++i) used += root.flow(i).owner.load() != 0;
  for (uint32_t i = 0; i < root.spreads(); ++i) used += root.spread(i).owner.load() != 0;
  return used;
}

Held held(const Fabric& fabric) {
  Held now;
  const std::vector<std::string> files = fabric.files();
  now.counts["files"] = files.size();
  now.counts["bytes of the files"] = 0;
  for (const std::string& name : files) {
    struct stat info;
    if (stat((fabric.folder() + "/" + name).c_str(), &info) == 0)
      now.counts["bytes of the files"] += static_cast<size_t>(info.st_size);
  }
  now.counts["records"] = records_in_use(soft::Process::current()->root());
  now.counts["descriptors"] = names_in("/proc/self/fd").size();
  // The heap's own ones are counted below; a shared one of a peer that has gone would stay for
  // good.
  now.counts["shared mappings"] = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    now.counts["shared mappings"] += line.find(fabric.folder()) != std::string::npos;
  now.heap = mallinfo2().uordblks;
  return now;
}

/** One generation in a forked child: sends to itself and to who stays, and ends one way or another.
 */
[[noreturn]] void live_and_die(int way, uint32_t target, uint32_t srqn) {
  auto end = std::make_unique<Endpoint>();
  const uint32_t value = 1;
  ibv_wc wc = {};
  bool good = end->connect(end->target_qpn()) == 0 &&
              end->send(end->srqn(), &value, sizeof(value)) == 0 && end->poll(&wc) &&
              end->poll_sent(&wc);
  Endpoint::Options options;
  options.receive = false;
  auto other = std::make_unique<Endpoint>(options);
  good &= other->connect(target) == 0 && other->send(srqn, &value, sizeof(value)) == 0 &&
          other->poll_sent(&wc) && wc.status == IBV_WC_SUCCESS;
  if (!good || ::testing::Test::HasFailure()) _exit(1);
  if (way == 0) {
    other.reset();
    end.reset();
  } else if (way == 1) {
    exit(0);  // through the exit handler, with everything open
  } else if (way == 2) {
    kill(getpid(), SIGKILL);
  }
  _exit(0);
}

/** Forks generations, without having joined itself: COUNT TARGET SRQN, then again for each line. */
MILLRACE_CHILD(breeder) {
  for (std::string line = parent.hear(); !line.empty(); line = parent.hear()) {
    int count = 0;
    unsigned target = 0, srqn = 0;
    if (sscanf(line.c_str(), "%d %u %u", &count, &target, &srqn) != 3) return 2;
    for (int i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid == 0) live_and_die(i % 4, target, srqn);
      int status = 0;
      if (waitpid(pid, &status, 0) != pid) return 3;
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && i % 4 == 2;
      if (!killed && status != 0) return 4;
    }
    parent.say("bred");
  }
  return 0;
}

TEST(SoftGenerations, LeaveNothingBehind) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.send = false;
    Endpoint end(options);
    Child breeder("breeder");
    const auto breed = [&](int count) {
      breeder.say(base::format("%d %u %u", count, end.target_qpn(), end.srqn()));
      int received = 0;
      ibv_wc wc = {};
      std::string line;
      const auto poll = [&] {
        while (ibv_poll_cq(end.cq.get(), 1, &wc) == 1) {
          EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
          EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
          ++received;
        }
      };
      EXPECT_TRUE(eventually(
          [&] {
            poll();
            if (line.empty()) line = breeder.hear(1);
            return line == "bred" && received == count;
          },
          600'000))
          << received << " of " << count << " " << line;
    };
    /** When the last deaths have been noticed. */
    const auto settled = [&](const Held* wanted) {
      Held now;
      (void)eventually(
          [&] {
            ibv_wc wc = {};
            ibv_poll_cq(end.cq.get(), 1, &wc);
            now = held(fabric);
            return wanted == nullptr ? fabric.files("alive").size() == 1
                                     : now.counts == wanted->counts;
          },
          10'000);
      return now;
    };
    const int count = generations();
    breed(std::max(count / 10, 8));
    const Held before = settled(nullptr);
    breed(count);
    const Held after = settled(&before);
    EXPECT_EQ(after.counts, before.counts);
    // Less than a list's node for each; the allocator's own rounding is in it.
    EXPECT_LE(after.heap, before.heap + 16 * static_cast<size_t>(count));
    printf("%d generations: heap %zu before, %zu after\n", count, before.heap, after.heap);
    for (const auto& [what, number] : after.counts) printf("  %s: %zu\n", what.c_str(), number);
    breeder.say("");
    EXPECT_EQ(breeder.wait(), 0);
  }
  EXPECT_FALSE(fabric.exists());
}

}  // namespace
}  // namespace millrace::test
