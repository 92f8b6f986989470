#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/frame.h"
#include "transport/member.h"

/**
 * Not a test: measures the transport between two processes of this machine. 64-byte records a
 * second one way, in bursts as an event loop makes them, and the round trip of one record, polling
 * and sleeping. Prints; asserts nothing.
 *
 *   transport_rate [records] [round trips]
 */
namespace {

using namespace millrace;
using namespace millrace::transport;

constexpr uint32_t kPayload = 64;
constexpr uint32_t kRecord = kRecordHeaderBytes + kPayload;

struct Side {
  int control;
  std::unique_ptr<Member> member;
  uint32_t peer = 0;
  std::vector<uint8_t> target = std::vector<uint8_t>(1 << 18);
  uint64_t head = 0;
  uint64_t received = 0;

  Side(int control_fd, const std::string& folder, uint64_t incarnation) : control(control_fd) {
    MemberOptions options;
    options.folder = folder;
    options.incarnation = incarnation;
    options.slots = 256;
    auto created = Member::create(options);
    if (!created.ok()) {
      std::fprintf(stderr, "%s: %s\n", created.status().what, created.status().detail.c_str());
      std::exit(1);
    }
    member = created.take();
    Offer offer = member->offer().take();
    peer = offer.peer;
    std::array<uint8_t, kOfferBytes> other;
    if (send(control, offer.bytes.data(), offer.bytes.size(), 0) < 0 ||
        recv(control, other.data(), other.size(), MSG_WAITALL) !=
            static_cast<ssize_t>(other.size()) ||
        !member->connect(peer, incarnation == 1 ? 2 : 1, other).ok()) {
      std::exit(1);
    }
  }

  /** Writes and flushes `count` records as `rows` rows. */
  void write(uint32_t count, uint32_t rows) {
    const Buffers& b = member->buffers();
    const uint64_t size = b.arena.size();
    const uint64_t bytes = uint64_t{count} * kRecord;
    if (head % size + bytes > size) head += size - head % size;
    const uint64_t start = head;
    for (uint32_t i = 0; i < count; ++i) {
      uint8_t* const at = b.arena.data() + head % size;
      RecordHeader header{};
      header.channel = 1;
      header.payload_bytes = kPayload;
      header.kind = 1;
      std::memcpy(at, &header, sizeof(header));
      std::memset(at + sizeof(header), static_cast<int>(i), kPayload);
      head += kRecord;
    }
    const uint32_t each = count / rows;
    for (uint32_t r = 0; r < rows; ++r) {
      int32_t* const row = &b.sends[r * kSendStride];
      row[0] = static_cast<int32_t>(peer);
      row[1] = static_cast<int32_t>((start + uint64_t{r} * each * kRecord) % size);
      row[2] = static_cast<int32_t>((r + 1 < rows ? each : count - each * (rows - 1)) * kRecord);
      row[3] = 0;
    }
    b.counters[kArenaRelease] = static_cast<double>(head);
    (void)member->flush(rows);
  }

  uint32_t poll() {
    const uint32_t rows = member->poll(target, 0, 16);
    for (uint32_t i = 0; i < rows; ++i) {
      const int32_t* const row = &member->buffers().events[i * kEventStride];
      if (row[0] == static_cast<int32_t>(EventKind::kFrame))
        received += static_cast<uint64_t>(row[4]);
    }
    return rows;
  }

  void sleep() {
    if (!member->arm()) return;
    pollfd fd{member->fd(), POLLIN, 0};
    (void)::poll(&fd, 1, 5000);
  }
};

void one_way(Side& side, bool sender, uint64_t records, uint32_t burst, uint32_t rows) {
  const uint64_t goal = side.received + records;
  const uint64_t start = base::now_ns();
  if (sender) {
    for (uint64_t sent = 0; sent < records; sent += burst) {
      while (side.member->buffers().peers[side.peer * kPeerStride + kPeerBacklogBytes] >
             (256 << 10)) {
        (void)side.poll();
        (void)side.member->flush(0);
      }
      side.write(burst, rows);
      (void)side.poll();
    }
    const uint64_t before = side.received;
    while (side.received == before) {  // the other says that it has everything
      (void)side.poll();
      (void)side.member->flush(0);
    }
    const double seconds = static_cast<double>(base::now_ns() - start) / 1e9;
    const Buffers& b = side.member->buffers();
    std::printf(
        "one way, %u records of %u B a flush in %u rows: %.2f M records/s, %.2f GB/s (stalls %.0f, "
        "waits %.0f)\n",
        burst, kPayload, rows, static_cast<double>(records) / seconds / 1e6,
        static_cast<double>(records) * kRecord / seconds / 1e9, b.counters[kCreditStalls],
        b.counters[kWaitsSent]);
  } else {
    while (side.received < goal) (void)side.poll();
    side.write(1, 1);
  }
}

void round_trip(Side& side, bool first, uint64_t trips, bool sleeping) {
  std::vector<double> times;
  for (uint64_t i = 0; i < trips; ++i) {
    const uint64_t before = side.received;
    const uint64_t start = base::now_ns();
    if (first) side.write(1, 1);
    while (side.received == before) {
      if (side.poll() == 0 && sleeping) side.sleep();
    }
    if (!first) side.write(1, 1);
    times.push_back(static_cast<double>(base::now_ns() - start) / 1e3);
  }
  if (!first) return;
  std::sort(times.begin(), times.end());
  std::printf("round trip of a %u B record, %s: p50 %.2f us, p99 %.2f us\n", kPayload,
              sleeping ? "sleeping on the descriptor" : "polling", times[times.size() / 2],
              times[times.size() * 99 / 100]);
}

int run(int control, const std::string& folder, bool parent, uint64_t records, uint64_t trips) {
  Side side(control, folder, parent ? 1 : 2);
  for (uint32_t burst : {1u, 16u, 256u, 4000u}) {
    const uint64_t n = std::min<uint64_t>(records, uint64_t{burst} * 1'000'000) / burst * burst;
    one_way(side, parent, n, burst, 1);
  }
  one_way(side, parent, records / 4000 * 4000, 4000, 4000);
  round_trip(side, parent, trips, false);
  round_trip(side, parent, trips / 10, true);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const uint64_t records = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000'000;
  const uint64_t trips = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200'000;
  const char* const shm = getenv("MILLRACE_SHM_DIR");
  std::string folder = std::string(shm != nullptr ? shm : "/dev/shm") + "/millrace-rate.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  setenv("MILLRACE_FABRIC", ("rate-" + std::to_string(getpid())).c_str(), 1);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);  // both poll without end when the other is gone
  if (child == 0) return run(pair[1], folder, false, records, trips);
  const int result = run(pair[0], folder, true, records, trips);
  int status = 0;
  (void)waitpid(child, &status, 0);
  (void)rmdir(folder.c_str());
  return result != 0 ? result : status != 0;
}
