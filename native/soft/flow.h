#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "soft/flow_index.h"
#include "soft/port.h"
#include "soft/rss.h"

namespace millrace::soft {

class Process;
struct Context;
struct Counters;
struct Qp;

/**
 * All flow rules of the fabric as they were at one moment, ready to be matched: one index for each
 * device's port. Immutable; shared by whoever delivers frames in this process, QPs and network
 * interfaces alike.
 */
struct FlowTable {
  uint64_t changes = 0;  ///< the fabric's count when it was read
  FlowIndex ports[kDevices];
  std::map<uint32_t, Spread> spreads;  ///< by FlowRule::spread
};

/**
 * The rules as they are now. `known` is what the caller had: it comes back while nothing has
 * changed, which costs one load. Reads the fabric's table otherwise; then takes registry(). Any
 * thread.
 */
std::shared_ptr<const FlowTable> flow_table(Process& process,
                                            const std::shared_ptr<const FlowTable>& known);
/** Counts a frame for the rule that it matched. Any thread. */
void count_frame(Process& process, const FlowEntry& rule, uint32_t bytes);

/** A rule that this process made. */
struct Flow {
  ibv_flow flow = {};
  Qp* qp = nullptr;
  uint32_t record = 0;
  uint64_t word = 0;  ///< of the record while it is ours
  std::vector<Counters*> counters;
  static Flow& of(ibv_flow* handle) { return *reinterpret_cast<Flow*>(handle); }
};

/**
 * Steers frames to a RAW_PACKET QP (VERBS 3). Null with errno: EPERM without CAP_NET_RAW; ENXIO
 * when steering is off (MILLRACE_SOFT_STEERING=0); EINVAL for the wrong type, port or attribute
 * (see read_flow()); EOPNOTSUPP on an InfiniBand port; ENOMEM when the fabric's table is full. A UD
 * QP may have flows, too, but plain frames never reach it. Any thread.
 */
ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr);
int destroy_flow(ibv_flow* flow);

/** Whether this process has the capability that raw frames need. */
bool may_use_raw_frames();
/** Whether objects of this context may be made that need it: not where UDP sockets stand in. */
bool may_use_raw_frames(const Context& context);

ibv_counters* create_counters(ibv_context* context, ibv_counters_init_attr* attr);
/** EBUSY while a flow counts into them. */
int destroy_counters(ibv_counters* counters);
/** Says what `attr->index` of the counters shows; with a flow, also that it counts here. */
int attach_counters_point_flow(ibv_counters* counters, ibv_counter_attach_attr* attr,
                               ibv_flow* flow);
/** The sums over all flows that count here, also of those that are gone. */
int read_counters(ibv_counters* counters, uint64_t* values, uint32_t count, uint32_t flags);

}  // namespace millrace::soft
