#include "transport/member.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "transport/core.h"
#include "transport/errors.h"
#include "verbs/open.h"

namespace millrace::transport {
namespace {

/** When a peer is added, the inbox grows so that about that much can be lent on top of the floors.
 */
constexpr uint32_t kLendRoom = 32;
/** Incarnations that are remembered after they left, so that late frames of them are known for what
 * they are. */
constexpr size_t kDeparted = 256;

base::Status check(const MemberOptions& options) {
  const auto bad = [](const char* what, std::string detail) {
    return base::Status::error(EINVAL, what, std::move(detail));
  };
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (options.incarnation == 0) return bad("incarnation", "it must be greater than 0");
  if (options.slot_bytes < kMinSlotBytes || options.slot_bytes > kMaxSlotBytes ||
      options.slot_bytes % kRecordAlign != 0) {
    return bad("slotBytes", base::format("%u is not a multiple of %u in %u..%u", options.slot_bytes,
                                         kRecordAlign, kMinSlotBytes, kMaxSlotBytes));
  }
  if (options.slots < kFloorSlots) {
    return bad("slots",
               base::format("%u is less than one peer needs (%u)", options.slots, kFloorSlots));
  }
  if (options.max_slots < options.slots) {
    return bad("maxSlots",
               base::format("%u is less than slots (%u)", options.max_slots, options.slots));
  }
  if (options.arena_bytes < options.slot_bytes || options.arena_bytes > uint64_t{1} << 30 ||
      options.arena_bytes % page != 0) {
    return bad(
        "arenaBytes",
        base::format("%llu is not a multiple of the page size (%llu) between slotBytes and 1 GiB",
                     static_cast<unsigned long long>(options.arena_bytes),
                     static_cast<unsigned long long>(page)));
  }
  return base::Status::success();
}

}  // namespace

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
  base::Status status = check(options);
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

  c.peers_.resize(kMaxPeers);
  c.generations_.resize(kMaxPeers, 0);
  for (uint32_t i = 0; i < kMaxPeers; ++i) c.free_peers_.push_back(i);
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
  by_incarnation_.clear();
  strangers_.clear();
  recognised_.clear();
  events_.clear();
  due_.clear();
  fetches_.clear();
  connected_.clear();
  reserved_count_ = held_ = 0;
  backlog_bytes_ = 0;
  if (buffers_.owner) counter(kBacklogBytes) = 0;  // create() may have failed before there was any
}

// ---- peers
// ----------------------------------------------------------------------------------------------------------

Peer* Member::Core::connected(uint32_t index) {
  if (closed_ || index >= kMaxPeers || !peers_[index] ||
      peers_[index]->state != Peer::State::kConnected)
    return nullptr;
  return peers_[index].get();
}

Peer* Member::Core::find(uint32_t index, uint32_t generation) {
  Peer* const peer = connected(index);
  return peer != nullptr && peer->generation == generation ? peer : nullptr;
}

base::Result<Offer> Member::Core::offer() {
  if (closed_) return base::Status::error(EBADF, "offer", "the member is closed");
  if (free_peers_.empty()) {
    return base::Status::error(ENOBUFS, "offer",
                               base::format("a member has at most %u peers", kMaxPeers));
  }
  // The floor is promised for ever, so it must be posted (I2). Beyond it, growing is welcome but
  // not needed.
  if (inbox_->pool() < kFloorSlots) {
    base::Status status = inbox_->grow();
    if (!status.ok()) return status;
  } else if (inbox_->pool() < kFloorSlots + kLendRoom && inbox_->slots() < inbox_->max_slots()) {
    (void)inbox_->grow();
  }
  if (inbox_->pool() < kFloorSlots) {
    return base::Status::error(
        ENOBUFS, "offer",
        base::format("the inbox has %u slots, all promised, and maxSlots is %u", inbox_->slots(),
                     inbox_->max_slots()));
  }
  (void)inbox_->take(kFloorSlots);

  const uint32_t index = free_peers_.front();
  free_peers_.pop_front();
  auto peer = std::make_unique<Peer>();
  peer->index = index;
  peer->generation = ++generations_[index];
  // Not 0, so that memory that was never written says nothing.
  peer->tag = static_cast<uint16_t>(1 + (peer->generation - 1) % 0xFFFF);
  peer->book.reset();
  peer->announced = peer->book.granted();
  ++reserved_count_;

  OfferData data;
  data.incarnation = options_.incarnation;
  data.credit_address = inbox_->credit_address(index);
  data.credit_rkey = inbox_->credit_rkey();
  data.credit_tag = peer->tag;
  data.srq_number = inbox_->srq_number();
  data.slot_bytes = inbox_->slot_bytes();
  data.granted = static_cast<uint32_t>(peer->book.granted());
  data.lanes = lanes_->kind();
  data.medium = medium();
  data.address = lanes_->port().address;
  peers_[index] = std::move(peer);
  std::fill_n(buffers_.peers.begin() + index * kPeerStride, kPeerStride, 0.0);
  Offer out;
  out.peer = index;
  out.bytes = encode_offer(data);
  return out;
}

