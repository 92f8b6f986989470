#include "transport/group.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "transport/errors.h"

namespace millrace::transport {
namespace {

constexpr uint64_t kDrainNs = 2'000'000'000;
/** A device that takes its time is looked at so often before a datagram is lost for want of a slot.
 */
constexpr uint32_t kTries = 256;
/** Every datagram has room for a network header in front of it in the receiver's memory. */
constexpr uint32_t kGrhBytes = 40;
constexpr uint8_t kHopLimit = 64;
/** The QP number that stands for all that are attached. */
constexpr uint32_t kEverybody = 0xFFFFFF;
/** First multicast LID of InfiniBand, and how many there are below the permissive one. */
constexpr uint16_t kFirstLid = 0xC000;
constexpr uint16_t kLids = 0x3FFE;

uint32_t mtu_bytes(const Port& port) { return 128u << port.address.mtu; }

bool is_ipv4(const Port& port) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return port.ethernet && memcmp(port.address.gid.data(), kMapped, sizeof(kMapped)) == 0;
}

base::Result<verbs::QpPtr> create_qp(const GroupParts& parts, ibv_cq* cq, uint32_t sends,
                                     uint32_t receives) {
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_UD;
  attr.send_cq = cq;
  attr.recv_cq = cq;
  attr.cap.max_send_wr = sends;
  attr.cap.max_recv_wr = receives;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  errno = 0;
  verbs::QpPtr qp(ibv_create_qp(parts.pd, &attr));
  if (!qp) return verb_error(errno, "ibv_create_qp", "UD, of a multicast group");
  return qp;
}

base::Result<verbs::CqPtr> create_cq(const GroupParts& parts, uint32_t entries) {
  errno = 0;
  verbs::CqPtr cq(
      ibv_create_cq(parts.context, static_cast<int>(entries), nullptr, parts.channel, 0));
  if (!cq) return verb_error(errno, "ibv_create_cq", "of a multicast group");
  return cq;
}

}  // namespace

GroupAddress group_address(const GroupKey& key, const Port& port) {
  GroupAddress address;
  memcpy(&address.tag, key.data() + 8, sizeof(address.tag));
  memcpy(&address.qkey, key.data() + 4, sizeof(address.qkey));
  address.qkey &= 0x7FFFFFFF;
  uint8_t* const raw = address.gid.raw;
  if (is_ipv4(port)) {
    memcpy(raw, port.address.gid.data(), 12);
    raw[12] = 239;
    raw[13] = static_cast<uint8_t>(192 + key[0] % 4);
    raw[14] = key[1];
    raw[15] = key[2];
    return address;
  }
  raw[0] = 0xFF;
  raw[1] = port.ethernet ? 0x15 : 0x12;  // transient; of the site, or of the subnet
  raw[2] = 'M';
  raw[3] = 'L';
  memcpy(raw + 4, key.data(), 12);
  if (!port.ethernet) {
    address.lid = static_cast<uint16_t>(kFirstLid + (key[12] << 8 | key[13]) % kLids);
  }
  return address;
}

uint32_t group_room(const Port& port) { return mtu_bytes(port) - kFrameHeaderBytes; }

base::Result<base::Fd> join_interface(const GroupAddress& address, const Port& port) {
  const bool v4 = is_ipv4(port);
  group_req request = {};
  request.gr_interface = port.interface;
  if (v4) {
    auto& group = reinterpret_cast<sockaddr_in&>(request.gr_group);
    group.sin_family = AF_INET;
    memcpy(&group.sin_addr, address.gid.raw + 12, sizeof(group.sin_addr));
  } else {
    auto& group = reinterpret_cast<sockaddr_in6&>(request.gr_group);
    group.sin6_family = AF_INET6;
    memcpy(&group.sin6_addr, address.gid.raw, sizeof(group.sin6_addr));
  }
  base::Fd socket(::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.valid() && setsockopt(socket.get(), v4 ? IPPROTO_IP : IPPROTO_IPV6, MCAST_JOIN_GROUP,
                                   &request, sizeof(request)) == 0) {
    return socket;
  }
  const int error = errno;
  char name[IF_NAMESIZE] = "of that index";
  (void)if_indextoname(port.interface, name);
  return base::Status::error(error, "join a multicast group",
                             base::format("network interface %u (%s) of the RDMA port: %s",
                                          port.interface, name, strerror(error)));
}

// ---- sending
// -----------------------------------------------------------------------------------------------------

