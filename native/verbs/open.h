#pragma once

#include <infiniband/verbs.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "verbs/provider.h"

namespace millrace::verbs {

/**
 * Opens a device by name:
 * - "soft" (or "soft0", "soft1", ...) is the software device; the system's library is not even
 *   loaded for it;
 * - "soft@" and the name of a network interface is the software device with an Ethernet port that
 * this interface feeds ("soft@*": all of them);
 * - "auto" takes the first device of the system that lanes can be made on now (an active port, RC
 *   with shared receive queues or XRC), else the software device, and says in `note` what was
 *   missing;
 * - anything else is the name of a device of the system.
 *
 * The context belongs to the caller, who closes it with ibv_close_device() after everything made
 * from it. `note` (may be null) is set to a sentence where something is worth telling, else to "".
 * Errors: ENODEV with the list of what exists and what is missing; whatever joining the software
 * device's fabric reports (ENOSPC, EACCES for a folder of another user, EPROTO for another layout,
 * EPERM in a forked child); the errno of ibv_open_device. Any thread.
 */
base::Result<ibv_context*> open_device(std::string_view name, std::string* note = nullptr);

/**
 * A verbs call that failed with `error` (0 is taken as EINVAL: some providers leave errno alone).
 * Of a context of the software device with its own words for the reason. At once after the call, in
 * its thread.
 */
base::Status call_error(const ibv_context* context, const char* what, int error);

/** Why the system has no RDMA device at all, in words and with what to do; "" when it has some. */
std::string why_no_system_device();

/** The provider that made this device; never null for a device from one of our lists. */
const Provider* provider_of(const ibv_device* device);

}  // namespace millrace::verbs
