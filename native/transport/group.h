#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/status.h"
#include "transport/frame.h"
#include "transport/member.h"
#include "transport/port.h"
#include "verbs/owners.h"

/**
 * Multicast groups: one datagram reaches whoever listens. What is lost is not told by the device;
 * the channels above find out by the sequences of their records.
 */
namespace millrace::transport {

/** What ends of groups are made from; all of it outlives them. */
struct GroupParts {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  const Port* port = nullptr;
  int folder = -1;
  uint64_t incarnation = 0;  ///< of this member
};

/** How a group is addressed. Different groups may fall together: then `tag` tells them apart. */
struct GroupAddress {
  ibv_gid gid = {};
  uint16_t lid = 0;   ///< InfiniBand only
  uint32_t qkey = 0;  ///< without the bit that stands for the sender's own
  uint64_t tag = 0;   ///< in the frame's header, where lanes have the receiver
};

/**
 * The address of a group on a port. The form is that of the port's own GID: 239.192.0.0/14 mapped
 * into IPv6 where that is an IPv4 address (RoCE v2), ff15:4d4c::/32 on other Ethernet ports and
 * ff12:4d4c::/32 on InfiniBand, with a multicast LID that follows from the key, too.
 */
GroupAddress group_address(const GroupKey& key, const Port& port);

/** Bytes of records that a datagram takes: what the port's MTU leaves. */
uint32_t group_room(const Port& port);

/**
 * Makes the port's network interface a member of the group for as long as the socket is open: ports
 * report themselves to switches by that (IGMP, MLD), and the kernel's own RDMA (rxe) sends through
 * the IP stack, which gives a datagram back to its own host only where the interface is a member.
 * Only of Ethernet ports with a network interface. Errors: of socket() and setsockopt().
 */
base::Result<base::Fd> join_interface(const GroupAddress& address, const Port& port);

/**
 * The end of a group that sends. Datagrams are copied into slots of its own, so that nothing of the
 * arena is named; when all are under way the next one is lost, and counted.
 */
class GroupSender {
 public:
  static base::Result<std::unique_ptr<GroupSender>> create(const GroupParts& parts,
                                                           const GroupKey& key);
  /** ERR, drained (bounded), destroyed. */
  ~GroupSender();
  GroupSender(const GroupSender&) = delete;
  GroupSender& operator=(const GroupSender&) = delete;

  /** Stages one datagram with these records. False: lost. */
  bool stage(const uint8_t* body, uint32_t bytes, uint32_t records);
  /** Posts what is staged; returns how many of it the device did not take. */
  uint32_t post();
  /** Takes completions; returns how many say error. A QP that an error stopped works again after
   * this. */
  uint32_t harvest();

 private:
  static constexpr uint32_t kDepth = 128;
  static constexpr uint32_t kBatch = 32;

  GroupSender() = default;
  uint8_t* slot(uint64_t position) const { return memory_.get() + position % kDepth * slot_bytes_; }

  const Port* port_ = nullptr;
  GroupAddress address_;
  uint64_t incarnation_ = 0;
  uint32_t slot_bytes_ = 0;
  uint64_t sequence_ = 0;
  uint64_t head_ = 0;    ///< everything below has its completion
  uint64_t posted_ = 0;  ///< everything below was given to the device
  uint64_t tail_ = 0;
  bool stopped_ = false;  ///< an error: nothing is sent until all is completed
  std::unique_ptr<uint8_t[]> memory_;
  std::vector<uint32_t> bytes_;  ///< of the datagram in each slot
  verbs::MrPtr mr_;
  verbs::CqPtr cq_;
  verbs::QpPtr qp_;
  verbs::AhPtr ah_;
};

/**
 * The end of a group that listens: a QP with slots and a CQ of its own, so that neither can a group
 * take room of the inbox nor the inbox of a group. The slots are a file of the domain's folder as
 * the inbox's are, so that the software device copies straight into them.
 */
class GroupListener {
 public:
  /** `file` is a number that no other file of this member's inbox has. */
  static base::Result<std::unique_ptr<GroupListener>> create(const GroupParts& parts,
                                                             const GroupKey& key, uint32_t slots,
                                                             uint32_t file);
  ~GroupListener();
  GroupListener(const GroupListener&) = delete;
  GroupListener& operator=(const GroupListener&) = delete;

  /** A datagram that has arrived and whose slot is not posted. */
  struct Arrived {
    const uint8_t* frame;  ///< header, then records
    uint32_t bytes;
    uint32_t slot;
  };

  /** Takes completions; true when there is a datagram now. */
  bool collect();
  bool any() const { return first_ != last_; }
  Arrived front() const;
  /** The oldest one was copied: its slot is free, and posted at the latest by post(). */
  void pop();
  void post();

  ibv_cq* cq() const { return cq_.get(); }
  uint64_t tag() const { return address_.tag; }
  uint32_t slots() const { return slots_; }
  uint64_t bytes() const { return mapping_.size(); }

 private:
  static constexpr uint32_t kBatch = 32;

  GroupListener() = default;

  GroupAddress address_;
  uint32_t slots_ = 0;
  uint32_t slot_bytes_ = 0;
  int folder_ = -1;
  std::string file_;
  base::Mapping mapping_;
  base::Fd member_;  ///< what makes the network interface a member of the group; none without one
  verbs::MrPtr mr_;
  verbs::CqPtr cq_;
  verbs::QpPtr qp_;
  bool attached_ = false;
  struct Completed {
    uint32_t slot, bytes;
  };
  std::vector<Completed> ring_;  ///< as many as there are slots
  uint64_t first_ = 0, last_ = 0;
  uint32_t batch_[kBatch];
  uint32_t batched_ = 0;
};

}  // namespace millrace::transport
