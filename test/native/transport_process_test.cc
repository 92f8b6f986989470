#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <charconv>
#include <set>

#include "transport_support.h"

/**
 * Members in several processes. The test program starts itself again as `--member`; it is the hub
 * that carries offers and tunnel messages between them (in the product: the control connections),
 * and it kills, stops and continues them.
 */
namespace millrace::transport {
namespace {

using test::deadline_in;
using test::Domain;
using test::kSlow;
using test::Node;

enum Kind : uint32_t { kOfferMessage = 1, kTunnelMessage, kGone, kProgress, kDone, kGoOn, kStop };

struct Message {
  uint32_t kind, from, to, bytes;
  uint64_t number;
  std::array<uint8_t, std::max(kMaxTunnelBytes, kOfferBytes)> data;
};

void post(int fd, const Message& m) { (void)!send(fd, &m, sizeof(m), MSG_NOSIGNAL); }
bool take(int fd, Message* m) {
  return recv(fd, m, sizeof(*m), MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(*m));
}

struct Plan {
  uint32_t members = 2;
  uint64_t records = 1000;  ///< to each of the others
  uint32_t payload = 64;
  uint32_t slot_bytes = 16384;
  uint32_t slots = 128;
  uint64_t fault_seed = 0;  ///< 0: none
  bool sleeps = true;       ///< arms and sleeps when idle, or polls all the time
  /** What goes to and from this one stands still at its half until the hub says go on: a signal in
   * the middle comes in the middle. */
  uint32_t victim = ~0u;
};

// ---- a member
// ------------------------------------------------------------------------------------------------------------

/** Runs until told to stop. Exit status 0: everything that it got was in order. */
class Child {
 public:
  Child(int control, uint32_t id, const Domain& domain, const Plan& plan)
      : control_(control), id_(id), plan_(plan), node_(domain, 5000 + id, options(plan, id)) {}

