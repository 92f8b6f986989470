#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::verbs {

/** What a GID is good for. The order is that of preference where a port has several (VERBS 5). */
enum class GidKind : uint8_t {
  kRoceV2Ipv4,       ///< RoCE v2, an IPv4 address mapped into IPv6
  kRoceV2Global,     ///< RoCE v2, another IPv6 address
  kRoceV2LinkLocal,  ///< RoCE v2, fe80::
  kRoceV1,
  kInfiniBand,
};

/** One entry of a port's GID table. */
struct Gid {
  uint32_t index = 0;
  ibv_gid gid = {};
  GidKind kind = GidKind::kInfiniBand;
  uint32_t interface = 0;  ///< index of the network interface behind it; 0: none, or not known
};

/** In words, such as "RoCE v2, IPv4". */
const char* gid_kind_name(GidKind kind);

/** A GID as IPv6 addresses are written. */
std::string gid_text(const ibv_gid& gid);

/** The entries in use of a port's table, by index. Empty when the device has no way to tell. Any
 * thread. */
std::vector<Gid> list_gids(ibv_context* context, uint8_t port);

/**
 * The entry to address a port by: the lowest index of the best kind, or the one that
 * MILLRACE_GID_INDEX names. Errors: ENOENT (no entry in use), EINVAL (the variable is no index of
 * an entry in use). Any thread.
 */
base::Result<Gid> choose_gid(ibv_context* context, uint8_t port);

/** The rule of choose_gid(), of a list and the variable's value (null: not set). */
base::Result<Gid> choose_gid(const std::vector<Gid>& gids, const char* wanted);

}  // namespace millrace::verbs
