#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "soft/device.h"
#include "soft/qp.h"

// The initiator does the whole operation in its own thread: there is no daemon and nobody on the
// other side has to run. The stages are in pipeline.h.

namespace millrace::soft {

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
/** Posts `count` linked WRs or, for whatever reason, none of them. */
int post_all(Qp& qp, ibv_send_wr* first, uint32_t count);

/** Whether progress() has anything to do; two loads. */
inline bool has_work(const Context& context) {
  return context.waiting_qps.load(std::memory_order_relaxed) != 0 ||
         context.process->wants_attention();
}
/** Carries the waiting work requests of a context's QPs on, and attends to QPs that others have
 * found at fault. Visits only those. No lock may be held. */
void progress(Context& context);

// The rest needs the QP's lock.

/** Runs what waits, and tells the receivers. */
void go_on(Qp& qp);
/** SQD: the WR that has begun is still carried on; then, or at once, SQ_DRAINED if `notify`. */
void stop_sending(Qp& qp, bool notify);
/** Completes everything that waits with IBV_WC_WR_FLUSH_ERR. */
void flush_waiting(Qp& qp);
/** Forgets everything that waits, without completions. */
void drop_waiting(Qp& qp);
/** Closes this QP's rings and gives its park entries back; the QP will not send any more. */
void disconnect_all(Qp& qp);
/** Forgets peers (not the rings), e.g. because the target changes. */
[[gnu::noinline, gnu::cold]] void forget_peers(Qp& qp);

}  // namespace millrace::soft
