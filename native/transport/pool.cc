#include "transport/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "base/step.h"
#include "transport/errors.h"
#include "transport/landing.h"

namespace millrace::transport {
namespace {

/** Smaller payloads travel in slots. */
constexpr uint64_t kLeastBlock = 16 * 1024;
constexpr uint64_t kPage = 4096;
/** A slab of small blocks has about so many bytes. */
constexpr uint64_t kSlabBytes = 256 * 1024;
/** Up to so many holds are looked at whenever a block is lent, so that the warmest comes back. */
constexpr size_t kFewHolds = 256;
/** Filling of a free block, for whoever reads what it has released. */
constexpr int kPoison = 0xdb;

}  // namespace

uint64_t Pool::capacity_for(uint64_t bytes) {
  if (bytes <= kLeastBlock) return kLeastBlock;
  // Four sizes in each doubling: at most a fifth is unused.
  const uint64_t step = std::max(std::bit_floor(bytes - 1) / 4, kPage);
  return (bytes + step - 1) / step * step;
}

base::Result<std::unique_ptr<Pool>> Pool::create(int folder, const Options& options) {
  std::unique_ptr<Pool> pool(new Pool(options));
  pool->folder_ = base::Fd(fcntl(folder, F_DUPFD_CLOEXEC, 0));
  if (!pool->folder_.valid()) {
    const int error = errno;
    return base::Status::error(error, "duplicate the folder's descriptor", strerror(error));
  }
  auto table = HoldTable::create(folder, options.incarnation);
  if (!table.ok()) return table.status();
  pool->table_ = table.take();
  for (uint32_t word = HoldTable::kEntries; word > 0; --word) pool->free_words_.push_back(word - 1);
  return pool;
}

Pool::~Pool() { close(); }

void Pool::close() {
  if (closed_) return;
  closed_ = true;
  spare_ = nullptr;
  base::step("pool-close");
  if (!table_.valid()) return;
  // Nobody takes an offer of ours anew after this, but who holds one keeps the names.
  if (table_.count() == 0) {
    for (const auto& [number, slab] : slabs_) {
      unlinkat(folder_.get(), pool_file(options_.incarnation, number).c_str(), 0);
    }
    unlinkat(folder_.get(), pool_file(options_.incarnation, 0).c_str(), 0);
  }
  remote_.clear();
  slabs_.clear();
}

uint8_t* Pool::address(uint32_t block) const {
  const Block& b = blocks_[block];
  return reinterpret_cast<uint8_t*>(slabs_.at(b.slab).file->bytes().data()) + b.index * b.capacity;
}

Slab Pool::next_slab(uint64_t capacity) {
  Slab slab;
  slab.number = ++slabs_made_;
  slab.capacity = capacity;
  slab.count = static_cast<uint32_t>(std::max<uint64_t>(1, kSlabBytes / capacity));
  return slab;
}

void Pool::adopt(Slab slab) {
  no_spare_ = false;
  bytes_ += slab.bytes();
  std::vector<uint32_t>& free = free_[slab.capacity];
  for (uint32_t i = slab.count; i > 0; --i) {
    uint32_t id;
    if (free_ids_.empty()) {
      id = static_cast<uint32_t>(blocks_.size());
      blocks_.emplace_back();
    } else {
      id = free_ids_.back();
      free_ids_.pop_back();
    }
    blocks_[id] = {State::kFree, slab.number, i - 1, 0, 0, slab.capacity};
    // Below those that were in use: they are cold.
    free.insert(free.begin(), id);
  }
  slabs_.emplace(slab.number, std::move(slab));
}

void Pool::make_spare(uint64_t capacity) {
  if (closed_ || spare_ != nullptr || no_spare_) return;
  Slab slab = next_slab(capacity);
  const uint64_t bytes = slab.bytes();
  // A spare must not be what fills the pool.
  if (bytes > options_.max_bytes / 8 || bytes_ + bytes > options_.max_bytes) return;
  bytes_ += bytes;
  spare_ = std::make_unique<SpareSlab>(folder_.get(), options_.incarnation, std::move(slab));
}

void Pool::take_spare() {
  if (spare_ == nullptr || !spare_->done()) return;
  std::optional<Slab> made = spare_->take();
  drop_spare();
  no_spare_ = !made.has_value();
  if (made.has_value()) adopt(std::move(*made));
}

void Pool::drop_spare() {
  bytes_ -= spare_->bytes();
  spare_ = nullptr;
}

std::optional<uint32_t> Pool::take_free(uint64_t capacity, bool spare) {
  const auto found = free_.find(capacity);
  if (found == free_.end() || found->second.empty()) return std::nullopt;
  const uint32_t id = found->second.back();
  found->second.pop_back();
  blocks_[id].state = State::kLent;
  if (spare && found->second.empty()) make_spare(capacity);
  return id;
}

/** Takes back what was released, unless there is too much to look at. */
void Pool::look() {
  if (holds_.size() <= kFewHolds) {
    (void)collect();
  } else {
    take_spare();
  }
}

std::optional<uint32_t> Pool::lend_free(uint64_t bytes) {
  const uint64_t capacity = capacity_for(bytes);
  look();
  const std::optional<uint32_t> id = take_free(capacity, false);
  if (!id.has_value()) make_spare(capacity);
  return id;
}

base::Result<uint32_t> Pool::lend(uint64_t bytes) {
  const uint64_t capacity = capacity_for(bytes);
  if (capacity > options_.max_bytes) {
    return base::Status::error(
        E2BIG, "lend a block",
        base::format("%llu bytes are asked for, and the whole pool may have %llu; raise poolBytes",
                     static_cast<unsigned long long>(bytes),
                     static_cast<unsigned long long>(options_.max_bytes)));
  }
  look();
  std::optional<uint32_t> id = take_free(capacity, true);
  if (!id.has_value() && collect()) id = take_free(capacity, true);
  if (id.has_value()) return *id;

  Slab slab = next_slab(capacity);
  if (bytes_ + slab.bytes() > options_.max_bytes) slab.count = 1;
  base::Status status = base::Status::success();
  const bool may_grow = make_room(slab.bytes());
  if (may_grow) {
    status = grow(slab);
    if (status.ok()) return *take_free(capacity, true);
  }
  // A larger block that is free is better than none.
  for (auto& [size, free] : free_) {
    if (size >= capacity && size <= capacity * 4 && !free.empty()) return *take_free(size, true);
  }
  // What the system lacks may be lying idle here, as blocks of other sizes.
  if (may_grow && drop_idle()) {
    status = grow(slab);
    if (status.ok()) return *take_free(capacity, true);
  }
  if (!status.ok()) return status;
  return base::Status::error(
      EAGAIN, "lend a block",
      base::format("all blocks are lent or held: the pool has %llu bytes of at most %llu, and "
                   "%zu holds on its blocks",
                   static_cast<unsigned long long>(bytes_),
                   static_cast<unsigned long long>(options_.max_bytes), holds_.size()));
}

base::Status Pool::grow(Slab& slab) {
  const std::atomic<bool> to_the_end{false};
  base::Status status = make_slab(folder_.get(), options_.incarnation, slab, false, to_the_end);
  if (status.ok()) adopt(std::move(slab));
  return status;
}

/** Whether the pool may grow by so many bytes, after the spare and slabs that are all free are gone
 * if need be. */
bool Pool::make_room(uint64_t bytes) {
  if (bytes_ + bytes <= options_.max_bytes) return true;
  if (spare_ != nullptr) {
    drop_spare();
    if (bytes_ + bytes <= options_.max_bytes) return true;
  }
  for (const uint32_t number : idle()) {
    drop(number);
    if (bytes_ + bytes <= options_.max_bytes) return true;
  }
  return false;
}

/** Slabs that are all free. */
std::vector<uint32_t> Pool::idle() const {
  std::unordered_map<uint32_t, uint32_t> free;
  for (const auto& [size, list] : free_) {
    for (const uint32_t id : list) ++free[blocks_[id].slab];
  }
  std::vector<uint32_t> found;
  for (const auto& [number, count] : free) {
    if (count == slabs_.at(number).count) found.push_back(number);
  }
  return found;
}

bool Pool::drop_idle() {
  const std::vector<uint32_t> slabs = idle();
  const bool any = spare_ != nullptr || !slabs.empty();
  if (spare_ != nullptr) drop_spare();
  for (const uint32_t number : slabs) drop(number);
  return any;
}

void Pool::drop(uint32_t number) {
  Slab& slab = slabs_.at(number);
  const uint64_t bytes = slab.bytes();
  auto& free = free_[slab.capacity];
  std::erase_if(free, [&](uint32_t id) { return blocks_[id].slab == number; });
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    if (blocks_[id].state == State::kNone || blocks_[id].slab != number) continue;
    blocks_[id] = {};
    free_ids_.push_back(id);
  }
  unlinkat(folder_.get(), pool_file(options_.incarnation, number).c_str(), 0);
  // Receivers may still map it; nobody reads it, and the pages go now.
  (void)fallocate(slab.file->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(bytes));
  bytes_ -= bytes;
  slabs_.erase(number);
  no_spare_ = false;
}

