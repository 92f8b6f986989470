#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

class Process;
class PeerProcess;
struct Mr;
struct Qp;

/**
 * A memory window: an entry in the table of regions, live while it is bound. So whoever translates
 * a key finds windows as it finds regions, and notices by the state word that one was bound anew or
 * invalidated (R34).
 */
struct Mw {
  ibv_mw mw = {};
  uint32_t index = 0;
  const Mr* bound = nullptr;  ///< the last binding's region; needs the process's registry mutex
  static Mw& of(ibv_mw* handle) { return *reinterpret_cast<Mw*>(handle); }
};

/** Types 1 and 2; EINVAL for another. ENOMEM: the table of regions and windows is full. */
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
/** Unbinds it if need be. */
int dealloc_mw(ibv_mw* mw);
/**
 * Posts the binding of a type 1 window; the window's new key is in `mw->rkey` at once. A length of
 * 0 unbinds. EINVAL: the QP is none that binds (RC, UC, XRC_SEND).
 */
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);

/** Whether a binding WR is one that can be posted at all: 0 or EINVAL. */
int check_bind(const Qp& qp, const ibv_send_wr& wr);
/** A binding WR's turn has come: success, or MW_BIND_ERR. Takes the registry mutex. */
ibv_wc_status run_bind(Qp& qp, const ibv_send_wr& wr);
/** A LOCAL_INV's turn has come: success, or LOC_QP_OP_ERR. Takes the registry mutex. */
ibv_wc_status run_local_invalidate(Qp& qp, uint32_t rkey);
/**
 * The responder's half of SEND_WITH_INV, done by the initiator: takes a type 2 window of the
 * target's process out of use, if it belongs to `pd` and is bound on QP `qpn` (0: on any; an XRC
 * target binds none). False: it is none of the kind. A window that is invalid already stays so and
 * is no fault. Takes the registry mutex.
 */
bool invalidate_remotely(Process& process, PeerProcess& target, uint32_t rkey, uint32_t pd,
                         uint32_t qpn);

/** How many windows are bound to a region of this process. Needs the registry mutex. */
uint32_t windows_on(Process& process, const Mr& mr);

}  // namespace millrace::soft
