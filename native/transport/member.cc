#include "transport/member.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <bit>

#include "transport/core.h"
#include "transport/errors.h"
#include "transport/options.h"
#include "verbs/open.h"

namespace millrace::transport {

// ---- the face
// -------------------------------------------------------------------------------------------------------

base::Result<std::unique_ptr<Member>> Member::create(const MemberOptions& options) {
  auto core = Core::create(options);
  if (!core.ok()) return core.status();
  return std::unique_ptr<Member>(new Member(core.take()));
}

Member::Member(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Member::~Member() = default;
void Member::close() { core_->close(); }
const Buffers& Member::buffers() const { return core_->buffers(); }
base::Result<Offer> Member::offer() { return core_->offer(); }
base::Status Member::connect(uint32_t peer, uint64_t incarnation, std::span<const uint8_t> offer) {
  return core_->connect(peer, incarnation, offer);
}
void Member::disconnect(uint32_t peer) { core_->disconnect(peer); }
base::Result<uint32_t> Member::open_lane() { return core_->open_lane(); }
base::Status Member::close_lane(uint32_t lane) { return core_->close_lane(lane); }
base::Result<OpenGroup> Member::open_group(const GroupKey& key, uint32_t slots) {
  return core_->open_group(key, slots);
}
void Member::close_group(uint32_t number) { core_->close_group(number); }
uint32_t Member::flush(uint32_t rows) { return core_->flush(rows); }
uint32_t Member::poll(std::span<uint8_t> target, size_t offset, uint32_t max_frames) {
  return core_->poll(target, offset, max_frames);
}
Lingered Member::linger(uint32_t micros) { return core_->linger(micros); }
bool Member::arm() { return core_->arm(); }
int Member::fd() const { return core_->fd(); }
void Member::tunnel(uint32_t peer, std::span<const uint8_t> message) {
  core_->tunnel(peer, message);
}
Resources Member::resources() const { return core_->resources(); }
ibv_pd* Member::pd() const { return core_->pd(); }
bool Member::elsewhere(uint32_t peer) const { return core_->elsewhere(peer); }
base::Result<uint32_t> Member::fetch(uint32_t peer, const RemoteMemory& from, std::byte* to,
                                     uint32_t lkey) {
  return core_->fetch(peer, from, to, lkey);
}
void Member::cancel_fetch(uint32_t number) { core_->cancel_fetch(number); }

// ---- create and close
// -----------------------------------------------------------------------------------------------

base::Result<std::unique_ptr<Member::Core>> Member::Core::create(const MemberOptions& options) {
  base::Status status = check_options(options);
  if (!status.ok()) return status;

  std::unique_ptr<Core> core(new Core());
  Core& c = *core;
  c.options_ = options;
  c.folder_ = base::Fd(open(options.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!c.folder_.valid()) {
    const int error = errno;
    return base::Status::error(error, "open the domain's folder",
                               options.folder + ": " + strerror(error));
  }
  auto context = verbs::open_device(options.device, &c.note_);
  if (!context.ok()) return context.status();
  c.context_ = verbs::ContextPtr(context.take());
  c.closed_ = false;
  if (options.faults) {
    status = verbs::install_faults(c.context_.get(), *options.faults);
    if (!status.ok()) return status;
  }

  ibv_device_attr device;
  const int error = ibv_query_device(c.context_.get(), &device);
  if (error != 0) return verb_error(error, "ibv_query_device", options.device.c_str());
  const uint32_t limit = static_cast<uint32_t>(std::min(device.max_srq_wr, device.max_cqe));
  c.options_.max_slots = std::min(options.max_slots, limit);
  if (c.options_.slots > c.options_.max_slots) {
    return base::Status::error(
        EINVAL, "slots",
        base::format("%u is more than the device can post (%u)", options.slots, limit));
  }

  c.pd_ = verbs::PdPtr(ibv_alloc_pd(c.context_.get()));
  if (!c.pd_) return verb_error(errno, "ibv_alloc_pd", options.device.c_str());
  c.channel_ = verbs::ChannelPtr(ibv_create_comp_channel(c.context_.get()));
  if (!c.channel_) return verb_error(errno, "ibv_create_comp_channel", options.device.c_str());
  const int flags = fcntl(c.channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(c.channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return base::Status::error(errno, "fcntl", "the completion channel's descriptor");
  }
  // Every posted receive may complete before anybody polls (I3).
  c.receive_cq_ = verbs::CqPtr(ibv_create_cq(
      c.context_.get(), static_cast<int>(c.options_.max_slots), nullptr, c.channel_.get(), 0));
  if (!c.receive_cq_) return verb_error(errno, "ibv_create_cq", "the receive CQ");

  auto arena =
      Arena::create(c.pd_.get(), options.arena_bytes, options.slot_bytes, kMaxLanes, kLaneDepth);
  if (!arena.ok()) return arena.status();
  c.arena_ = arena.take();
  c.buffers_ = c.arena_->buffers();

  LaneParts parts;
  parts.context = c.context_.get();
  parts.pd = c.pd_.get();
  parts.channel = c.channel_.get();
  parts.receive_cq = c.receive_cq_.get();
  parts.arena = c.arena_.get();
  parts.folder = c.folder_.get();
  parts.seed = options.incarnation;
  auto lanes = Lanes::create(parts);
  if (!lanes.ok()) return lanes.status();
  c.lanes_ = lanes.take();

  Inbox::Options inbox_options;
  inbox_options.folder = options.folder;
  inbox_options.incarnation = options.incarnation;
  inbox_options.slot_bytes = options.slot_bytes;
  inbox_options.slots = c.options_.slots;
  inbox_options.max_slots = c.options_.max_slots;
  inbox_options.peers = kMaxPeers;
  auto inbox = Inbox::create(c.pd_.get(), c.lanes_.get(), c.folder_.get(), inbox_options);
  if (!inbox.ok()) return inbox.status();
  c.inbox_ = inbox.take();

  status = c.lanes_->open(0);
  if (!status.ok()) return status;

  c.ring_.resize(std::bit_ceil(c.options_.max_slots));
  return core;
}

Member::Core::~Core() { close(); }

void Member::Core::close() {
  if (closed_) return;
  closed_ = true;
  // Initiators first: drained, so that nothing reads the arena or writes to others any more; then
  // what others reach.
  if (lanes_) lanes_->shut();
  groups_.clear();
  inbox_.reset();
  lanes_.reset();
  arena_.reset();
  (void)receive_cq_.close();
  (void)channel_.close();
  (void)pd_.close();
  verbs::remove_faults(context_.get());
  (void)context_.close();
  folder_.reset();

  touched_.clear();
  active_.clear();
  attention_.clear();
  dirty_.clear();
  peers_.clear();
  strangers_.clear();
  events_.clear();
  due_.clear();
  fetches_.clear();
  held_ = 0;
  backlog_bytes_ = 0;
  if (buffers_.owner) counter(kBacklogBytes) = 0;  // create() may have failed before there was any
}

}  // namespace millrace::transport