  int run() {
    if (!node_.ok()) return 3;
    for (uint32_t other = 0; other < plan_.members; ++other) {
      if (other == id_) continue;
      auto offer = node_.member().offer();
      if (!offer.ok()) return 4;
      index_[other] = offer.value().peer;
      Message m{kOfferMessage, id_, other, kOfferBytes, 0, {}};
      std::copy(offer.value().bytes.begin(), offer.value().bytes.end(), m.data.begin());
      post(control_, m);
    }
    uint32_t idle = 0;
    while (!stopping_) {
      bool moved = produce();
      moved |= (node_.flush() & kProgress) != 0;
      moved |= node_.poll() > 0;
      carry();
      moved |= control();
      report();
      if (testing::Test::HasFailure()) return 5;
      idle = moved ? 0 : idle + 1;
      // The fixed wait is no pause but a guard: the test's own deadline ends a member that was not
      // woken.
      if (plan_.sleeps && idle > 20 && node_.member().arm()) {
        pollfd fds[2] = {{node_.member().fd(), POLLIN, 0}, {control_, POLLIN, 0}};
        (void)::poll(fds, 2, 60'000);
        idle = 0;
      }
    }
    node_.member().close();
    return testing::Test::HasFailure() ? 5 : 0;
  }

 private:
  static MemberOptions options(const Plan& plan, uint32_t id) {
    MemberOptions o;
    o.slot_bytes = plan.slot_bytes;
    o.slots = plan.slots;
    o.max_slots = 1024;
    o.arena_bytes = 1 << 20;
    if (plan.fault_seed != 0) {
      o.faults = verbs::FaultPlan{.seed = plan.fault_seed + id,
                                  .error = 0.002,
                                  .ambiguous = 0.002,
                                  .delay = 0.01,
                                  .rnr = 0.01,
                                  .dead_srq = 0.002};
    }
    return o;
  }

  bool produce() {
    bool any = false;
    for (const auto& [other, index] : connected_) {
      const bool half = !go_on_ && (id_ == plan_.victim || other == plan_.victim);
      const uint64_t most = half ? plan_.records / 2 : plan_.records;
      if (sent_[other] == most || node_.peer(index, kPeerBacklogBytes) > (256 << 10)) continue;
      // What is posted to a peer that died holds the arena until its death is known: the loop goes
      // on to hear of it.
      for (uint32_t i = 0; i < 200 && sent_[other] < most; ++i, ++sent_[other]) {
        if (!node_.fits(plan_.payload)) break;
        node_.send({index}, 100 + other, plan_.payload);
        any = true;
      }
    }
    return any;
  }

  void carry() {
    for (; !node_.tunnel_out.empty(); node_.tunnel_out.pop_front()) {
      const auto& [index, bytes] = node_.tunnel_out.front();
      for (const auto& [other, there] : connected_) {
        if (there != index) continue;
        Message m{kTunnelMessage, id_, other, static_cast<uint32_t>(bytes.size()), 0, {}};
        std::copy(bytes.begin(), bytes.end(), m.data.begin());
        post(control_, m);
      }
    }
  }

  bool control() {
    Message m;
    bool any = false;
    while (take(control_, &m)) {
      any = true;
      switch (m.kind) {
        case kOfferMessage:
          if (!node_.member().connect(index_[m.from], 5000 + m.from, {m.data.data(), m.bytes}).ok())
            ADD_FAILURE();
          connected_[m.from] = index_[m.from];
          break;
        case kTunnelMessage:
          if (connected_.count(m.from))
            node_.member().tunnel(connected_[m.from], {m.data.data(), m.bytes});
          break;
        case kGone:
          while (node_.poll() > 0) {
          }
          node_.member().disconnect(index_[m.from]);
          connected_.erase(m.from);
          gone_.insert(m.from);
          break;
        case kGoOn:
          go_on_ = true;
          break;
        case kStop:
          stopping_ = true;
          break;
        default:
          break;
      }
    }
    // The hub is gone: so is the test.
    char c;
    if (recv(control_, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0) stopping_ = true;
    return any;
  }

  /** Tells the hub now and then how far it is, and once for each peer when all is sent and
   * received. */
  void report() {
    for (const auto& [other, index] : connected_) {
      const uint64_t got = node_.stream(index, 100 + id_).last;
      if (got / kReportEvery != reported_[other] / kReportEvery) {
        post(control_, {kProgress, id_, other, 0, got, {}});
        reported_[other] = got;
      }
      if (done_.count(other) == 0 && got == plan_.records && sent_[other] == plan_.records &&
          node_.peer(index, kRowsCompleted) == static_cast<double>(node_.rows_sent(index))) {
        done_.insert(other);
        post(control_, {kDone, id_, other, 0, got, {}});
      }
    }
  }

  static constexpr uint64_t kReportEvery = 500;
  const int control_;
  const uint32_t id_;
  const Plan plan_;
  Node node_;
  bool stopping_ = false, go_on_ = false;
  std::map<uint32_t, uint32_t> index_, connected_;
  std::map<uint32_t, uint64_t> sent_, reported_;
  std::set<uint32_t> done_, gone_;
};

// ---- the hub
// -------------------------------------------------------------------------------------------------------------

class Hub {
 public:
  explicit Hub(const Plan& plan)
      : plan_(plan), pids_(plan.members, -1), sockets_(plan.members, -1) {
    for (uint32_t id = 0; id < plan.members; ++id) start(id);
  }
  ~Hub() {
    for (uint32_t id = 0; id < plan_.members; ++id) {
      if (pids_[id] > 0) {
        kill(pids_[id], SIGKILL);
        waitpid(pids_[id], nullptr, 0);
      }
      if (sockets_[id] >= 0) close(sockets_[id]);
    }
    std::filesystem::remove_all(fabric_folder());
  }

  Domain& domain() { return domain_; }
  std::string fabric_folder() const {
    return test::shm_folder() + "/millrace-soft.1." + std::to_string(getuid()) + "/" +
           domain_.fabric();
  }
  void signal(uint32_t id, int number) { kill(pids_[id], number); }

  /** Kills, waits for the end, and tells the others, as their control connections would. */
  void murder(uint32_t id) {
    kill(pids_[id], SIGKILL);
    waitpid(pids_[id], nullptr, 0);
    pids_[id] = -1;
    drain(id);
    close(sockets_[id]);
    sockets_[id] = -1;
    // Whoever notices a death removes the dead member's files.
    for (const auto& entry : std::filesystem::directory_iterator(domain_.folder())) {
      const std::string name = entry.path().filename();
      if (name.rfind("i-" + std::to_string(5000 + id) + ".", 0) == 0)
        std::filesystem::remove(entry.path());
    }
    for (uint32_t other = 0; other < plan_.members; ++other) {
      if (pids_[other] > 0) post(sockets_[other], {kGone, id, other, 0, 0, {}});
    }
  }

  /** Carries messages until `done`; false when that did not come about in time, or a member ended.
   */
  bool run(const std::function<bool()>& done, uint64_t seconds = 120) {
    const uint64_t deadline = deadline_in(seconds);
    while (!done()) {
      std::vector<pollfd> fds;
      for (int fd : sockets_) fds.push_back({fd, POLLIN, 0});
      (void)::poll(fds.data(), fds.size(), 100);
      for (uint32_t id = 0; id < plan_.members; ++id) {
        if (sockets_[id] >= 0) drain(id);
      }
      for (uint32_t id = 0; id < plan_.members; ++id) {
        int status = 0;
        if (pids_[id] > 0 && waitpid(pids_[id], &status, WNOHANG) == pids_[id]) {
          pids_[id] = -1;
          ADD_FAILURE() << "member " << id << " ended, status " << std::hex << status;
          return false;
        }
      }
      if (base::now_ns() > deadline) {
        for (const auto& [pair, n] : progress) {
          std::fprintf(stderr, "member %u has %llu of member %u\n", pair.first,
                       static_cast<unsigned long long>(n), pair.second);
        }
        return false;
      }
    }
    return true;
  }

  /** The streams of the victim go on beyond their half. */
  void go_on() {
    for (uint32_t id = 0; id < plan_.members; ++id)
      if (pids_[id] > 0) post(sockets_[id], {kGoOn, id, id, 0, 0, {}});
  }

  /** Everybody of `ids` has everything from each other. */
  bool complete(const std::vector<uint32_t>& ids) const {
    for (uint32_t a : ids) {
      for (uint32_t b : ids) {
        if (a != b && finished.count({a, b}) == 0) return false;
      }
    }
    return true;
  }

  void stop() {
    for (uint32_t id = 0; id < plan_.members; ++id) {
      if (pids_[id] <= 0) continue;
      post(sockets_[id], {kStop, id, id, 0, 0, {}});
      int status = 0;
      EXPECT_EQ(waitpid(pids_[id], &status, 0), pids_[id]);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "member " << id << ": " << std::hex << status;
      pids_[id] = -1;
    }
    EXPECT_EQ(domain_.files(), 0u);
    EXPECT_FALSE(std::filesystem::exists(fabric_folder())) << fabric_folder();
  }

  std::map<std::pair<uint32_t, uint32_t>, uint64_t> progress;  ///< (who, from whom) -> records
  std::set<std::pair<uint32_t, uint32_t>> finished;
  uint64_t tunnels = 0;

 private:
  void start(uint32_t id) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const std::string values[] = {std::to_string(pair[1]),
                                    std::to_string(id),
                                    domain_.folder(),
                                    domain_.fabric(),
                                    std::to_string(plan_.members),
                                    std::to_string(plan_.records),
                                    std::to_string(plan_.payload),
                                    std::to_string(plan_.slot_bytes),
                                    std::to_string(plan_.slots),
                                    std::to_string(plan_.fault_seed),
                                    std::to_string(plan_.sleeps),
                                    std::to_string(plan_.victim)};
      std::vector<const char*> args = {"/proc/self/exe", "--member"};
      for (const std::string& v : values) args.push_back(v.c_str());
      args.push_back(nullptr);
      execv("/proc/self/exe", const_cast<char**>(args.data()));
      _exit(127);
    }
    close(pair[1]);
    pids_[id] = pid;
    sockets_[id] = pair[0];
  }

