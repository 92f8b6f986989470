#pragma once

#include "soft/layout/words.h"
#include "soft/packet.h"

/** Multicast groups, and the flow rules and counters of ports, in the root file. */
namespace millrace::soft {

inline constexpr uint32_t kGroups = 2048;       ///< attachments of QPs to multicast groups
inline constexpr uint32_t kFlows = 16384;       ///< flow rules of all ports
inline constexpr uint32_t kFlowStep = 512;      ///< reserved at first, then as many again
inline constexpr uint32_t kSpreads = 256;       ///< QPs with receive side scaling
inline constexpr uint32_t kSpreadQueues = 128;  ///< work queues that one of them spreads to
inline constexpr uint32_t kHashKey = 40;        ///< bytes of a Toeplitz key
inline constexpr uint32_t kPortRecords = 8;     ///< a device has one port
inline constexpr uint32_t kDropReasons = 8;

/**
 * A QP's attachment to a multicast group. `owner` is a claim word, see claims.h: 0 free, a
 * process's name while it is filled in, then live.
 */
struct GroupRecord {
  Word owner;
  uint8_t gid[16];
  uint32_t qpn;
  uint16_t lid;  ///< 0: any
  uint16_t device;
  uint64_t reserved[4];
};
static_assert(sizeof(GroupRecord) == 64);

/** A flow rule of a device's port; `owner` as above. The counts are the only fields that others
 * write. */
struct FlowRecord {
  // What is looked at for each frame, in one line of memory.
  Word owner;
  Word packets;
  Word bytes;
  uint64_t order;
  uint32_t qpn;
  uint32_t tag;
  uint16_t device;
  uint16_t priority;
  uint8_t kind;     ///< FlowKind
  uint8_t flags;    ///< see flow.cc
  uint16_t spread;  ///< 1 + index of the SpreadRecord of its QP; 0: none
  uint64_t reserved1[2];
  FlowMatch match;
  uint64_t reserved2[2];
};
static_assert(offsetof(FlowRecord, match) == 64);
static_assert(sizeof(FlowRecord) == 448);

/** How a RAW_PACKET QP with receive side scaling spreads frames; `owner` as above. */
struct SpreadRecord {
  Word owner;
  uint64_t fields;  ///< ibv_rx_hash_fields
  uint32_t size;    ///< of the indirection table, a power of two
  uint32_t reserved;
  uint8_t key[kHashKey];
  uint32_t qpns[kSpreadQueues];
};
static_assert(sizeof(SpreadRecord) == 576);

/** What a device's port lost, by DropReason. */
struct PortRecord {
  Word drops[kDropReasons];
};
static_assert(sizeof(PortRecord) == 64);

}  // namespace millrace::soft
