// Payloads read out of a peer's memory by RDMA READ: between two ports of one fabric, as from
// another host.
#include "transport/fetch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "transport_support.h"
#include "verbs/owners.h"

namespace millrace::transport {
namespace {

using test::Domain;
using test::Node;

/** Memory that is registered with a member, and filled so that each byte can be told from its
 * neighbours. */
struct Block {
  Block(Node& node, size_t bytes, int access)
      : pages(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
              bytes) {
    mr = verbs::MrPtr(ibv_reg_mr(node.member().pd(), pages.data(), bytes, access));
    EXPECT_TRUE(mr) << errno;
  }
  void fill() {
    for (size_t i = 0; i < pages.size(); ++i) pages.data()[i] = pattern(i);
  }
  static std::byte pattern(size_t i) { return static_cast<std::byte>((i * 2654435761u) >> 24); }
  /** Whether it holds what another one was filled with, up to there. */
  bool holds(size_t bytes) const {
    for (size_t i = 0; i < bytes; ++i) {
      if (pages.data()[i] != pattern(i)) return false;
    }
    return true;
  }
  RemoteMemory remote() const {
    return {reinterpret_cast<uint64_t>(pages.data()), pages.size(), mr->rkey};
  }

  base::Mapping pages;
  verbs::MrPtr mr;
};

constexpr int kSource = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;

MemberOptions on_port(int port) {
  MemberOptions options;
  if (test::device() == "soft") options.device = "soft" + std::to_string(port);
  return options;
}

/** A publisher and a subscriber on two ports of one fabric, connected. */
class Fetches : public testing::Test {
 protected:
  Fetches() {
    setenv("MILLRACE_SOFT_DEVICES", "2", 1);
    publisher = std::make_unique<Node>(domain, 11, on_port(0));
    subscriber = std::make_unique<Node>(domain, 12, on_port(1));
    std::tie(to_subscriber, to_publisher) = test::connect(*publisher, *subscriber);
  }
  ~Fetches() override { unsetenv("MILLRACE_SOFT_DEVICES"); }

  uint32_t fetch(const RemoteMemory& from, Block& to) {
    auto number = subscriber->member().fetch(to_publisher, from, to.pages.data(), to.mr->lkey);
    EXPECT_TRUE(number.ok()) << number.status().detail;
    return number.ok() ? number.value() : 0;
  }
  /** How a fetch ended; waits for it. */
  Node::Told ended(uint32_t number) {
    const auto over = [&] {
      return std::any_of(subscriber->fetches.begin(), subscriber->fetches.end(),
                         [&](const Node::Told& told) {
                           return told.number == number && told.end != FetchEnd::kNone;
                         });
    };
    EXPECT_TRUE(test::run({publisher.get(), subscriber.get()}, over));
    return over() ? *std::find_if(subscriber->fetches.begin(), subscriber->fetches.end(),
                                  [&](const Node::Told& told) {
                                    return told.number == number && told.end != FetchEnd::kNone;
                                  })
                  : Node::Told{};
  }

