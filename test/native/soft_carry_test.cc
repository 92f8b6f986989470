// Messages that travel in the completion ring: small SENDs for memory that no file backs (R35).
#include <fcntl.h>

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "datagram_support.h"
#include "soft/cq.h"
#include "soft/layout.h"

namespace millrace::test {
namespace {

/** Byte `at` of message `number`. */
std::byte pattern(uint64_t number, uint32_t at) {
  return static_cast<std::byte>((number * 131 + at * 7 + 1) & 0xFF);
}
void fill(std::byte* to, uint64_t number, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i) to[i] = pattern(number, i);
}
bool is(const std::byte* at, uint64_t number, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i) {
    if (at[i] != pattern(number, i)) return false;
  }
  return true;
}
bool untouched(const std::byte* at, size_t bytes) {
  return std::all_of(at, at + bytes, [](std::byte b) { return b == std::byte{0}; });
}

Connected::Options receiving(ibv_qp_type type = IBV_QPT_RC) {
  Connected::Options options;
  options.type = type;
  options.foreign = true;
  options.slots = options.max_recv_wr = 16;
  options.slot_bytes = 4096;
  return options;
}

/** Connects to the parent's QP and sends messages of the sizes that it is told, until it is told
 * "end". The first argument is the QP's type; the second makes the nth reservation of memory fail.
 */
MILLRACE_CHILD(carry_sender) {
  Connected::Options options;
  options.type = static_cast<ibv_qp_type>(std::stoi(parent.arguments[0]));
  options.post = false;
  Connected end(options);
  parent.say(std::to_string(end.qpn()));
  EXPECT_EQ(end.connect(static_cast<uint32_t>(std::stoul(parent.hear()))), 0);
  base::fail_reserve(std::stoi(parent.arguments[1]), ENOSPC);
  uint64_t number = 0;
  for (std::string line = parent.hear(); !line.empty() && line != "end"; line = parent.hear()) {
    const uint32_t bytes = static_cast<uint32_t>(std::stoul(line));
    fill(end.buffer, number, bytes);
    ibv_send_wr wr = end.wr(IBV_WR_SEND, bytes, number++);
    parent.say(ibv_wc_status_str(end.run(wr)));
  }
  return 0;
}

/** A sender in another process, connected to `end`. */
class Sender {
 public:
  explicit Sender(Connected& end, int failing = 0)
      : child_("carry_sender", {std::to_string(end.options.type), std::to_string(failing)}) {
    EXPECT_EQ(end.connect(static_cast<uint32_t>(std::stoul(child_.hear()))), 0);
    child_.say(std::to_string(end.qpn()));
  }
  /** One message; what its completion says. */
  std::string send(uint32_t bytes) {
    child_.say(std::to_string(bytes));
    return child_.hear();
  }
  int end() {
    child_.say("end");
    return child_.wait();
  }
  int kill() {
    child_.signal(SIGKILL);
    return child_.wait();
  }

 private:
  Child child_;
};

const std::string kSuccess = ibv_wc_status_str(IBV_WC_SUCCESS);

class SoftCarry : public ::testing::TestWithParam<ibv_qp_type> {};

TEST_P(SoftCarry, EverySizeArrivesWhole) {
  Fabric fabric;
  Connected end(receiving(GetParam()));
  Sender sender(end);
  const uint32_t sizes[] = {
      0, 1, 8, 64, 1000, soft::kCarryBytes - 1, soft::kCarryBytes, soft::kCarryBytes + 1, 4096};
  uint64_t number = 0;
  for (uint32_t bytes : sizes) {
    SCOPED_TRACE(bytes);
    ASSERT_EQ(sender.send(bytes), kSuccess);
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll_received(&wc));
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.byte_len, bytes);
    const std::byte* slot = end.slot(static_cast<uint32_t>(wc.wr_id));
    EXPECT_TRUE(is(slot, number++, bytes));
    EXPECT_TRUE(untouched(slot + bytes, end.options.slot_bytes - bytes));
  }
  EXPECT_EQ(sender.end(), 0);
}
INSTANTIATE_TEST_SUITE_P(Types, SoftCarry, ::testing::Values(IBV_QPT_RC, IBV_QPT_UC));

