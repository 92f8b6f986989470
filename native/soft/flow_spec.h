#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "soft/flow_index.h"

namespace millrace::soft {

/** What ibv_flow_attr asks for, without the QP. */
struct FlowRequest {
  FlowRule rule;
  uint8_t port = 0;
  std::vector<ibv_counters*> counters;  ///< of the COUNT actions
};

/**
 * Reads a flow attribute and the specs behind it. How many there are is what `num_of_specs` and
 * their own sizes say, and `attr->size` must agree; a size of the attribute alone counts as not
 * said, because libibverbs never looks at it and programs (pyverbs) leave it so. Never reads more
 * than `limit` bytes, nor more of a spec than its type has. EINVAL for
 * what VERBS 3 lists (comp_mask, sizes, an ether_type against the IP spec, specs or a tag on a rule
 * that takes none), EOPNOTSUPP for egress and for actions of other devices. `detail` names the
 * spec. A NORMAL rule without a match spec
 * matches every frame. Does not look at the port. Any thread.
 */
base::Result<FlowRequest> read_flow(const ibv_flow_attr* attr, size_t limit = SIZE_MAX);

}  // namespace millrace::soft
