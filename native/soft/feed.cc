#include "soft/feed.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "soft/cq.h"
#include "soft/datagram.h"
#include "soft/device.h"
#include "soft/error.h"
#include "soft/qp.h"

namespace millrace::soft {
namespace {

constexpr const char* kWhat = "attach a port to a network interface";

/** Frames of an ordinary MTU with the headers around them; larger ones are read one by one. */
constexpr uint32_t kSlotBytes = 2048;
constexpr uint32_t kSlots = 8192;
constexpr uint32_t kBlockBytes = 64 * 1024;
/** For the frames that are larger than a slot. */
constexpr int kLargeBytes = 4 << 20;
/** Of rules that are made between two looks, how many get a new filter each. */
constexpr uint32_t kPrograms = 16;
/** The largest that comes in one piece: a GSO packet with its headers. */
constexpr uint32_t kLargestPacket = 65536 + 256;
base::Status os_error(const char* step) {
  const int error = errno;
  return base::Status::error(error, kWhat, base::format("%s: %s", step, strerror(error)));
}

template <class T>
bool set(int fd, int level, int name, const T& value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

}  // namespace

base::Result<std::unique_ptr<Feed>> Feed::open(Context& context, const std::string& interface) {
  std::unique_ptr<Feed> feed(new Feed(context));
  base::Status status = feed->find_interface(interface);
  const bool raw = may_use_raw_frames();
  base::Result<std::unique_ptr<UdpSockets>> sockets =
      UdpSockets::create(raw ? UdpSockets::Use::kHeld : UdpSockets::Use::kRead);
  if (!sockets.ok()) return sockets.status();
  feed->sockets_ = sockets.take();
  if (status.ok() && raw) status = feed->open_socket();
  if (!status.ok()) return status;
  return feed;
}

Feed::~Feed() {
  if (source_ != nullptr) {
    (void)destroy_qp(source_->handle());
    (void)destroy_cq(cq_);
    (void)dealloc_pd(&pd_->pd);
  }
}

base::Status Feed::find_interface(const std::string& interface) {
  if (interface != "*") {
    name_ = interface;
    interface_ = if_nametoindex(interface.c_str());
    if (interface_ == 0) {
      return base::Status::error(
          ENODEV, kWhat, base::format("there is no network interface \"%s\"", interface.c_str()));
    }
  }
  struct stat net = {};
  if (stat("/proc/thread-self/ns/net", &net) == 0) net_ = static_cast<uint32_t>(net.st_ino);
  large_.resize(kLargestPacket);
  return base::Status::success();
}

base::Status Feed::open_socket() {
  // Without a protocol nothing comes in before everything is set.
  socket_ = base::Fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.valid()) return os_error("socket");
  const int fd = socket_.get();
  if (base::Status status = attach(filter_); !status.ok()) return status;
  const int version = TPACKET_V2, on = 1;
  if (!set(fd, SOL_PACKET, PACKET_VERSION, version)) return os_error("PACKET_VERSION");
  if (!set(fd, SOL_PACKET, PACKET_VNET_HDR, on)) return os_error("PACKET_VNET_HDR");
  // What a slot is too small for is put into the socket's own queue as well.
  if (!set(fd, SOL_PACKET, PACKET_COPY_THRESH, on)) return os_error("PACKET_COPY_THRESH");
  if (!set(fd, SOL_SOCKET, SO_RCVBUFFORCE, kLargeBytes))
    (void)set(fd, SOL_SOCKET, SO_RCVBUF, kLargeBytes);
  tpacket_req ring = {};
  ring.tp_block_size = kBlockBytes;
  ring.tp_frame_size = kSlotBytes;
  ring.tp_frame_nr = kSlots;
  ring.tp_block_nr = kSlots / (kBlockBytes / kSlotBytes);
  if (!set(fd, SOL_PACKET, PACKET_RX_RING, ring)) return os_error("PACKET_RX_RING");
  const size_t bytes = size_t{kSlots} * kSlotBytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return os_error("map the ring");
  ring_ = base::Mapping(memory, bytes);
  sockaddr_ll address = {};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(interface_);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return os_error("bind");
  return base::Status::success();
}

base::Status Feed::attach(const CoarseFilter& filter) {
  std::vector<sock_filter> program = filter.program();
  sock_fprog value = {static_cast<unsigned short>(program.size()), program.data()};
  // One step for the kernel: a frame meets the old program or the new one.
  if (!set(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, value)) return os_error("SO_ATTACH_FILTER");
  programs_.fetch_add(1, std::memory_order_relaxed);
  return base::Status::success();
}

void Feed::bind(FlowMatch* match) const {
  match->value.net = net_;
  if (interface_ != 0) {
    match->value.interface = interface_;
    match->mask.interface = ~0u;
  }
}

namespace {

bool widen(CoarseFilter* filter, const FlowRule& rule) {
  if (rule.kind == FlowKind::kNormal) return filter->add(rule.match);
  const bool outgoing = rule.kind == FlowKind::kSniffer && filter->add_outgoing();
  return filter->add_all() || outgoing;
}

}  // namespace

base::Status Feed::admit(const FlowRule& rule) {
  std::lock_guard guard(rules_lock_);
  if (base::Status status = sockets_->add(rule); !status.ok()) return status;
  const bool wider = widen(&filter_, rule);
  // The kernel needs a millisecond for a program. Of many rules at once the later ones find that
  // everything is let through, until the next look makes the filter of them all.
  if (wider && ++widened_ > kPrograms) {
    filter_.add_all();
    stale_.store(true, std::memory_order_release);
  }
  if (wider && !unprivileged()) {
    if (base::Status status = attach(filter_); !status.ok()) {
      sockets_->remove(rule);
      return status;
    }
  }
  admitted_[rule.record] = rule;
  return base::Status::success();
}

void Feed::retire(uint32_t record) {
  std::lock_guard guard(rules_lock_);
  const auto found = admitted_.find(record);
  if (found == admitted_.end()) return;
  sockets_->remove(found->second);
  admitted_.erase(found);
  stale_.store(true, std::memory_order_release);
}

bool Feed::own(uint32_t qpn) const { return std::binary_search(own_.begin(), own_.end(), qpn); }

/** Reads the rules if they have changed. Needs pumping_. */
void Feed::follow_rules() {
  const bool stale = stale_.exchange(false, std::memory_order_acquire);
  std::shared_ptr<const FlowTable> rules = flow_table(*context_.process, rules_);
  if (rules == rules_ && !stale) return;
  rules_ = std::move(rules);
  {
    std::lock_guard guard(context_.qps_lock);
    own_.clear();
    for (const Qp* qp : context_.qps) own_.push_back(qp->number);
  }
  std::sort(own_.begin(), own_.end());
  if (!stale) return;
  std::lock_guard guard(rules_lock_);
  CoarseFilter narrower;
  for (const auto& [record, rule] : admitted_) widen(&narrower, rule);
  filter_ = std::move(narrower);
  widened_ = 0;
  // If the kernel has no memory the wider one stays, which is right as well.
  if (!unprivileged()) (void)attach(filter_);
}

base::Status Feed::start() {
  ibv_pd* pd = alloc_pd(context_.handle());
  cq_ = pd != nullptr ? create_cq(context_.handle(), 1, nullptr, nullptr, 0) : nullptr;
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  attr.send_cq = attr.recv_cq = cq_;
  ibv_qp* qp = cq_ != nullptr ? create_qp(pd, &attr) : nullptr;
  if (qp == nullptr) {
    const base::Status failure = last_remembered();
    if (cq_ != nullptr) (void)destroy_cq(cq_);
    if (pd != nullptr) (void)dealloc_pd(pd);
    return failure;
  }
  pd_ = &Pd::of(pd);
  source_ = &Qp::of(qp);
  return base::Status::success();
}

uint32_t Feed::pump(uint32_t limit) {
  if (!pumping_.try_lock()) return 0;
  std::lock_guard guard(pumping_, std::adopt_lock);
  follow_rules();
  std::lock_guard source(source_->lock);
  const uint32_t taken = unprivileged() ? read_sockets(limit) : read_ring(limit);
  if (taken != 0) tell_receivers(*source_);
  return taken;
}

void Feed::woken() {
  if (pump(kFeedBatch) != 0 || unprivileged()) return;
  // An interface that goes down leaves ENETDOWN at the socket, which is readable until it was read.
  int error = 0;
  socklen_t size = sizeof(error);
  (void)getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
}

uint32_t Feed::read_ring(uint32_t limit) {
  uint32_t taken = 0;
  while (taken < limit) {
    uint8_t* const slot = reinterpret_cast<uint8_t*>(ring_.data()) + size_t{next_} * kSlotBytes;
    // Acquire and release: the slot is the kernel's, then ours, then the kernel's again.
    const std::atomic_ref<__u32> status(reinterpret_cast<tpacket2_hdr*>(slot)->tp_status);
    if ((status.load(std::memory_order_acquire) & TP_STATUS_USER) == 0) break;
    if (!segments_.left()) {
      take(slot);
      if (!segments_.left()) ++taken;
    }
    for (; segments_.left() && taken < limit; ++taken) {
      const std::span<uint8_t> piece = segments_.next();
      arrive(piece.data(), static_cast<uint32_t>(piece.size()), whole_);
    }
    if (segments_.left()) break;  // the slot is full still, so the descriptor stays readable
    status.store(TP_STATUS_KERNEL, std::memory_order_release);
    next_ = next_ + 1 == kSlots ? 0 : next_ + 1;
  }
  return taken;
}

uint32_t Feed::read_sockets(uint32_t limit) {
  std::lock_guard guard(rules_lock_);
  UdpFrame received;
  uint32_t taken = 0;
  for (; taken < limit; ++taken) {
    if (!sockets_->next(large_.data(), static_cast<uint32_t>(large_.size()), &received)) break;
    ++counts_.frames;
    RingFrame frame;
    frame.frame = received.frame;
    frame.bytes = received.bytes;
    frame.interface = received.interface;
    frame.checked = true;
    whole(frame);
  }
  return taken;
}

/** One slot: its frame, with everything that the kernel keeps beside it put back. */
void Feed::take(uint8_t* slot) {
  ++counts_.frames;
  RingFrame frame;
  SlotState state = read_slot(slot, kSlotBytes, &frame);
  if (state == SlotState::kCopied) state = read_copy(&frame);
  if (state == SlotState::kCutOff) ++counts_.cut_off;
  if (state != SlotState::kFrame || frame.twice) return;
  restore_tag(&frame);
  whole(frame);
}

/** A frame that was too long for its slot. */
SlotState Feed::read_copy(RingFrame* frame) {
  uint8_t* const start = large_.data() + kTagBytes;  // behind room for a tag
  const ssize_t got = recv(socket_.get(), start, large_.size() - kTagBytes, 0);
  if (got < static_cast<ssize_t>(sizeof(frame->net) + kMinFrame)) return SlotState::kCutOff;
  memcpy(&frame->net, start, sizeof(frame->net));
  frame->frame = start + sizeof(frame->net);
  frame->bytes = static_cast<uint32_t>(got) - static_cast<uint32_t>(sizeof(frame->net));
  return SlotState::kFrame;
}

/** A packet as its sender handed it over: one frame, or many that nobody has cut yet, which
 * read_ring() does. */
void Feed::whole(const RingFrame& frame) {
  if (frame.net.segmented != kNotSegmented) {
    if (!segments_.start(frame)) ++counts_.oversized;
    whole_ = frame;
  } else if (frame.bytes < kMinFrame || frame.bytes > kMaxFrame) {
    ++counts_.oversized;
  } else {
    arrive(frame.frame, frame.bytes, frame);
  }
}

/** A frame at the port: matched, counted, delivered to those of the winners that are ours. */
void Feed::arrive(uint8_t* frame, uint32_t bytes, const RingFrame& about) {
  PacketFields fields;
  PacketLayout layout;
  parse_frame(frame, bytes, &fields, &layout);
  fields.net = net_;
  fields.interface = about.interface;
  const uint32_t device = context_.device;
  Process& process = *context_.process;
  rules_->ports[device].match(fields, is_multicast_frame(frame), &matched_);
  if (about.outgoing) {
    std::erase_if(matched_.winners,
                  [](const FlowEntry* rule) { return rule->kind != FlowKind::kSniffer; });
  } else if (const FlowEntry* rule = matched_.dropped_by) {
    if (own(rule->qpn)) count_frame(process, *rule, bytes);
  } else if (matched_.winners.empty()) {
    // Fragments have no ports to match (VERBS 3).
    ++(layout.fragment ? counts_.fragments : counts_.unmatched);
    return;
  }
  const bool right = about.checked || (about.net.flags & kNeedsChecksum) != 0 ||
                     about.net.segmented != kNotSegmented;
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  const Segment segment = {reinterpret_cast<std::byte*>(frame), bytes};
  Datagram datagram;
  datagram.wr = &wr;
  datagram.op = operation_of(wr.opcode);
  datagram.segments = &segment;
  datagram.count = 1;
  datagram.total = bytes;
  // What was cut off has no checksums that could be right.
  const uint8_t plain =
      layout.l4 != 0 && (right || checksums_are_ok(frame, fields, layout)) ? IBV_WC_IP_CSUM_OK : 0;
  for (const FlowEntry* rule : matched_.winners) {
    if (!own(rule->qpn)) continue;
    count_frame(process, *rule, bytes);
    datagram.flags = static_cast<uint8_t>(plain | (rule->tagged ? kEntryTagged : 0));
    datagram.tag = rule->tag;
    const Outcome out = deliver(*source_, datagram, rule->qpn, device);
    if (out.status != IBV_WC_SUCCESS) ++counts_.failed;
  }
}

FeedCounters Feed::counters() {
  std::lock_guard guard(pumping_);
  const uint32_t now = interface_ != 0 ? if_nametoindex(name_.c_str()) : 0;
  counts_.stale = now != 0 && now != interface_;
  counts_.unprivileged = unprivileged();
  counts_.socket_limit = sockets_->limit();
  counts_.programs = programs_.load(std::memory_order_relaxed);
  tpacket_stats stats = {};
  socklen_t size = sizeof(stats);
  // Reading them sets them to zero.
  if (!unprivileged() &&
      getsockopt(socket_.get(), SOL_PACKET, PACKET_STATISTICS, &stats, &size) == 0)
    counts_.ring_drops += stats.tp_drops;
  return counts_;
}

base::Result<FeedCounters> feed_counters(ibv_context* context) {
  const std::unique_ptr<Feed>& feed = Context::of(context).feed;
  if (feed == nullptr) return base::Status::error(ENODEV, kWhat, "the port is not attached to one");
  return feed->counters();
}

}  // namespace millrace::soft
