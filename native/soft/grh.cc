#include "soft/grh.h"

#include <endian.h>
#include <string.h>

#include "soft/checksum.h"
#include "soft/port.h"

namespace millrace::soft {
namespace {

constexpr uint8_t kNextBth = 0x1B;  ///< a GRH (and RoCE v1): InfiniBand's transport header follows
constexpr uint8_t kNextUdp = 17;
constexpr size_t kIpv4Bytes = 20;
constexpr size_t kIpv4Offset = kGrhBytes - kIpv4Bytes;
constexpr uint32_t kTransportBytes = 12 + 8 + 4;  ///< BTH, DETH, ICRC
constexpr uint32_t kUdpBytes = 8;

void put16(uint8_t* at, uint32_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

}  // namespace

void write_network_header(const NetworkHeader& header, uint32_t payload, uint8_t out[kGrhBytes]) {
  memset(out, 0, kGrhBytes);
  const bool v2 = header.type == IBV_GID_TYPE_ROCE_V2;
  const uint32_t inside = payload + kTransportBytes + (v2 ? kUdpBytes : 0);
  if (v2 && is_ipv4_mapped(header.source)) {
    uint8_t* ip = out + kIpv4Offset;
    ip[0] = 0x45;
    ip[1] = header.traffic_class;
    put16(ip + 2, static_cast<uint32_t>(kIpv4Bytes) + inside);
    ip[6] = 0x40;  // don't fragment
    ip[8] = header.hop_limit;
    ip[9] = kNextUdp;
    memcpy(ip + 12, header.source.raw + 12, 4);
    memcpy(ip + 16, header.destination.raw + 12, 4);
    put16(ip + 10, internet_checksum(ip, kIpv4Bytes));
    return;
  }
  ibv_grh grh = {};
  grh.version_tclass_flow =
      htobe32(uint32_t{6} << 28 | static_cast<uint32_t>(header.traffic_class) << 20 |
              (header.flow_label & 0xFFFFF));
  grh.paylen = htobe16(static_cast<uint16_t>(inside));
  grh.next_hdr = v2 ? kNextUdp : kNextBth;
  grh.hop_limit = header.hop_limit;
  grh.sgid = header.source;
  grh.dgid = header.destination;
  memcpy(out, &grh, kGrhBytes);
}

bool read_network_header(const uint8_t in[kGrhBytes], NetworkHeader* header) {
  const uint8_t* ip = in + kIpv4Offset;
  // The destination GID of a GRH may look like IPv4 by chance; the checksum decides.
  if (ip[0] == 0x45 && internet_checksum(ip, kIpv4Bytes) == 0) {
    *header = {};
    header->source.raw[10] = header->source.raw[11] = 0xFF;
    header->destination.raw[10] = header->destination.raw[11] = 0xFF;
    memcpy(header->source.raw + 12, ip + 12, 4);
    memcpy(header->destination.raw + 12, ip + 16, 4);
    header->traffic_class = ip[1];
    header->hop_limit = ip[8];
    header->type = IBV_GID_TYPE_ROCE_V2;
    return true;
  }
  ibv_grh grh;
  memcpy(&grh, in, kGrhBytes);
  const uint32_t first = be32toh(grh.version_tclass_flow);
  if (first >> 28 != 6) return false;
  header->source = grh.sgid;
  header->destination = grh.dgid;
  header->flow_label = first & 0xFFFFF;
  header->traffic_class = static_cast<uint8_t>(first >> 20);
  header->hop_limit = grh.hop_limit;
  header->type = grh.next_hdr == kNextUdp ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
  return true;
}

}  // namespace millrace::soft
