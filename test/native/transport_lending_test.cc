// Pools, holds and leases: who owns a block when, and that everything comes back whoever is killed
// or stopped between any two steps (R15 to R17).
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "base/files.h"
#include "base/step.h"
#include "soft_support.h"
#include "transport/leases.h"
#include "transport/pool.h"

namespace millrace::transport {
namespace {

constexpr uint64_t kPublisher = 1001;
constexpr uint64_t kOne = 2001;
constexpr uint64_t kTwo = 2002;
constexpr uint64_t kBlock = 64 * 1024;

/** A domain's folder with presence locks, as the cluster makes them. */
class Lending : public testing::Test {
 protected:
  Lending() {
    char path[] = "/dev/shm/lending-XXXXXX";
    path_ = mkdtemp(path);
    folder_ = base::Fd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~Lending() override { std::filesystem::remove_all(path_); }

  /** The lock of a member; it lives as long as the descriptor is open anywhere. */
  base::Fd presence(uint64_t incarnation) const {
    const std::string name =
        base::format("m-%llu.lock", static_cast<unsigned long long>(incarnation));
    base::Fd fd(openat(folder_.get(), name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    EXPECT_TRUE(base::lock_byte(fd.get(), 0).ok());
    return fd;
  }
  std::unique_ptr<Pool> pool(uint64_t max_bytes = 1 << 20, uint64_t held_bytes = 1 << 20,
                             bool poison = false) const {
    auto made = Pool::create(folder_.get(), {kPublisher, max_bytes, held_bytes, poison});
    EXPECT_TRUE(made.ok()) << made.status().detail;
    return made.take();
  }
  std::unique_ptr<Leases> leases(uint64_t self) const {
    return std::make_unique<Leases>(base::Fd(fcntl(folder_.get(), F_DUPFD_CLOEXEC, 0)), self);
  }
  /** Files of pools that are left. */
  std::set<std::string> files() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("b-")) found.insert(name);
    }
    return found;
  }

