#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/status.h"
#include "soft/flow_index.h"
#include "soft/udp_message.h"

namespace millrace::soft {

/**
 * The UDP sockets of a port that a network interface feeds, one for each place (family, address,
 * port) that rules name, counted.
 * - Held: they read nothing and are there so that the kernel does not answer a datagram that our
 *   packet socket took with port-unreachable (VERBS 3). Whoever has the port already does as well.
 *   Of very many rules not all get one: half of the process's descriptors are left to others.
 * - Read: without CAP_NET_RAW they are where datagrams come from, for the rules that sockets can
 *   serve. The frame around each is made again from what the kernel tells.
 * One thread at a time.
 */
class UdpSockets {
 public:
  enum class Use { kHeld, kRead };

  static base::Result<std::unique_ptr<UdpSockets>> create(Use use);

  /**
   * Read: EPERM with the reason for a rule that sockets can't serve; EADDRINUSE when somebody else
   * has the port: of our own a general and a special place of one port stand beside each other, and
   * the kernel gives a datagram to the most special one. Held: always succeeds.
   */
  base::Status add(const FlowRule& rule);
  void remove(const FlowRule& rule);

  /** Read: readable while a datagram waits. */
  int fd() const { return poll_set_.get(); }

  /**
   * Read: the next datagram, in a frame without checksums that lies somewhere in those `room`
   * bytes. False: none waits. A frame of 0 bytes: it was too long.
   */
  bool next(uint8_t* memory, uint32_t room, UdpFrame* out);
  /** Read: what the kernel lets wait at a socket, in bytes with its own part, where that is less
   * than we want; else 0. */
  uint32_t limit() const { return limit_; }

 private:
  struct Socket {
    uint32_t count = 0;
    base::Fd fd;
    int family = AF_INET;
    uint16_t port = 0;   ///< network order
    bool group = false;  ///< others may have it as well
  };

  explicit UdpSockets(Use use) : use_(use) {}
  base::Status open(const FlowRule& rule, Socket* out) const;
  bool bind(const Socket& socket, const sockaddr_storage& address, socklen_t size) const;

  const Use use_;
  uint32_t limit_ = 0;
  std::map<std::string, Socket> sockets_;
  base::Fd poll_set_;
  std::vector<Socket*> ready_;  ///< that the last look at the poll set found
};

}  // namespace millrace::soft
