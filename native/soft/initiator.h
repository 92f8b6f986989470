#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "soft/qp.h"

// The initiator does the whole operation in its own thread: there is no daemon and nobody on the
// other side has to run.

namespace millrace::soft {

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);

/** Carries the waiting work requests of all QPs of a context on. No lock may be held. */
void progress(Context& context);

/** Completes everything that waits with IBV_WC_WR_FLUSH_ERR. Needs the QP's lock. */
void flush_waiting(Qp& qp);
/** Forgets everything that waits, without completions. Needs the QP's lock. */
void drop_waiting(Qp& qp);
/** Closes this QP's rings and gives its park entries back; the QP will not send any more. Needs the
 * QP's lock. */
void disconnect_all(Qp& qp);
/** Forgets peers (not the rings), e.g. because the target changes. Needs the QP's lock. */
void forget_peers(Qp& qp);

}  // namespace millrace::soft