base::Result<std::unique_ptr<GroupSender>> GroupSender::create(const GroupParts& parts,
                                                               const GroupKey& key) {
  std::unique_ptr<GroupSender> sender(new GroupSender());
  GroupSender& s = *sender;
  s.port_ = parts.port;
  s.address_ = group_address(key, *parts.port);
  s.incarnation_ = parts.incarnation;
  s.slot_bytes_ = mtu_bytes(*parts.port);
  const size_t bytes = size_t{kDepth} * s.slot_bytes_;
  s.memory_.reset(new uint8_t[bytes]);
  s.bytes_.resize(kDepth);
  s.mr_ = verbs::MrPtr(ibv_reg_mr(parts.pd, s.memory_.get(), bytes, IBV_ACCESS_LOCAL_WRITE));
  if (!s.mr_) return registration_error(errno, "datagrams of a multicast group", bytes);
  auto cq = create_cq(parts, kDepth);
  if (!cq.ok()) return cq.status();
  s.cq_ = cq.take();
  auto qp = create_qp(parts, s.cq_.get(), kDepth, 1);
  if (!qp.ok()) return qp.status();
  s.qp_ = qp.take();
  base::Status status = bring_up_datagrams(s.qp_.get(), *parts.port, s.address_.qkey);
  if (!status.ok()) return status;

  ibv_ah_attr attr = {};
  attr.port_num = parts.port->number;
  attr.dlid = s.address_.lid;
  attr.is_global = 1;
  attr.grh.dgid = s.address_.gid;
  attr.grh.sgid_index = parts.port->sgid_index;
  attr.grh.hop_limit = kHopLimit;
  errno = 0;
  s.ah_ = verbs::AhPtr(ibv_create_ah(parts.pd, &attr));
  if (!s.ah_) return verb_error(errno, "ibv_create_ah", "of a multicast group");
  return sender;
}

GroupSender::~GroupSender() {
  if (!qp_) return;
  to_error(qp_.get());
  // A QP is not destroyed with work outstanding: the device may still read our memory.
  stopped_ = true;
  const uint64_t deadline = base::now_ns() + kDrainNs;
  ibv_wc wcs[16];
  while (head_ < posted_ && base::now_ns() < deadline) {
    const int count = ibv_poll_cq(cq_.get(), 16, wcs);
    if (count > 0) head_ += static_cast<uint64_t>(count);
  }
}

bool GroupSender::stage(const uint8_t* body, uint32_t bytes, uint32_t records) {
  if (tail_ - head_ == kDepth) (void)post();
  for (uint32_t i = 0; tail_ - head_ == kDepth && i < kTries; ++i) (void)harvest();
  if (stopped_ || tail_ - head_ == kDepth) return false;
  FrameHeader header = {};
  header.magic = kFrameMagic;
  header.version = kFrameVersion;
  header.flags = kFlagGroup;
  header.sender = incarnation_;
  header.receiver = address_.tag;
  header.sequence = ++sequence_;
  header.body_bytes = bytes;
  header.records = records;
  uint8_t* const to = slot(tail_);
  memcpy(to, &header, sizeof(header));
  memcpy(to + sizeof(header), body, bytes);
  bytes_[tail_ % kDepth] = kFrameHeaderBytes + bytes;
  ++tail_;
  return true;
}

uint32_t GroupSender::post() {
  ibv_sge sges[kBatch];
  ibv_send_wr wrs[kBatch];
  while (posted_ < tail_ && !stopped_) {
    const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(kBatch, tail_ - posted_));
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t at = posted_ + i;
      sges[i] = {reinterpret_cast<uint64_t>(slot(at)), bytes_[at % kDepth], mr_->lkey};
      ibv_send_wr& wr = wrs[i] = {};
      wr.next = i + 1 < count ? &wrs[i + 1] : nullptr;
      wr.sg_list = &sges[i];
      wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.ud.ah = ah_.get();
      wr.wr.ud.remote_qpn = kEverybody;
      wr.wr.ud.remote_qkey = address_.qkey;
    }
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp_.get(), wrs, &bad);
    stopped_ = error != 0;
    posted_ += error == 0 ? count : bad == nullptr ? 0 : static_cast<uint32_t>(bad - wrs);
  }
  const uint32_t lost = static_cast<uint32_t>(tail_ - posted_);
  tail_ = posted_;
  return lost;
}

uint32_t GroupSender::harvest() {
  uint32_t errors = 0;
  ibv_wc wcs[16];
  while (head_ < posted_) {
    const int count = ibv_poll_cq(cq_.get(), 16, wcs);
    if (count <= 0) break;
    head_ += static_cast<uint64_t>(count);
    for (int i = 0; i < count; ++i) {
      if (wcs[i].status == IBV_WC_SUCCESS) continue;
      ++errors;
      stopped_ = true;
    }
  }
  if (stopped_ && head_ == posted_ && bring_up_datagrams(qp_.get(), *port_, address_.qkey).ok()) {
    stopped_ = false;
  }
  return errors;
}

// ---- listening
// -----------------------------------------------------------------------------------------------------