  Domain domain;
  std::unique_ptr<Node> publisher, subscriber;
  uint32_t to_subscriber = 0, to_publisher = 0;
};

TEST_F(Fetches, MembersOnTwoPortsAreElsewhere) {
  if (test::device() != "soft") GTEST_SKIP() << "one port";
  EXPECT_TRUE(subscriber->member().elsewhere(to_publisher));
  EXPECT_TRUE(publisher->member().elsewhere(to_subscriber));
  Node neighbour(domain, 13, on_port(1));
  const auto [there, here] = test::connect(*subscriber, neighbour);
  EXPECT_FALSE(subscriber->member().elsewhere(there));
  EXPECT_FALSE(neighbour.member().elsewhere(here));
}

TEST_F(Fetches, BringWhatIsThereWhateverTheSize) {
  for (const size_t bytes : {size_t{1}, size_t{kFetchPiece}, size_t{5 * kFetchPiece + 3}}) {
    Block source(*publisher, bytes, kSource), target(*subscriber, bytes, IBV_ACCESS_LOCAL_WRITE);
    source.fill();
    const Node::Told told = ended(fetch(source.remote(), target));
    EXPECT_EQ(told.end, FetchEnd::kDone);
    EXPECT_EQ(told.done, bytes);
    EXPECT_TRUE(target.holds(bytes));
  }
}

TEST_F(Fetches, TellHowFarTheyAre) {
  const size_t bytes = 2 * kFetchProgress + kFetchPiece;
  Block source(*publisher, bytes, kSource), target(*subscriber, bytes, IBV_ACCESS_LOCAL_WRITE);
  const uint32_t number = fetch(source.remote(), target);
  EXPECT_EQ(ended(number).end, FetchEnd::kDone);
  ASSERT_EQ(subscriber->fetches.size(), 3u);
  EXPECT_EQ(subscriber->fetches[0].done, kFetchProgress);
  EXPECT_EQ(subscriber->fetches[1].done, 2 * kFetchProgress);
}

TEST_F(Fetches, HaveABoundedNumberOfBytesInFlightAndLetMessagesPass) {
  const size_t bytes = 16 * kFetchWindow;
  Block source(*publisher, bytes, kSource), target(*subscriber, bytes, IBV_ACCESS_LOCAL_WRITE);
  source.fill();
  const uint32_t number = fetch(source.remote(), target);
  // What one poll may bring is what the window holds: the rest of the target is as it was.
  const auto untouched = [&](size_t from) {
    return std::all_of(target.pages.data() + from, target.pages.data() + bytes,
                       [](std::byte b) { return b == std::byte{0}; });
  };
  EXPECT_TRUE(untouched(kFetchWindow));
  (void)subscriber->poll();
  EXPECT_TRUE(untouched(3 * kFetchWindow));
  uint64_t before = 0;
  while (subscriber->fetches.empty()) {
    publisher->send({to_subscriber}, 1, 100);
    (void)publisher->flush();
    (void)publisher->poll();
    (void)subscriber->poll();
    publisher->carry();
    subscriber->carry();
    if (subscriber->fetches.empty()) before = subscriber->stream(to_publisher, 1).last;
  }
  EXPECT_GT(before, 0u) << "messages came while it was under way";
  EXPECT_EQ(ended(number).end, FetchEnd::kDone);
  EXPECT_TRUE(target.holds(bytes));
}

TEST_F(Fetches, ManyAtOnceShareTheWindow) {
  Block source(*publisher, 3 * kFetchPiece + 1, kSource);
  source.fill();
  std::vector<std::unique_ptr<Block>> targets;
  std::vector<uint32_t> numbers;
  for (int i = 0; i < 20; ++i) {
    targets.push_back(
        std::make_unique<Block>(*subscriber, source.pages.size(), IBV_ACCESS_LOCAL_WRITE));
    numbers.push_back(fetch(source.remote(), *targets.back()));
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(ended(numbers[i]).end, FetchEnd::kDone);
    EXPECT_TRUE(targets[i]->holds(source.pages.size()));
  }
}

TEST_F(Fetches, OfMemoryThatIsNotThereFailAndTheLaneGoesOn) {
  Block source(*publisher, 3 * kFetchPiece, kSource),
      target(*subscriber, 3 * kFetchPiece, IBV_ACCESS_LOCAL_WRITE);
  source.fill();
  RemoteMemory wrong = source.remote();
  wrong.rkey ^= 0x10;
  Node::Told told = ended(fetch(wrong, target));
  EXPECT_EQ(told.end, FetchEnd::kFailed);
  EXPECT_EQ(told.status, IBV_WC_REM_ACCESS_ERR);
  // Beyond the end: what is there before it has come.
  wrong = source.remote();
  wrong.address += kFetchPiece;
  told = ended(fetch(wrong, target));
  EXPECT_EQ(told.end, FetchEnd::kFailed);
  EXPECT_EQ(told.status, IBV_WC_REM_ACCESS_ERR);
  // Without the right to read.
  Block secret(*publisher, 4096, IBV_ACCESS_LOCAL_WRITE);
  told = ended(fetch(secret.remote(), target));
  EXPECT_EQ(told.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ended(fetch(source.remote(), target)).end, FetchEnd::kDone);
  EXPECT_TRUE(target.holds(3 * kFetchPiece));
  publisher->send({to_subscriber}, 1, 100);
  EXPECT_TRUE(test::run({publisher.get(), subscriber.get()},
                        [&] { return subscriber->stream(to_publisher, 1).last == 1; }));
}

TEST_F(Fetches, EndWhenThePublisherTakesTheMemoryBack) {
  const size_t bytes = 16 * kFetchWindow;
  auto source = std::make_unique<Block>(*publisher, bytes, kSource);
  Block target(*subscriber, bytes, IBV_ACCESS_LOCAL_WRITE);
  const uint32_t number = fetch(source->remote(), target);
  (void)subscriber->poll();
  source.reset();
  const Node::Told told = ended(number);
  EXPECT_EQ(told.end, FetchEnd::kFailed);
  EXPECT_EQ(told.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_LT(told.done, bytes);
}

TEST_F(Fetches, AreCancelledAndEndWithTheirPeerOrMember) {
  const size_t bytes = 16 * kFetchWindow;
  Block source(*publisher, bytes, kSource), target(*subscriber, bytes, IBV_ACCESS_LOCAL_WRITE);
  const uint32_t cancelled = fetch(source.remote(), target);
  (void)subscriber->poll();
  subscriber->member().cancel_fetch(cancelled);
  EXPECT_EQ(ended(cancelled).end, FetchEnd::kCancelled);
  subscriber->member().cancel_fetch(cancelled);
  const uint32_t lost = fetch(source.remote(), target);
  (void)subscriber->poll();
  subscriber->member().disconnect(to_publisher);
  EXPECT_EQ(ended(lost).end, FetchEnd::kPeerLost);
  EXPECT_EQ(subscriber->member()
                .fetch(to_publisher, source.remote(), target.pages.data(), target.mr->lkey)
                .status()
                .code,
            ENOTCONN);
}

TEST(FetchesOfAFaultyDevice, BringTheRightBytesAllTheSame) {
  setenv("MILLRACE_SOFT_DEVICES", "2", 1);
  double errors = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Domain domain;
    MemberOptions faulty = on_port(1);
    faulty.faults = verbs::FaultPlan{.seed = seed, .error = 0.05, .ambiguous = 0.05, .delay = 0.2};
    Node publisher(domain, 11, on_port(0)), subscriber(domain, 12, faulty);
    const auto [there, back] = test::connect(publisher, subscriber);
    const size_t bytes = 40 * kFetchPiece / test::kSlow + 5;
    Block source(publisher, bytes, kSource), target(subscriber, bytes, IBV_ACCESS_LOCAL_WRITE);
    source.fill();
    auto number =
        subscriber.member().fetch(back, source.remote(), target.pages.data(), target.mr->lkey);
    ASSERT_TRUE(number.ok());
    const auto over = [&] { return !subscriber.fetches.empty(); };
    ASSERT_TRUE(test::run({&publisher, &subscriber}, over));
    EXPECT_EQ(subscriber.fetches[0].end, FetchEnd::kDone);
    EXPECT_TRUE(target.holds(bytes));
    errors += subscriber.counter(kErrorCompletions);
  }
  EXPECT_GT(errors, 0) << "the faults happened";
  unsetenv("MILLRACE_SOFT_DEVICES");
}

/** What the two processes of the next test tell each other at the start. */
struct Hello {
  uint8_t offer[kOfferBytes];
  RemoteMemory memory;
};

bool exchange(int fd, const Hello& mine, Hello* theirs) {
  return write(fd, &mine, sizeof(mine)) == sizeof(mine) &&
         read(fd, theirs, sizeof(*theirs)) == sizeof(*theirs);
}

TEST(FetchesOfAnotherProcess, ComeAndEndWithItsDeath) {
  if (test::device() == "soft" && getenv("MILLRACE_SOFT_XRC") != nullptr)
    GTEST_SKIP() << "lanes over RC come up through a control connection, which this test has not";
  if (test::device() != "soft") GTEST_SKIP() << "an adapter finds out after its retries";
  setenv("MILLRACE_SOFT_DEVICES", "2", 1);
  const size_t bytes = 32 * kFetchWindow;
  Domain domain;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    Node publisher(domain, 11, on_port(0));
    Block source(publisher, bytes, kSource);
    source.fill();
    auto offer = publisher.member().offer();
    Hello mine = {}, theirs = {};
    std::copy(offer.value().bytes.begin(), offer.value().bytes.end(), mine.offer);
    mine.memory = source.remote();
    if (!exchange(ends[1], mine, &theirs)) _exit(1);
    (void)publisher.member().connect(offer.value().peer, 12, theirs.offer);
    for (;;) pause();  // the publisher does nothing for it
  }
  {
    Node subscriber(domain, 12, on_port(1));
    Block target(subscriber, bytes, IBV_ACCESS_LOCAL_WRITE);
    auto offer = subscriber.member().offer();
    Hello mine = {}, theirs = {};
    std::copy(offer.value().bytes.begin(), offer.value().bytes.end(), mine.offer);
    ASSERT_TRUE(exchange(ends[0], mine, &theirs));
    const uint32_t peer = offer.value().peer;
    ASSERT_TRUE(subscriber.member().connect(peer, 11, theirs.offer).ok());
    const auto start = [&] {
      auto number =
          subscriber.member().fetch(peer, theirs.memory, target.pages.data(), target.mr->lkey);
      EXPECT_TRUE(number.ok()) << number.status().detail;
      return subscriber.fetches.size();
    };
    const auto over = [&] {
      return !subscriber.fetches.empty() && subscriber.fetches.back().end != FetchEnd::kNone;
    };
    start();
    ASSERT_TRUE(test::run({&subscriber}, over));
    EXPECT_EQ(subscriber.fetches.back().end, FetchEnd::kDone);
    EXPECT_TRUE(target.holds(bytes));

    subscriber.fetches.clear();
    start();
    (void)subscriber.poll();
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    for (int i = 0; i < 8 && !over(); ++i) (void)subscriber.poll();
    EXPECT_TRUE(!over() || subscriber.fetches.back().end == FetchEnd::kFailed);
    // The control connection tells, and the cluster parts.
    subscriber.member().disconnect(peer);
    ASSERT_TRUE(test::run({&subscriber}, over));
    EXPECT_NE(subscriber.fetches.back().end, FetchEnd::kDone);
    EXPECT_LT(subscriber.fetches.back().done, bytes);
  }
  close(ends[0]);
  close(ends[1]);
  unsetenv("MILLRACE_SOFT_DEVICES");
}

}  // namespace
}  // namespace millrace::transport
