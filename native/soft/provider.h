#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "verbs/provider.h"

namespace millrace::soft {

/** The software device's table. Static; never null. Its devices are called "soft0" to "soft7". */
const verbs::Provider* provider();

/**
 * Why the last call of this thread into the software device failed, in full (a verbs call can only
 * tell an errno). Success if none failed yet. Copy it before the next call.
 */
base::Status last_error();

/** The layout of shared memory in this build: "major.minor", see layout.h. */
std::string layout_text();

/** What a clean-up found. */
struct CleanReport {
  uint32_t reaped = 0;  ///< processes that had died without leaving
  uint64_t bytes = 0;   ///< bytes of shared memory given back
};

/**
 * Removes what dead processes left in this user's fabric (MILLRACE_SHM_DIR, MILLRACE_FABRIC), and
 * the whole fabric if nobody is left in it. Safe at any time, also while others use the fabric. Any
 * thread.
 */
base::Result<CleanReport> clean_fabric();

}  // namespace millrace::soft