base::Result<std::unique_ptr<GroupListener>> GroupListener::create(const GroupParts& parts,
                                                                   const GroupKey& key,
                                                                   uint32_t slots, uint32_t file) {
  std::unique_ptr<GroupListener> listener(new GroupListener());
  GroupListener& l = *listener;
  l.address_ = group_address(key, *parts.port);
  l.slots_ = slots;
  l.slot_bytes_ = (kGrhBytes + mtu_bytes(*parts.port) + 63) & ~63u;
  l.ring_.resize(slots);
  l.folder_ = parts.folder;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (size_t{slots} * l.slot_bytes_ + page - 1) / page * page;
  const std::string name =
      base::format("i-%llu.%u", static_cast<unsigned long long>(parts.incarnation), file);
  auto made = base::create_reserved(parts.folder, name, bytes);
  if (!made.ok()) return made.status();
  l.file_ = name;  // from here on it is unlinked at the end
  auto mapping = base::map_shared(made.value().get(), bytes);
  if (!mapping.ok()) return mapping.status();
  l.mapping_ = mapping.take();
  l.mr_ = verbs::MrPtr(ibv_reg_mr(parts.pd, l.mapping_.data(), bytes, IBV_ACCESS_LOCAL_WRITE));
  if (!l.mr_) return registration_error(errno, "slots of a multicast group", bytes);
  // Every posted receive may complete before anybody polls (I3).
  auto cq = create_cq(parts, slots);
  if (!cq.ok()) return cq.status();
  l.cq_ = cq.take();
  auto qp = create_qp(parts, l.cq_.get(), 1, slots);
  if (!qp.ok()) return qp.status();
  l.qp_ = qp.take();
  base::Status status = bring_up_datagrams(l.qp_.get(), *parts.port, l.address_.qkey);
  if (!status.ok()) return status;
  for (uint32_t i = 0; i < slots; ++i) {
    l.batch_[l.batched_++] = i;
    if (l.batched_ == kBatch) l.post();
  }
  l.post();
  if (parts.port->ethernet && parts.port->interface != 0) {
    auto joined = join_interface(l.address_, *parts.port);
    if (!joined.ok()) return joined.status();
    l.member_ = joined.take();
  }
  const int error = ibv_attach_mcast(l.qp_.get(), &l.address_.gid, l.address_.lid);
  if (error != 0) {
    return verb_error(error, "ibv_attach_mcast",
                      "the device has no more room for groups, or makes none");
  }
  l.attached_ = true;
  return listener;
}

GroupListener::~GroupListener() {
  // First out of the group: a QP that is in one can't be destroyed.
  if (attached_) (void)ibv_detach_mcast(qp_.get(), &address_.gid, address_.lid);
  (void)qp_.close();
  if (!file_.empty()) unlinkat(folder_, file_.c_str(), 0);
}

bool GroupListener::collect() {
  ibv_wc wcs[kBatch];
  while (last_ - first_ < slots_) {
    const int room = static_cast<int>(std::min<uint64_t>(kBatch, slots_ - (last_ - first_)));
    const int count = ibv_poll_cq(cq_.get(), room, wcs);
    for (int i = 0; i < count; ++i) {
      if (wcs[i].wr_id >= slots_) continue;  // none of ours
      const bool whole = wcs[i].status == IBV_WC_SUCCESS && wcs[i].byte_len >= kGrhBytes;
      ring_[last_++ % slots_] = {static_cast<uint32_t>(wcs[i].wr_id),
                                 whole ? wcs[i].byte_len - kGrhBytes : 0};
    }
    if (count < room) break;
  }
  return any();
}

GroupListener::Arrived GroupListener::front() const {
  const Completed& one = ring_[first_ % slots_];
  const auto* const base = reinterpret_cast<const uint8_t*>(mapping_.data());
  return {base + size_t{one.slot} * slot_bytes_ + kGrhBytes, one.bytes, one.slot};
}

void GroupListener::pop() {
  batch_[batched_++] = ring_[first_++ % slots_].slot;
  if (batched_ == kBatch) post();
}

void GroupListener::post() {
  if (batched_ == 0) return;
  ibv_recv_wr wrs[kBatch];
  ibv_sge sges[kBatch];
  for (uint32_t i = 0; i < batched_; ++i) {
    const uint64_t address =
        reinterpret_cast<uint64_t>(mapping_.data()) + uint64_t{batch_[i]} * slot_bytes_;
    sges[i] = {address, slot_bytes_, mr_->lkey};
    wrs[i].wr_id = batch_[i];
    wrs[i].next = i + 1 < batched_ ? &wrs[i + 1] : nullptr;
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
  }
  batched_ = 0;
  ibv_recv_wr* bad = nullptr;
  // A slot is posted once at a time, so this fails only for a device that is gone.
  (void)ibv_post_recv(qp_.get(), wrs, &bad);
}

}  // namespace millrace::transport