base::Status Member::Core::connect(uint32_t index, uint64_t incarnation,
                                   std::span<const uint8_t> offer) {
  if (closed_) return base::Status::error(EBADF, "connect", "the member is closed");
  if (index >= kMaxPeers || !peers_[index]) {
    return base::Status::error(EINVAL, "connect",
                               base::format("peer %u was not reserved by offer()", index));
  }
  Peer& peer = *peers_[index];
  if (peer.state == Peer::State::kConnected) {
    return base::Status::error(EEXIST, "connect",
                               base::format("peer %u is connected already", index));
  }
  const auto data = decode_offer(offer);
  if (!data) return base::Status::error(EPROTO, "connect", "the offer is not one of this version");
  if (data->incarnation != incarnation || incarnation == options_.incarnation) {
    return base::Status::error(EPROTO, "connect",
                               "the offer is of another incarnation than it came from");
  }
  if (by_incarnation_.count(incarnation) != 0) {
    return base::Status::error(EEXIST, "connect", "that incarnation is connected already");
  }
  base::Status status = check_reachable(*data);
  if (!status.ok()) return status;
  peer.state = Peer::State::kConnected;
  peer.incarnation = incarnation;
  peer.remote = *data;
  peer.frame_room = std::min(data->slot_bytes, options_.slot_bytes) - kFrameHeaderBytes;
  peer.credits.reset(data->granted);
  --reserved_count_;
  connected_.push_back(&peer);
  by_incarnation_[incarnation] = index;
  // What it sent before we knew it.
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    if (it->header.sender == incarnation) {
      recognised_.push_back(std::move(*it));
      it = strangers_.erase(it);
    } else {
      ++it;
    }
  }
  (void)destination(peer, 0);  // with RC its lane is asked for now, not when something is sent
  touch(peer);
  update_tables();
  return base::Status::success();
}

Medium Member::Core::medium() const {
  const bool soft = std::string_view(verbs::provider_of(context_->device)->name) == "soft";
  return soft ? Medium::kSoft : Medium::kAdapters;
}

/** Whether lanes can lead from our device to that of an offer. */
base::Status Member::Core::check_reachable(const OfferData& offer) const {
  const char* const ours = context_->device->name;
  if (offer.medium != medium()) {
    return base::Status::error(
        EPROTO, "connect",
        base::format("we are on %s and that member is on %s: all members of a domain need the same "
                     "`device`",
                     ours, offer.medium == Medium::kSoft ? "the software device" : "an adapter"));
  }
  if (offer.lanes != lanes_->kind()) {
    return base::Status::error(EPROTO, "connect",
                               base::format("%s makes %s lanes and the device of that member %s",
                                            ours, lanes_->kind() == LaneKind::kXrc ? "XRC" : "RC",
                                            offer.lanes == LaneKind::kXrc ? "XRC" : "RC"));
  }
  if (offer.address.ethernet != lanes_->port().ethernet) {
    return base::Status::error(
        EPROTO, "connect",
        base::format("the port of %s is %s and that of the member's device is not", ours,
                     lanes_->port().ethernet ? "Ethernet" : "InfiniBand"));
  }
  return base::Status::success();
}

