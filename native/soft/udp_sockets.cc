#include "soft/udp_sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>

namespace millrace::soft {
namespace {

constexpr const char* kWhat = "steer without CAP_NET_RAW";
constexpr uint16_t kAllPorts = 0xFFFF;
constexpr int kReceiveBytes = 4 << 20;
constexpr int kReady = 64;
/** The longest that come in front of a payload: Ethernet, IPv6, UDP. */
constexpr uint32_t kHeaders = 14 + 40 + 8;

/** Where a rule's datagrams come to. */
struct Place {
  int family = AF_UNSPEC;  ///< both
  bool any = true;         ///< address
  uint8_t address[16] = {};
  uint16_t port = 0;
};

/** Nothing for rules that no UDP port is behind. */
std::optional<Place> place_of(const FlowRule& rule) {
  const HeaderFields& value = rule.match.value.outer;
  const HeaderFields& mask = rule.match.mask.outer;
  if (rule.kind != FlowKind::kNormal || (value.layers & kLayerUdp) == 0 ||
      mask.dst_port != kAllPorts)
    return {};
  Place place;
  place.port = value.dst_port;
  if ((value.layers & kLayerIpv4) != 0) place.family = AF_INET;
  if ((value.layers & kLayerIpv6) != 0) place.family = AF_INET6;
  const size_t bytes = place.family == AF_INET ? 4 : 16;
  if (place.family == AF_UNSPEC) return place;
  place.any = !std::all_of(mask.dst_ip, mask.dst_ip + bytes, [](uint8_t b) { return b == 0xFF; });
  if (!place.any) memcpy(place.address, value.dst_ip, bytes);
  return place;
}

std::string key_of(const Place& place) {
  return std::string(reinterpret_cast<const char*>(&place), sizeof(place));
}

/** Whether a rule only asks for what a UDP socket is told. */
bool servable(const FlowMatch& match) {
  PacketFields other = match.mask;
  HeaderFields& outer = other.outer;
  memset(outer.dst_ip, 0, sizeof(outer.dst_ip));
  memset(outer.src_ip, 0, sizeof(outer.src_ip));
  outer.dst_port = outer.src_port = outer.ether_type = 0;
  outer.protocol = 0;
  outer.layers &= ~(kLayerEth | kLayerIpv4 | kLayerIpv6 | kLayerUdp);
  other.net = other.interface = 0;
  const PacketFields none = {};
  return memcmp(&other, &none, sizeof(none)) == 0;
}

socklen_t address_of(const Place& place, sockaddr_storage* out) {
  *out = {};
  if (place.family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(out);
    in->sin_family = AF_INET;
    in->sin_port = place.port;
    if (!place.any) memcpy(&in->sin_addr, place.address, sizeof(in->sin_addr));
    return sizeof(*in);
  }
  auto* in = reinterpret_cast<sockaddr_in6*>(out);
  in->sin6_family = AF_INET6;
  in->sin6_port = place.port;
  if (!place.any) memcpy(&in->sin6_addr, place.address, sizeof(in->sin6_addr));
  return sizeof(*in);
}

bool is_group(const Place& place) {
  if (place.any) return false;
  return place.family == AF_INET ? (place.address[0] & 0xF0) == 0xE0 : place.address[0] == 0xFF;
}

void set(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof(value));
}

void put16(uint8_t* at, uint32_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

/** Ethernet, IPv4 or IPv6 and UDP in front of a payload. @return how many bytes */
struct Ends {
  bool v6 = false;
  const uint8_t* source = nullptr;
  const uint8_t* destination = nullptr;
  uint16_t source_port = 0, port = 0;  ///< network order
};
uint32_t put_headers(const Ends& ends, uint32_t payload, uint8_t* out) {
  const uint32_t ip = ends.v6 ? 40 : 20, udp = 8 + payload;
  const uint32_t total = 14 + ip + 8;
  memset(out, 0, total);
  uint8_t* const network = out + 14;
  put16(out + 12, ends.v6 ? 0x86DD : 0x0800);
  if (ends.v6) {
    if (ends.destination[0] == 0xFF) {  // RFC 2464
      out[0] = out[1] = 0x33;
      memcpy(out + 2, ends.destination + 12, 4);
    }
    network[0] = 0x60;
    put16(network + 4, udp);
    network[6] = IPPROTO_UDP;
    network[7] = 64;
    memcpy(network + 8, ends.source, 16);
    memcpy(network + 24, ends.destination, 16);
  } else {
    if ((ends.destination[0] & 0xF0) == 0xE0) {  // RFC 1112
      out[0] = 0x01;
      out[2] = 0x5E;
      out[3] = ends.destination[1] & 0x7F;
      memcpy(out + 4, ends.destination + 2, 2);
    }
    network[0] = 0x45;
    put16(network + 2, ip + udp);
    network[8] = 64;
    network[9] = IPPROTO_UDP;
    memcpy(network + 12, ends.source, 4);
    memcpy(network + 16, ends.destination, 4);
  }
  uint8_t* const transport = network + ip;
  memcpy(transport, &ends.source_port, 2);
  memcpy(transport + 2, &ends.port, 2);
  put16(transport + 4, udp);
  return total;
}

}  // namespace

base::Result<std::unique_ptr<UdpSockets>> UdpSockets::create(Use use) {
  std::unique_ptr<UdpSockets> sockets(new UdpSockets(use));
  if (use == Use::kRead) {
    sockets->poll_set_ = base::Fd(epoll_create1(EPOLL_CLOEXEC));
    if (!sockets->poll_set_.valid())
      return base::Status::error(errno, kWhat, base::format("epoll: %s", strerror(errno)));
  }
  return sockets;
}

base::Status UdpSockets::open(const FlowRule& rule, Socket* out) const {
  Place place = *place_of(rule);
  const bool both = place.family == AF_UNSPEC;
  if (both) place.family = AF_INET6;
  const auto failed = [&](const char* step) {
    return base::Status::error(
        errno, kWhat,
        base::format("UDP port %u: %s: %s", ntohs(place.port), step, strerror(errno)));
  };
  out->family = place.family;
  out->port = place.port;
  out->fd = base::Fd(socket(place.family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = out->fd.get();
  if (fd < 0) return failed("socket");
  if (place.family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, both ? 0 : 1);
  if (use_ == Use::kHeld) {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (static_cast<rlim_t>(fd) >= limit.rlim_cur / 2) {
      out->fd.reset();
      return base::Status::error(EMFILE, kWhat, "half of the descriptors are in use");
    }
    // Several members of one user may hold one port.
    set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    sock_filter nothing[] = {{BPF_RET | BPF_K, 0, 0, 0}};
    const sock_fprog program = {1, nothing};
    (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
  } else {
    // Each has its own copy of what is sent to a group; of a host's port there is one owner.
    if (is_group(place)) set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    set(fd, SOL_SOCKET, SO_RCVBUF, kReceiveBytes);
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    if (place.family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    // Else it would also get the groups that others on this host have joined, once for each socket.
    if (place.any) {
      set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
      if (place.family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
    }
  }
  sockaddr_storage address;
  const socklen_t size = address_of(place, &address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) return failed("bind");
  return base::Status::success();
}

base::Status UdpSockets::add(const FlowRule& rule) {
  const std::optional<Place> place = place_of(rule);
  if (use_ == Use::kRead && (!place || !servable(rule.match))) {
    return base::Status::error(
        EPERM, kWhat,
        "this process has no CAP_NET_RAW, and UDP sockets, which are used in its place, can't "
        "serve "
        "this rule: they can those that name a UDP port and otherwise only addresses");
  }
  if (!place || (use_ == Use::kHeld && is_group(*place))) return base::Status::success();
  Socket& socket = sockets_[key_of(*place)];
  if (socket.count++ != 0) return base::Status::success();
  const base::Status status = open(rule, &socket);
  if (use_ == Use::kHeld) return base::Status::success();
  if (!status.ok()) {
    sockets_.erase(key_of(*place));
    return status;
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &socket;
  if (epoll_ctl(poll_set_.get(), EPOLL_CTL_ADD, socket.fd.get(), &event) != 0) {
    const int error = errno;
    sockets_.erase(key_of(*place));
    return base::Status::error(error, kWhat, base::format("epoll: %s", strerror(error)));
  }
  return base::Status::success();
}

void UdpSockets::remove(const FlowRule& rule) {
  const std::optional<Place> place = place_of(rule);
  const auto found = place ? sockets_.find(key_of(*place)) : sockets_.end();
  if (found == sockets_.end() || --found->second.count != 0) return;
  ready_.clear();
  sockets_.erase(found);  // closing takes it out of the poll set
}

bool UdpSockets::next(uint8_t* memory, uint32_t room, Received* out) {
  for (;;) {
    if (ready_.empty()) {
      epoll_event events[kReady];
      const int n = epoll_wait(poll_set_.get(), events, kReady, 0);
      if (n <= 0) return false;
      for (int i = 0; i < n; ++i) ready_.push_back(static_cast<Socket*>(events[i].data.ptr));
    }
    Socket& socket = *ready_.back();
    sockaddr_storage from = {};
    alignas(cmsghdr) char control[256];
    uint8_t* const payload = memory + kHeaders;
    iovec where = {payload, room - kHeaders};
    msghdr message = {};
    message.msg_name = &from;
    message.msg_namelen = sizeof(from);
    message.msg_iov = &where;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket.fd.get(), &message, 0);
    if (got < 0) {
      ready_.pop_back();
      continue;
    }
    *out = {};
    if ((message.msg_flags & MSG_TRUNC) != 0) return true;
    Ends ends;
    ends.port = socket.port;
    in_pktinfo info4 = {};
    in6_pktinfo info6 = {};
    for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
      if (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_PKTINFO)
        memcpy(&info4, CMSG_DATA(one), sizeof(info4));
      if (one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_PKTINFO)
        memcpy(&info6, CMSG_DATA(one), sizeof(info6));
    }
    in_addr source4 = {};
    const auto& from6 = reinterpret_cast<const sockaddr_in6&>(from);
    if (from.ss_family == AF_INET) {
      const auto& from4 = reinterpret_cast<const sockaddr_in&>(from);
      source4 = from4.sin_addr;
      ends.source_port = from4.sin_port;
      ends.source = reinterpret_cast<const uint8_t*>(&source4);
      ends.destination = reinterpret_cast<const uint8_t*>(&info4.ipi_addr);
      out->interface = static_cast<uint32_t>(info4.ipi_ifindex);
    } else if (IN6_IS_ADDR_V4MAPPED(&from6.sin6_addr)) {
      ends.source_port = from6.sin6_port;
      ends.source = from6.sin6_addr.s6_addr + 12;
      ends.destination = info6.ipi6_addr.s6_addr + 12;
      out->interface = info6.ipi6_ifindex;
    } else {
      ends.v6 = true;
      ends.source_port = from6.sin6_port;
      ends.source = from6.sin6_addr.s6_addr;
      ends.destination = info6.ipi6_addr.s6_addr;
      out->interface = info6.ipi6_ifindex;
    }
    out->frame = payload - (ends.v6 ? kHeaders : kHeaders - 20);
    out->bytes =
        put_headers(ends, static_cast<uint32_t>(got), out->frame) + static_cast<uint32_t>(got);
    return true;
  }
}

}  // namespace millrace::soft
