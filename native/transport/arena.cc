#include "transport/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "transport/errors.h"

namespace millrace::transport {
namespace {

/** The memory that may outlive the member: see Buffers. */
struct Shared {
  base::Mapping mapping;
  std::unique_ptr<int32_t[]> sends{new int32_t[size_t{kSendRows} * kSendStride]()};
  std::unique_ptr<int32_t[]> events{new int32_t[size_t{kEventRows} * kEventStride]()};
  std::unique_ptr<double[]> counters{new double[kCounters]()};
  std::unique_ptr<double[]> peers{new double[size_t{kMaxPeers} * kPeerStride]()};
};

/** About a megabyte of bounce slots: enough to keep a lane busy, and pages are only touched when
 * used. */
uint32_t bounce_slots(uint32_t slot_bytes) {
  return std::clamp<uint32_t>((1u << 20) / slot_bytes, 8, 64);
}

/** Header blocks that are added at a time. */
constexpr uint32_t kMoreHeaders = 32;
constexpr uint64_t kHeaderBytes = 64;

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

base::Result<std::unique_ptr<Arena>> Arena::create(ibv_pd* pd, uint64_t arena_bytes,
                                                   uint32_t slot_bytes, uint32_t lanes,
                                                   uint32_t lane_depth) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint32_t bounces = bounce_slots(slot_bytes);
  const uint64_t header_bytes = round_up(uint64_t{lanes} * lane_depth * kHeaderBytes, page);
  const uint64_t bounce_bytes = round_up(uint64_t{bounces} * slot_bytes, page);
  const uint64_t word_bytes = round_up(uint64_t{kMaxPeers} * 64, page);
  const uint64_t total = arena_bytes + header_bytes + bounce_bytes + word_bytes;

  void* address = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    return base::Status::error(
        error, "map the send arena",
        base::format("%llu bytes: %s", static_cast<unsigned long long>(total), strerror(error)));
  }
  auto shared = std::make_shared<Shared>();
  shared->mapping = base::Mapping(address, total);

  std::unique_ptr<Arena> arena(new Arena());
  arena->mr_ = verbs::MrPtr(ibv_reg_mr(pd, address, total, IBV_ACCESS_LOCAL_WRITE));
  if (!arena->mr_) return registration_error(errno, "the send arena", total);
  arena->base_ = static_cast<uint8_t*>(address);
  uint8_t* const headers = arena->base_ + arena_bytes;
  arena->bounces_ = headers + header_bytes;
  arena->words_ = reinterpret_cast<uint64_t*>(arena->bounces_ + bounce_bytes);
  arena->arena_bytes_ = arena_bytes;
  arena->slot_bytes_ = slot_bytes;
  arena->lane_depth_ = lane_depth;
  arena->pd_ = pd;
  // The lowest block is on top.
  for (uint32_t i = lanes; i > 0; --i) {
    arena->free_headers_.push_back(
        {headers + uint64_t{i - 1} * lane_depth * kHeaderBytes, arena->mr_->lkey});
  }
  // The lowest slot is on top, so that a member that rarely bounces touches few pages.
  for (uint32_t i = bounces; i > 0; --i)
    arena->free_bounces_.push_back(static_cast<int32_t>(i - 1));

  shared->counters[kArenaRelease] = -1;
  Buffers& buffers = arena->buffers_;
  buffers.arena = {arena->base_, arena_bytes};
  buffers.sends = {shared->sends.get(), size_t{kSendRows} * kSendStride};
  buffers.events = {shared->events.get(), size_t{kEventRows} * kEventStride};
  buffers.counters = {shared->counters.get(), kCounters};
  buffers.peers = {shared->peers.get(), size_t{kMaxPeers} * kPeerStride};
  buffers.owner = std::move(shared);
  return arena;
}

base::Result<HeaderBlock> Arena::take_headers() {
  if (free_headers_.empty()) {
    const uint64_t block = uint64_t{lane_depth_} * kHeaderBytes;
    void* const address = mmap(nullptr, kMoreHeaders * block, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      return base::Status::error(error, "map frame headers", strerror(error));
    }
    Extent extent{base::Mapping(address, kMoreHeaders * block), {}};
    extent.mr =
        verbs::MrPtr(ibv_reg_mr(pd_, address, kMoreHeaders * block, IBV_ACCESS_LOCAL_WRITE));
    if (!extent.mr) return registration_error(errno, "frame headers", kMoreHeaders * block);
    for (uint32_t i = kMoreHeaders; i > 0; --i) {
      free_headers_.push_back({static_cast<uint8_t*>(address) + (i - 1) * block, extent.mr->lkey});
    }
    more_headers_.push_back(std::move(extent));
  }
  const HeaderBlock block = free_headers_.back();
  free_headers_.pop_back();
  return block;
}

int32_t Arena::take_bounce() {
  if (free_bounces_.empty()) return -1;
  const int32_t slot = free_bounces_.back();
  free_bounces_.pop_back();
  return slot;
}

}  // namespace millrace::transport