TEST(SoftCarry, IsInTheRingUntilItIsPolledWhateverBecomesOfItsSender) {
  Fabric fabric;
  Connected end(receiving());
  Sender sender(end);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(sender.send(64), kSuccess);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(untouched(end.slot(i), 64)) << "nothing to test";
  EXPECT_EQ(sender.kill(), 128 + SIGKILL);
  for (uint32_t i = 0; i < 3; ++i) {
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll_received(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_TRUE(is(end.slot(i), i, 64));
  }
}

TEST(SoftCarry, MoreThanThereAreSlotsKeepTheirOrder) {
  Fabric fabric;
  Connected::Options options = receiving();
  options.slots = options.max_recv_wr = 3 * soft::kCarrySlots;
  options.slot_bytes = 64;
  Connected end(options);
  Sender sender(end);
  uint64_t sent = 0, received = 0;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < options.slots; ++i, ++sent) ASSERT_EQ(sender.send(64), kSuccess);
    uint32_t carried = 0;
    for (uint32_t i = 0; i < options.slots; ++i) carried += untouched(end.slot(i), 64) ? 1 : 0;
    EXPECT_EQ(carried, soft::kCarrySlots);
    for (; received < sent; ++received) {
      ibv_wc wc = {};
      ASSERT_TRUE(end.poll_received(&wc));
      std::byte* slot = end.slot(static_cast<uint32_t>(wc.wr_id));
      ASSERT_TRUE(is(slot, received, 64)) << received;
      memset(slot, 0, 64);
      ASSERT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
    }
  }
  EXPECT_EQ(sender.end(), 0);
}

TEST(SoftCarry, AListOfElementsSomeInMappedFiles) {
  Fabric fabric;
  Connected::Options options = receiving();
  options.post = false;
  Connected end(options);
  SharedMemory file(4096);
  verbs::MrPtr mapped(ibv_reg_mr(end.pd.get(), file.data(), 4096, IBV_ACCESS_LOCAL_WRITE));
  ASSERT_TRUE(mapped);
  Sender sender(end);
  for (const bool foreign_first : {true, false}) {
    memset(end.slot(0), 0, 4096);
    memset(file.data(), 0, 4096);
    ibv_sge sge[3] = {{reinterpret_cast<uintptr_t>(end.slot(0)), 10, end.mr->lkey},
                      {reinterpret_cast<uintptr_t>(file.data()), 7, mapped->lkey},
                      {reinterpret_cast<uintptr_t>(end.slot(0)) + 100, 50, end.mr->lkey}};
    if (!foreign_first) std::swap(sge[0], sge[1]);
    ibv_recv_wr wr = {};
    wr.sg_list = sge;
    wr.num_sge = 3;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(end.qp.get(), &wr, &bad), 0);
    ASSERT_EQ(sender.send(40), kSuccess);
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll_received(&wc));
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    std::vector<std::byte> got;
    for (const ibv_sge& one : sge) {
      const std::byte* at = reinterpret_cast<const std::byte*>(one.addr);
      got.insert(got.end(), at, at + one.length);
    }
    EXPECT_TRUE(is(got.data(), foreign_first ? 0 : 1, 40));
    EXPECT_TRUE(untouched(got.data() + 40, got.size() - 40));
  }
  EXPECT_EQ(sender.end(), 0);
}

TEST(SoftCarry, ARegionThatHasGoneMeanwhile) {
  Fabric fabric;
  Connected end(receiving());
  Sender sender(end);
  ASSERT_EQ(sender.send(64), kSuccess);
  ASSERT_EQ(end.mr.close(), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(wc.wr_id, 0u);
  EXPECT_TRUE(untouched(end.slot(0), 64));
  // As after any receive that failed: the QP is in ERR.
  for (uint32_t i = 1; i < end.options.slots; ++i) {
    ASSERT_TRUE(end.poll_received(&wc));
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, i);
  }
  EXPECT_EQ(end.state(), IBV_QPS_ERR);
  EXPECT_NE(sender.send(8), kSuccess);
  EXPECT_EQ(sender.end(), 0);
}

TEST(SoftCarry, ALengthThatCanNotBeIsCountedAndPlacedNowhere) {
  Fabric fabric;
  Connected end(receiving());
  Sender sender(end);
  ASSERT_EQ(sender.send(64), kSuccess);
  const std::vector<std::string> rings = fabric.files("r");
  const auto ring = std::find_if(rings.begin(), rings.end(),
                                 [](const std::string& name) { return name != "root"; });
  ASSERT_NE(ring, rings.end());
  base::Fd fd(open((fabric.folder() + "/" + *ring).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(fd.valid());
  const uint32_t bytes = soft::kCarryBytes + 1;
  ASSERT_EQ(pwrite(fd.get(), &bytes, sizeof(bytes),
                   offsetof(soft::Ring, entries) + offsetof(soft::Entry, byte_len)),
            static_cast<ssize_t>(sizeof(bytes)));
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(end.recv_cq.get(), 1, &wc), 0);
  EXPECT_EQ(soft::Cq::of(end.recv_cq.get()).bad_entries.load(), 1u);
  EXPECT_TRUE(untouched(end.slot(0), end.options.slot_bytes));
  ASSERT_EQ(sender.send(8), kSuccess);
  ASSERT_TRUE(end.poll_received(&wc));
  EXPECT_TRUE(is(end.slot(static_cast<uint32_t>(wc.wr_id)), 1, 8));
  EXPECT_EQ(sender.end(), 0);
}

TEST(SoftCarry, ResetForgetsWhatWasNotPolled) {
  Fabric fabric;
  Connected end(receiving());
  Sender sender(end);
  ASSERT_EQ(sender.send(64), kSuccess);
  ASSERT_EQ(end.modify(IBV_QPS_RESET), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(end.recv_cq.get(), 1, &wc), 0);
  EXPECT_TRUE(untouched(end.slot(0), 64));
  EXPECT_EQ(sender.end(), 0);
}

TEST(SoftCarry, WithoutMemoryForSlotsTheKernelCopies) {
  Fabric fabric;
  Connected end(receiving());
  Sender sender(end, 2);  // the first is the ring's own
  ASSERT_EQ(sender.send(64), kSuccess);
  ASSERT_EQ(sender.send(64), kSuccess);
  EXPECT_TRUE(is(end.slot(0), 0, 64));
  EXPECT_TRUE(is(end.slot(1), 1, 64));
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sender.end(), 0);
}

