#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace millrace::soft {

class Root;
struct Qp;

/** Who is in a group, as it was read from the fabric's table. */
struct GroupMember {
  uint32_t qpn = 0;
  uint32_t device = 0;
};

/** A group that this QP is attached to. */
struct Attachment {
  ibv_gid gid = {};
  uint16_t lid = 0;
  uint32_t record = 0;
  uint64_t word = 0;  ///< of the record while it is ours
};

/**
 * The groups that a QP has sent to, so that sending does not read the table: valid until the
 * fabric's count of changes moves. Needs the QP's lock.
 */
class GroupCache {
 public:
  /** The members of a group; on InfiniBand the LID counts too, where both sides name one. */
  const std::vector<GroupMember>& members(Root& root, const ibv_gid& gid, uint16_t lid);

 private:
  uint64_t seen_ = ~uint64_t{0};
  std::map<std::pair<std::pair<uint64_t, uint64_t>, uint16_t>, std::vector<GroupMember>> groups_;
};

/**
 * Attaches a UD QP to a group. Again to the same group: 0, and there is still one attachment and
 * one copy of each datagram (VERBS 1, lesson 6). EINVAL: another type, not a group's GID, or on
 * InfiniBand a LID outside the multicast range; ENOMEM: the fabric's table is full. Any thread.
 */
int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);
/** EINVAL: it is not attached. Any thread. */
int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);

}  // namespace millrace::soft
