#pragma once

#include "base/status.h"
#include "transport/member.h"

namespace millrace::transport {

/** What is wrong with a member's options by themselves: EINVAL, with the limit. What the device can
 * do is looked at later. */
base::Status check_options(const MemberOptions& options);

}  // namespace millrace::transport
