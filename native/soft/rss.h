#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "soft/layout/network.h"
#include "soft/packet.h"

namespace millrace::soft {

class Process;
class Root;
struct Context;
struct Qp;

/** What of a frame decides which queue it goes to. */
inline constexpr uint64_t kHashFields =
    uint64_t{IBV_RX_HASH_SRC_IPV4} | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_IPV6 |
    IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP |
    IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP | IBV_RX_HASH_IPSEC_SPI | IBV_RX_HASH_INNER;

/** How a receive side scaling QP spreads frames over work queues; a private copy. */
struct Spread {
  uint64_t fields = 0;  ///< ibv_rx_hash_fields
  uint8_t key[kHashKey] = {};
  uint32_t size = 0;  ///< a power of two; 0: it is gone
  uint32_t qpns[kSpreadQueues] = {};
};

/** Toeplitz over the fields that are asked for and that the frame has: source address, destination
 * address, source port, destination port. 0 if it has none of them. */
uint32_t spread_hash(const Spread& spread, const PacketFields& fields);
/** The QP number of the work queue that gets a frame; 0: none. */
uint32_t spread_to(const Spread& spread, const PacketFields& fields);
/** The spread in a record of the fabric; of size 0 if there is none. */
Spread read_spread(Root& root, uint32_t index);

/**
 * A receive work queue. It is a RAW_PACKET QP that nobody sees and that only receives: its number
 * is the queue's, and completions carry it as qp_num.
 */
struct Wq {
  ibv_wq wq = {};
  ibv_qp* qp = nullptr;
  std::atomic<uint32_t> users{0};  ///< indirection tables
  static Wq& of(ibv_wq* handle) { return *reinterpret_cast<Wq*>(handle); }
};

struct IndirectionTable {
  ibv_rwq_ind_table table = {};
  std::vector<Wq*> wqs;
  std::atomic<uint32_t> users{0};  ///< QPs
  static IndirectionTable& of(ibv_rwq_ind_table* handle) {
    return *reinterpret_cast<IndirectionTable*>(handle);
  }
};

/** EOPNOTSUPP for flags (no VLAN stripping, no FCS) and where RAW_PACKET is; EINVAL. */
ibv_wq* create_wq(ibv_context* context, ibv_wq_init_attr* attr);
/** RESET to RDY, RDY to ERR (receives are flushed), anything to RESET. EINVAL otherwise. */
int modify_wq(ibv_wq* wq, ibv_wq_attr* attr);
/** EBUSY while it is in an indirection table. */
int destroy_wq(ibv_wq* wq);
ibv_rwq_ind_table* create_rwq_ind_table(ibv_context* context, ibv_rwq_ind_table_init_attr* attr);
/** EBUSY while a QP uses it. */
int destroy_rwq_ind_table(ibv_rwq_ind_table* table);

/** Whether the QP asks for receive side scaling, and if so, rightly. */
inline bool wants_spread(const ibv_qp_init_attr_ex& attr) {
  return (attr.comp_mask & (IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE)) != 0;
}
base::Status check_spread(const ibv_qp_init_attr_ex& attr);
/** Makes a fresh RAW_PACKET QP one that spreads. ENOMEM: the fabric's table is full. */
base::Status begin_spread(Qp& qp, const ibv_qp_init_attr_ex& attr);
/** The QP goes; no flow leads to it any more. */
void end_spread(Qp& qp);

}  // namespace millrace::soft
