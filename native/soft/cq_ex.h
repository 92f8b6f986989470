#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

/** What an extended CQ can be asked to tell; IBV_WC_EX_WITH_TM_INFO is the only one that it can't.
 */
inline constexpr uint64_t kWcFlags =
    uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN |
    IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/** Limits of ibv_modify_cq's moderation, for ibv_query_device_ex. */
inline constexpr uint16_t kMaxModerationCount = 0xFFFF;
inline constexpr uint16_t kMaxModerationPeriodUs = 0xFFFF;

/**
 * A CQ whose completions are read field by field between start_poll and end_poll. Every field can
 * be read whatever `wc_flags` asked for, but for timestamps, which are those of the poll that found
 * the completion (0 if not asked for). EOPNOTSUPP: wc_flags that this device does not have; EINVAL:
 * unknown comp_mask or flags, or a PD that is no parent domain. ibv_poll_cq() works on it as well,
 * also inside a session.
 */
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);

/**
 * Event moderation: once an event is due, ibv_get_cq_event() holds it back until `cq_count`
 * completions wait or `cq_period` microseconds have passed (rounded up to a tenth of a
 * millisecond). 0 for either turns it off.
 */
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr);

}  // namespace millrace::soft
