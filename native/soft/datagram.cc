#include "soft/datagram.h"

#include <string.h>

#include <algorithm>

#include "soft/ah.h"
#include "soft/grh.h"
#include "soft/mcast.h"
#include "soft/step.h"

// UD: every WR says where it goes, and what can't be delivered is lost in silence.

namespace millrace::soft {
namespace {

constexpr uint32_t kMtuBytes = 4096;  ///< a datagram is one packet
constexpr uint32_t kOwnQkey = 1u << 31;

Outcome gone(uint32_t bytes) {
  Outcome out;
  out.bytes = bytes;
  return out;
}

}  // namespace

void count_drop(Root& root, uint32_t device, DropReason why) {
  if (device >= kDevices) return;
  root.port(device).drops[static_cast<uint32_t>(why)].fetch_add(1, std::memory_order_relaxed);
}

Outcome deliver(Qp& qp, const Datagram& datagram, uint32_t qpn, uint32_t device) {
  Root& root = qp.process->root();
  const auto drop = [&](DropReason why) {
    count_drop(root, device, why);
    return gone(datagram.total);
  };
  Peer* peer = nullptr;
  int error = 0;
  bool full = false;
  const ibv_wc_status status = find_datagram_peer(qp, qpn, &peer, &error, &full);
  if (status == IBV_WC_REM_INV_REQ_ERR) return drop(DropReason::kNoQp);
  if (status != IBV_WC_SUCCESS) return Outcome::failed(status, error);
  if (full) return drop(DropReason::kNoRing);
  fetch_lines(*peer);
  const QpRecord& record = *qp.target;
  if (record.port.load(std::memory_order_relaxed) >> 8 != port_place(qp.context->link, device))
    return drop(DropReason::kUnreachable);
  if (datagram.checks_qkey && record.qkey.load(std::memory_order_relaxed) != datagram.qkey)
    return drop(DropReason::kQkey);
  uint64_t seen = 0;
  if (!has_room(qp, *peer->ring, &seen)) return drop(DropReason::kNoRing);
  const uint32_t index = take(qp, *peer, &seen);
  if (index == peer->max_wr) return drop(DropReason::kNoWqe);

  // Moving uses the segments up, and there may be more receivers.
  Segment segments[kMaxSendSge + 1];
  int count = 0;
  uint32_t moved = datagram.total;
  uint32_t skip = datagram.room;
  if (datagram.header != nullptr) {
    segments[count++] = Segment{reinterpret_cast<std::byte*>(datagram.header), datagram.room};
    moved += datagram.room;
    skip = 0;
  }
  std::copy(datagram.segments, datagram.segments + datagram.count, segments + count);
  count += datagram.count;
  const ScatterResult copied = scatter(qp, *peer, index, segments, count, moved, skip);
  step("copied");
  Entry& entry = write_entry(qp, *peer->ring, *peer, *datagram.wr, datagram.op, index,
                             datagram.total + datagram.room, copied);
  entry.flags = static_cast<uint8_t>(entry.flags | datagram.flags);
  if ((datagram.flags & kEntryTagged) != 0) entry.imm = datagram.tag;
  entry.slid = datagram.slid;
  entry.src_qp = datagram.source | static_cast<uint32_t>(datagram.sl) << kNumberBits;
  commit(qp, *peer->ring,
         (datagram.wr->send_flags & IBV_SEND_SOLICITED) != 0 || copied.remote != IBV_WC_SUCCESS);
  if (copied.remote != IBV_WC_SUCCESS) fail_responder(qp, *peer, Fault::kReported);
  return gone(datagram.total);
}

Outcome run_datagram(Qp& qp, const ibv_send_wr& wr) {
  Segment segments[kMaxSendSge];
  Datagram datagram;
  datagram.wr = &wr;
  datagram.op = operation_of(wr.opcode);
  datagram.segments = segments;
  const ibv_wc_status status = gather(qp, wr, 0, segments, &datagram.count, &datagram.total);
  if (status != IBV_WC_SUCCESS) return Outcome::failed(status);
  if (datagram.total > kMtuBytes) return Outcome::failed(IBV_WC_LOC_LEN_ERR);
  if (wr.wr.ud.ah == nullptr || wr.wr.ud.ah->pd != qp.ex.qp_base.pd)
    return Outcome::failed(IBV_WC_LOC_QP_OP_ERR);  // an address handle of another PD

  const Context& context = *qp.context;
  const Ah& ah = Ah::of(wr.wr.ud.ah);
  const bool ethernet = context.link == Link::kEthernet;
  uint8_t header[kGrhBytes];
  if (ah.attr.is_global != 0) {
    NetworkHeader network;
    network.source = port_gid(context.link, context.device, ah.attr.grh.sgid_index);
    network.destination = ah.attr.grh.dgid;
    network.flow_label = ah.attr.grh.flow_label;
    network.traffic_class = ah.attr.grh.traffic_class;
    network.hop_limit = ah.attr.grh.hop_limit;
    network.type = ah.route.type;
    write_network_header(network, datagram.total, header);
    datagram.header = header;
    datagram.flags = IBV_WC_GRH;
  }
  datagram.room = kGrhBytes;
  datagram.checks_qkey = true;
  datagram.qkey = (wr.wr.ud.remote_qkey & kOwnQkey) != 0 ? qp.attr.qkey : wr.wr.ud.remote_qkey;
  datagram.sl = ah.attr.sl;
  datagram.slid = ethernet ? 0 : device_lid(context.device);
  datagram.source = qp.number;

  if (!ah.route.multicast) {
    if (ah.route.device == kDevices) {
      count_drop(qp.process->root(), context.device, DropReason::kUnreachable);
      return gone(datagram.total);
    }
    return deliver(qp, datagram, wr.wr.ud.remote_qpn & kNumberMask, ah.route.device);
  }
  const std::vector<GroupMember>& members = qp.groups.members(
      qp.process->root(), ah.attr.grh.dgid, ethernet ? uint16_t{0} : ah.attr.dlid);
  if (members.empty()) count_drop(qp.process->root(), context.device, DropReason::kNoMember);
  Outcome out = gone(datagram.total);
  for (const GroupMember& member : members) {
    if (member.qpn == qp.number && qp.blocks_self) continue;
    const Outcome one = deliver(qp, datagram, member.qpn, member.device);
    if (one.status != IBV_WC_SUCCESS) out = one;  // the others get it all the same
  }
  return out;
}

}  // namespace millrace::soft
