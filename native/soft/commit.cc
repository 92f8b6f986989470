#include "soft/pipeline.h"
#include "soft/step.h"

namespace millrace::soft {

bool has_room(Qp& qp, RingUse& use, uint64_t* seen) {
  if (use.tail - use.head_seen < use.capacity) return true;
  use.head_seen =
      use.ring->head.load(std::memory_order_acquire);  // pairs with the receiver's store of head
  if (use.tail - use.head_seen < use.capacity) return true;
  use.ring->park.store(qp.process->next_number());
  use.head_seen = use.ring->head.load();  // again, after registering; seq_cst on both sides (R10)
  if (use.tail - use.head_seen < use.capacity) return true;
  *seen = use.head_seen;
  return false;
}

Entry& write_entry(Qp& qp, RingUse& use, const Peer& peer, const ibv_send_wr& wr,
                   const Operation& op, uint32_t index, uint32_t total,
                   const ScatterResult& copied) {
  // In its place at once: a copy on the stack, written in small parts and read in large ones, costs
  // as much as the rest of this.
  Entry& entry = use.ring->entries[use.tail & (use.capacity - 1)];
  entry.wqe = static_cast<uint16_t>(index);
  entry.slid = 0;
  entry.byte_len = total;
  entry.imm = op.immediate || op.invalidate ? wr.imm_data : 0;
  entry.opcode = static_cast<uint8_t>(op.received - IBV_WC_RECV);
  entry.flags = static_cast<uint8_t>(
      (op.immediate ? IBV_WC_WITH_IMM : (op.invalidate ? IBV_WC_WITH_INV : 0)) |
      (copied.carried ? kEntryCarried : 0));
  entry.status = static_cast<uint8_t>(copied.remote);
  entry.solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0 || copied.remote != IBV_WC_SUCCESS;
  entry.src_qp = qp.number;
  entry.qp_num = qp.target_number;
  entry.queue = peer.id;
  entry.position = static_cast<uint16_t>(use.tail);
  entry.pkey_index = 0;
  step("entry written");
  return entry;
}

void commit(Qp& qp, RingUse& use, bool solicited) {
  // The only commit (R1). Release: pairs with the receiver's acquire of the tail; it sees the entry
  // and the copied bytes.
  use.ring->tail.store(++use.tail, std::memory_order_release);
  step("committed");
  use.solicited |= solicited;
  if (!use.touched) {
    use.touched = true;
    qp.touched.push_back(&use);  // never allocates: claim_ring() reserved
  }
}

void tell_receivers(Qp& qp) {
  for (RingUse* use : qp.touched) {
    announce(*use->cq, use->index, use->wake_fd, use->solicited);
    use->touched = use->solicited = false;
  }
  qp.touched.clear();
}

}  // namespace millrace::soft
