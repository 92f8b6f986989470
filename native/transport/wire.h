#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "base/status.h"

namespace millrace::transport {

/** What a send queue leads to: the queue pair of one lane, and what its kind does in its own way.
 */
class Wire {
 public:
  virtual ~Wire() = default;

  /** The QP that WRs are posted to. */
  virtual ibv_qp* initiator() const = 0;
  /** Completes a WR that is meant for the receiver with that SRQ number. */
  virtual void address(ibv_send_wr& wr, uint32_t srq_number) const = 0;
  /** The initiator is in ERR and drained: whatever it takes so that nothing of the old connection
   * can land any more once the next one is made. */
  virtual void quiesce() = 0;
  /** Takes the QP (again) to where it can send. */
  virtual base::Status connect() = 0;
  /** QPs that this end holds. */
  virtual uint32_t queue_pairs() const = 0;
};

/**
 * Makes the QP of an initiator with a gather list of as many entries as it can have, up to
 * `attr->cap.max_send_sge`, which is set to what it got. Errors: of ibv_create_qp_ex, `detail` says
 * for what.
 */
base::Result<ibv_qp*> create_initiator(ibv_context* context, ibv_qp_init_attr_ex* attr,
                                       const char* detail);

}  // namespace millrace::transport