TEST(SoftCarry, TwoThreadsPollOneQueue) {
  Fabric fabric;
  Connected::Options options = receiving();
  options.srq = true;
  options.slot_bytes = 256;
  Connected end(options);
  Sender sender(end);
  constexpr uint64_t kCount = 3000;
  std::atomic<uint64_t> received{0}, sum{0};
  std::atomic<bool> good{true};
  const auto poll = [&] {
    const uint64_t deadline = base::now_ns() + uint64_t{kDeadlineMs} * 1'000'000;
    while (received.load() < kCount && good.load() && base::now_ns() < deadline) {
      ibv_wc wc = {};
      if (ibv_poll_cq(end.recv_cq.get(), 1, &wc) != 1) {
        sched_yield();
        continue;
      }
      std::byte* slot = end.slot(static_cast<uint32_t>(wc.wr_id));
      // Its length is its number: two threads don't learn of them in order.
      const uint32_t bytes = wc.byte_len;
      if (wc.status != IBV_WC_SUCCESS || bytes < 1 || bytes > 200) good.store(false);
      sum.fetch_add(bytes);
      bool whole = false;
      for (uint64_t n = bytes - 1; n < kCount && !whole; n += 200) whole = is(slot, n, bytes);
      if (!whole) good.store(false);
      if (end.post(static_cast<uint32_t>(wc.wr_id)) != 0) good.store(false);
      received.fetch_add(1);
    }
  };
  std::thread one(poll), two(poll);
  uint64_t expected = 0;
  for (uint64_t i = 0; i < kCount && good.load(); ++i) {
    const uint32_t bytes = static_cast<uint32_t>(i % 200 + 1);
    expected += bytes;
    if (sender.send(bytes) != kSuccess) good.store(false);
  }
  one.join();
  two.join();
  EXPECT_TRUE(good.load());
  EXPECT_EQ(received.load(), kCount);
  EXPECT_EQ(sum.load(), expected);
  EXPECT_EQ(sender.end(), 0);
}

/** Sends two datagrams to the parent's QP: without and with a GRH. */
MILLRACE_CHILD(carry_datagrams) {
  DatagramEnd end;
  const uint32_t to = static_cast<uint32_t>(std::stoul(parent.arguments[0]));
  verbs::AhPtr local = end.ah_to_lid(1), global = end.ah_to_gid(end.gid(), 0, 1);
  EXPECT_EQ(end.send_and_wait(local.get(), to, "by its LID"), IBV_WC_SUCCESS);
  EXPECT_EQ(end.send_and_wait(global.get(), to, "by its GID"), IBV_WC_SUCCESS);
  return 0;
}

TEST(SoftCarry, DatagramsWithAndWithoutTheirHeader) {
  Fabric fabric;
  DatagramEnd::Options options;
  options.foreign = true;
  DatagramEnd end(options);
  Child child("carry_datagrams", {std::to_string(end.qpn())});
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(end.bytes(0)[40], 0x5A) << "nothing to test";
  ibv_wc wc = {};
  ASSERT_TRUE(end.receive(&wc));
  EXPECT_EQ(end.text(wc), "by its LID");
  EXPECT_EQ(wc.wc_flags & IBV_WC_GRH, 0u);
  ASSERT_TRUE(end.receive(&wc));
  EXPECT_EQ(end.text(wc), "by its GID");
  EXPECT_NE(wc.wc_flags & IBV_WC_GRH, 0u);
  EXPECT_EQ(end.bytes(1)[0] >> 4, 6) << "an IPv6 header";
}

}  // namespace
}  // namespace millrace::test
