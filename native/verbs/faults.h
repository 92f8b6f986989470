#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace millrace::verbs {

/**
 * Faults that a device is made to show, all drawn from one seed (splitmix64), so that a failing run
 * can be repeated. The six numbers are probabilities (0..1) per posted send or repost; 0 is never.
 */
struct FaultPlan {
  uint64_t seed = 1;
  double error = 0;      ///< error completion, nothing was delivered, the QP is in ERR
  double ambiguous = 0;  ///< delivered, yet completed with an error, the QP is in ERR
  double delay = 0;  ///< held back for some polls; later work requests of that QP wait behind it
  double rnr =
      0;  ///< a repost of the SRQ is withheld for some polls, so that senders meet an empty SRQ
  double dead_srq = 0;            ///< sent to an SRQ number that does not exist
  double drop = 0;                ///< a datagram of a UD QP that gets lost on the way
  uint32_t max_delay_polls = 16;  ///< upper bound of "some polls", at least 1
  uint64_t lock_limit = 0;  ///< registering more bytes than this at once fails with ENOMEM; 0: none
};

/** What was injected so far; for tests that must know that their faults happened. */
struct FaultCounts {
  uint64_t errors = 0, ambiguous = 0, delayed = 0, withheld = 0, dead_srqs = 0, dropped = 0;
};

/**
 * Decorates a context: wraps the post_send, poll_cq, post_srq_recv and req_notify_cq of
 * `context->ops`. It only does what a real device may do: completions of a QP stay in order, an
 * error moves the QP to ERR and the later work requests are flushed, a delay is over at the latest
 * when a CQ is armed (sleeping takes longer than polling).
 *
 * Install right after opening the device, before any object is made from it; remove_faults() before
 * ibv_close_device(). The usual order must be kept by the caller: QPs are drained before RESET or
 * destroy. Errors: EINVAL (a probability outside 0..1), EEXIST (already decorated). Any thread.
 */
base::Status install_faults(ibv_context* context, const FaultPlan& plan);

/** Takes the decoration off again; withheld work is dropped. Does nothing when there is none. Any
 * thread. */
void remove_faults(ibv_context* context);

/**
 * Whether so many bytes may be registered with a context at once: what ibv_reg_mr asks from the
 * first install_faults() on, null before. (A pointer, since not every program with the verbs has
 * this decorator.)
 */
inline std::atomic<bool (*)(ibv_context* context, size_t bytes)> may_register{nullptr};

/** What was injected into this context; all zero when it is not decorated. Any thread. */
FaultCounts fault_counts(ibv_context* context);

}  // namespace millrace::verbs
