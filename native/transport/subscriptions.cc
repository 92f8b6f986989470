#include "transport/subscriptions.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace millrace::transport {
namespace {

using Address = sockaddr_storage;

Address ipv4(uint32_t address) {
  Address out = {};
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = address;
  memcpy(&out, &in, sizeof(in));
  return out;
}

Address ipv6(const uint8_t address[16]) {
  Address out = {};
  sockaddr_in6 in = {};
  in.sin6_family = AF_INET6;
  memcpy(&in.sin6_addr, address, sizeof(in.sin6_addr));
  memcpy(&out, &in, sizeof(in));
  return out;
}

std::string text(const Address& address) {
  char out[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, out, sizeof(out));
  else
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, out,
              sizeof(out));
  return out;
}

template <size_t Bytes>
bool all_set(const void* mask) {
  const auto* at = static_cast<const uint8_t*>(mask);
  return std::all_of(at, at + Bytes, [](uint8_t byte) { return byte == 0xFF; });
}

/** What is fully given in a flow's outer specs. */
struct Addresses {
  std::optional<Address> destination, source;
};

template <class Spec>
Spec copy(std::span<const uint8_t> bytes) {
  Spec spec = {};
  memcpy(&spec, bytes.data(), std::min(sizeof(spec), bytes.size()));
  return spec;
}

Addresses read_addresses(std::span<const uint8_t> attr) {
  Addresses out;
  size_t at = sizeof(ibv_flow_attr);
  while (at + sizeof(uint32_t) + sizeof(uint16_t) <= attr.size()) {
    uint32_t type;
    uint16_t size;
    memcpy(&type, attr.data() + at, sizeof(type));
    memcpy(&size, attr.data() + at + sizeof(type), sizeof(size));
    if (size == 0 || at + size > attr.size()) break;
    const std::span<const uint8_t> bytes = attr.subspan(at, size);
    at += size;
    if (type == IBV_FLOW_SPEC_IPV4 || type == IBV_FLOW_SPEC_IPV4_EXT) {
      // The extended one has the addresses in front too, but its mask lies further behind.
      const auto plain = copy<ibv_flow_spec_ipv4>(bytes);
      const auto extended = copy<ibv_flow_spec_ipv4_ext>(bytes);
      const bool is_plain = type == IBV_FLOW_SPEC_IPV4;
      const uint32_t dst_mask = is_plain ? plain.mask.dst_ip : extended.mask.dst_ip;
      const uint32_t src_mask = is_plain ? plain.mask.src_ip : extended.mask.src_ip;
      if (dst_mask == ~0u) out.destination = ipv4(plain.val.dst_ip);
      if (src_mask == ~0u) out.source = ipv4(plain.val.src_ip);
    } else if (type == IBV_FLOW_SPEC_IPV6) {
      const auto spec = copy<ibv_flow_spec_ipv6>(bytes);
      if (all_set<16>(spec.mask.dst_ip)) out.destination = ipv6(spec.val.dst_ip);
      if (all_set<16>(spec.mask.src_ip)) out.source = ipv6(spec.val.src_ip);
    }
  }
  return out;
}

bool is_group(const Address& address) {
  if (address.ss_family == AF_INET)
    return IN_MULTICAST(ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr));
  return IN6_IS_ADDR_MULTICAST(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

base::Fd udp_socket(int family) {
  return base::Fd(socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::vector<uint8_t> bytes_of(const void* from, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(from);
  return {at, at + bytes};
}

}  // namespace

base::Status Subscriptions::join(const std::string& key, const sockaddr_storage& group,
                                 const sockaddr_storage* source, Entry* entry) {
  const bool v6 = group.ss_family == AF_INET6;
  std::vector<uint8_t> request;
  if (source == nullptr) {
    group_req plain = {};
    plain.gr_interface = interface_;
    plain.gr_group = group;
    request = bytes_of(&plain, sizeof(plain));
  } else {
    group_source_req specific = {};
    specific.gsr_interface = interface_;
    specific.gsr_group = group;
    specific.gsr_source = *source;
    request = bytes_of(&specific, sizeof(specific));
  }
  const int level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
  const int option = source != nullptr ? MCAST_JOIN_SOURCE_GROUP : MCAST_JOIN_GROUP;
  std::shared_ptr<base::Fd>& socket = joining_[v6];
  // The socket may be full, or in the group in another way: then once more with a new one.
  for (bool fresh = socket == nullptr;; fresh = true) {
    if (fresh) socket = std::make_shared<base::Fd>(udp_socket(group.ss_family));
    if (setsockopt(socket->get(), level, option, request.data(),
                   static_cast<socklen_t>(request.size())) == 0)
      break;
    if (!fresh) continue;
    const int error = errno;
    socket.reset();
    return base::Status::error(
        error, "join a multicast group",
        error == ENODEV && interface_ == 0
            ? base::format("%s: no route says on which interface; name one in the rule's match "
                           "(interface)",
                           key.c_str())
            : base::format("%s: %s", key.c_str(), strerror(error)));
  }
  entry->socket = socket;
  entry->leave = std::move(request);
  entry->level = level;
  entry->option = source != nullptr ? MCAST_LEAVE_SOURCE_GROUP : MCAST_LEAVE_GROUP;
  return base::Status::success();
}

base::Result<std::string> Subscriptions::add(std::span<const uint8_t> attr) {
  const Addresses ends = read_addresses(attr);
  if (!ends.destination || !is_group(*ends.destination)) return std::string();
  const std::string key = "group " + text(*ends.destination) +
                          (ends.source ? " from " + text(*ends.source) : std::string());
  Entry& entry = entries_[key];
  if (entry.count == 0) {
    const base::Status status =
        join(key, *ends.destination, ends.source ? &*ends.source : nullptr, &entry);
    if (!status.ok()) {
      entries_.erase(key);
      return status;
    }
  }
  ++entry.count;
  return key;
}

void Subscriptions::remove(const std::string& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || --found->second.count != 0) return;
  const Entry& entry = found->second;
  (void)setsockopt(entry.socket->get(), entry.level, entry.option, entry.leave.data(),
                   static_cast<socklen_t>(entry.leave.size()));
  entries_.erase(found);
}

}  // namespace millrace::transport
