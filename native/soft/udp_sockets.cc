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

/** The largest buffer that it may have. @return its bytes where that is less than we want, else 0
 */
uint32_t widen(int fd) {
  constexpr int kWanted = kReceiveBytes;
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kWanted, sizeof(kWanted)) == 0) return 0;
  set(fd, SOL_SOCKET, SO_RCVBUF, kWanted);
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  // What it says is twice what was set, since it pays for the kernel's own part as well.
  if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &size) != 0) return 0;
  return bytes < 2 * kWanted ? static_cast<uint32_t>(bytes) : 0;
}

}  // namespace

base::Result<std::unique_ptr<UdpSockets>> UdpSockets::create(Use use) {
  std::unique_ptr<UdpSockets> sockets(new UdpSockets(use));
  if (use == Use::kRead) {
    sockets->poll_set_ = base::Fd(epoll_create1(EPOLL_CLOEXEC));
    if (!sockets->poll_set_.valid())
      return base::Status::error(errno, kWhat, base::format("epoll: %s", strerror(errno)));
    const base::Fd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (any.valid()) sockets->limit_ = widen(any.get());
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
  out->group = is_group(place);
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
    if (out->group) set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    (void)widen(fd);
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
  if (!bind(*out, address, size)) return failed("bind");
  return base::Status::success();
}

bool UdpSockets::bind(const Socket& socket, const sockaddr_storage& address, socklen_t size) const {
  const auto* const place = reinterpret_cast<const sockaddr*>(&address);
  if (::bind(socket.fd.get(), place, size) == 0) return true;
  if (errno != EADDRINUSE || use_ != Use::kRead) return false;
  // Both sides must say so, at this moment only: nobody else is let in.
  const auto share = [&](bool on) {
    bool any = false;
    for (const auto& [key, own] : sockets_) {
      if (own.port != socket.port || &own == &socket) continue;
      set(own.fd.get(), SOL_SOCKET, SO_REUSEADDR, on || own.group);
      any = true;
    }
    set(socket.fd.get(), SOL_SOCKET, SO_REUSEADDR, on || socket.group);
    return any;
  };
  const int result = share(true) ? ::bind(socket.fd.get(), place, size) : -1;
  const int error = errno;
  share(false);
  errno = error;
  return result == 0;
}

base::Status UdpSockets::add(const FlowRule& rule) {
  const std::optional<Place> place = place_of(rule);
  if (use_ == Use::kRead && (!place || place->port == 0 || !servable(rule.match))) {
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

bool UdpSockets::next(uint8_t* memory, uint32_t room, UdpFrame* out) {
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
    uint8_t* const payload = memory + kMostHeaders;
    iovec where = {payload, room - kMostHeaders};
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
    *out = frame_of(message, socket.port, payload, static_cast<uint32_t>(got));
    return true;
  }
}

}  // namespace millrace::soft