  std::string path_;
  base::Fd folder_;
};

/** Refers to a hold; the taking is given back, as when a message was handed out. */
Leases::Memory refer(Leases& leases, uint32_t hold, Leases::Use use) {
  auto memory = leases.refer(hold, use);
  EXPECT_TRUE(memory.ok()) << memory.status().detail;
  (void)leases.release(hold, Leases::Use::kTaken);
  return memory.take();
}

using Bytes = std::array<uint8_t, kDescriptorBytes>;

/** Lends a block, fills it, offers it to somebody. */
Bytes publish(Pool& pool, uint32_t& block, uint64_t receiver, uint8_t fill) {
  const auto lent = pool.lend(kBlock);
  EXPECT_TRUE(lent.ok()) << lent.status().detail;
  block = lent.value();
  memset(pool.address(block), fill, kBlock);
  Bytes descriptor{};
  EXPECT_TRUE(pool.offer(block, receiver, kBlock, descriptor.data()).ok());
  return descriptor;
}

TEST(PoolSizes, WasteAtMostAFifth) {
  for (uint64_t bytes :
       {1ull, 16384ull, 16385ull, 20480ull, 50'000ull, 65536ull, 65537ull, 1ull << 20,
        (1ull << 20) + 1, 8'294'400ull, 1ull << 30, (3ull << 30) + 7}) {
    const uint64_t capacity = Pool::capacity_for(bytes);
    EXPECT_GE(capacity, bytes);
    EXPECT_EQ(capacity % 4096, 0u);
    if (bytes >= 16384) EXPECT_LE(capacity, bytes + bytes / 4 + 4096) << bytes;
    EXPECT_EQ(Pool::capacity_for(capacity), capacity);
  }
}

TEST_F(Lending, BlocksAreUsedAgainLastInFirstOut) {
  auto pool = this->pool();
  const uint32_t a = pool->lend(kBlock).value();
  const uint32_t b = pool->lend(kBlock).value();
  EXPECT_NE(pool->address(a), pool->address(b));
  pool->retire(a);
  pool->retire(b);
  EXPECT_EQ(pool->lend(kBlock).value(), b);
  EXPECT_EQ(pool->lend(kBlock).value(), a);
}

TEST_F(Lending, ThePoolHasALimit) {
  auto pool = this->pool(4 * kBlock);
  std::vector<uint32_t> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool->lend(kBlock).value());
  const auto more = pool->lend(kBlock);
  EXPECT_EQ(more.status().code, EAGAIN);
  EXPECT_NE(more.status().detail.find("262144 bytes of at most 262144"), std::string::npos);
  EXPECT_EQ(pool->lend(5 * kBlock).status().code, E2BIG);
  // What is free in one size makes room for another, and its file is gone.
  for (const uint32_t block : blocks) pool->retire(block);
  EXPECT_TRUE(pool->lend(4 * kBlock).ok());
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(pool->counts().bytes, 4 * kBlock);
}

TEST_F(Lending, WithoutMemoryNothingIsLeftBehind) {
  auto pool = this->pool();
  base::fail_reserve(1, ENOSPC);
  const auto block = pool->lend(kBlock);
  base::fail_reserve(0, 0);
  EXPECT_EQ(block.status().code, ENOSPC);
  EXPECT_EQ(files().size(), 1u);  // the table
  EXPECT_EQ(pool->counts().bytes, 0u);
  EXPECT_TRUE(pool->lend(kBlock).ok());
}

TEST_F(Lending, WhatLiesIdleGivesWayWhereTheSystemHasNoMore) {
  auto pool = this->pool(64 << 20);
  const uint32_t first = pool->lend(1 << 20).value();
  ASSERT_TRUE(millrace::test::eventually([&] {
    (void)pool->collect();
    return pool->counts().blocks == 2;
  }));
  pool->retire(first);
  base::fail_reserve(1, ENOSPC);
  const auto other = pool->lend(16 << 20);
  base::fail_reserve(0, 0);
  ASSERT_TRUE(other.ok()) << other.status().detail;
  EXPECT_EQ(pool->counts().bytes, 16u << 20);
  EXPECT_EQ(files().size(), 2u);  // with the table
  // What is in use stays.
  base::fail_reserve(1, ENOSPC);
  EXPECT_EQ(pool->lend(1 << 20).status().code, ENOSPC);
  base::fail_reserve(0, 0);
  EXPECT_TRUE(pool->lent(other.value()));
}

TEST_F(Lending, ASpareIsMadeAhead) {
  auto pool = this->pool(64 << 20);
  const uint32_t first = pool->lend(1 << 20).value();
  ASSERT_TRUE(millrace::test::eventually([&] {
    (void)pool->collect();
    return pool->counts().blocks == 2;
  }));
  const auto before = files();
  EXPECT_EQ(pool->counts().bytes, 2u << 20);
  EXPECT_NE(pool->lend(1 << 20).value(), first);
  const auto after = files();
  EXPECT_TRUE(std::includes(after.begin(), after.end(), before.begin(), before.end()));
}

TEST_F(Lending, WhatIsFreeIsLentAheadAndNobodyWaitsForPages) {
  auto pool = this->pool(64 << 20);
  const uint32_t first = pool->lend(1 << 20).value();
  pool->retire(first);
  EXPECT_EQ(pool->lend_free(1 << 20), first);
  EXPECT_EQ(pool->capacity(first), 1u << 20);
  EXPECT_FALSE(pool->lend_free(2 << 20).has_value());
  // Whether the spare of the first size was made by now or not.
  ASSERT_TRUE(millrace::test::eventually([&] { return pool->lend_free(1 << 20).has_value(); }));
  // Then a spare of the other size could be begun.
  ASSERT_TRUE(millrace::test::eventually([&] { return pool->lend_free(2 << 20).has_value(); }));
  EXPECT_GE(pool->counts().blocks_in_use, 3u);
}

TEST_F(Lending, ASpareGivesWayToWhatIsAskedFor) {
  auto pool = this->pool(64 << 20);
  const uint32_t first = pool->lend(8 << 20).value();
  // Whether it is made by now or not: with it there would be no room.
  const auto all = pool->lend(56 << 20);
  ASSERT_TRUE(all.ok()) << all.status().detail;
  EXPECT_EQ(pool->counts().bytes, 64u << 20);
  pool->retire(first);
  pool->retire(all.value());
  pool->close();
  EXPECT_TRUE(files().empty());
}

TEST_F(Lending, WithoutMemoryForASpareNoneIsTriedAgainAndAgain) {
  auto pool = this->pool(64 << 20);
  std::vector<uint32_t> blocks;
  blocks.push_back(pool->lend(64 * 1024).value());  // a slab of four, none of them the last
  base::fail_reserve(1, ENOSPC);
  for (int i = 0; i < 3; ++i) blocks.push_back(pool->lend(64 * 1024).value());
  ASSERT_TRUE(millrace::test::eventually([&] {
    (void)pool->collect();
    return !pool->spare();
  }));
  base::fail_reserve(0, 0);
  for (int i = 0; i < 3; ++i) {
    pool->retire(blocks.back());
    EXPECT_EQ(pool->lend(64 * 1024).value(), blocks.back());
    EXPECT_FALSE(pool->spare());
  }
  EXPECT_EQ(pool->counts().slabs, 1u);
  // A slab that could be made says that there is memory again.
  blocks.push_back(pool->lend(64 * 1024).value());
  for (int i = 0; i < 3; ++i) blocks.push_back(pool->lend(64 * 1024).value());
  EXPECT_TRUE(pool->spare());
}

TEST_F(Lending, AReceiverHoldsWhatItMay) {
  auto pool = this->pool(1 << 20, 2 * kBlock);
  uint32_t block;
  publish(*pool, block, kOne, 1);
  publish(*pool, block, kOne, 2);
  EXPECT_LT(pool->room(kOne, kBlock), kBlock);
  EXPECT_EQ(pool->room(kTwo, 16 * kBlock), 16 * kBlock);  // one block may always be larger
  Bytes descriptor{};
  const uint32_t third = pool->lend(kBlock).value();
  EXPECT_EQ(pool->offer(third, kOne, kBlock, descriptor.data()).code, EAGAIN);
  pool->receiver_gone(kOne, true);
  EXPECT_TRUE(pool->offer(third, kOne, kBlock, descriptor.data()).ok());
}

TEST_F(Lending, AnOfferIsTakenOnceByWhomItIsFor) {
  auto table = HoldTable::create(folder_.get(), kPublisher).take();
  table.offer(5, 77, kOne);
  EXPECT_TRUE(table.stands(5, 77));
  EXPECT_FALSE(table.take(5, 76, kOne));
  EXPECT_FALSE(table.take(5, 77, kTwo));
  EXPECT_FALSE(table.take(HoldTable::kEntries, 77, kOne));
  EXPECT_TRUE(table.take(5, 77, kOne));
  EXPECT_FALSE(table.take(5, 77, kOne));
  EXPECT_FALSE(table.revoke(5, 77));  // it is taken
  EXPECT_FALSE(table.release(5, 77));
  EXPECT_EQ(table.count(), 0u);

  // Taken back, and the word offered anew: the late descriptor of the first finds nothing.
  table.offer(5, 78, kOne);
  EXPECT_TRUE(table.revoke(5, 78));
  table.offer(5, 79, kOne);
  EXPECT_FALSE(table.take(5, 78, kOne));
  EXPECT_FALSE(table.revoke(5, 78));
  EXPECT_TRUE(table.take(5, 79, kOne));
  // Who is given up keeps what it has taken; who is dead does not.
  table.offer(6, 80, kOne);
  table.clear_receiver(kOne, false);
  EXPECT_EQ(table.count(), 1u);
  table.clear_receiver(kOne, true);
  EXPECT_EQ(table.count(), 0u);
}

/** A word that is scribbled on whenever somebody is about to clear one. */
volatile uint64_t* scribbled_word = nullptr;

TEST_F(Lending, AWordThatKeepsChangingHoldsNobodyUp) {
  auto table = HoldTable::create(folder_.get(), kPublisher).take();
  table.offer(5, 77, kOne);
  table.offer(6, 78, kOne);
  const base::Fd file(openat(folder_.get(), pool_file(kPublisher, 0).c_str(), O_RDWR | O_CLOEXEC));
  const base::Mapping mapping = base::map_shared(file.get(), table.bytes()).take();
  scribbled_word =
      reinterpret_cast<volatile uint64_t*>(mapping.data() + 64 + 5 * sizeof(HoldEntry));
  ASSERT_EQ(*scribbled_word >> 2, 77u);
  const auto before = signal(SIGUSR1, [](int) { *scribbled_word = *scribbled_word + 4; });
  base::signal_at_step(base::kEachStep, SIGUSR1, "hold-clear");
  table.clear_receiver(kOne, true);
  // Three tries at the first word, one at the second.
  EXPECT_EQ(base::steps_passed(), 4u);
  base::signal_at_step(0, 0);
  signal(SIGUSR1, before);
  EXPECT_TRUE(table.stands(5, 77 + 4));
  EXPECT_EQ(table.receiver_of(6), kOne);
  EXPECT_EQ(table.count(), 1u);
  table.clear_receiver(kOne, true);
  EXPECT_EQ(table.count(), 0u);
}

TEST_F(Lending, ABlockComesBackWithItsLastHold) {
  auto pool = this->pool(1 << 20, 1 << 20, true);
  auto one = leases(kOne);
  auto two = leases(kTwo);
  const uint32_t block = pool->lend(kBlock).value();
  memset(pool->address(block), 7, kBlock);
  Bytes first{}, second{};
  ASSERT_TRUE(pool->offer(block, kOne, kBlock, first.data()).ok());
  ASSERT_TRUE(pool->offer(block, kTwo, kBlock, second.data()).ok());
  pool->retire(block);
  const uint32_t a = one->take(kPublisher, first).value();
  EXPECT_EQ(two->take(kPublisher, first).status().code, ENOENT);
  two->revoke(kPublisher, first);  // not its own: nothing happens
  const uint32_t b = two->take(kPublisher, second).value();
  const auto memory = refer(*one, a, Leases::Use::kLeased);
  EXPECT_EQ(memory.data[kBlock - 1], 7);
  EXPECT_NE(memory.data, pool->address(block));
  EXPECT_TRUE(one->release(a, Leases::Use::kLeased).last);
  EXPECT_FALSE(one->release(a, Leases::Use::kLeased).last);
  EXPECT_EQ(pool->counts().holds, 2u);
  EXPECT_TRUE(pool->collect());
  EXPECT_EQ(pool->counts().holds, 1u);
  EXPECT_NE(pool->lend(kBlock).value(), block);
  pool->want(true);
  EXPECT_TRUE(two->release(b, Leases::Use::kTaken).wanted);  // nobody wanted it
  EXPECT_TRUE(pool->collect());
  EXPECT_EQ(pool->address(block)[0], 0xdb);
  EXPECT_EQ(pool->lend(kBlock).value(), block);
}

TEST_F(Lending, NonsenseIsRefused) {
  auto pool = this->pool();
  auto one = leases(kOne);
  uint32_t block;
  const Bytes good = publish(*pool, block, kOne, 1);
  const auto changed = [&](const std::function<void(Descriptor&)>& change) {
    Descriptor at;
    memcpy(&at, good.data(), sizeof(at));
    change(at);
    Bytes bytes;
    memcpy(bytes.data(), &at, sizeof(at));
    return one->take(kPublisher, bytes).status().code;
  };
  EXPECT_EQ(changed([](Descriptor& at) { at.offset = 1; }), EPROTO);
  EXPECT_EQ(changed([](Descriptor& at) { at.bytes = 0; }), EPROTO);
  EXPECT_EQ(changed([](Descriptor& at) { at.slab = 0; }), EPROTO);
  EXPECT_EQ(changed([](Descriptor& at) { at.word = ~0u; }), ENOENT);
  EXPECT_EQ(changed([](Descriptor& at) { ++at.serial; }), ENOENT);
  EXPECT_EQ(one->take(9999, good).status().code, ENOENT);
  EXPECT_EQ(one->take(kPublisher, std::span(good).first(31)).status().code, EPROTO);
  // Beyond the file: the hold is given back.
  EXPECT_EQ(changed([](Descriptor& at) { at.bytes = ~uint64_t{0}; }), EPROTO);
  EXPECT_EQ(one->counts().holds, 0u);
  pool->retire(block);
  EXPECT_TRUE(pool->collect());
}

TEST_F(Lending, WhatIsKeptMovesOutAndTheNextUseIsSeen) {
  auto pool = this->pool();
  auto one = leases(kOne);
  uint32_t block;
  const Bytes first = publish(*pool, block, kOne, 1);
  pool->retire(block);
  const uint32_t a = one->take(kPublisher, first).value();
  const auto kept = refer(*one, a, Leases::Use::kOwned);
  EXPECT_EQ(one->vacate(kPublisher), 1u);
  EXPECT_TRUE(pool->collect());
  uint32_t again;
  const Bytes second = publish(*pool, again, kOne, 2);
  ASSERT_EQ(again, block);
  EXPECT_EQ(kept.data[100], 1);
  kept.data[100] = 9;  // it is its own
  const uint32_t b = one->take(kPublisher, second).value();
  const auto fresh = refer(*one, b, Leases::Use::kOwned);
  EXPECT_EQ(fresh.data[100], 2);
  EXPECT_EQ(kept.data[100], 9);
  // A lease stays where it is.
  const auto leased = refer(*one, b, Leases::Use::kLeased);
  EXPECT_EQ(one->vacate(kPublisher), 0u);
  memset(pool->address(again), 3, kBlock);
  EXPECT_EQ(leased.data[0], 3);
  // And at the end everything keeps its content.
  one->close();
  memset(pool->address(again), 4, kBlock);
  EXPECT_EQ(leased.data[0], 3);
  EXPECT_EQ(fresh.data[0], 3);
  pool->retire(again);
  EXPECT_TRUE(pool->collect());
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(Lending, AStrayWriteStaysWithItsWriter) {
  auto pool = this->pool();
  auto one = leases(kOne);
  auto two = leases(kTwo);
  const uint32_t block = pool->lend(kBlock).value();
  memset(pool->address(block), 1, kBlock);
  Bytes first{}, second{};
  ASSERT_TRUE(pool->offer(block, kOne, kBlock, first.data()).ok());
  ASSERT_TRUE(pool->offer(block, kTwo, kBlock, second.data()).ok());
  pool->retire(block);
  const uint32_t a = one->take(kPublisher, first).value();
  const uint32_t b = two->take(kPublisher, second).value();
  volatile uint8_t* mine = refer(*one, a, Leases::Use::kLeased).data;
  const uint8_t* theirs = refer(*two, b, Leases::Use::kLeased).data;
  mine[10] = 2;
  mine[11] = 3;
  mine[8192] = 4;
  EXPECT_EQ(mine[10], 2);
  EXPECT_EQ(mine[8193], 1);
  EXPECT_EQ(theirs[10], 1);
  EXPECT_EQ(pool->address(block)[10], 1);
  EXPECT_EQ(one->release(a, Leases::Use::kLeased).strays, 2u);
  EXPECT_EQ(mine[10], 1);
  EXPECT_EQ(two->release(b, Leases::Use::kLeased).strays, 0u);
}
#endif

// ---- death and standstill
// ------------------------------------------------------------------------------------------

/** Runs `act` in a child that is ended by `signal` at its nth step. @return the child */
pid_t child(uint64_t nth, int signal, const std::function<void()>& act) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  base::signal_at_step(nth, signal);
  act();
  base::signal_at_step(0, 0);
  _exit(base::steps_passed() < nth ? 0 : 1);
}

/** Waits for its end. @return whether it came to the end of what it had to do */
bool finished(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(Lending, AReceiverThatIsKilledGivesBackEverythingAtOnce) {
  const base::Fd alive = presence(kPublisher);
  for (uint64_t nth = 1;; ++nth) {
    auto pool = this->pool();
    uint32_t blocks[3];
    Bytes descriptors[3];
    for (int i = 0; i < 3; ++i) {
      descriptors[i] = publish(*pool, blocks[i], kOne, static_cast<uint8_t>(i + 1));
      pool->retire(blocks[i]);
    }
    const bool done = finished(child(nth, SIGKILL, [&] {
      auto one = leases(kOne);
      const uint32_t a = one->take(kPublisher, descriptors[0]).value();
      (void)refer(*one, a, Leases::Use::kLeased);
      const uint32_t b = one->take(kPublisher, descriptors[1]).value();
      (void)refer(*one, b, Leases::Use::kOwned);
      (void)one->release(a, Leases::Use::kLeased);
      (void)one->vacate(kPublisher);
      one->revoke(kPublisher, descriptors[2]);
      _exit(0);
    }));
    pool->receiver_gone(kOne, true);
    EXPECT_EQ(pool->counts().holds, 0u) << nth;
    EXPECT_EQ(pool->counts().blocks_in_use, 0u) << nth;
    pool->close();
    EXPECT_EQ(files(), std::set<std::string>{}) << nth;
    if (done) {
      EXPECT_GT(nth, 8u);
      break;
    }
    ASSERT_LT(nth, 100u);
  }
}

// As a member holds what it has read from another port.
TEST_F(Lending, WhatAKilledMemberHoldsOfItsOwnGoesWithIt) {
  for (uint64_t nth = 1;; ++nth) {
    const bool done = finished(child(nth, SIGKILL, [&] {
      const base::Fd mine = presence(kPublisher);
      auto pool = this->pool();
      auto own = leases(kPublisher);
      uint32_t block;
      const Bytes descriptor = publish(*pool, block, kPublisher, 1);
      pool->retire(block);
      const uint32_t hold = own->take(kPublisher, descriptor).value();
      if (refer(*own, hold, Leases::Use::kLeased).data[0] != 1) _exit(2);
      _exit(0);
    }));
    EXPECT_EQ(sweep_pool(folder_.get(), kPublisher), 0u) << nth;
    EXPECT_EQ(files(), std::set<std::string>{}) << nth;
    if (done) break;
    ASSERT_LT(nth, 100u);
  }
}

TEST_F(Lending, AReceiverThatIsStoppedKeepsItsBlocksAndNoOthers) {
  const base::Fd alive = presence(kPublisher);
  for (uint64_t nth = 1;; ++nth) {
    auto pool = this->pool();
    uint32_t held;
    const Bytes descriptor = publish(*pool, held, kOne, 1);
    pool->retire(held);
    const pid_t pid = child(nth, SIGSTOP, [&] {
      auto one = leases(kOne);
      const auto hold = one->take(kPublisher, descriptor);
      const bool right = refer(*one, hold.value(), Leases::Use::kLeased).data[kBlock - 1] == 1;
      (void)one->release(hold.value(), Leases::Use::kLeased);
      one.reset();
      if (!right) _exit(2);
    });
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    const bool stopped = WIFSTOPPED(status);
    // Whatever it stands before or behind: the publisher goes on with other blocks, and this one is
    // not used again unless it was released.
    (void)pool->collect();
    const bool still = pool->counts().blocks_in_use == 1;
    for (int i = 0; i < 5; ++i) {
      uint32_t block;
      (void)publish(*pool, block, kTwo, 9);
      if (still) EXPECT_NE(block, held) << nth;
      pool->retire(block);
      pool->receiver_gone(kTwo, true);
    }
    if (stopped) {
      kill(pid, SIGCONT);
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 2) << nth;
    }
    (void)pool->collect();
    EXPECT_EQ(pool->counts().blocks_in_use, 0u) << nth;
    if (!stopped) break;
    ASSERT_LT(nth, 100u);
  }
}

TEST_F(Lending, PagesOfAKilledPublisherStayForWhoHoldsThemAndThenGo) {
  const base::Fd alive = presence(kOne);
  for (uint64_t nth = 1;; ++nth) {
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const bool done = finished(child(nth, SIGKILL, [&] {
      const base::Fd mine = presence(kPublisher);
      auto pool = this->pool();
      for (int i = 0; i < 3; ++i) {
        uint32_t block;
        const Bytes descriptor = publish(*pool, block, kOne, static_cast<uint8_t>(i + 1));
        if (write(pipes[1], descriptor.data(), descriptor.size()) < 0) _exit(3);
        pool->retire(block);
      }
      uint32_t block;
      (void)publish(*pool, block, kTwo, 9);  // who is dead before it hears of it
      pool->close();
      _exit(0);
    }));
    close(pipes[1]);
    auto one = leases(kOne);
    std::vector<uint32_t> holds;
    Bytes descriptor;
    uint8_t fill = 0;
    while (read(pipes[0], descriptor.data(), descriptor.size()) == kDescriptorBytes) {
      ++fill;
      if (fill == 2) continue;  // its frame was lost: never taken
      const auto hold = one->take(kPublisher, descriptor);
      ASSERT_TRUE(hold.ok()) << nth << hold.status().detail;
      holds.push_back(hold.value());
      EXPECT_EQ(refer(*one, hold.value(), Leases::Use::kLeased).data[kBlock - 1], fill);
    }
    close(pipes[0]);
    one->publisher_gone(kPublisher);
    EXPECT_EQ(sweep_pool(folder_.get(), kPublisher), holds.size()) << nth;
    for (size_t i = 0; i < holds.size(); ++i) {
      EXPECT_FALSE(files().empty()) << nth;
      (void)one->release(holds[i], Leases::Use::kLeased);
    }
    EXPECT_EQ(files(), std::set<std::string>{}) << nth;
    EXPECT_EQ(one->counts().publishers, 0u) << nth;
    if (done) {
      EXPECT_GE(nth, 12u);
      break;
    }
    ASSERT_LT(nth, 100u);
  }
}

TEST_F(Lending, ASweeperThatIsKilledLeavesWhatTheNextOneNeeds) {
  for (uint64_t nth = 1;; ++nth) {
    {
      // A publisher that died with offers to the dead, and a receiver that is dead, too.
      auto pool = this->pool();
      uint32_t block;
      const Bytes taken = publish(*pool, block, kOne, 1);
      (void)publish(*pool, block, kTwo, 2);
      (void)pool->lend(300'000);
      auto one = leases(kOne);
      (void)one->take(kPublisher, taken);
      pool->close();
      static auto* const killed = new std::vector<std::unique_ptr<Leases>>;
      killed->push_back(std::move(one));  // never told that it ends
      EXPECT_EQ(files().size(), 3u);
    }
    const bool done =
        finished(child(nth, SIGKILL, [&] { (void)sweep_pool(folder_.get(), kPublisher); }));
    EXPECT_EQ(sweep_pool(folder_.get(), kPublisher), 0u);
    EXPECT_EQ(files(), std::set<std::string>{}) << nth;
    if (done) break;
    ASSERT_LT(nth, 100u);
  }
}

TEST_F(Lending, NothingIsSweptOfTheLiving) {
  const base::Fd alive = presence(kPublisher);
  auto pool = this->pool();
  uint32_t block;
  (void)publish(*pool, block, kOne, 1);
  EXPECT_EQ(sweep_pool(folder_.get(), kPublisher), 0u);
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(pool->counts().holds, 1u);
  (void)pool->collect();
  EXPECT_EQ(pool->counts().holds, 1u);
}

}  // namespace
}  // namespace millrace::transport
