#include "soft/port.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>

#include "soft/device.h"
#include "soft/error.h"

namespace millrace::soft {
namespace {

constexpr uint64_t kLinkLocal = 0xFE80000000000000u;
constexpr uint16_t kDefaultPkey = 0xFFFF;
constexpr uint32_t kNamePart = 0x736F6674u;  ///< "soft"

void fill_port(Context& context, ibv_port_attr* attr) {
  const bool ethernet = context.link == Link::kEthernet;
  attr->state = IBV_PORT_ACTIVE;
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = IBV_MTU_4096;
  attr->gid_tbl_len = kGidTable;
  attr->max_msg_sz = 1u << 31;
  attr->pkey_tbl_len = 1;
  attr->qkey_viol_cntr = static_cast<uint32_t>(context.process->root()
                                                   .port(context.device)
                                                   .drops[static_cast<uint32_t>(DropReason::kQkey)]
                                                   .load(std::memory_order_relaxed));
  attr->max_vl_num = 1;
  attr->active_width = 2;   // 4X
  attr->active_speed = 32;  // EDR: 4 x 25 Gb/s
  attr->phys_state = 5;     // link up
  if (ethernet) {
    attr->port_cap_flags = IBV_PORT_IP_BASED_GIDS;
    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    attr->flags = IBV_QPF_GRH_REQUIRED;
  } else {
    // There is no subnet manager; the LIDs are as if soft0's port had given them out.
    attr->port_cap_flags = IBV_PORT_SYS_IMAGE_GUID_SUP | IBV_PORT_EXTENDED_SPEEDS_SUP;
    attr->lid = device_lid(context.device);
    attr->sm_lid = device_lid(0);
    attr->subnet_timeout = 18;
    attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
  }
}

int check_port(const char* what, uint32_t port) {
  if (port == kPorts) return 0;
  return fail(EINVAL, what, base::format("port %u does not exist; there is port 1", port));
}

int check_index(const char* what, int index, uint32_t count, int code = EINVAL) {
  if (index >= 0 && static_cast<uint32_t>(index) < count) return 0;
  return fail(code, what,
              base::format("index %d does not exist; the table has %u entries", index, count));
}

void fill_entry(const Context& context, uint32_t index, ibv_gid_entry* entry) {
  entry->gid = port_gid(context.link, context.device, index);
  entry->gid_index = index;
  entry->port_num = 1;
  entry->gid_type = gid_type(context.link, index);
  entry->ndev_ifindex = 0;  // no network interface stands behind the port
}

}  // namespace

base::Result<uint32_t> device_count() {
  const char* text = getenv("MILLRACE_SOFT_DEVICES");
  if (text == nullptr || *text == '\0') return 1u;
  if (text[0] >= '1' && text[0] <= '8' && text[1] == '\0') {
    return static_cast<uint32_t>(text[0] - '0');
  }
  return base::Status::error(
      EINVAL, "list RDMA devices",
      base::format("MILLRACE_SOFT_DEVICES=\"%s\" must be a number from 1 to %u", text, kDevices));
}

base::Result<Link> link_layer() {
  const char* text = getenv("MILLRACE_SOFT_LINK");
  if (text == nullptr || *text == '\0' || strcmp(text, "infiniband") == 0) return Link::kInfiniband;
  if (strcmp(text, "ethernet") == 0) return Link::kEthernet;
  return base::Status::error(
      EINVAL, "choose the link layer",
      base::format("MILLRACE_SOFT_LINK=\"%s\" must be `infiniband` or `ethernet`", text));
}

uint64_t device_guid(uint32_t device) {
  // Locally administered: 02 's' 'o' 'f' 't' '0' + k 00 00.
  return (uint64_t{0x02} << 56) | (uint64_t{kNamePart} << 24) |
         (static_cast<uint64_t>('0' + device) << 16);
}

uint16_t device_lid(uint32_t device) { return static_cast<uint16_t>(device + 1); }

void device_mac(uint32_t device, uint8_t mac[6]) {
  const uint64_t guid = device_guid(device);
  for (int i = 0; i < 6; ++i) mac[i] = static_cast<uint8_t>(guid >> (56 - 8 * i));
}

uint32_t device_ipv4(uint32_t device) { return 0xC6120001u + device; }

uint32_t gid_count(Link link) { return link == Link::kEthernet ? 4 : 1; }

ibv_gid port_gid(Link link, uint32_t device, uint32_t index) {
  ibv_gid gid = {};
  if (link == Link::kInfiniband) {
    gid.global.subnet_prefix = htobe64(kLinkLocal);
    gid.global.interface_id = htobe64(device_guid(device));
  } else if (index < 2) {
    uint8_t mac[6];
    device_mac(device, mac);
    gid.global.subnet_prefix = htobe64(kLinkLocal);
    // EUI-64 of the MAC address: ff:fe in the middle, the universal bit turned.
    const uint8_t id[8] = {
        static_cast<uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xFF, 0xFE, mac[3], mac[4], mac[5]};
    memcpy(gid.raw + 8, id, 8);
  } else {
    gid.raw[10] = gid.raw[11] = 0xFF;
    const uint32_t address = htobe32(device_ipv4(device));
    memcpy(gid.raw + 12, &address, 4);
  }
  return gid;
}

ibv_gid_type gid_type(Link link, uint32_t index) {
  if (link == Link::kInfiniband) return IBV_GID_TYPE_IB;
  return index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
}

int find_gid(Link link, uint32_t device, const ibv_gid& gid, ibv_gid_type type) {
  for (uint32_t i = 0; i < gid_count(link); ++i) {
    const ibv_gid mine = port_gid(link, device, i);
    if (memcmp(&mine, &gid, sizeof(gid)) == 0 && gid_type(link, i) == type)
      return static_cast<int>(i);
  }
  return -1;
}

uint32_t device_of_gid(Link link, const ibv_gid& gid) {
  for (uint32_t k = 0; k < kDevices; ++k) {
    for (uint32_t i = 0; i < gid_count(link); ++i) {
      const ibv_gid theirs = port_gid(link, k, i);
      if (memcmp(&theirs, &gid, sizeof(gid)) == 0) return k;
    }
  }
  return kDevices;
}

uint32_t device_of_lid(uint16_t lid) { return lid >= 1 && lid <= kDevices ? lid - 1u : kDevices; }

bool is_ipv4_mapped(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

bool is_multicast(const ibv_gid& gid) {
  return gid.raw[0] == 0xFF || (is_ipv4_mapped(gid) && (gid.raw[12] & 0xF0) == 0xE0);
}

bool mac_of_gid(Link link, const ibv_gid& gid, uint8_t mac[6]) {
  if (gid.raw[0] == 0xFF) {  // RFC 2464
    mac[0] = mac[1] = 0x33;
    memcpy(mac + 2, gid.raw + 12, 4);
    return true;
  }
  if (is_multicast(gid)) {  // RFC 1112
    const uint8_t group[6] = {
        0x01, 0x00, 0x5E, static_cast<uint8_t>(gid.raw[13] & 0x7F), gid.raw[14], gid.raw[15]};
    memcpy(mac, group, 6);
    return true;
  }
  const uint32_t device = device_of_gid(link, gid);
  if (device == kDevices) return false;
  device_mac(device, mac);
  return true;
}

PortCounters read_port_counters(ibv_context* handle) {
  Context& context = Context::of(handle);
  const PortRecord& record = context.process->root().port(context.device);
  PortCounters out;
  for (uint32_t i = 0; i < kDropReasons; ++i)
    out.drops[i] = record.drops[i].load(std::memory_order_relaxed);
  return out;
}

int query_port_ex(ibv_context* handle, uint8_t port, ibv_port_attr* attr, size_t size) {
  if (int error = check_port("query a port", port)) return error;
  ibv_port_attr full = {};
  fill_port(Context::of(handle), &full);
  memset(static_cast<void*>(attr), 0, size);
  memcpy(static_cast<void*>(attr), &full, std::min(size, sizeof(full)));
  return 0;
}

int query_port(ibv_context* handle, uint8_t port, _compat_ibv_port_attr* attr) {
  if (int error = check_port("query a port", port)) return error;
  // The old structure is the start of the new one, up to and with `flags`.
  ibv_port_attr full = {};
  fill_port(Context::of(handle), &full);
  memcpy(static_cast<void*>(attr), &full, offsetof(ibv_port_attr, port_cap_flags2));
  return 0;
}

int query_gid(ibv_context* handle, uint8_t port, int index, ibv_gid* gid) {
  const Context& context = Context::of(handle);
  if (int error = check_port("query a GID", port)) return error;
  if (int error = check_index("query a GID", index, kGidTable)) return error;
  *gid = {};  // an entry that is not in use
  if (static_cast<uint32_t>(index) < gid_count(context.link))
    *gid = port_gid(context.link, context.device, static_cast<uint32_t>(index));
  return 0;
}

int query_gid_ex(ibv_context* handle, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                 uint32_t flags, size_t size) {
  constexpr const char* kWhat = "query a GID table entry";
  const Context& context = Context::of(handle);
  if (flags != 0) return fail(EINVAL, kWhat, base::format("flags are %#x and must be 0", flags));
  if (size < sizeof(ibv_gid_entry)) return fail(EINVAL, kWhat, "the entry is too small");
  if (int error = check_port(kWhat, port)) return error;
  if (int error = check_index(kWhat, static_cast<int>(index), gid_count(context.link), ENODATA))
    return error;
  memset(static_cast<void*>(entry), 0, size);
  fill_entry(context, index, entry);
  return 0;
}

ssize_t query_gid_table(ibv_context* handle, ibv_gid_entry* entries, size_t count, uint32_t flags,
                        size_t size) {
  constexpr const char* kWhat = "query the GID table";
  const Context& context = Context::of(handle);
  if (flags != 0) return -fail(EINVAL, kWhat, base::format("flags are %#x and must be 0", flags));
  if (size < sizeof(ibv_gid_entry)) return -fail(EINVAL, kWhat, "the entries are too small");
  const size_t there = gid_count(context.link);
  if (count < there) {
    return -fail(EINVAL, kWhat,
                 base::format("room for %zu entries, and there are %zu", count, there));
  }
  for (size_t i = 0; i < there; ++i) {
    char* at = reinterpret_cast<char*>(entries) + i * size;
    memset(at, 0, size);
    fill_entry(context, static_cast<uint32_t>(i), reinterpret_cast<ibv_gid_entry*>(at));
  }
  return static_cast<ssize_t>(there);
}

int query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (int error = check_port("query a P_Key", port)) return error;
  if (int error = check_index("query a P_Key", index, 1)) return error;
  *pkey = htobe16(kDefaultPkey);
  return 0;
}

}  // namespace millrace::soft