  void drain(uint32_t id) {
    Message m;
    while (take(sockets_[id], &m)) {
      switch (m.kind) {
        case kOfferMessage:
        case kTunnelMessage:
          if (m.kind == kTunnelMessage) ++tunnels;
          if (sockets_[m.to] >= 0) post(sockets_[m.to], m);
          break;
        case kDone:
          finished.insert({m.from, m.to});
          [[fallthrough]];
        case kProgress:
          progress[{m.from, m.to}] = m.number;
          break;
        default:
          break;
      }
    }
  }

  Domain domain_;
  const Plan plan_;
  std::vector<pid_t> pids_;
  std::vector<int> sockets_;
};

// ---- tests
// ---------------------------------------------------------------------------------------------------------------

TEST(Processes, TwoAMillionEachWay) {
  Plan plan;
  plan.records = 1'000'000 / kSlow;
  Hub hub(plan);
  ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1}); }));
  hub.stop();
}

TEST(Processes, FourAllToAllPollingAndSleeping) {
  for (bool sleeps : {false, true}) {
    Plan plan;
    plan.members = 4;
    plan.records = 60'000 / kSlow;
    plan.payload = 100;
    plan.sleeps = sleeps;
    Hub hub(plan);
    ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2, 3}); }));
    hub.stop();
  }
}

TEST(Processes, WithTheFloorOnlyNobodyStarves) {
  Plan plan;
  plan.members = 3;
  plan.records = 20'000 / kSlow;
  plan.payload = 200;
  plan.slot_bytes = 1024;
  plan.slots = 6;
  Hub hub(plan);
  ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2}); }));
  hub.stop();
}

