#pragma once

#include "soft/qp.h"

// What the files of the QP share and nobody else needs.

namespace millrace::soft {

inline constexpr uint32_t kMaxRdAtomic = 16;

/** The holders of an XRC target's number; null: no target can have that number. */
inline QpHolders* holders_of(Root& root, uint32_t number) {
  const uint32_t index = number % root.qps();
  return index < root.targets() ? &root.holders(index) : nullptr;
}

/** Takes this process's hold on a target away; closing_step() is due. */
void drop_hold(QpHolders& holders, uint32_t incarnation, uint32_t index);

/** The sizes of a QP's own receive queue. */
inline QueueLayout own_queue_layout(const Qp& qp) {
  const bool waits = qp.type() == IBV_QPT_RC;  // RNR; the others drop
  return {qp.cap.max_recv_wr, qp.cap.max_recv_sge, waits ? kOwnParkEntries : 0};
}

/** The process at the other end of a connection; 0 if there is none. */
uint64_t peer_owner(const Qp& qp);

/** A record's word in another state. */
constexpr uint64_t state_word(uint64_t word, ibv_qp_state state) {
  return record_word(record_number(word), record_life(word), state, record_incarnation(word));
}

/** What of the record's health shows in the state: a fault is ERR once its owner looks. */
void notice_fault(Qp& qp);

/** Nobody can deliver to this QP any more, and nothing of it is in its CQs: the state word says so
 * already. False: somebody who is stopped still is inside its own queue (R6, R25). */
bool silence(Qp& qp);

}  // namespace millrace::soft