uint64_t Pool::pin(uint32_t block) { return blocks_[block].pin = ++pin_; }

void Pool::unpin(uint32_t block, uint64_t pin) {
  if (closed_ || block >= blocks_.size()) return;
  Block& b = blocks_[block];
  if (b.pin != pin) return;
  b.pin = 0;
  settle(block);
}

uint64_t Pool::room(uint64_t receiver, uint64_t bytes) {
  uint64_t room = 0;
  for (bool more = true; more && room < bytes; more = room < bytes && collect()) {
    const auto found = held_.find(receiver);
    const uint64_t held = found == held_.end() ? 0 : found->second;
    room = options_.held_bytes - std::min(held, options_.held_bytes);
    if (held == 0) room = std::max(room, bytes);
    if (free_words_.empty()) room = 0;
  }
  return room;
}

base::Status Pool::offer(uint32_t block, uint64_t receiver, uint64_t bytes, uint8_t* descriptor) {
  if (room(receiver, bytes) < bytes) {
    return base::Status::error(EAGAIN, "offer a block", "the receiver holds as much as it may");
  }
  const uint32_t word = free_words_.back();
  free_words_.pop_back();
  const Block& b = blocks_[block];
  // The record here first: what is OFFERED is known to who has to take it back.
  const uint64_t serial = hold(block, receiver, bytes);
  holds_.push_back({word, block, serial, receiver, bytes});
  const Descriptor written = {word, b.slab, serial, b.index * b.capacity, bytes};
  memcpy(descriptor, &written, sizeof(written));
  table_.offer(word, serial, receiver);
  return base::Status::success();
}

