#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "transport/frame.h"
#include "transport/holds.h"
#include "transport/leases.h"
#include "transport/member.h"
#include "transport/pool.h"

namespace millrace::transport {

static_assert(sizeof(RemoteDescriptor) == kDescriptorBytes);
static_assert(offsetof(RemoteDescriptor, bytes) == offsetof(Descriptor, bytes));

/** A block of our own pool that a payload of a member elsewhere is being read into. */
struct Landing {
  uint32_t hold = 0;   ///< of ours on the block, as any receiver of our own has it (Leases)
  uint32_t fetch = 0;  ///< its FETCH rows tell how it ends; until the last one the block is written
};

/**
 * Takes a block of our pool, holds it, and begins to read what the descriptor names into it. Then
 * the hold is what any other is: the caller gives the taking back, not before the fetch's last row.
 * Errors, with nothing taken: EPROTO (the descriptor), EAGAIN (no block, as much held as may be, or
 * too many fetches: later), E2BIG (more than our pool may have), ENOSPC and ENOMEM (what was
 * measured), ENOTCONN, EMFILE (no lane left), of the device.
 */
base::Result<Landing> land(Member& member, uint32_t peer, std::span<const uint8_t> descriptor,
                           Pool& pool, Leases& leases);

}  // namespace millrace::transport