void Member::Core::disconnect(uint32_t index) {
  if (closed_ || index >= kMaxPeers || !peers_[index]) return;
  Peer& peer = *peers_[index];
  if (peer.state == Peer::State::kReserved) {
    --reserved_count_;
  } else {
    connected_.erase(std::find(connected_.begin(), connected_.end(), &peer));
    by_incarnation_.erase(peer.incarnation);
    departed_.push_back(peer.incarnation);
    if (departed_.size() > kDeparted) departed_.pop_front();
    for (auto& dest : peer.lanes) {
      if (dest && dest->held) --held_;
    }
    backlog_bytes_ -= peer.backlog_bytes;
    peer.backlog_bytes = 0;
    touch(peer);
    update_tables();
  }
  const auto names = [&peer](const auto& entry) { return entry.first == &peer; };
  touched_.erase(std::remove_if(touched_.begin(), touched_.end(), names), touched_.end());
  active_.erase(std::remove_if(active_.begin(), active_.end(), names), active_.end());
  const int32_t number = static_cast<int32_t>(index);
  if (reserved_count_ == 0) strangers_.clear();
  events_.erase(std::remove_if(events_.begin(), events_.end(),
                               [=](const Event& e) { return e.peer == number; }),
                events_.end());
  recognised_.erase(std::remove_if(recognised_.begin(), recognised_.end(),
                                   [&peer](const StrangerFrame& f) {
                                     return f.header.sender == peer.incarnation;
                                   }),
                    recognised_.end());
  // Its slots go back when everything that has landed by now has been demultiplexed (R12).
  lanes_->part(index);
  collect_all();
  due_.push_back({arrived_, 0, 0, 0, 0, peer.book.share(), {}});
  end_fetches_of(index);
  peers_[index].reset();
  free_peers_.push_back(index);
  settle_due();
}

// ---- lanes
// ----------------------------------------------------------------------------------------------------------

base::Result<uint32_t> Member::Core::open_lane() {
  if (closed_) return base::Status::error(EBADF, "open a lane", "the member is closed");
  for (uint32_t number = 1; number < kMaxLanes; ++number) {
    if (lanes_->is_open(number)) continue;
    base::Status status = lanes_->open(number);
    if (!status.ok()) return status;
    event(EventKind::kLane, -1, static_cast<int32_t>(number), static_cast<int32_t>(LaneState::kUp));
    return number;
  }
  return base::Status::error(
      ENOBUFS, "open a lane",
      base::format("a member has at most %u lanes, its shared one included", kMaxLanes));
}

base::Status Member::Core::close_lane(uint32_t lane) {
  if (closed_ || lane == 0 || lane >= kMaxLanes || !lanes_->is_open(lane)) {
    return base::Status::error(EINVAL, "close a lane", base::format("lane %u is not open", lane));
  }
  closing_lanes_ |= 1u << lane;
  reap_closing_lanes();
  return base::Status::success();
}

void Member::Core::reap_closing_lanes() {
  for (uint32_t number = 1; number < kMaxLanes && closing_lanes_ != 0; ++number) {
    if ((closing_lanes_ & (1u << number)) == 0) continue;
    bool busy = !lanes_->idle(number);
    for (const Peer* peer : connected_) {
      if (!peer->lanes[number]) continue;
      const Destination& dest = *peer->lanes[number];
      busy |= dest.held || !dest.backlog.empty() || dest.pending_head < dest.pending.size();
    }
    if (busy) continue;
    // The destinations stay: sequences per (sender, lane, receiver) go on when the number is used
    // again.
    lanes_->close(number);
    closing_lanes_ &= ~(1u << number);
  }
}

// ---- waiting
// --------------------------------------------------------------------------------------------------------

int Member::Core::fd() const { return channel_ ? channel_->fd : -1; }

void Member::Core::drain_channel() {
  bool woken = false;
  // Bounded: a device that always has another event must not keep us here.
  for (int i = 0; i < 4096; ++i) {
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &cq, &cq_context) != 0) break;
    ibv_ack_cq_events(cq, 1);
    woken = true;
  }
  if (woken) ++counter(kWakeups);
}

bool Member::Core::anything_pending() const {
  return demuxed_ != arrived_ || !recognised_.empty() || !events_.empty() || rearm_pending_;
}

/** Arms the lanes on which something can complete. @return whether that went well */
bool Member::Core::arm_lanes() {
  for (const Lane* lane : lanes_->all()) {
    if (lane->outstanding() > 0 && ibv_req_notify_cq(lane->cq(), 0) != 0) return false;
  }
  return true;
}

bool Member::Core::arm() {
  if (closed_) return true;
  // What the last poll left because a send queue was full may go now; what is left then has
  // something that wakes us.
  pump_active();
  settle();
  pump_fetches();
  // What completes here is news: on a device that takes its time somebody waits for it.
  if (harvest_all() || anything_pending()) {
    update_tables();
    return false;
  }
  drain_channel();
  // Arm first, then look again: what completes in between makes the descriptor readable (R7).
  if (ibv_req_notify_cq(receive_cq_.get(), 0) != 0 || !arm_groups() || !arm_lanes()) return false;
  armed_ = true;
  (void)collect(1);
  const bool completed = harvest_all() || look_at_groups();
  free_arena();
  update_tables();
  if (completed || anything_pending()) return false;
  // One-sided grants wake nobody; they are only waited for where no WAIT is unanswered (R13).
  for (const auto& [peer, dest] : active_) {
    refresh_credits(*peer);
    const Lane* const lane = lane_of(*peer, *dest);
    if (!dest->held && lane != nullptr && lane->up() && lane->room(kControlReserve) &&
        peer->credits.may_send()) {
      return false;
    }
  }
  return true;
}

