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
 * Multicast groups that flows name as their destination. They are joined through the kernel, or no
 * switch and no adapter would let them come (IGMP, MLD): a group from one source alone where the
 * flow names that, too. Counted: the first flow joins, the last one leaves.
 */
class Subscriptions {
 public:
  /** `interface`: where groups are joined; 0: where the kernel's routes lead. */
  explicit Subscriptions(uint32_t interface) : interface_(interface) {}

  /**
   * Joins what the flow with these bytes (ibv_flow_attr and specs, checked before) needs. Errors:
   * ENODEV where no route says on which interface, ENOBUFS at the kernel's limits.
   * @return what to give to remove(); empty if the flow needs nothing
   */
  base::Result<std::string> add(std::span<const uint8_t> attr);
  void remove(const std::string& key);

  /** Groups that are joined. */
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint32_t count = 0;
    std::shared_ptr<base::Fd> socket;
    std::vector<uint8_t> leave;  ///< the request that undoes it
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
