#pragma once

#include <infiniband/verbs.h>

#include <string_view>

#include "base/status.h"
#include "verbs/provider.h"

namespace millrace::verbs {

/**
 * Opens a device by name: "soft" (or "soft0") is the software device, "auto" takes the best that
 * there is (at present the software device), anything else is looked up among all providers'
 * devices.
 *
 * The context belongs to the caller, who closes it with ibv_close_device() after everything made
 * from it. Errors: ENODEV with the list of what exists; whatever joining the software device's
 * fabric reports (ENOSPC, EACCES for a folder of another user, EPROTO for another layout, EPERM in
 * a forked child). Any thread.
 */
base::Result<ibv_context*> open_device(std::string_view name);

/** The provider that made this device; never null for a device from one of our lists. */
const Provider* provider_of(const ibv_device* device);

}  // namespace millrace::verbs
