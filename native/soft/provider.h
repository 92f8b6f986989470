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

/**
 * Opens soft0 with a port that is Ethernet and fed by a network interface; `*` is all of them. Null
 * with errno: ENODEV for an unknown interface, ENOMEM, or what joining the fabric says. Without
 * CAP_NET_RAW ordinary UDP sockets stand in, and flows that those can't serve are EPERM.
 */
ibv_context* open_attached(const char* interface);

/** The layout of shared memory in this build: "major.minor", see layout.h. */
std::string layout_text();

/** What a port that is attached to a network interface has seen. All only grow. */
struct FeedCounters {
  uint64_t frames = 0;        ///< taken out of the ring
  uint64_t ring_drops = 0;    ///< lost by the kernel since nobody emptied the ring in time
  uint64_t unmatched = 0;     ///< let through by the coarse filter, and no rule's
  uint64_t fragments = 0;     ///< the same, of fragments: they have no ports to match (VERBS 3)
  uint64_t oversized = 0;     ///< longer than a port carries, or several in one that can't be cut
  uint64_t cut_off = 0;       ///< shorter than they were, for lack of the socket's memory
  uint64_t failed = 0;        ///< not delivered, for a shortage of this process
  uint64_t programs = 0;      ///< filters that the kernel was given
  bool stale = false;         ///< the interface has gone, and another one has its name
  bool unprivileged = false;  ///< UDP sockets stand in for the packet socket
  uint32_t socket_limit = 0;  ///< then: bytes that wait at each, where that is less than we want
};
/** Those of a context that verbs::open_device("soft@...") has opened; ENODEV for another one. Any
 * thread. */
base::Result<FeedCounters> feed_counters(ibv_context* context);

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
