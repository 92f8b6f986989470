#include <string.h>

#include "soft/datagram.h"
#include "soft/flow.h"
#include "soft/step.h"

// RAW_PACKET: whole Ethernet frames. All ports are on one switch, which floods: a frame reaches the
// port of every device, the sender's own too (as adapters loop it back), and there the port's rules
// say who gets it.

namespace millrace::soft {
namespace {

/** A frame at one port: matched, counted, delivered. */
Outcome arrive(Qp& qp, Datagram& datagram, const FlowTable& table, uint32_t device,
               const PacketFields& fields, bool multicast) {
  Outcome out;
  out.bytes = datagram.total;
  Process& process = *qp.process;
  table.ports[device].match(fields, multicast, &qp.matched);
  if (qp.matched.dropped_by != nullptr) {
    count_frame(process, *qp.matched.dropped_by, datagram.total);
    count_drop(process.root(), device, DropReason::kRule);
  } else if (qp.matched.winners.empty()) {
    count_drop(process.root(), device, DropReason::kNoRule);
  }
  const uint8_t plain = datagram.flags;
  for (const FlowEntry* rule : qp.matched.winners) {
    count_frame(process, *rule, datagram.total);
    datagram.flags = static_cast<uint8_t>(plain | (rule->tagged ? kEntryTagged : 0));
    datagram.tag = rule->tag;
    uint32_t qpn = rule->qpn;
    if (rule->spread != 0) {
      const auto spread = table.spreads.find(rule->spread);
      qpn = spread != table.spreads.end() ? spread_to(spread->second, fields) : 0;
    }
    const Outcome one = deliver(qp, datagram, qpn, device);
    if (one.status != IBV_WC_SUCCESS) out = one;
  }
  datagram.flags = plain;
  return out;
}

}  // namespace

Outcome run_frame(Qp& qp, const ibv_send_wr& wr) {
  Segment segments[kMaxSendSge];
  int count = 0;
  Datagram datagram;
  datagram.wr = &wr;
  datagram.op = operation_of(wr.opcode);
  ibv_wc_status status = gather(qp, wr, 0, segments, &count, &datagram.total);
  if (status != IBV_WC_SUCCESS) return Outcome::failed(status);
  if (datagram.total < kMinFrame || datagram.total > kMaxFrame)
    return Outcome::failed(IBV_WC_LOC_LEN_ERR);

  // In one piece, and a private copy: what is matched is what is delivered.
  uint8_t* const frame = qp.frame.data();
  uint32_t at = 0;
  for (int i = 0; i < count; ++i) {
    memcpy(frame + at, segments[i].data, segments[i].bytes);
    at += segments[i].bytes;
  }
  PacketFields fields;
  PacketLayout layout;
  parse_frame(frame, datagram.total, &fields, &layout);
  if ((wr.send_flags & IBV_SEND_IP_CSUM) != 0) fill_checksums(frame, fields, layout);
  if (checksums_are_ok(frame, fields, layout)) datagram.flags = IBV_WC_IP_CSUM_OK;
  const Segment whole = {reinterpret_cast<std::byte*>(frame), datagram.total};
  datagram.segments = &whole;
  datagram.count = 1;

  qp.flows = flow_table(*qp.process, qp.flows);
  const std::shared_ptr<const FlowTable> rules = qp.flows;
  const bool multicast = is_multicast_frame(frame);
  Outcome out;
  out.bytes = datagram.total;
  for (uint32_t device = 0; device < kDevices; ++device) {
    if (rules->ports[device].empty()) continue;
    const Outcome one = arrive(qp, datagram, *rules, device, fields, multicast);
    if (one.status != IBV_WC_SUCCESS) out = one;
  }
  return out;
}

}  // namespace millrace::soft