TEST(Processes, AKilledMemberIsMissedByNobody) {
  for (int round = 0; round < 3; ++round) {
    Plan plan;
    plan.members = 4;
    plan.records = 150'000 / kSlow;
    plan.victim = 3;
    Hub hub(plan);
    const uint64_t some = static_cast<uint64_t>(1000 + 5000 * round) / kSlow;
    ASSERT_TRUE(hub.run([&] {
      return hub.progress[{0, 3}] > some && hub.progress[{3, 1}] > some;
    }));
    hub.murder(3);
    ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2}); }));
    hub.stop();
  }
}

TEST(Processes, AllKilledButOne) {
  Plan plan;
  plan.members = 4;
  plan.records = 100'000 / kSlow;
  plan.victim = 0;
  Hub hub(plan);
  ASSERT_TRUE(hub.run([&] { return hub.progress[{0, 3}] > 500 && hub.progress[{1, 0}] > 500; }));
  for (uint32_t id : {1u, 2u, 3u}) hub.murder(id);
  hub.stop();
}

TEST(Processes, AStoppedMemberHoldsUpNobodyAndGoesOn) {
  Plan plan;
  plan.members = 4;
  plan.records = 100'000 / kSlow;
  plan.victim = 3;
  Hub hub(plan);
  ASSERT_TRUE(hub.run([&] { return hub.progress[{0, 3}] > 500 && hub.progress[{3, 1}] > 500; }));
  hub.signal(3, SIGSTOP);
  // The others finish among themselves while it stands still.
  ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2}); }));
  EXPECT_FALSE(hub.complete({0, 1, 2, 3}));
  hub.go_on();
  hub.signal(3, SIGCONT);
  ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2, 3}); }));
  hub.stop();
}

TEST(Processes, FaultsLoseNothing) {
  for (uint64_t seed : {1000u, 2000u, 3000u}) {
    Plan plan;
    plan.members = 3;
    plan.records = 20'000 / kSlow;
    plan.payload = 300;
    plan.slot_bytes = 2048;
    plan.fault_seed = seed;
    Hub hub(plan);
    ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2}); })) << seed;
    EXPECT_GT(hub.tunnels, 0u);
    hub.stop();
  }
}

TEST(Processes, FaultsAndAStoppedMember) {
  // Lanes are re-armed while one of the receivers can not answer: the others go on all the same.
  Plan plan;
  plan.members = 4;
  plan.records = 30'000 / kSlow;
  plan.payload = 300;
  plan.slot_bytes = 2048;
  plan.fault_seed = 77;
  plan.victim = 3;
  Hub hub(plan);
  ASSERT_TRUE(hub.run([&] { return hub.progress[{0, 3}] > 500 && hub.progress[{3, 1}] > 500; }));
  hub.signal(3, SIGSTOP);
  ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2}); }));
  hub.go_on();
  hub.signal(3, SIGCONT);
  ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2, 3}); }));
  hub.stop();
}

TEST(Processes, FaultsAndAKilledMember) {
  Plan plan;
  plan.members = 4;
  plan.records = 30'000 / kSlow;
  plan.payload = 300;
  plan.slot_bytes = 2048;
  plan.fault_seed = 99;
  plan.victim = 3;
  Hub hub(plan);
  ASSERT_TRUE(hub.run([&] { return hub.progress[{0, 3}] > 500 && hub.progress[{3, 1}] > 500; }));
  hub.murder(3);
  ASSERT_TRUE(hub.run([&] { return hub.complete({0, 1, 2}); }));
  hub.stop();
}

int member_main(char** argv) {
  const auto number = [](const char* text) {
    uint64_t value = 0;
    std::from_chars(text, text + std::strlen(text), value);
    return value;
  };
  Plan plan;
  const int control = static_cast<int>(number(argv[2]));
  const uint32_t id = static_cast<uint32_t>(number(argv[3]));
  const Domain domain(argv[4], argv[5]);
  plan.members = static_cast<uint32_t>(number(argv[6]));
  plan.records = number(argv[7]);
  plan.payload = static_cast<uint32_t>(number(argv[8]));
  plan.slot_bytes = static_cast<uint32_t>(number(argv[9]));
  plan.slots = static_cast<uint32_t>(number(argv[10]));
  plan.fault_seed = number(argv[11]);
  plan.sleeps = number(argv[12]) != 0;
  plan.victim = static_cast<uint32_t>(number(argv[13]));
  return Child(control, id, domain, plan).run();
}

}  // namespace
}  // namespace millrace::transport

int main(int argc, char** argv) {
  const bool member = argc == 14 && std::strcmp(argv[1], "--member") == 0;
  int none = 1;
  testing::InitGoogleTest(member ? &none : &argc, argv);
  if (member) return millrace::transport::member_main(argv);
  return RUN_ALL_TESTS();
}
