#include <sys/eventfd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "transport_support.h"

/** Members in threads of one process, as worker threads have them: each in its own thread (I6). For
 * TSan above all. */
#if defined(__SANITIZE_THREAD__)
/**
 * The two ends of a completion ring map its file each for itself, so within one process the tail
 * that the initiator publishes and the one that the receiver reads have different addresses, and
 * TSan does not see that the one orders the payload's copy before the other. What it reports is
 * then the reading of a slot, here. (The ring itself is checked exhaustively: models a1 and f1.)
 */
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:millrace::transport::Member::Core::demultiplex\n"
         "race:millrace::transport::Member::Core::take_arrived\n";
}
#endif

namespace millrace::transport {
namespace {

using test::deadline_in;
using test::Domain;
using test::kSlow;
using test::Node;

/** The control connections: a mailbox for each member. */
class Mailbox {
 public:
  struct Letter {
    uint32_t from;
    bool offer;
    std::vector<uint8_t> bytes;
  };
  Mailbox() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Mailbox() { close(fd_); }
  void put(Letter letter) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      letters_.push_back(std::move(letter));
    }
    const uint64_t one = 1;
    (void)!write(fd_, &one, sizeof(one));
  }
  std::deque<Letter> take() {
    uint64_t count;
    (void)!read(fd_, &count, sizeof(count));
    std::lock_guard<std::mutex> guard(mutex_);
    return std::exchange(letters_, {});
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
  std::mutex mutex_;
  std::deque<Letter> letters_;
};

struct Crew {
  Crew(uint32_t count, uint64_t per_peer) : members(count), records(per_peer), boxes(count) {}
  const uint32_t members;
  const uint64_t records;
  std::vector<Mailbox> boxes;
  std::atomic<uint32_t> finished{0};
  std::atomic<bool> failed{false};
};

void work(Crew& crew, const Domain& domain, uint32_t id, bool sleeps, uint64_t fault_seed) {
  MemberOptions options;
  options.slot_bytes = 2048;
  options.slots = 64;
  options.arena_bytes = 1 << 19;
  if (fault_seed != 0)
    options.faults = verbs::FaultPlan{.seed = fault_seed + id,
                                      .error = 0.005,
                                      .ambiguous = 0.005,
                                      .delay = 0.01,
                                      .rnr = 0.01,
                                      .dead_srq = 0.005,
                                      .max_delay_polls = 8};
  Node node(domain, 900 + id, options);
  if (!node.ok()) {
    crew.failed = true;
    return;
  }
  node.may_wait(true);
  std::map<uint32_t, uint32_t> index;
  std::map<uint32_t, uint64_t> sent;
  std::map<uint32_t, uint32_t> up;
  for (uint32_t other = 0; other < crew.members; ++other) {
    if (other == id) continue;
    Offer offer = node.member().offer().take();
    index[other] = offer.peer;
    crew.boxes[other].put({id, true, {offer.bytes.begin(), offer.bytes.end()}});
  }
  bool told = false;
  uint32_t idle = 0;
  const uint64_t deadline = deadline_in(120);
  while (crew.finished < crew.members && !crew.failed) {
    bool moved = false;
    for (auto& letter : crew.boxes[id].take()) {
      moved = true;
      if (letter.offer) {
        if (!node.member().connect(index[letter.from], 900 + letter.from, letter.bytes).ok())
          crew.failed = true;
        up[letter.from] = index[letter.from];
      } else {
        node.member().tunnel(up[letter.from], letter.bytes);
      }
    }
    for (const auto& [other, there] : up) {
      if (node.peer(there, kPeerBacklogBytes) > (64 << 10)) continue;
      for (int i = 0; i < 50 && sent[other] < crew.records; ++i, ++sent[other]) {
        node.send({there}, 10 + other, 64);
        moved = true;
      }
    }
    moved |= (node.flush() & kProgress) != 0;
    moved |= node.poll() > 0;
    for (; !node.tunnel_out.empty(); node.tunnel_out.pop_front()) {
      for (const auto& [other, there] : up) {
        if (there == node.tunnel_out.front().first)
          crew.boxes[other].put({id, false, node.tunnel_out.front().second});
      }
    }
    bool all = up.size() + 1 == crew.members;
    for (const auto& [other, there] : up) {
      all = all && node.stream(there, 10 + id).last == crew.records &&
            sent[other] == crew.records &&
            node.peer(there, kRowsCompleted) == static_cast<double>(node.rows_sent(there));
    }
    if (all && !told) {
      told = true;
      if (++crew.finished == crew.members) {
        for (Mailbox& box : crew.boxes)
          box.put({id, false, {}});  // wakes the sleepers; of no meaning otherwise
      }
    }
    if (testing::Test::HasFailure() || base::now_ns() > deadline) crew.failed = true;
    idle = moved ? 0 : idle + 1;
    if (idle > 0) std::this_thread::yield();
    if (sleeps && idle > 10 && node.member().arm()) {
      pollfd fds[2] = {{node.member().fd(), POLLIN, 0}, {crew.boxes[id].fd(), POLLIN, 0}};
      (void)::poll(fds, 2, 1000);
      idle = 0;
    }
  }
}

void run_crew(uint32_t members, uint64_t records, bool sleeps, uint64_t fault_seed) {
  Domain domain;
  Crew crew(members, records);
  std::vector<std::thread> threads;
  for (uint32_t id = 0; id < members; ++id) {
    threads.emplace_back([&, id] { work(crew, domain, id, sleeps, fault_seed); });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(crew.failed);
  EXPECT_EQ(crew.finished, members);
  EXPECT_EQ(domain.files(), 0u);
}

TEST(Threads, AllToAllPolling) { run_crew(4, 20'000 / kSlow, false, 0); }
TEST(Threads, AllToAllSleeping) { run_crew(4, 20'000 / kSlow, true, 0); }
TEST(Threads, AllToAllWithFaults) {
  for (uint64_t seed : {100u, 200u, 300u}) run_crew(3, 5'000 / kSlow, true, seed);
}
TEST(Threads, JoinAndLeaveOverAndOver) {
  for (int i = 0; i < (kSlow > 1 ? 6 : 30); ++i) {
    run_crew(3, 200, i % 2 == 0, 0);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::transport
