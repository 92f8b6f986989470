#include "verbs/gid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <charconv>

namespace millrace::verbs {
namespace {

constexpr size_t kTableEntries = 1024;
static_assert(kTableEntries * sizeof(ibv_gid_entry) < 1u << 16);

GidKind kind_of(const ibv_gid& gid, uint32_t type) {
  if (type == IBV_GID_TYPE_IB) return GidKind::kInfiniBand;
  if (type == IBV_GID_TYPE_ROCE_V1) return GidKind::kRoceV1;
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  if (memcmp(gid.raw, kMapped, sizeof(kMapped)) == 0) return GidKind::kRoceV2Ipv4;
  const bool link_local = gid.raw[0] == 0xFE && (gid.raw[1] & 0xC0) == 0x80;
  return link_local ? GidKind::kRoceV2LinkLocal : GidKind::kRoceV2Global;
}

Gid gid_of(const ibv_gid_entry& entry) {
  return {entry.gid_index, entry.gid, kind_of(entry.gid, entry.gid_type), entry.ndev_ifindex};
}

}  // namespace

const char* gid_kind_name(GidKind kind) {
  switch (kind) {
    case GidKind::kRoceV2Ipv4:
      return "RoCE v2, IPv4";
    case GidKind::kRoceV2Global:
      return "RoCE v2, IPv6";
    case GidKind::kRoceV2LinkLocal:
      return "RoCE v2, link-local";
    case GidKind::kRoceV1:
      return "RoCE v1";
    case GidKind::kInfiniBand:
      return "InfiniBand";
  }
  return "unknown";
}

std::string gid_text(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, gid.raw, text, sizeof(text)) != nullptr ? text : "";
}

std::vector<Gid> list_gids(ibv_context* context, uint8_t port) {
  ibv_port_attr attr = {};
  if (ibv_query_port(context, port, &attr) != 0) return {};
  std::vector<Gid> gids;
  // The table of all ports at once. The kernel is told its size in 16 bits, and tables of a
  // thousand entries are nearly empty.
  std::vector<ibv_gid_entry> entries(kTableEntries);
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num == port) gids.push_back(gid_of(entry));
  }
  if (count < 0) {
    // Older: one by one; and before rdma-core 34 without a type, which on InfiniBand is enough.
    const bool ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    for (uint32_t i = 0; i < static_cast<uint32_t>(std::max(attr.gid_tbl_len, 0)); ++i) {
      ibv_gid_entry entry = {};
      Gid one;
      one.index = i;
      if (ibv_query_gid_ex(context, port, i, &entry, 0) == 0) {
        gids.push_back(gid_of(entry));
      } else if (!ethernet && ibv_query_gid(context, port, static_cast<int>(i), &one.gid) == 0 &&
                 one.gid.global.interface_id != 0) {
        gids.push_back(one);
      }
    }
  }
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

base::Result<Gid> choose_gid(const std::vector<Gid>& gids, const char* wanted) {
  if (wanted != nullptr && *wanted != 0) {
    uint32_t index = 0;
    const char* const end = wanted + strlen(wanted);
    const auto [stop, error] = std::from_chars(wanted, end, index);
    if (error == std::errc() && stop == end) {
      for (const Gid& gid : gids) {
        if (gid.index == index) return gid;
      }
    }
    std::string known;
    for (const Gid& gid : gids) known += base::format("%s%u", known.empty() ? "" : ", ", gid.index);
    return base::Status::error(EINVAL, "choose a GID",
                               base::format("MILLRACE_GID_INDEX is \"%s\", and the port has: %s",
                                            wanted, known.empty() ? "none" : known.c_str()));
  }
  const Gid* best = nullptr;
  for (const Gid& gid : gids) {
    if (best == nullptr || gid.kind < best->kind) best = &gid;
  }
  if (best != nullptr) return *best;
  return base::Status::error(ENOENT, "choose a GID",
                             "the port's GID table is empty: give its network interface an "
                             "address (ip addr add ... dev ...)");
}

base::Result<Gid> choose_gid(ibv_context* context, uint8_t port) {
  return choose_gid(list_gids(context, port), getenv("MILLRACE_GID_INDEX"));
}

}  // namespace millrace::verbs
