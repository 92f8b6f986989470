#include "transport/inbox.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>

#include "transport/errors.h"

namespace millrace::transport {
namespace {

/** Slots that the inbox grows by. */
constexpr uint32_t kExtentSlots = 128;

}  // namespace

base::Result<std::unique_ptr<Inbox>> Inbox::create(ibv_pd* pd, Lanes* lanes, int domain,
                                                   const Options& options) {
  std::unique_ptr<Inbox> inbox(new Inbox());
  inbox->options_ = options;
  inbox->pd_ = pd;
  inbox->folder_ = base::Fd(fcntl(domain, F_DUPFD_CLOEXEC, 0));
  if (!inbox->folder_.valid()) {
    const int error = errno;
    return base::Status::error(error, "duplicate the folder's descriptor", strerror(error));
  }

  auto table = inbox->make_file(size_t{options.peers} * sizeof(CreditEntry));
  if (!table.ok()) return table.status();
  inbox->table_ = table.take();
  inbox->table_mr_ = verbs::MrPtr(ibv_reg_mr(pd, inbox->table_.data(), inbox->table_.size(),
                                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  if (!inbox->table_mr_) return registration_error(errno, "the credit table", inbox->table_.size());

  auto queue = lanes->create_queue(options.max_slots);
  if (!queue.ok()) return queue.status();
  inbox->queue_ = queue.take();

  base::Status status = inbox->add_extent(std::min(options.slots, options.max_slots));
  if (!status.ok()) return status;
  return inbox;
}

Inbox::~Inbox() {
  // The SRQ first: nothing lands in the slots any more (I5), then the names (I7), then by the
  // owners MRs and mappings.
  (void)queue_.srq.close();
  for (uint32_t k = 0; k < files_; ++k) unlinkat(folder_.get(), file_name(k).c_str(), 0);
}

std::string Inbox::file_name(uint32_t k) const {
  return base::format("i-%llu.%u", static_cast<unsigned long long>(options_.incarnation), k);
}

base::Result<base::Mapping> Inbox::make_file(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes = (bytes + page - 1) / page * page;
  const std::string name = file_name(files_);
  auto file = base::create_reserved(folder_.get(), name, bytes);
  if (!file.ok()) {
    base::Status status = file.status();
    status.detail = options_.folder + ": " + status.detail;
    return status;
  }
  auto mapping = base::map_shared(file.value().get(), bytes);
  if (!mapping.ok()) {
    unlinkat(folder_.get(), name.c_str(), 0);
    return mapping.status();
  }
  ++files_;
  bytes_ += bytes;
  return mapping;
}

base::Status Inbox::add_extent(uint32_t count) {
  auto mapping = make_file(size_t{count} * options_.slot_bytes);
  if (!mapping.ok()) return mapping.status();
  Extent extent{mapping.take(), {}};
  extent.mr = verbs::MrPtr(
      ibv_reg_mr(pd_, extent.mapping.data(), extent.mapping.size(), IBV_ACCESS_LOCAL_WRITE));
  if (!extent.mr) {
    const base::Status status = registration_error(errno, "inbox slots", extent.mapping.size());
    bytes_ -= extent.mapping.size();
    unlinkat(folder_.get(), file_name(--files_).c_str(), 0);
    return status;
  }
  const uint32_t first = slots();
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t* const address =
        reinterpret_cast<uint8_t*>(extent.mapping.data()) + size_t{i} * options_.slot_bytes;
    slots_.push_back({address, extent.mr->lkey});
  }
  extents_.push_back(std::move(extent));
  for (uint32_t i = 0; i < count; ++i) repost(first + i);
  post();
  // Only what is posted may be promised (I2).
  pool_ += count;
  return base::Status::success();
}

base::Status Inbox::grow() {
  if (slots() >= options_.max_slots) {
    return base::Status::error(ENOBUFS, "grow the inbox",
                               base::format("it has %u slots, and maxSlots is %u; raise maxSlots",
                                            slots(), options_.max_slots));
  }
  return add_extent(std::min(kExtentSlots, options_.max_slots - slots()));
}

uint32_t Inbox::take(uint32_t n) {
  const uint32_t got = std::min(n, pool_);
  pool_ -= got;
  return got;
}

uint64_t Inbox::credit_address(uint32_t peer) const {
  return reinterpret_cast<uint64_t>(&entries()[peer]);
}

void Inbox::repost(uint32_t index) {
  batch_[batched_++] = index;
  if (batched_ == kBatch) post();
}

void Inbox::post() {
  if (batched_ == 0) return;
  ibv_recv_wr wrs[kBatch];
  ibv_sge sges[kBatch];
  for (uint32_t i = 0; i < batched_; ++i) {
    const Slot& slot = slots_[batch_[i]];
    sges[i] = {reinterpret_cast<uint64_t>(slot.address), options_.slot_bytes, slot.lkey};
    wrs[i].wr_id = batch_[i];
    wrs[i].next = i + 1 < batched_ ? &wrs[i + 1] : nullptr;
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
  }
  ibv_recv_wr* bad = nullptr;
  // The SRQ has room for max_slots WRs and a slot is posted once at a time, so this can only fail
  // for a device that is gone; then the slots stay with us, and posted() tells.
  const int error = ibv_post_srq_recv(queue_.srq.get(), wrs, &bad);
  const bool none = error != 0 && bad == nullptr;
  posted_ += error == 0 ? batched_ : none ? 0 : static_cast<uint32_t>(bad - wrs);
  batched_ = 0;
}

}  // namespace millrace::transport