// ---- tables
// ---------------------------------------------------------------------------------------------------------

void Member::Core::event(EventKind kind, int32_t peer, int32_t a, int32_t b) {
  // A peer that sends rubbish without end must not make this grow without end; it is counted
  // anyway.
  if (kind == EventKind::kPeerFault && events_.size() >= kEventRows) return;
  events_.push_back({kind, peer, {a, b, 0, 0, 0, 0}, {}});
}

void Member::Core::touch(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_.push_back(peer.index);
}

void Member::Core::update_tables() {
  counter(kArenaFreed) = static_cast<double>(arena_->freed());
  counter(kBacklogBytes) = static_cast<double>(backlog_bytes_);
  for (uint32_t index : dirty_) {
    Peer* const peer = peers_[index].get();
    if (peer == nullptr || !peer->dirty) continue;
    peer->dirty = false;
    uint64_t prefix = peer->rows_accepted;
    for (uint32_t i = 0; i < kMaxLanes; ++i) {
      const Destination* const dest = peer->lanes[i].get();
      if (dest != nullptr && !dest->rows.empty())
        prefix = std::min(prefix, dest->rows.oldest() - 1);
    }
    peer->rows_completed = prefix;
    double* const row = &buffers_.peers[size_t{index} * kPeerStride];
    row[kRowsCompleted] = static_cast<double>(prefix);
    row[kRowsAccepted] = static_cast<double>(peer->rows_accepted);
    row[kPeerBacklogBytes] = static_cast<double>(peer->backlog_bytes);
    row[kPeerCredits] = static_cast<double>(peer->credits.available());
    row[kPeerGranted] = static_cast<double>(peer->book.outstanding());
    row[kPeerFramesReceived] = static_cast<double>(peer->frames_received);
    row[kPeerFramesLost] = static_cast<double>(peer->frames_lost);
  }
  dirty_.clear();
}

Resources Member::Core::resources() const {
  Resources r;
  if (closed_) return r;
  r.device = context_->device->name;
  r.note = note_;
  r.kind = lanes_->kind();
  r.gid_index = lanes_->port().sgid_index;
  r.lanes = lanes_->open_count();
  r.pds = 1;
  r.xrcds = r.kind == LaneKind::kXrc ? 1 : 0;
  r.srqs = 1;
  r.cqs = 1 + static_cast<uint32_t>(lanes_->all().size());
  r.qps = lanes_->queue_pairs();
  r.mrs = arena_->regions() + inbox_->regions();
  r.slots = inbox_->slots();
  r.slot_bytes = inbox_->slot_bytes();
  r.peers = static_cast<uint32_t>(connected_.size());
  r.inbox_bytes = inbox_->bytes();
  r.arena_bytes = arena_->bytes();
  r.backlog_bytes = backlog_bytes_;
  for (const GroupEnd& end : groups_) {
    if (!end.sender && !end.listener) continue;
    ++r.groups;
    ++r.qps;
    ++r.cqs;
    ++r.mrs;
    if (!end.listener) continue;
    r.group_slots += end.listener->slots();
    r.group_bytes += end.listener->bytes();
  }
  return r;
}

#ifdef MILLRACE_STEPS
void Member::Core::check_invariants() const {
  // I2: what others may send without asking is posted, or has arrived.
  uint64_t promised = 0;
  uint64_t shares = 0;
  for (const Peer* peer : connected_) {
    promised += peer->book.outstanding() + kAnswerSlots;
    shares += peer->book.share();
  }
  promised += uint64_t{reserved_count_} * kFloorSlots;
  shares += uint64_t{reserved_count_} * kFloorSlots;
  for (const Due& due : due_) shares += due.number == 0 ? due.slots : 0;
  const uint64_t posted = inbox_->posted() + (arrived_ - demuxed_);
  if (promised > posted || shares + inbox_->pool() != inbox_->slots() || posted > inbox_->slots()) {
    std::fprintf(stderr, "I2: promised %llu, posted %llu, shares %llu, pool %u, slots %u\n",
                 static_cast<unsigned long long>(promised), static_cast<unsigned long long>(posted),
                 static_cast<unsigned long long>(shares), inbox_->pool(), inbox_->slots());
    std::abort();
  }
}
#endif

}  // namespace millrace::transport
