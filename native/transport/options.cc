#include "transport/options.h"

#include <errno.h>
#include <unistd.h>

#include "base/files.h"
#include "transport/credits.h"
#include "transport/frame.h"

namespace millrace::transport {

base::Status check_options(const MemberOptions& options) {
  const auto bad = [](const char* what, std::string detail) {
    return base::Status::error(EINVAL, what, std::move(detail));
  };
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (options.incarnation == 0) return bad("incarnation", "it must be greater than 0");
  if (options.slot_bytes < kMinSlotBytes || options.slot_bytes > kMaxSlotBytes ||
      options.slot_bytes % kRecordAlign != 0) {
    return bad("slotBytes", base::format("%u is not a multiple of %u in %u..%u", options.slot_bytes,
                                         kRecordAlign, kMinSlotBytes, kMaxSlotBytes));
  }
  if (options.slots < kFloorSlots) {
    return bad("slots",
               base::format("%u is less than one peer needs (%u)", options.slots, kFloorSlots));
  }
  if (options.max_slots < options.slots) {
    return bad("maxSlots",
               base::format("%u is less than slots (%u)", options.max_slots, options.slots));
  }
  if (options.arena_bytes < options.slot_bytes || options.arena_bytes > uint64_t{1} << 30 ||
      options.arena_bytes % page != 0) {
    return bad(
        "arenaBytes",
        base::format("%llu is not a multiple of the page size (%llu) between slotBytes and 1 GiB",
                     static_cast<unsigned long long>(options.arena_bytes),
                     static_cast<unsigned long long>(page)));
  }
  return base::Status::success();
}

}  // namespace millrace::transport
