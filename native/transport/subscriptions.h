#pragma once

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/status.h"

namespace millrace::transport {

/**
 * What has to be asked of the kernel so that the packets of a flow come at all, and are not
 * answered (VERBS 3). Counted: the first flow asks, the last one takes back.
 * - A group as destination is joined, of its source alone where the rule names one (IGMP, MLD).
 * - A UDP port of this host is held by a socket that reads nothing, or the kernel would answer each
 *   datagram with port-unreachable. Whoever has the port already does as well. */
class Subscriptions {
 public:
  /** `interface`: where groups are joined; 0: where the kernel's routes lead. */
  explicit Subscriptions(uint32_t interface) : interface_(interface) {}

  /** What one flow needs. Opaque. */
  using Ticket = std::vector<std::string>;
  /**
   * Asks for what the flow with these bytes (ibv_flow_attr and specs, checked before) needs. Errors
   * are those of joining: ENODEV where no route says on which interface, ENOBUFS at the kernel's
   * limits. Then nothing was asked for.
   */
  base::Result<Ticket> add(std::span<const uint8_t> attr);
  void remove(const Ticket& ticket);

  /** Groups that are joined and ports that are held. */
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint32_t count = 0;
    std::shared_ptr<base::Fd> socket;
    std::vector<uint8_t> leave;  ///< the request that undoes it; empty: closing the socket does
    int level = 0, option = 0;
  };

  base::Status join(const std::string& key, const sockaddr_storage& group,
                    const sockaddr_storage* source, Entry* entry);

  const uint32_t interface_;
  std::map<std::string, Entry> entries_;
  /** For groups. The kernel takes a few for each (IPv4: 20), and a group once. */
  std::shared_ptr<base::Fd> joining_[2];
};

}  // namespace millrace::transport