base::Status Pool::enroll(uint32_t block) {
  constexpr int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  Slab& slab = slabs_.at(blocks_[block].slab);
  if (slab.mr) return base::Status::success();
  if (options_.pd == nullptr) return base::Status::error(ENOTSUP, "register a pool", "no device");
  const std::span<std::byte> all = slab.file->bytes();
  slab.mr = verbs::MrPtr(ibv_reg_mr(options_.pd, all.data(), all.size(), access));
  if (!slab.mr) return registration_error(errno, "a file of the pool", all.size());
  return base::Status::success();
}

base::Status Pool::offer_remote(uint32_t block, uint64_t receiver, uint64_t bytes,
                                uint8_t* descriptor) {
  if (room(receiver, bytes) < bytes) {
    return base::Status::error(EAGAIN, "offer a block", "the receiver holds as much as it may");
  }
  base::Status status = enroll(block);
  if (!status.ok()) return status;
  const uint64_t serial = hold(block, receiver, bytes);
  remote_[serial] = {block, receiver, bytes};
  const RemoteDescriptor written = {kRemoteForm, slabs_.at(blocks_[block].slab).mr->rkey, serial,
                                    reinterpret_cast<uint64_t>(address(block)), bytes};
  memcpy(descriptor, &written, sizeof(written));
  return base::Status::success();
}

bool Pool::landed(uint64_t receiver, uint64_t serial) {
  const auto found = remote_.find(serial);
  if (found == remote_.end() || found->second.receiver != receiver) return false;
  const RemoteHold hold = found->second;
  remote_.erase(found);
  let_go(hold.block, hold.receiver, hold.bytes);
  return true;
}

/** Counts a hold. @return the offer's serial */
uint64_t Pool::hold(uint32_t block, uint64_t receiver, uint64_t bytes) {
  held_[receiver] += bytes;
  ++blocks_[block].holds;
  return ++serial_;
}

void Pool::let_go(uint32_t block, uint64_t receiver, uint64_t bytes) {
  ++returned_;
  held_[receiver] -= bytes;
  --blocks_[block].holds;
  settle(block);
}

void Pool::retire(uint32_t block) {
  if (!lent(block)) return;
  blocks_[block].state = State::kRetired;
  settle(block);
}

/** Free again if nothing is left of its last use. */
void Pool::settle(uint32_t block) {
  Block& b = blocks_[block];
  if (b.state != State::kRetired || b.holds > 0 || b.pin != 0) return;
  b.state = State::kFree;
  ++returned_;
  if (options_.poison) memset(address(block), kPoison, b.capacity);
  free_[b.capacity].push_back(block);
}

bool Pool::collect() {
  take_spare();
  bool any = false;
  for (size_t i = 0; i < holds_.size();) {
    const Hold hold = holds_[i];
    if (table_.stands(hold.word, hold.serial)) {
      ++i;
      continue;
    }
    any = true;
    holds_[i] = holds_.back();
    holds_.pop_back();
    free_words_.push_back(hold.word);
    let_go(hold.block, hold.receiver, hold.bytes);
  }
  return any;
}

void Pool::receiver_gone(uint64_t receiver, bool dead) {
  table_.clear_receiver(receiver, dead);
  // Who is given up, and lives, may be reading still; it says when it has done, or it dies.
  for (auto it = remote_.begin(); dead && it != remote_.end();) {
    const RemoteHold hold = it->second;
    if (hold.receiver != receiver) {
      ++it;
      continue;
    }
    it = remote_.erase(it);
    let_go(hold.block, hold.receiver, hold.bytes);
  }
  (void)collect();
  const auto held = held_.find(receiver);
  if (held != held_.end() && held->second == 0) held_.erase(held);
}

Pool::Counts Pool::counts() const {
  Counts counts;
  counts.bytes = bytes_ - (spare_ == nullptr ? 0 : spare_->bytes());
  counts.slabs = static_cast<uint32_t>(slabs_.size());
  counts.holds = static_cast<uint32_t>(holds_.size() + remote_.size());
  for (const Block& block : blocks_) {
    if (block.state == State::kNone) continue;
    ++counts.blocks;
    if (block.state == State::kFree) continue;
    ++counts.blocks_in_use;
    counts.lent_bytes += block.capacity;
  }
  return counts;
}

}  // namespace millrace::transport
